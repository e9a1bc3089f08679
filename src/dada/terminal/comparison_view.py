"""What a person sees while policies are compared, and when it has ended."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dada.comparison.result import Comparison, PolicyScores
from dada.data import Split
from dada.terminal.policy_table import bar
from dada.trials.runners import Trial, TrialScores
from dada.trials.statistics import Difference

BAR_WIDTH = 12


class CompareProgress:
    """A bar over the trainings; plain lines when not a terminal."""

    def __init__(self, console: Console, out: Path) -> None:
        self.console, self.out = console, out
        self.done = self.total = 0
        self.bar = Progress(
            TextColumn("comparing"),
            BarColumn(bar_width=24),
            TextColumn("training {task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def start(self, split: Split, model: str, total: int) -> None:
        self.total = total
        self.console.print(f"data     {split.summary()}", highlight=False, markup=False)
        for note in split.notes:
            self.console.print(f"note     {note}", highlight=False, markup=False)
        self.console.print(f"compare  {model}; {total} trainings", highlight=False, markup=False)
        self.bar.start()
        self.task = self.bar.add_task("", total=total, last="")

    def trial(self, trial: Trial, outcome: TrialScores) -> None:
        self.done += 1
        last = f"{trial}: {outcome['accuracy']:.2%} in {outcome['seconds']:.0f} s"
        if self.bar.disable:
            line = f"training {self.done}/{self.total}  {last}"
            self.console.print(line, highlight=False, markup=False)
        else:
            self.bar.update(self.task, completed=self.done, last=last)

    def stop(self) -> None:
        self.bar.stop()
        if 0 < self.done < self.total:
            self.console.print(
                f"stopped after {self.done} of {self.total} trainings; the same command with "
                f"--resume goes on from {self.out}",
                highlight=False,
                markup=False,
            )


def print_comparison(comparison: Comparison, console: Console, out: Path | None = None) -> None:
    """The scores, the differences, the verdict, and the files."""
    console.print(_scores(comparison))
    if comparison.differences:
        console.print(_differences(comparison))
    console.print(comparison.verdict, highlight=False, markup=False, style="bold")
    if out is not None:
        for name, what in (
            ("comparison.json", "all numbers"),
            ("comparison.png", "the picture"),
            ("trainings", "one file for each training"),
        ):
            if (out / name).exists():
                console.print(f"  {out / name}  {what}", highlight=False, markup=False)


def _scores(comparison: Comparison) -> Table:
    rows = sorted(comparison.policies, key=lambda row: -row.mean)
    low, high = min(row.mean for row in rows), max(row.mean for row in rows)
    # From a little below the worst, or a difference of a point would not show.
    floor = max(0.0, low - max(1.0, 0.5 * (high - low)))
    what = comparison.metric.replace("_", " ")
    count = len(comparison.seeds)
    table = Table(
        title=f"{what} in %, {count} seed{'s' if count > 1 else ''}, "
        f"{comparison.images:,} images (bars from {floor:.1f})",
        title_justify="left",
    )
    table.add_column("policy", overflow="fold")
    table.add_column("mean", justify="right")
    table.add_column("95% interval", justify="center")
    table.add_column("", no_wrap=True)
    table.add_column("by seed")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.mean:.2f}",
            _ends(row),
            bar((row.mean - floor) / max(1e-9, high - floor), BAR_WIDTH),
            " ".join(f"{score:.2f}" for score in row.scores),
        )
    return table


def _ends(row: PolicyScores | Difference) -> str:
    if row.interval is None:
        return "-"
    sign = "+" if isinstance(row, Difference) else ""
    low, high = row.interval
    return f"{low:{sign}.2f} to {high:{sign}.2f}"


def _differences(comparison: Comparison) -> Table:
    table = Table(title="differences in points, seed by seed", title_justify="left")
    for column in ("policy", "against", "mean", "95% interval", ""):
        table.add_column(column, justify="right" if column == "mean" else "left")
    for found in comparison.differences:
        word = "no difference seen"
        if found.interval is None:
            word = "one seed: no interval"
        elif found.seen:
            word = "better" if found.mean > 0 else "worse"
        widened = f" (picked from {found.picked_from})" if found.picked_from > 1 else ""
        table.add_row(
            found.policy, found.against + widened, f"{found.mean:+.2f}", _ends(found), word
        )
    return table
