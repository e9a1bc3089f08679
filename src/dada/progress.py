"""What a person sees while a search runs, and when it has ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dada.api import Result
from dada.config import SearchConfig
from dada.data import Split
from dada.policy import Policy
from dada.show import bar

SHOWN = 10  # sub-policies in the closing table


class SearchProgress:
    """A bar with time left, loss, accuracy, entropy and change; plain lines when not a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("searching"),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task: Any = None
        self.last_line = 0.0

    def start(self, split: Split, config: SearchConfig, model: str) -> None:
        self.console.print(f"data    {split.summary()}", highlight=False, markup=False)
        for note in split.notes:
            self.console.print(f"note    {note}", highlight=False, markup=False)
        settings = f"{model}; preset {config.preset}, estimator {config.estimator}"
        self.console.print(f"search  {settings}", highlight=False, markup=False)
        self.bar.start()

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        numbers = (
            f"loss {metrics['loss']:.3f}  val accuracy {metrics['val_accuracy']:.3f}  "
            f"entropy {metrics['entropy']:.2f}  change {metrics['change']:.3f}"
        )
        if self.bar.disable:
            now = time.monotonic()
            if now - self.last_line > 10 or metrics["epoch"] == epochs:  # a log, not a flood
                self.console.print(f"epoch {metrics['epoch']}/{epochs}  {numbers}", highlight=False)
                self.last_line = now
            return
        if self.task is None:
            self.task = self.bar.add_task("", total=epochs, numbers=numbers)
        self.bar.update(self.task, completed=metrics["epoch"], numbers=numbers)

    def stop(self) -> None:
        self.bar.stop()


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
    console.print(
        f"found in {result.seconds:.0f} s. Not yet compared with the free policies "
        "(uniform, TrivialAugment): train with both before you trust it.",
        highlight=False,
    )
    if result.out is not None:
        _print_files(result.out, console)


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
        ("policy.json", "the policy"),
        ("log.jsonl", "what was measured after every epoch"),
        ("config.toml", "the settings"),
    ):
        console.print(f"  {out / name}  {what}", highlight=False, markup=False)
    console.print(f"next:  dada show {out} --image {out}/policy.png", highlight=False, markup=False)
