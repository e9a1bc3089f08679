"""Images that cannot be read: named, and of files all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dada.safe_files import read_bytes
from dada.safe_text import printable

SHOWN = 3


def report_bad(problems: Mapping[str, str], total: int, *, skip_bad: bool) -> list[str]:
    """A note about files that were left out; a ValueError where that was not asked for.

    `problems` has for each path what is wrong with it, of `total` files that were looked at.
    """
    if not problems:
        return []
    paths = sorted(problems)
    named = ", ".join(printable(path, 80) for path in paths[:SHOWN])
    named += ", ..." if len(paths) > SHOWN else ""
    if skip_bad:
        count = f"{len(paths):,} of {total:,} images"
        return [f"{count} could not be read and were left out: {named}"]
    told = problems[paths[0]].removesuffix("; repair or remove it")
    if len(paths) == 1:
        fix = "repair or remove it, or pass `skip_bad=True` to go on without it"
        raise ValueError(f"{told}; {fix}")
    others = named.partition(", ")[2]
    fix = "repair or remove them, or pass `skip_bad=True` to go on without them"
    raise ValueError(f"{len(paths):,} of {total:,} images cannot be read: {told}, {others}; {fix}")


def file_bytes(file: str, *, most: int) -> bytes:
    """All of a regular file of at most so many bytes; else a ValueError that names it."""
    try:
        return read_bytes(file, most=most)
    except OSError as problem:
        reason = problem.strerror
    except ValueError as problem:
        reason = str(problem)
    raise ValueError(f"{file}: cannot be read ({reason}); repair or remove it")


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Prefixes an error of a conversion with the file, unless it names the file already."""
    try:
        yield
    except ValueError as problem:
        if str(problem).startswith(where):
            raise
        raise ValueError(f"{where}: {problem}") from problem


@contextmanager
def errors_of_item(where: str) -> Iterator[None]:
    """Whatever the code of a user's dataset raises, as an error that names the item."""
    try:
        yield
    except Exception as problem:
        reason = printable(f"{type(problem).__name__}: {problem}", 300)
        raise ValueError(f"{where}: the dataset failed to give it ({reason})") from problem
