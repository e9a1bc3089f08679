"""Text that others wrote (names in files, folders, settings), made safe for where it is put.

A policy, a folder or a run directory may come from a stranger. Whatever of it reaches a terminal,
a shell line or the comment of a file of code goes through one of these.
"""

from __future__ import annotations

import re
import reprlib
import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

LONGEST_NAME = 120  # characters of a foreign name that a message quotes
LONGEST_MESSAGE = 500

_NOT_FOR_COMMENTS = re.compile(r"[^A-Za-z0-9 _.,()-]")


def printable(text: object, limit: int = LONGEST_NAME) -> str:
    """One line without control characters, of at most `limit` characters.

    What a terminal would act on (escapes, line ends, marks of direction) is written as Python
    writes it in a string.
    """
    cut = str(text)[: limit + 1]  # a name of 100 MB is never converted whole
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def quoted(value: object, limit: int = LONGEST_NAME) -> str:
    """A value as Python writes it, within the limit: for messages that show what was given."""
    if isinstance(value, str):  # cut first: `repr` of all of it may be huge
        return printable(repr(value[: limit + 1]), limit)
    return printable(reprlib.repr(value), limit)


def listed(names: Sequence[str], most: int = 8, limit: int = 40) -> str:
    """The first names, each of at most `limit` characters, and how many there are in all."""
    shown = ", ".join(printable(name, limit) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def first_line(error: BaseException) -> str:
    """What an error of another package says first, without its full stop; else its kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")


def one_line_errors(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """For the functions that users call: what they raise is one printable line.

    Each message should quote what is foreign. This makes sure of it for all of them, also for those
    of other packages.
    """

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError) as error:
            if len(error.args) == 1 and isinstance(error.args[0], str):
                error.args = (printable(error.args[0], LONGEST_MESSAGE),)
            raise

    return called


def comment_text(text: object) -> str:
    """For a comment of a file of code: a strict alphabet, in which no comment can end or mean
    anything (an encoding, PEP 263, needs a colon or an equals sign)."""
    return _NOT_FOR_COMMENTS.sub("?", str(text)[:LONGEST_NAME])


def shell_word(text: object) -> str:
    """One word of a command that a person may copy."""
    word = printable(text, LONGEST_MESSAGE)
    return shlex.quote(f"./{word}" if word.startswith("-") else word)
