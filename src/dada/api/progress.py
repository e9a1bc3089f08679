"""What is told while a search, a training or a comparison runs, and to whom.

`SearchProgress`, `TrainProgress` and `CompareProgress` turn callbacks into words; a teller passes
them on: `Log` (tellers.py) to Python's logging, `Bars` (bars.py) to a person.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dada.api.tellers import Log, Teller
from dada.comparison import METRICS
from dada.comparison.plan import FEW_SEEDS, LONG, Plan
from dada.data import Split
from dada.report.verdict import duration
from dada.trials.runners import Trial

Callbacks = dict[str, Callable[..., None]]
P = ParamSpec("P")
R = TypeVar("R")


class RunProgress:
    """What search, train and compare have in common; `with` stops the teller however it ends."""

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.begun_at: dict[str, float] = {}

    def callbacks(self) -> Callbacks:
        """Arguments of the function that runs: what to call, and when it is called."""
        raise NotImplementedError

    def begin(self, split: Split, command: str, settings: str) -> None:
        lines = [("data", split.summary()), *(("note", note) for note in split.notes)]
        for title, line in (*lines, (command, settings)):
            self.teller.say(f"{title:{max(6, len(command))}}  {line}")
        self.teller.begin()

    def count(
        self, doing: str, done: float, total: int, numbers: str = "", *, ended: bool = True
    ) -> None:
        """The time left is that of what was done since the first call, at the same pace."""
        now = time.monotonic()
        first = self.begun_at.setdefault(doing, now)
        left = None if now == first else (now - first) * (total - done) / max(done, 1e-9)
        self.teller.advance(doing, done, total, numbers, left, ended=ended)

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *problem: object) -> None:
        self.teller.stop()


class TrainProgress(RunProgress):
    """The epochs of one training, and its loss."""

    doing = "training, epoch"

    def callbacks(self) -> Callbacks:
        return {"on_start": self.start, "on_epoch": self.epoch, "on_note": self.teller.note}

    def start(self, split: Split, config: Any, model: str) -> None:
        self.begin(split, "train", f"{model}; batches of {config.batch_size}")

    def epoch(self, metrics: Mapping[str, Any], epochs: int) -> None:
        self.begun_at.setdefault(self.doing, time.monotonic() - metrics["seconds"])
        self.count(self.doing, metrics["epoch"], epochs, self.numbers(metrics), ended=False)

    def numbers(self, metrics: Mapping[str, Any]) -> str:
        return f"loss {metrics['loss']:.3f}"


class SearchProgress(TrainProgress):
    """Loss, accuracy, entropy of the policy and how much it changed; then the other phases."""

    doing = "searching, epoch"

    def start(self, split: Split, config: Any, model: str) -> None:
        settings = f"{model}; preset {config.preset}, estimator {config.estimator}"
        self.begin(split, "search", settings)

    def plan(self, seconds: Mapping[str, float]) -> None:
        words = f"about {duration(sum(seconds.values()))} (counted, not measured)"
        if len(seconds) > 1:
            each = (f"{phase} {duration(one)}" for phase, one in seconds.items())
            words += f": {', '.join(each)}"
        if seconds:  # else an earlier session of the run has done all of it
            self.teller.say(f"time    {words}")
        if "measuring" not in seconds:  # the first phase is the second
            self.begun_at["looking ahead"] = time.monotonic()

    def numbers(self, metrics: Mapping[str, Any]) -> str:
        return (
            f"loss {metrics['loss']:.3f}  val accuracy {metrics['val_accuracy']:.3f}  "
            f"entropy {metrics['entropy']:.2f}  change {metrics['change']:.3f}"
        )

    def epoch(self, metrics: Mapping[str, Any], epochs: int) -> None:
        super().epoch(metrics, epochs)
        if metrics["epoch"] == epochs:  # the next phase begins
            self.begun_at["looking ahead"] = time.monotonic()

    def callbacks(self) -> Callbacks:
        own: Callbacks = {"on_plan": self.plan, "on_lookahead": self.lookahead}
        own |= {"on_training": self.training}
        return super().callbacks() | own

    def lookahead(self, done: int, total: int) -> None:
        """A run of looking ahead has ended."""
        self.count("looking ahead", done, total)
        if done == total:
            self.begun_at["verifying"] = time.monotonic()

    def training(self, name: str, score: float, done: int, total: int) -> None:
        """A training of the verification has ended; `score` is its accuracy in percent."""
        self.count("verifying", done, total, f"{name} {score:.1f}%")


class CompareProgress(RunProgress):
    """The trainings that have ended, and how far the others are."""

    out: Any = None  # the run directory, where there is one

    def __init__(self, teller: Teller) -> None:
        super().__init__(teller)
        self.done = self.total = 0
        self.running: dict[str, float] = {}  # trainings that have begun -> the share that is done
        self.heard: tuple[float, float] | None = None  # the first epoch: when, and what was done

    def callbacks(self) -> Callbacks:
        return {
            "on_start": self.start,
            "on_plan": self.plan,
            "on_trial": self.trial,
            "on_trial_epoch": self.epoch,
            "on_note": self.teller.note,
        }

    def start(self, split: Split, model: str, total: int) -> None:
        self.total = total
        self.begin(split, "compare", f"{model}; {total} trainings")

    def plan(self, plan: Plan) -> None:
        epochs = "1 epoch" if plan.epochs == 1 else f"{plan.epochs} epochs"
        words = f"{epochs} each, about {duration(plan.seconds)} in all (counted, "
        words += "not measured)"
        if plan.seconds > LONG and plan.seeds > FEW_SEEDS:
            words += f"; {FEW_SEEDS} seeds take {duration(plan.seconds_with(FEW_SEEDS))}"
        elif plan.seconds > LONG:
            words += f"; {plan.epochs // 2} epochs take half of it"
        self.teller.say(f"plan     {words}")
        if plan.visible is not None and plan.hopeless:
            self.teller.note(
                f"{plan.images:,} images to judge on and {plan.seeds} seeds will hardly show a "
                f"difference under {plan.visible:.0f} points; more test images or seeds would"
            )

    def epoch(self, trial: Trial, epoch: int, epochs: int) -> None:
        self.running[str(trial)] = epoch / epochs
        self._tell(f"{trial}, epoch {epoch}/{epochs}", ended=False)

    def trial(self, trial: Trial, scores: dict[str, Any]) -> None:
        self.running.pop(str(trial), None)
        self.done += 1
        score = next(scores[name] for name in METRICS if name in scores)
        last = f"{trial}: {score:.2%} in {scores['seconds']:.0f} s"
        self._tell(last, ended=True)

    def _tell(self, numbers: str, *, ended: bool) -> None:
        done = self.done + sum(self.running.values())
        now = time.monotonic()
        # From the first epoch on: neither processes that start nor trainings of an earlier session
        # say how fast this one is.
        if self.heard is None and self.running:
            self.heard = now, done
        since, first = self.heard or (now, done)
        left = (now - since) * (self.total - done) / (done - first) if done > first else None
        self.teller.advance("training", done, self.total, numbers, left, ended=ended)

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        if self.out is not None and 0 < self.done < self.total:
            self.teller.say(
                f"stopped after {self.done} of {self.total} trainings; the same command with "
                f"--resume continues from {self.out}"
            )


PROGRESS: dict[str, type[RunProgress]] = {
    "search": SearchProgress,
    "train": TrainProgress,
    "compare": CompareProgress,
}


def followed(function: Callable[P, R]) -> Callable[P, R]:
    """search, train or compare, which tells of its progress: with `progress=True` in bars, else to
    the log. Callbacks that the caller gave are called beside bars, and in place of the log."""

    @wraps(function)
    def with_progress(*arguments: P.args, **given: P.kwargs) -> R:
        teller: Teller = Log()
        shown = bool(given.get("progress"))
        if shown:
            from dada.api.bars import Bars

            teller = Bars()
        with PROGRESS[function.__name__](teller) as progress:
            for name, ours in progress.callbacks().items():
                theirs = given.get(name)
                if theirs is None:
                    given[name] = ours
                elif shown:
                    given[name] = both(ours, theirs)  # type: ignore[arg-type]
            return function(*arguments, **given)

    return with_progress


def both(ours: Callable[..., None], theirs: Callable[..., None]) -> Callable[..., None]:
    """One callback that calls two."""

    def call(*arguments: Any) -> None:
        ours(*arguments)
        theirs(*arguments)

    return call
