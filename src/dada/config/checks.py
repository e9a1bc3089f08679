"""Checks of settings: what is wrong, by the name of the parameter."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from dada.names import did_you_mean
from dada.safe_text import quoted

# The most that is not a slip of the hand, and with which a run could still begin.
MOST = {
    **dict.fromkeys(("epochs", "for_epochs", "least_epochs", "warmup_epochs"), 100_000),
    **dict.fromkeys(("least_steps", "steps", "top", "batch_size", "most_images"), 10_000_000),
    **dict.fromkeys(("lr", "policy_lr"), 1e38),  # of a float with 32 bits
    **dict.fromkeys(("weight_decay", "temperature", "warmup_factor"), 1000),
    **dict.fromkeys(("lighting", "views", "magnitude_bins"), 1000),
    **dict.fromkeys(("crop", "cutout"), 16_384),
    **dict.fromkeys(("lookahead", "verify_budget", "seconds"), 10_000_000),  # four months
    "at_once": 1000,
    "copies": 1_000_000,
    "for_images": 1_000_000_000,
}


def whole_number(name: str, value: Any, least: float = -math.inf) -> int:
    """A whole number as Python has it, from what the user gave: numpy's too, no 3.0, no True."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` should be a whole number, got {quoted(value)}") from None
    check_limits(name, number, least)
    return number


def seed_number(value: Any, name: str = "seed") -> int:
    """A seed: torch takes 64 bits, and some seeds are counted up from this one."""
    seed = whole_number(name, value)
    if not abs(seed) < 2**62:
        raise ValueError(f"`{name}` should be smaller than 2^62, got {quoted(seed)}")
    return seed


def real_number(name: str, value: Any) -> float:
    """A finite number; a whole one stays so."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` should be a number, got {quoted(value)}")
    number: Any = value.item() if hasattr(value, "item") else value
    try:
        finite = math.isfinite(number)
    except OverflowError:  # a whole number beyond floats
        finite = False
    if not finite and not (name == "clip" and value == math.inf):
        raise ValueError(f"`{name}` should be a finite number, got {quoted(value)}")
    check_limits(name, number, -math.inf)
    return number  # type: ignore[no-any-return]


def check_limits(name: str, number: float, least: float) -> None:
    if number < least:
        raise ValueError(f"`{name}` should be {least:,} or more, got {quoted(number)}")
    if number > MOST.get(name, math.inf):
        raise ValueError(f"`{name}` should be at most {MOST[name]:,}, got {quoted(number)}")


def check_types(settings: Any) -> None:
    """Every field is of the type it is declared with; numpy's numbers become Python's."""
    for field in fields(settings):
        value, kind = getattr(settings, field.name), str(field.type)
        if value is None and kind.endswith("None"):
            continue
        if kind.startswith("int"):
            object.__setattr__(settings, field.name, whole_number(field.name, value))
        elif kind.startswith("float"):
            object.__setattr__(settings, field.name, real_number(field.name, value))
        elif kind.startswith("tuple["):
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise TypeError(f"`{field.name}` should be a list, got {quoted(value)}")
            if "float" in kind:
                given = tuple(real_number(field.name, number) for number in value)
                object.__setattr__(settings, field.name, given)
        elif kind == "bool" and not isinstance(value, bool):
            raise TypeError(f"`{field.name}` should be True or False, got {quoted(value)}")
        elif kind == "str" and not isinstance(value, str):
            raise TypeError(f"`{field.name}` should be a name, got {quoted(value)}")
        elif kind == "Base" and type(value).__name__ != "Base":
            raise TypeError(f"`{field.name}` should be a dada.config.Base, got {quoted(value)}")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(
            f"`{name}` should be one of {', '.join(allowed)}, got {quoted(value)}"
            f"{did_you_mean(value, allowed)}"
        )


def positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"`{name}` should be positive, got {value!r}")
