"""What a policy is made of: operations with a probability and a magnitude, and their sequence."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

from dada.safe_text import quoted

Magnitude = float | tuple[float, float]


def _number(value: Any, where: str) -> float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise ValueError(f"{where} should be a number in 0..1, got {quoted(value)}")
    return float(value)


@dataclass(frozen=True)
class PolicyOp:
    """One step of a sub-policy: which operation, how often, how strongly."""

    op: str
    probability: float
    magnitude: Magnitude = 0.5  # a number in 0..1, or (low, high) to draw from for every image

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", _number(self.probability, "probability"))
        if isinstance(self.magnitude, (list, tuple)):
            if len(self.magnitude) != 2:
                raise ValueError(
                    f"magnitude should be a number or [low, high]: {quoted(self.magnitude)}"
                )
            low, high = (_number(end, "magnitude") for end in self.magnitude)
            if low > high:
                raise ValueError(f"magnitude [low, high] should rise, got {[low, high]}")
            object.__setattr__(self, "magnitude", (low, high))
        else:
            object.__setattr__(self, "magnitude", _number(self.magnitude, "magnitude"))

    @property
    def magnitude_range(self) -> tuple[float, float]:
        m = self.magnitude
        return m if isinstance(m, tuple) else (m, m)


@dataclass(frozen=True)
class SubPolicy:
    """Operations done one after another, and how often this sub-policy is drawn."""

    weight: float
    ops: tuple[PolicyOp, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _number(self.weight, "weight"))
        object.__setattr__(self, "ops", tuple(self.ops))
