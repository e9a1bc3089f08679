"""From scores of operations to policies, in several shapes.

Letters: N sub-policies, K operations in each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dada.policy import Magnitude, Policy, PolicyOp, SubPolicy
from dada.policy.space import SPACES, SearchSpace
from dada.policy_search.measuring import Measured

ANY, MIDDLE = (0.0, 1.0), 0.5
USUAL_SPACE = "paper"  # only a search in it may switch to another: others were asked for


@dataclass(frozen=True)
class Shape:
    """How a policy is made of scores; a sub-policy's weight is exp(sharpness * their sum)."""

    probability: float  # with which operations fire
    magnitude: Magnitude | None = ANY  # of every operation; None: as the search found it
    single: bool = False  # one operation for an image; else as many as the space combines
    space: str | None = None  # whose magnitudes; None: those of the search
    sharpness: float = 1.0  # the more, the more of the policy are the best operations

    @property
    def name(self) -> str:
        magnitude = "any magnitude" if self.magnitude == ANY else f"magnitude {self.magnitude}"
        words = [
            "single operations" if self.single else "combined operations",
            f"probability {self.probability:g}",
            "magnitudes as found" if self.magnitude is None else magnitude,
        ]
        words += [f"space {self.space}"] if self.space else []
        return ", ".join([*words, "the best alone"] if self.sharpness > 1 else words)


# After half a training a narrow policy looks better than it is, and one that changes images a lot
# looks worse. So scores are not sharpened here, and the broadest is left only for a clear gain.
BROADEST = Shape(1)
USUAL = Shape(0.5)  # where there is no time for a second round
MILD = Shape(1, MIDDLE, single=True, space="strength")  # the same, on a CPU
# The first three fit every search.
SHAPES: tuple[Shape, ...] = (
    BROADEST,
    USUAL,
    Shape(0.25),
    Shape(0.5, None),
    MILD,
    Shape(1, single=True, space="wide"),
)
# Fine-tuning wants little: of free policies one operation at a time over wide ranges did best, and
# it is left only for a clear gain (docs/fine-tuning-study.md).
FINE_TUNING_SHAPES: tuple[Shape, ...] = (
    Shape(0.5, single=True, space="wide"),
    Shape(1, single=True, space="wide"),
    Shape(0.25, single=True, space="wide"),
    Shape(0.5, MIDDLE, single=True, space="strength"),
    Shape(0.25),
)
# Where targets are masks or boxes most operations do harm, and some help: the best of them as they
# were tried one by one, and others. No policy at all is left only for a clear gain
# (docs/detection.md).
SHARP = 3.0
SHAPES_OF_PLACES: tuple[Shape, ...] = (
    Shape(0.5, single=True, sharpness=SHARP),
    Shape(1, single=True, sharpness=SHARP),
    Shape(0.25, single=True),
    Shape(0.5, single=True, space="wide"),
    Shape(1, single=True, space="wide"),
    USUAL,
)


def shapes_for(
    space: SearchSpace, *, learned: bool = True, wanted: Sequence[Shape] = SHAPES
) -> tuple[Shape, ...]:
    """Of those wanted, the ones that a search in `space` has a use for, each once.

    One that has not `learned` ranges of magnitudes keeps the numbers it has, and with them its
    space and its combinations.
    """
    shapes = []
    for shape in wanted:
        if shape.space == space.name:
            shape = replace(shape, space=None)
        combines = space.ops_per_subpolicy > 1
        shape = replace(shape, single=shape.single or not combines)
        stays = shape.space is None and shape.single != combines
        if stays and not learned:
            shape = replace(shape, magnitude=None)
        if (stays or learned) and _space_of(shape, space) is not None:
            shapes.append(shape)
    return tuple(dict.fromkeys(shapes))


def usual_of(shapes: Sequence[Shape]) -> Shape:
    """The one to take without a second round: operations that fire half of the time."""
    return next((s for s in shapes if s.probability == USUAL.probability), shapes[0])


def few_shapes_for(space: SearchSpace, *, learned: bool = True) -> tuple[Shape, ...]:
    """The broadest, and a milder one that is taken without a second round.

    For a CPU, where few runs of a hundred steps cannot tell many shapes apart. Single operations at
    half strength were as good as any, or better, wherever images had more than a few pixels
    (docs/search-study-log.md).
    """
    pairs = ((BROADEST, mild) for mild in (MILD, USUAL))
    return max((shapes_for(space, learned=learned, wanted=pair) for pair in pairs), key=len)


def policies_of(
    measured: Measured, score: Mapping[str, float], shapes: Sequence[Shape]
) -> dict[Shape, Policy]:
    """The policy of every shape."""
    return {shape: _policy_of(measured, score, shape) for shape in shapes}


def _policy_of(measured: Measured, score: Mapping[str, float], shape: Shape) -> Policy:
    space = _space_of(shape, measured.space)
    assert space is not None
    if shape.magnitude is None:
        as_found = measured.parameters.to_policy(space).subpolicies
        rows = [[replace(s, probability=shape.probability) for s in row.ops] for row in as_found]
    else:
        rows = [
            [PolicyOp(name, shape.probability, shape.magnitude) for name in names]
            for names in space.subpolicies
        ]
    odds = [math.exp(shape.sharpness * sum(score[step.op] for step in row)) for row in rows]
    subpolicies = tuple(
        SubPolicy(one / math.fsum(odds), tuple(row)) for one, row in zip(odds, rows, strict=True)
    )
    return Policy(subpolicies, space.name, "weighted", measured.policy.provenance)


def _space_of(shape: Shape, searched: SearchSpace) -> SearchSpace | None:
    """The operations of the search in the space of the shape, or None where that has too few."""
    name = shape.space or searched.name
    together = 1 if shape.single else searched.ops_per_subpolicy
    if name == searched.name:
        return replace(searched, ops_per_subpolicy=together)
    if searched.name != USUAL_SPACE:
        return None
    known = {op.name for op in searched.ops}
    kept = tuple(op for op in SPACES[name].ops if op.name in known)
    if len(kept) < together:
        return None
    return replace(SPACES[name], ops=kept, ops_per_subpolicy=together)
