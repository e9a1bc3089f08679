"""A policy in physical units: what every exported file is written from.

A step of a sub-policy becomes (operation, probability, ranges). When it is done, one of the
ranges is taken, all as likely, and a value drawn uniformly between its two ends; equal ends are
that value. So the two directions of Rotate by 9 degrees are ((9, 9), (-9, -9)), and the spaces of
this package, with their magnitudes, signs and strengths, are nothing a target has to know.
"""

from __future__ import annotations

from dataclasses import dataclass

from dada.ops import PAPER, WIDE, Op
from dada.ops.pillow import CALLS
from dada.policy import Policy, PolicyOp
from dada.policy.space import SPACES, SearchSpace
from dada.safe_text import comment_text

Ranges = tuple[tuple[float, float], ...]

# The kernel behind every name of dada.ops.pillow.CALLS: an op is known when it has both.
_KERNELS = {
    name: row.kernel
    for name, call in CALLS.items()
    for row in (*PAPER, *WIDE)
    if row.pillow is call
}
NO_VALUE: Ranges = ((0.0, 0.0),)
# Where an operation leaves every image as it is; Cutout of 0 still covers one pixel.
_NEUTRAL = {
    name: row.neutral
    for name, call in CALLS.items()
    for row in (*PAPER, *WIDE)
    if row.pillow is call and row.neutral is not None and name != "Cutout"
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation of a sub-policy. `op` is a name of `dada.ops.pillow.CALLS`."""

    op: str
    probability: float
    ranges: Ranges

    @property
    def does_nothing(self) -> bool:
        neutral = _NEUTRAL.get(self.op)
        values = [end for ends in self.ranges for end in ends]
        return neutral is not None and all(abs(value - neutral) < 1e-12 for value in values)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole policy: how likely every sub-policy is, and its steps."""

    weights: tuple[float, ...]
    subpolicies: tuple[tuple[Step, ...], ...]
    title: str


def plan(policy: Policy, target: str) -> Plan:
    """The policy in physical units; an operation of the user's own is refused by name."""
    space = SPACES[policy.space]
    subpolicies = []
    for subpolicy in policy.subpolicies:
        steps = [plan_step(space, step, target) for step in subpolicy.ops]
        subpolicies.append(tuple(step for step in steps if step is not None))
    return Plan(
        weights=tuple(subpolicy.weight for subpolicy in policy.subpolicies),
        subpolicies=tuple(subpolicies),
        title=_title(policy),
    )


def known_name(op: Op) -> str | None:
    """The name of `CALLS` whose meaning the operation has; a user's own range does not matter."""
    for name, kernel in _KERNELS.items():
        if op.pillow is CALLS[name] and op.kernel == kernel:
            return name
    return None


def plan_step(space: SearchSpace, step: PolicyOp, target: str) -> Step | None:
    """None for a step of strength 0, which does nothing in any target."""
    op = space.op(step.op)
    name = known_name(op)
    if name is None:
        raise ValueError(
            f"op {step.op!r} of space {space.name!r} is your own: it cannot be exported to "
            f"{target}, whose file runs without this package; leave it out of the policy"
        )
    if not op.has_strength:
        return Step(op=name, probability=step.probability, ranges=NO_VALUE)
    if space.strengths and step.magnitude_range[1] == 0:
        return None
    directions = (1.0, -1.0) if op.signed or (space.strengths and op.two_sided) else (1.0,)
    low, high = step.magnitude_range
    both = [(_value(space, op, low, sign), _value(space, op, high, sign)) for sign in directions]
    if sorted(both[0]) == sorted(both[-1]):  # -30..30 and 30..-30 are one
        both = both[:1]
    both.sort(key=lambda ends: -max(ends))  # m and 1 - m of a signed operation are the same text
    return Step(op=name, probability=step.probability, ranges=tuple(both))


def _value(space: SearchSpace, op: Op, magnitude: float, sign: float) -> float:
    value = space.value(op, magnitude, sign)
    value = op.neutral if value is None else value  # the weak end of a range of strengths
    assert value is not None
    return value + 0.0  # -0.0 would be another range than 0.0


def _title(policy: Policy) -> str:
    """One line in the alphabet of comments, whatever a name in the provenance holds."""
    name = comment_text(policy.provenance.get("name", "without a name"))
    count = len(policy.subpolicies)
    return f"Policy {name}, {count} sub-polic{'y' if count == 1 else 'ies'}, {policy.sampling}"


def spread(start: float, end: float, count: int) -> list[float]:
    """`count` values that stand for start..end: the middles of as many equal pieces."""
    if start == end:
        return [start]
    return [start + (end - start) * (i + 0.5) / count for i in range(count)]


def shares_of_bits(start: float, end: float) -> dict[int, float]:
    """How likely every int(value) is, for a value drawn uniformly from start..end."""
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
