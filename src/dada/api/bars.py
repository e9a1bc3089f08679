"""Progress as a person sees it: bars at a terminal and in a notebook, lines in a pipe."""

from __future__ import annotations

import os

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from dada.api.tellers import Lines
from dada.report.verdict import duration
from dada.safe_text import printable


class TimeLeft(ProgressColumn):
    """Of a task that is told how long it still takes."""

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        return Text("" if left is None else f"{duration(left)} left", style="progress.remaining")


class Numbers(ProgressColumn):
    """The latest numbers: what a narrow terminal leaves of them."""

    def get_table_column(self) -> Column:
        return Column(ratio=1, no_wrap=True, overflow="ellipsis")

    def render(self, task: Task) -> Text:
        return Text(task.fields["numbers"], no_wrap=True, overflow="ellipsis")


class Bars:
    """A teller (progress.py) to people. Under torchrun only the first process speaks."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=os.environ.get("RANK", "0") != "0")
        self.shown = self.console.is_terminal or self.console.is_jupyter
        self.lines = Lines(self.say)
        self.bars = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.fields[doing]}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TimeLeft(table_column=Column(no_wrap=True)),
            Numbers(),
            console=self.console,
            disable=not self.shown,
            expand=True,
        )
        self.task_of: dict[str, TaskID] = {}
        self.waiting: TaskID | None = None

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def note(self, line: str) -> None:
        self.say(f"note    {line}")

    def begin(self) -> None:
        self.wait("beginning")

    def wait(self, doing: str) -> None:
        """A bar without an end: time passes, and is seen to."""
        if self.shown:
            self._waited()
            self.bars.start()
            self.waiting = self._added(doing, None)

    def advance(
        self, doing: str, done: float, total: int, numbers: str, left: float | None, *, ended: bool
    ) -> None:
        if not self.shown:
            self.lines.advance(doing, done, total, numbers, left, ended=ended)
            return
        self._waited()
        if doing not in self.task_of:
            self.task_of[doing] = self._added(doing, total)
        self.bars.update(
            self.task_of[doing],
            completed=done,
            count=f"{int(done)}/{total}",
            numbers=printable(numbers, 200),
            left=None if done >= total else left,
        )
        if done >= total:  # something always follows, if only the report
            self.wait("next")

    def _added(self, doing: str, total: int | None) -> TaskID:
        said = printable(doing, 40)
        return self.bars.add_task("", total=total, doing=said, count="", numbers="", left=None)

    def _waited(self) -> None:
        if self.waiting is not None:
            self.bars.remove_task(self.waiting)
        self.waiting = None

    def stop(self) -> None:
        self._waited()
        self.bars.stop()
