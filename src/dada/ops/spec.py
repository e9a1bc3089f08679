"""One frozen row per operation.

A row is everything the rest of the package knows about an operation: how it is done (`kernel`),
what its value may be (`low` .. `high`, in the operation's own unit), whether the value's sign is
random, and where it does nothing (`neutral`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from dada.safe_text import quoted

# (images_BCHW uint8, value_B float64, center_B2 float64 in pixels (x, y)) -> images_BCHW uint8
Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
# (image, value, center in pixels (x, y)) -> image
PillowCall = Callable[[Image.Image, float, tuple[float, float]], Image.Image]


@dataclass(frozen=True, kw_only=True, repr=False)
class Op:
    """An operation: its name, kernel, range and meaning.

    `pillow`: the call whose bytes the kernel gives; an operation without one still works.

    `signed`: the value is negated with probability one half whenever it is applied.
    `neutral`: the value that leaves an image as it is; None for an operation without a strength.
    `phrase` and `number` say it in words: "by {} degrees" and how the value is written there.
    """

    name: str
    kernel: Kernel
    pillow: PillowCall | None = None
    low: float = 0.0
    high: float = 1.0
    signed: bool = False
    neutral: float | None = None
    phrase: str = ""
    number: Callable[[float], str] = "{:.2f}".format

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(
                f"op name should be an identifier such as 'Rotate', got {quoted(self.name)}"
            )
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"op {self.name}: low should be below high, got {self.low}..{self.high}"
            )
        if self.neutral is not None and not self.low <= self.neutral <= self.high:
            raise ValueError(
                f"op {self.name}: neutral {self.neutral} lies outside {self.low}..{self.high}"
            )
        if self.signed and (self.neutral != 0 or self.low != -self.high):
            raise ValueError(f"op {self.name}: a signed op needs a range symmetric about neutral 0")

    def __repr__(self) -> str:
        return f"<Op {self.describe([self.describe_values([self.low, self.high])])}>"

    def describe_values(self, values: Sequence[float]) -> str:
        """One value, or the two ends of a range, as a person writes them: "+-3.4"."""
        ends = sorted(abs(value) for value in values) if self.signed else sorted(values)
        if self.signed and min(values) < 0 < max(values):
            ends[0] = 0.0
        sign = "+-" if self.signed else ""
        return sign + " to ".join(dict.fromkeys(self.number(end) for end in ends))

    def describe(self, values: Sequence[str]) -> str:
        """The op in words: "Rotate by +-3.4 degrees", "Color times 0.70 or 1.30"."""
        if not self.has_strength or not self.phrase:
            return self.name
        return f"{self.name} {self.phrase.format(' or '.join(values))}"

    @property
    def has_strength(self) -> bool:
        return self.neutral is not None

    @property
    def two_sided(self) -> bool:
        """Whether it can be done in two directions (left or right, darker or brighter)."""
        return self.neutral is not None and self.low < self.neutral < self.high
