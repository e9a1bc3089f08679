"""What a person sees while a search or a training runs, and when it has ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dada.config import SearchConfig, TrainConfig
from dada.data import Split
from dada.policy import Policy
from dada.results import Result, Trained
from dada.safe_text import shell_word
from dada.terminal.policy_table import bar

SHOWN = 10  # sub-policies in the closing table
WORST = 5  # classes in a training's


class EpochProgress:
    """A bar with time left and the numbers of the last epoch; plain lines when not a terminal."""

    doing = ""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
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
        self.task: Any = None
        self.phases: dict[str, Any] = {}  # those after the epochs
        self.last_line = 0.0

    def say(self, split: Split, settings: str) -> None:
        self.console.print(f"data    {split.summary()}", highlight=False, markup=False)
        for note in split.notes:
            self.console.print(f"note    {note}", highlight=False, markup=False)
        self.console.print(settings, highlight=False, markup=False)
        self.bar.start()

    def numbers(self, metrics: dict[str, Any]) -> str:
        raise NotImplementedError

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        numbers = self.numbers(metrics)
        if self.bar.disable:
            now = time.monotonic()
            if now - self.last_line > 10 or metrics["epoch"] == epochs:  # a log, not a flood
                self.console.print(f"epoch {metrics['epoch']}/{epochs}  {numbers}", highlight=False)
                self.last_line = now
            return
        if self.task is None:
            self.task = self.bar.add_task(
                "", total=epochs, numbers=numbers, doing=f"{self.doing}, epoch"
            )
        self.bar.update(self.task, completed=metrics["epoch"], numbers=numbers)

    def stop(self) -> None:
        self.bar.stop()


class SearchProgress(EpochProgress):
    """Loss, accuracy, entropy of the policy and how much it changed."""

    doing = "searching"

    def start(self, split: Split, config: SearchConfig, model: str) -> None:
        self.say(split, f"search  {model}; preset {config.preset}, estimator {config.estimator}")

    def numbers(self, metrics: dict[str, Any]) -> str:
        return (
            f"loss {metrics['loss']:.3f}  val accuracy {metrics['val_accuracy']:.3f}  "
            f"entropy {metrics['entropy']:.2f}  change {metrics['change']:.3f}"
        )

    def lookahead(self, done: int, total: int) -> None:
        """A run of looking ahead has ended."""
        self._phase("looking ahead", done, total, "")

    def training(self, name: str, score: float, done: int, total: int) -> None:
        """A training of the verification has ended; `score` is its accuracy in percent."""
        self._phase("verifying", done, total, f"{name} {score:.1f}%")

    def _phase(self, doing: str, done: int, total: int, numbers: str) -> None:
        if self.bar.disable:
            line = f"{doing} {done}/{total}  {numbers}".rstrip()
            self.console.print(line, highlight=False, markup=False)
            return
        if doing not in self.phases:
            self.phases[doing] = self.bar.add_task("", total=total, numbers=numbers, doing=doing)
        self.bar.update(self.phases[doing], completed=done, numbers=numbers)


class TrainProgress(EpochProgress):
    """The training loss."""

    doing = "training"

    def start(self, split: Split, config: TrainConfig, model: str) -> None:
        self.say(split, f"train   {model}; batches of {config.batch_size}")

    def numbers(self, metrics: dict[str, Any]) -> str:
        return f"loss {metrics['loss']:.3f}"


def print_trained(trained: Trained, console: Console) -> None:
    """How good the network is, where it errs most, and the files."""
    scores = trained.scores
    title = f"on {scores.images:,} images it had not seen"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("accuracy", f"{scores.accuracy:.2%}")
    if scores.top5 is not None:
        table.add_row("among the best five", f"{scores.top5:.2%}")
    table.add_row("mean accuracy of the classes", f"{scores.balanced_accuracy:.2%}")
    table.add_row("loss", f"{scores.loss:.4f}")
    console.print(table)
    errors = zip(scores.class_error_C, trained.classes, scores.confusion_CC, strict=True)
    known = ((error, name, row) for error, name, row in errors if error is not None)
    worst = sorted(known, key=lambda found: -found[0])[:WORST]
    classes = Table(title="classes with the most errors", title_justify="left")
    for column in ("class", "", "error", "images", "taken for"):
        classes.add_column(column)
    for error, name, row in worst:
        others = [0 if other == name else n for other, n in zip(trained.classes, row, strict=True)]
        mistaken = trained.classes[others.index(max(others))] if max(others) else "-"
        classes.add_row(
            escape(name), bar(error, 16), f"{error:.1%}", str(sum(row)), escape(mistaken)
        )
    console.print(classes)
    console.print(
        f"trained in {trained.seconds:.0f} s, {trained.images_per_second:,.0f} images/s",
        highlight=False,
    )
    if trained.out is not None:
        for name, what in (
            ("model.safetensors", "the weights"),
            ("model.json", "the network, its classes and its input"),
            ("scores.json", "these numbers and the confusion matrix"),
            ("log.jsonl", "the loss after every epoch"),
        ):
            console.print(f"  {trained.out / name}  {what}", highlight=False, markup=False)


def print_result(result: Result, console: Console) -> None:
    """The policy as a table, the files, and what to type next."""
    policy = result.policy
    console.print(_best_subpolicies(policy))
    rates = Table(title="how often each operation is done to an image", title_justify="left")
    for column in ("operation", "", "share"):
        rates.add_column(column)
    for name, share in sorted(policy.op_probabilities().items(), key=lambda item: -item[1]):
        rates.add_row(name, bar(min(1.0, share), 24), f"{share:.1%}")
    console.print(rates)
    verification = policy.provenance.get("verification")
    if "lookahead" in policy.provenance:
        console.print(_looked_ahead(policy), highlight=False, markup=False)
    said = "Not yet compared with the free policies: --verify-budget or dada compare does that."
    if verification is not None:
        said = f"Verified: {verification['verdict']}"
    console.print(f"found in {result.seconds:.0f} s. {said}", highlight=False, markup=False)
    if result.out is not None:
        _print_files(result.out, console)


def _looked_ahead(policy: Policy) -> str:
    seen = policy.provenance["lookahead"]
    if seen is None:
        return "Looking ahead was left out: too long here. --lookahead SECONDS allows it."
    words = f"Looking ahead scored the operations in {seen['runs']} runs"
    if (small := seen.get("stand_in")) is not None:
        height, width = small["image_size"]
        words += f" (of {small['model']}, with images shrunk to {width}x{height}, to save time)"
    if "policy_runs" not in seen:
        return f"{words}."
    return (
        f"{words} and, of {len(seen['policy_loss'])} policies made of them, took in "
        f"{seen['policy_runs']} more: {seen['shape']}."
    )


def _best_subpolicies(policy: Policy) -> Table:
    table = Table(
        title=f"the {min(SHOWN, len(policy.subpolicies))} likeliest of "
        f"{len(policy.subpolicies)} sub-policies",
        title_justify="left",
    )
    table.add_column("drawn", justify="right")
    table.add_column("what is done")
    table.add_column("probability")
    for subpolicy in sorted(policy.subpolicies, key=lambda s: -s.weight)[:SHOWN]:
        table.add_row(
            f"{subpolicy.weight:.1%}",
            "\n".join(policy.describe_op(step) for step in subpolicy.ops),
            "\n".join(f"{step.probability:.2f}" for step in subpolicy.ops),
        )
    return table


def _print_files(out: Path, console: Console) -> None:
    for name, what in (
        ("report.html", "a page to look at"),
        ("policy.json", "the policy"),
        ("log.jsonl", "what was measured after every epoch"),
        ("config.toml", "the settings"),
    ):
        console.print(f"  {out / name}  {what}", highlight=False, markup=False)
    command = f"dada show {shell_word(out)} --image {shell_word(out / 'policy.png')}"
    console.print(f"next:  {command}", highlight=False, markup=False)
