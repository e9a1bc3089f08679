"""What a person sees while a search, a training or a comparison runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dada.config import SearchConfig, TrainConfig
from dada.data import Split
from dada.terminal.tracking import Tracker
from dada.trials.runners import Trial

SECONDS_BETWEEN_LINES = 10  # of a log that nobody watches: a log, not a flood

Callbacks = dict[str, Callable[..., None]]


class RunProgress:
    """Bars with the time left and the latest numbers; plain lines where there is no terminal."""

    def __init__(self, console: Console, out: Path) -> None:
        self.console, self.out = console, out
        self.bars = Progress(
            TextColumn("{task.fields[doing]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar_of: dict[str, Any] = {}

    def callbacks(self, track: Tracker) -> Callbacks:
        """Arguments of the function that runs: what to call, and when it is called."""
        raise NotImplementedError

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False)

    def note(self, line: str) -> None:
        self.console.print(f"note    {line}", highlight=False, markup=False, soft_wrap=True)

    def begin(self, split: Split, command: str, settings: str) -> None:
        lines = [("data", split.summary()), *(("note", note) for note in split.notes)]
        for title, line in (*lines, (command, settings)):
            self.say(f"{title:{max(6, len(command))}}  {line}")
        self.bars.start()

    def advance(self, doing: str, done: int, total: int, numbers: str) -> None:
        if doing not in self.bar_of:
            self.bar_of[doing] = self.bars.add_task("", total=total, numbers="", doing=doing)
        self.bars.update(self.bar_of[doing], completed=done, numbers=numbers)

    def count(self, doing: str, done: int, total: int, numbers: str = "") -> None:
        """One more has ended, and has a line of its own where there is no terminal."""
        if self.bars.disable:
            self.say(f"{doing} {done}/{total}  {numbers}".rstrip())
        else:
            self.advance(doing, done, total, numbers)

    def stop(self) -> None:
        self.bars.stop()


class EpochProgress(RunProgress):
    """The epochs of one training."""

    doing = ""
    last_line = 0.0

    def start(self, split: Split, config: Any, model: str) -> None:
        raise NotImplementedError

    def numbers(self, metrics: dict[str, Any]) -> str:
        raise NotImplementedError

    def callbacks(self, track: Tracker) -> Callbacks:
        return {
            "on_start": self.start,
            "on_epoch": track.after(self.epoch),
            "on_note": self.note,
        }

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        epoch, numbers = metrics["epoch"], self.numbers(metrics)
        if not self.bars.disable:
            self.advance(f"{self.doing}, epoch", epoch, epochs, numbers)
        elif epoch == epochs or time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.say(f"epoch {epoch}/{epochs}  {numbers}")
            self.last_line = time.monotonic()


class SearchProgress(EpochProgress):
    """Loss, accuracy, entropy of the policy and how much it changed; then the other phases."""

    doing = "searching"

    def start(self, split: Split, config: SearchConfig, model: str) -> None:
        settings = f"{model}; preset {config.preset}, estimator {config.estimator}"
        self.begin(split, "search", settings)

    def numbers(self, metrics: dict[str, Any]) -> str:
        return (
            f"loss {metrics['loss']:.3f}  val accuracy {metrics['val_accuracy']:.3f}  "
            f"entropy {metrics['entropy']:.2f}  change {metrics['change']:.3f}"
        )

    def callbacks(self, track: Tracker) -> Callbacks:
        own: Callbacks = {"on_lookahead": self.lookahead, "on_training": self.training}
        return super().callbacks(track) | own

    def lookahead(self, done: int, total: int) -> None:
        """A run of looking ahead has ended."""
        self.count("looking ahead", done, total)

    def training(self, name: str, score: float, done: int, total: int) -> None:
        """A training of the verification has ended; `score` is its accuracy in percent."""
        self.count("verifying", done, total, f"{name} {score:.1f}%")


class TrainProgress(EpochProgress):
    """The training loss."""

    doing = "training"

    def start(self, split: Split, config: TrainConfig, model: str) -> None:
        self.begin(split, "train", f"{model}; batches of {config.batch_size}")

    def numbers(self, metrics: dict[str, Any]) -> str:
        return f"loss {metrics['loss']:.3f}"


class CompareProgress(RunProgress):
    """The trainings that have ended."""

    done = total = 0

    def callbacks(self, track: Tracker) -> Callbacks:
        return {
            "on_start": self.start,
            "on_trial": track.after_trial(self.trial),
            "on_note": self.note,
        }

    def start(self, split: Split, model: str, total: int) -> None:
        self.total = total
        self.begin(split, "compare", f"{model}; {total} trainings")
        self.advance("training", 0, total, "")

    def trial(self, trial: Trial, scores: dict[str, Any]) -> None:
        self.done += 1
        first = next(iter(scores.values()))  # of a task's scores that is the one that decides
        last = f"{trial}: {first:.2%} in {scores['seconds']:.0f} s"
        self.count("training", self.done, self.total, last)

    def stop(self) -> None:
        super().stop()
        if 0 < self.done < self.total:
            self.say(
                f"stopped after {self.done} of {self.total} trainings; the same command with "
                f"--resume continues from {self.out}"
            )


PROGRESS: dict[str, type[RunProgress]] = {
    "search": SearchProgress,
    "train": TrainProgress,
    "compare": CompareProgress,
}
