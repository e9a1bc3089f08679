"""From operations in physical units back to a policy of this package: the reverse of the export.

Every operation is placed in a space by inverting its range, and checked by exporting it again: what
does not come out as it went in is refused, so an imported policy means what its source meant.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dada import safe_json
from dada.exchange.exports.physical_policy import (
    PhysicalOp,
    Ranges,
    known_name,
    op_in_physical_units,
)
from dada.ops import Op
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.policy.space import SPACES, SearchSpace
from dada.safe_text import printable, quoted

TRIED = ("paper", "strength", "wide")
CLOSE = 1e-6  # of the range: how far a value may come out from where it went in
REACH = 0.01  # of the range: a value this far outside is moved to its end, with a note
MOST_SUBPOLICIES = 20_000

OpEntry = tuple[str, float, float | None]
"""[op, probability, magnitude or null] of a published list."""
WeightedOps = tuple[float, tuple[PhysicalOp, ...]]
"""The weight of a sub-policy and its operations."""


@dataclass(kw_only=True)
class Draft:
    """What a reader understood: sub-policies in physical units, and what it approximated."""

    source: str
    name: str
    subpolicies: list[WeightedOps]
    approximations: list[str] = field(default_factory=list)

    def policy(self) -> Policy:
        """In the first space that can express all of it."""
        problems = []
        for name in TRIED:
            try:
                return self._in_space(SPACES[name])
            except ValueError as error:
                problems.append(f"space {name!r}: {error}")
        raise ValueError(f"{self.name}: cannot be expressed as a policy; {'; '.join(problems)}")

    def _in_space(self, space: SearchSpace) -> Policy:
        notes = list(self.approximations)
        subpolicies = []
        total = math.fsum(weight for weight, _ in self.subpolicies)
        for weight, ops in self.subpolicies:
            in_space = tuple(_policy_op(space, op, notes) for op in ops)
            subpolicies.append(SubPolicy(weight / total, in_space))
        equal = all(abs(s.weight * len(subpolicies) - 1) < 1e-9 for s in subpolicies)
        provenance: dict[str, Any] = {"name": self.name, "imported_from": self.source}
        if notes:
            provenance["approximations"] = list(dict.fromkeys(notes))
        sampling = "uniform" if equal else "weighted"
        return Policy(tuple(subpolicies), space.name, sampling, provenance)


def _policy_op(space: SearchSpace, step: PhysicalOp, notes: list[str]) -> PolicyOp:
    op = next((row for row in space.ops if known_name(row) == step.op), None)
    if op is None:
        raise ValueError(f"it has no {step.op}")
    if not op.has_strength:
        return PolicyOp(op.name, step.probability)
    moved = tuple((_within(op, a, notes), _within(op, b, notes)) for a, b in step.ranges)
    assert op.neutral is not None
    for ranges in (moved, _from_the_middle(moved, op.neutral)):
        first = max(ranges, key=max)
        low, high = sorted(_magnitude(space, op, end) for end in first)
        result = PolicyOp(op.name, step.probability, low if low == high else (low, high))
        again = op_in_physical_units(space, result, "a policy")
        ranges_again = again.ranges if again is not None else ((op.neutral, op.neutral),)
        if _same(ranges_again, ranges, CLOSE * (op.high - op.low)):
            return result
    written = " or ".join(f"{a:g}" if a == b else f"{a:g}..{b:g}" for a, b in step.ranges)
    raise ValueError(f"it has no {op.name} of {written}")


def _from_the_middle(ranges: Ranges, neutral: float) -> Ranges:
    """-9..9 is the same as a random sign and a size of 0..9, as the space of strengths has it."""
    if len(ranges) == 1 and abs(sum(ranges[0]) - 2 * neutral) < CLOSE:
        end = max(ranges[0])
        return ((neutral, end), (neutral, 2 * neutral - end))
    return ranges


def _within(op: Op, value: float, notes: list[str]) -> float:
    reach = REACH * (op.high - op.low)
    if not op.low - reach <= value <= op.high + reach:
        raise ValueError(f"its {op.name} takes {op.low:g}..{op.high:g}, not {value:g}")
    inside = min(max(value, op.low), op.high)
    if abs(inside - value) > CLOSE * (op.high - op.low):
        notes.append(f"{op.name} of {abs(value):.4g} became {abs(inside):.4g}, the range's end")
    return inside


def _magnitude(space: SearchSpace, op: Op, value: float) -> float:
    assert op.neutral is not None
    if space.strengths and op.two_sided:
        magnitude = abs(value - op.neutral) / (op.high - op.neutral)
    elif space.strengths and op.neutral == op.high:
        magnitude = (op.high - value) / (op.high - op.low)
    else:
        magnitude = (value - op.low) / (op.high - op.low)
    return min(max(round(magnitude, 12), 0.0), 1.0)


def _same(one: Iterable[Sequence[float]], two: Iterable[Sequence[float]], margin: float) -> bool:
    """Whether two sets of ranges are the same, up to the order of ranges and of their ends."""
    first, second = (sorted({tuple(sorted(ends)) for ends in ranges}) for ranges in (one, two))
    return len(first) == len(second) and all(
        abs(a - b) <= margin
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def one_value(op: str, probability: float, value: float = 0.0) -> PhysicalOp:
    return PhysicalOp(op=op, probability=probability, ranges=((value, value),))


def either_sign(op: str, probability: float, value: float, middle: float = 0.0) -> PhysicalOp:
    """The value on both sides of the middle, as likely; once where both are the same."""
    ends = dict.fromkeys((middle + value, middle - value))
    return PhysicalOp(op=op, probability=probability, ranges=tuple((end, end) for end in ends))


def read_json(file: str, what: str) -> Any:
    if not os.path.isfile(file):  # not a pipe or a device, either
        raise ValueError(f"{printable(file)}: neither a file nor {what}")
    try:
        return safe_json.read(file)
    except ValueError as error:
        reason = str(error).removeprefix("not JSON: ")
        raise ValueError(f"{file}: not JSON ({reason}); a .py file is never run") from None


def entries_of(content: Any, file: str) -> list[list[OpEntry]]:
    """[[[op, probability, magnitude or null], ...], ...], checked."""
    if not isinstance(content, list) or not content:
        raise ValueError(
            f"{file}: should be a list of sub-policies of [op, probability, magnitude]"
        )
    entries = []
    for i, subpolicy in enumerate(content):
        if not isinstance(subpolicy, list):
            raise ValueError(f"{file}: sub-policy {i} should be a list, got {quoted(subpolicy)}")
        entries.append(
            [_entry(step, f"{file}: sub-policy {i}, step {j}") for j, step in enumerate(subpolicy)]
        )
    return entries


def _entry(step: Any, where: str) -> OpEntry:
    if not isinstance(step, list) or len(step) != 3 or not isinstance(step[0], str):
        raise ValueError(f"{where} should be [op, probability, magnitude], got {quoted(step)}")
    name, probability, magnitude = step
    for value in (probability, 0 if magnitude is None else magnitude):
        if safe_json.number(value) is None:
            raise ValueError(f"{where}: {quoted(value)} should be a number")
    if not 0 <= probability <= 1:
        raise ValueError(f"{where}: probability should be in 0..1, got {quoted(probability)}")
    return name, float(probability), None if magnitude is None else float(magnitude)


def without(
    subpolicies: list[list[OpEntry]], drop: Collection[str], where: str
) -> tuple[list[list[OpEntry]], list[str]]:
    """The sub-policies without an operation to leave out, and a note of how many were dropped."""
    kept = [ops for ops in subpolicies if not any(name in drop for name, _, _ in ops)]
    if not kept:
        raise ValueError(f"{where}: no sub-policy is left without {', '.join(drop)}")
    dropped = len(subpolicies) - len(kept)
    note = (
        f"left out, as asked: {dropped} of {len(subpolicies)} sub-policies with {', '.join(drop)}"
    )
    return kept, [note] if dropped else []
