"""Where tables and progress go through."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


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
