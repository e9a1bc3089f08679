"""A policy in physical units: what every exported file is written from.

An operation of a sub-policy becomes (operation, probability, ranges). When it is applied, one of
the ranges is chosen, all with equal probability, and a value is drawn uniformly between its two
ends; equal ends are that value. Rotate by 9 degrees in both directions is ((9, 9), (-9, -9)). So an
export target needs to know nothing of this package's spaces, magnitudes and signs.
"""

from __future__ import annotations

from dataclasses import dataclass

from dada.ops import PAPER, WIDE, Op
from dada.ops.pillow import CALLS
from dada.policy import Policy, PolicyOp
from dada.policy.space import SPACES, SearchSpace
from dada.safe_text import comment_text

Ranges = tuple[tuple[float, float], ...]

# The operation behind every name of dada.ops.pillow.CALLS.
_OPS = {name: op for name, call in CALLS.items() for op in (*PAPER, *WIDE) if op.pillow is call}
NO_VALUE: Ranges = ((0.0, 0.0),)


@dataclass(frozen=True, kw_only=True)
class PhysicalOp:
    """One operation of a sub-policy. `op` is a name of `dada.ops.pillow.CALLS`."""

    op: str
    probability: float
    ranges: Ranges

    @property
    def does_nothing(self) -> bool:
        neutral = _OPS[self.op].neutral
        if neutral is None or self.op == "Cutout":  # Cutout of 0 still covers one pixel
            return False
        return all(abs(end - neutral) < 1e-12 for ends in self.ranges for end in ends)


@dataclass(frozen=True, kw_only=True)
class PhysicalPolicy:
    """The whole policy: the probability of every sub-policy, and its operations."""

    weights: tuple[float, ...]
    subpolicies: tuple[tuple[PhysicalOp, ...], ...]
    title: str


def in_physical_units(policy: Policy, target: str) -> PhysicalPolicy:
    """The policy in physical units; an operation of the user's own is refused by name."""
    space = SPACES[policy.space]
    subpolicies = []
    for subpolicy in policy.subpolicies:
        ops = [op_in_physical_units(space, op, target) for op in subpolicy.ops]
        subpolicies.append(tuple(op for op in ops if op is not None))
    return PhysicalPolicy(
        weights=tuple(subpolicy.weight for subpolicy in policy.subpolicies),
        subpolicies=tuple(subpolicies),
        title=_title(policy),
    )


def known_name(op: Op) -> str | None:
    """The name in `CALLS` of what the operation does, whatever its range; None: the user's own."""
    same = (n for n, known in _OPS.items() if op.pillow is CALLS[n] and op.kernel == known.kernel)
    return next(same, None)


def op_in_physical_units(space: SearchSpace, step: PolicyOp, target: str) -> PhysicalOp | None:
    """None for an operation of strength 0, which does nothing in any target."""
    op = space.op(step.op)
    name = known_name(op)
    if name is None:
        raise ValueError(
            f"op {step.op!r} of space {space.name!r} is your own: it cannot be exported to "
            f"{target}, whose file runs without this package; leave it out of the policy"
        )
    if not op.has_strength:
        return PhysicalOp(op=name, probability=step.probability, ranges=NO_VALUE)
    if space.strengths and step.magnitude_range[1] == 0:
        return None
    directions = (1.0, -1.0) if op.signed or (space.strengths and op.two_sided) else (1.0,)
    low, high = step.magnitude_range
    both = [(_value(space, op, low, sign), _value(space, op, high, sign)) for sign in directions]
    if sorted(both[0]) == sorted(both[-1]):  # -30..30 and 30..-30 are one
        both = both[:1]
    both.sort(key=lambda ends: -max(ends))  # m and 1 - m of a signed operation are the same text
    return PhysicalOp(op=name, probability=step.probability, ranges=tuple(both))


def _value(space: SearchSpace, op: Op, magnitude: float, sign: float) -> float:
    value = space.value(op, magnitude, sign)
    value = op.neutral if value is None else value  # the weak end of a range of strengths
    assert value is not None
    return value + 0.0  # -0.0 would be another range than 0.0


def _title(policy: Policy) -> str:
    """One line that is safe inside a comment, whatever the name in the provenance holds."""
    name = comment_text(policy.provenance.get("name", "without a name"))
    count = len(policy.subpolicies)
    return f"Policy {name}, {count} sub-polic{'y' if count == 1 else 'ies'}, {policy.sampling}"


def spread(start: float, end: float, count: int) -> list[float]:
    """`count` values that represent start..end: the middles of as many equal intervals."""
    if start == end:
        return [start]
    return [start + (end - start) * (i + 0.5) / count for i in range(count)]


def shares_of_bits(start: float, end: float) -> dict[int, float]:
    """The probability of every int(value), for a value drawn uniformly from start..end."""
    if start > end:
        start, end = end, start
    if start == end:
        return {int(start): 1.0}
    shares = {}
    for bits in range(int(start), int(end) + 1):
        overlap = min(end, bits + 1) - max(start, bits)
        if overlap > 0:
            shares[bits] = overlap / (end - start)
    return shares
