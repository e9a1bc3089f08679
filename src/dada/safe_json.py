"""JSON that others wrote, read strictly: what is read can be written again and is read the same.

Python's reader takes more than JSON: NaN, the last of two equal keys, numbers that are infinite as
floats, half of a character, nesting that can be read but not written. Here each of these is refused
in one line, as is a file that is too large to be what it says it is.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dada.safe_files import read_bytes
from dada.safe_text import quoted

MOST_BYTES = 64 * 2**20  # 20,000 sub-policies of two operations take 7 MB
MOST_DIGITS = 300  # of a whole number: a float has 308
DEEPEST = 50  # objects and lists within each other

_PART_OF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, *, most: int | None = None, finite: bool = True) -> Any:
    """The content; ValueError of one line where it is not strict JSON.

    Without `finite`, numbers are read as Python reads them, NaN too, without a call for each: for
    large files whose readers look at every number themselves.
    """
    most = MOST_BYTES if most is None else most
    if len(text) > most:
        raise ValueError(f"more than {most // 2**20} MB")
    try:
        content = json.loads(text, object_pairs_hook=_object, **(_FINITE if finite else {}))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    _check_depth(content)
    if _PART_OF_A_CHARACTER.search(text):
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("not JSON: a string holds half of a character (\\ud8..)") from None
    return content


def read(file: str | os.PathLike[str], *, most: int | None = None, finite: bool = True) -> Any:
    """The content of a file; the error does not name it."""
    try:
        text = read_bytes(file, most=MOST_BYTES if most is None else most).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("not JSON: not UTF-8 text") from None
    return parse(text, most=most, finite=finite)


def read_object(file: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a file of a run; the error names the file."""
    try:
        content = read(file)
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: not a JSON object")
    return content


# Values that another version, or a person, may have written: None or nothing where they are of
# another kind.


def number(value: Any) -> float | None:
    """A finite number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # TOML has whole numbers of any size
        return None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{quoted(twice)} is there twice")
    return made


def _no_constant(word: str) -> Any:
    raise ValueError(f"not JSON: {word} is not a number of JSON")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {quoted(digits)} is too large")
    return value


def _int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits is too large")
    return int(digits)


_FINITE: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _float, "parse_int": _int}


def _check_depth(content: Any, deeper: int = DEEPEST) -> None:
    if type(content) is dict:
        content = content.values()
    elif type(content) is not list:
        return
    if deeper == 0:
        raise ValueError(f"not JSON: nested more than {DEEPEST} deep")
    for value in content:
        if type(value) is dict or type(value) is list:  # most are neither
            _check_depth(value, deeper - 1)
