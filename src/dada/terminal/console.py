"""Where everything that a person reads in a terminal goes through."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dada.safe_text import LONGEST_MESSAGE, printable


class SafeConsole(Console):
    """A rich console on which the names in a stranger's files are text and nothing else."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(_visible(segment.text), segment.style)


def _visible(text: str) -> str:
    """As wide as it was laid out, with a sign for whatever a terminal would act on."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def console() -> SafeConsole:
    """Under torchrun only the first process speaks."""
    return SafeConsole(quiet=os.environ.get("RANK", "0") != "0")


def echo(line: str, *, error: bool = False) -> None:
    """A plain line, for programs that read along."""
    print(printable(line, LONGEST_MESSAGE), file=sys.stderr if error else sys.stdout)


def encode_anything() -> None:
    """On a terminal that knows ASCII only, a question mark in place of a bar."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
