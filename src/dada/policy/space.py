"""What a search may choose from: every combination of k operations, and what a magnitude means.

Letters: B images, N sub-policies, K operations in each.

Three spaces are known by name. In `paper` a magnitude in 0..1 runs linearly over an operation's
range, so 0.5 is the identity for nine of the fifteen. In `strength` it runs from the identity (0)
to the strongest (1), and every two-sided operation draws its direction at random. `wide` is
`strength` over TrivialAugment's ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from dada.config import SearchConfig
from dada.names import did_you_mean
from dada.ops import NO_OP, PAPER, WIDE, Op
from dada.safe_text import quoted


@dataclass(frozen=True, repr=False)
class SearchSpace:
    """All `ops_per_subpolicy`-combinations of `ops`, in a fixed order."""

    name: str
    ops: tuple[Op, ...]
    strengths: bool  # magnitude 0 is the identity, directions are random
    ops_per_subpolicy: int = 2

    def __post_init__(self) -> None:
        names = [op.name for op in self.ops]
        if len(set(names)) != len(names):
            raise ValueError(f"space {self.name!r} holds an op twice: {', '.join(names)}")
        if not 1 <= self.ops_per_subpolicy <= len(self.ops):
            raise ValueError(
                f"ops_per_subpolicy should be between 1 and the {len(self.ops)} ops of the space, "
                f"got {self.ops_per_subpolicy}"
            )

    def __repr__(self) -> str:
        names, together = ", ".join(op.name for op in self.ops), self.ops_per_subpolicy
        return f"<SearchSpace {self.name}, {together} in a sub-policy, of {names}>"

    @cached_property
    def subpolicies(self) -> tuple[tuple[str, ...], ...]:
        return tuple(combinations((op.name for op in self.ops), self.ops_per_subpolicy))

    @property
    def num_subpolicies(self) -> int:
        return len(self.subpolicies)

    @cached_property
    def op_index_NK(self) -> Tensor:
        return torch.tensor(list(combinations(range(len(self.ops)), self.ops_per_subpolicy)))

    def op(self, name: str) -> Op:
        for op in self.ops:
            if op.name == name:
                return op
        known = [op.name for op in self.ops]
        raise ValueError(
            f"unknown op {quoted(name)}; the ops of space {self.name!r} are {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )

    def spelled(self, names: Iterable[str]) -> tuple[str, ...]:
        """Operations as the space names them, from names in any mixture of cases."""
        known = {op.name.casefold(): op.name for op in self.ops}
        return tuple(self.op(known.get(str(name).casefold(), name)).name for name in names)

    def without(self, excluded: Iterable[str]) -> SearchSpace:
        excluded = self.spelled(excluded)
        kept = tuple(op for op in self.ops if op.name not in excluded)
        return replace(self, ops=kept)

    @cached_property
    def _tables(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        """The rows as numbers (one column per op) and op_index_NK, a copy per device."""
        rows = [
            (
                op.low,
                op.high - op.low,
                op.signed,
                op.two_sided,
                op.neutral == op.high,
                op.has_strength,
            )
            for op in self.ops
        ]
        columns = torch.tensor(rows, dtype=torch.float64).T.contiguous()
        return {torch.device("cpu"): (columns, self.op_index_NK)}

    def tables_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The same on a device: copied once, so that no later step waits for a transfer."""
        if device not in self._tables:
            columns, op_index_NK = self._tables[torch.device("cpu")]
            self._tables[device] = columns.to(device), op_index_NK.to(device)
        return self._tables[device]

    def decide(
        self, op_index: Tensor, apply: Tensor, magnitude: Tensor, sign: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What is done (op_index, or NO_OP) and its value in the operation's own unit.

        All arguments share one shape; `magnitude` is in 0..1, `sign` is +1 or -1.
        """
        table = self.tables_on(op_index.device)[0][:, op_index.clamp(min=0)]
        low, span = table[:2]
        signed, two_sided, falls, has_strength = table[2:].bool()
        magnitude, sign = magnitude.to(torch.float64), sign.to(torch.float64)
        if self.strengths:
            # Strength 0 is nothing at all, even for Cutout, whose empty square is one pixel.
            apply = apply & ((magnitude > 0) | ~has_strength)
            # Through the paper's magnitude, so that a converted policy has the very same values.
            direction = torch.where(signed, 1.0, sign)
            one_sided = torch.where(falls, 1 - magnitude, magnitude)
            magnitude = torch.where(two_sided, 0.5 + 0.5 * magnitude * direction, one_sided)
        value = low + magnitude * span
        value = torch.where(signed, value * sign, value)
        return torch.where(apply, op_index, NO_OP), value

    def value(self, op: Op, magnitude: float, sign: float) -> float | None:
        """`decide` for one operation that fires, in plain numbers; None when nothing is done."""
        if self.strengths:
            if magnitude == 0 and op.has_strength:
                return None
            if op.two_sided:
                magnitude = 0.5 + 0.5 * magnitude * (1.0 if op.signed else sign)
            elif op.neutral == op.high:
                magnitude = 1 - magnitude
        value = op.low + magnitude * (op.high - op.low)
        return value * sign if op.signed else value

    @classmethod
    def named(
        cls, name: str = "paper", *, ops_per_subpolicy: int = 2, exclude: Iterable[str] = ()
    ) -> SearchSpace:
        """A space by name, with sub-policies of k operations, without the excluded ones."""
        if name not in SPACES:
            raise ValueError(
                f"unknown space {quoted(name)}; the spaces are {', '.join(SPACES)}"
                f"{did_you_mean(name, SPACES)}"
            )
        one_by_one = replace(SPACES[name], ops_per_subpolicy=1)
        return replace(one_by_one.without(exclude), ops_per_subpolicy=ops_per_subpolicy)

    @classmethod
    def of(cls, config: SearchConfig) -> SearchSpace:
        """That of a search with these settings."""
        together, exclude = config.ops_per_subpolicy, config.exclude
        return cls.named(config.space, ops_per_subpolicy=together, exclude=exclude)


SPACES: dict[str, SearchSpace] = {
    "paper": SearchSpace("paper", PAPER, strengths=False),
    "strength": SearchSpace("strength", PAPER, strengths=True),
    "wide": SearchSpace("wide", WIDE, strengths=True),
}


def register(name: str, ops: Iterable[Op], *, strengths: bool = True) -> SearchSpace:
    """Add a space of one's own, e.g. the paper's operations and one more row."""
    if name in SPACES:
        raise ValueError(f"a space named {quoted(name)} exists already; choose another name")
    SPACES[name] = SearchSpace(name, tuple(ops), strengths, ops_per_subpolicy=1)
    return SPACES[name]
