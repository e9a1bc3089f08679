"""Plain lines, for programs that read along; without rich, which takes long to import."""

from __future__ import annotations

import sys

from dada.safe_text import LONGEST_MESSAGE, printable


def echo(line: str, *, error: bool = False) -> None:
    print(printable(line, LONGEST_MESSAGE), file=sys.stderr if error else sys.stdout)


def encode_anything() -> None:
    """On a terminal that knows ASCII only, a question mark in place of a bar."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
