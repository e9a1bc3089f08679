"""Where the words and counts of a run go: what a teller is, and the two that write lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from dada.report.verdict import duration
from dada.safe_text import LONGEST_MESSAGE, printable

SECONDS_BETWEEN_LINES = 5.0  # of a log that nobody watches: a log, not a flood
LOG = logging.getLogger("dada")


class Teller(Protocol):
    """Where words and counts go."""

    def say(self, line: str) -> None: ...
    def note(self, line: str) -> None: ...
    def begin(self) -> None:
        """The header is said, the work begins."""
        ...

    def advance(
        self, doing: str, done: float, total: int, numbers: str, left: float | None, *, ended: bool
    ) -> None:
        """So much is done; `left` seconds remain. `ended`: worth a line of its own."""
        ...

    def stop(self) -> None: ...


class Lines:
    """Progress as lines, now and then."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write, self.last = write, 0.0

    def say(self, line: str) -> None:
        self.write(line)

    def advance(
        self, doing: str, done: float, total: int, numbers: str, left: float | None, *, ended: bool
    ) -> None:
        if not ended and done < total and time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last = time.monotonic()
        time_left = "" if left is None or done >= total else f"  {duration(left)} left"
        self.write(f"{doing} {int(done)}/{total}{time_left}  {numbers}".rstrip())


class Log(Lines):
    """`logging.getLogger("dada")`, at level INFO; silent until the program asks for that level."""

    def __init__(self) -> None:
        super().__init__(LOG.info)

    def note(self, line: str) -> None:
        LOG.warning("%s", printable(line, LONGEST_MESSAGE))

    def begin(self) -> None: ...
    def stop(self) -> None: ...
