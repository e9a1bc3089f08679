"""The policies that cost no search, by name. What each name means is in `docs/policy-format.md`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dada.config import Base
from dada.names import FREE_POLICIES, did_you_mean
from dada.ops import Op
from dada.policy.policy import Policy, PolicyOp, SubPolicy
from dada.policy.space import SearchSpace
from dada.safe_text import quoted

# Side of the images each of AutoAugment's policies was searched on.
AUTOAUGMENT_SIDE = {"cifar10": 32, "svhn": 32, "imagenet": 224}
AUTOAUGMENT_BINS = 10
LARGEST_SMALL_SIDE = 64  # `autoaugment` alone is CIFAR-10's policy up to here, ImageNet's above

FREE = {name.partition(":")[0] for name in FREE_POLICIES}
AS_NO_SIGNAL = ", as no signal was seen"  # after the name of one that a search returns for that


def by_name(name: str) -> Policy | None:
    """The baseline of that name, or None when it is not one."""
    kind, colon, settings = name.partition(":")
    if kind == "randaugment":
        return randaugment(*_randaugment_settings(settings, name))
    if kind == "autoaugment":
        return autoaugment(settings if colon else "cifar10")
    makers = {
        "none": none,
        "cutout": cutout,
        "uniform": uniform,
        "init": init,
        "trivialaugment": trivialaugment,
    }
    return makers[kind]() if name in makers else None


def is_free(name: str) -> bool:
    """Whether a policy of this name costs no search, whatever the data."""
    return name.partition(":")[0] in FREE


def name_for_data(
    given: str | os.PathLike[str], data_name: str, image_size: tuple[int, int]
) -> str:
    """What a user's name for a policy stands for with these data; for `Policy.load`.

    `autoaugment` alone is the policy of the most similar data. Every other name, and a file or
    directory that is called so, stands for itself.
    """
    name = os.fspath(given)
    if name != "autoaugment" or Path(name).exists():
        return name
    if data_name.partition(":")[0].startswith("svhn"):
        return "autoaugment:svhn"
    small = max(image_size) <= LARGEST_SMALL_SIDE
    return "autoaugment:cifar10" if small else "autoaugment:imagenet"


def base_for(name: str, base: Base, image_size: tuple[int, int]) -> Base:
    """What is done besides the policy of this name, given what the data set has as its own.

    The square that `Base.cutout` covers comes after normalising, where no policy reaches. So
    `none` switches it off, `cutout` switches it on (half of the shorter side, as 16 is of CIFAR's
    32, where the data set has no own), and every other policy keeps the data set's.
    """
    if name == "none":
        return replace(base, cutout=0)
    if name == "cutout":
        return replace(base, cutout=base.cutout or max(1, min(image_size) // 2))
    return base


def none() -> Policy:
    return Policy((), provenance={"name": "none"})


def cutout() -> Policy:
    """No operations: the square is covered after normalising, see `base_for`."""
    return Policy((), provenance={"name": "cutout"})


def uniform(space: SearchSpace | None = None) -> Policy:
    """Every sub-policy of a space, probability 0.5, magnitude drawn from all of its range."""
    space = space or SearchSpace.named("paper")
    rows = [[(op, 0.5, (0.0, 1.0)) for op in names] for names in space.subpolicies]
    return Policy.from_rows(rows, space.name, name="uniform")


def init() -> Policy:
    """Where the paper's search starts: probability and magnitude one half."""
    space = SearchSpace.named("paper")
    rows = [[(op, 0.5, 0.5) for op in names] for names in space.subpolicies]
    return Policy.from_rows(rows, space.name, name="init")


def trivialaugment() -> Policy:
    """One operation for every image, or none, at a strength drawn uniformly (wide ranges)."""
    space = SearchSpace.named("wide", ops_per_subpolicy=1)
    rows = [[(op, 1.0, (0.0, 1.0)) for op in names] for names in space.subpolicies]
    return Policy.from_rows([[], *rows], "wide", name="trivialaugment")


def randaugment(num_ops: int, strength: float) -> Policy:
    """`num_ops` operations in sequence, each any of the space's, all at one strength."""
    space = SearchSpace.named("strength", ops_per_subpolicy=1)
    sequences: list[tuple[str, ...]] = [()]
    for _ in range(num_ops):
        sequences = [(*done, op.name) for done in sequences for op in space.ops]
    subpolicies = tuple(
        SubPolicy(1 / len(sequences), tuple(PolicyOp(op, 1.0, strength) for op in sequence))
        for sequence in sequences
    )
    name = f"randaugment:{num_ops},{strength:g}"
    return Policy(subpolicies, "strength", "uniform", {"name": name})


def autoaugment(data: str) -> Policy:
    """The 25 sub-policies AutoAugment found on that data set, as torchvision has them.

    A level 0..9 becomes the strength of the same value. Shifts are those of the images searched
    on, in whole pixels (torchvision drops the fraction): the same bytes at that size, and the
    same part of the side at any other.
    """
    if data not in AUTOAUGMENT_SIDE:
        known = [f"autoaugment:{each}" for each in AUTOAUGMENT_SIDE]
        given = f"autoaugment:{data}"
        raise ValueError(
            f"{quoted(given)}: there are {', '.join(known)}{did_you_mean(given, known)}"
        )
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    reference = AutoAugment(AutoAugmentPolicy(data))
    side = AUTOAUGMENT_SIDE[data]
    values = reference._augmentation_space(AUTOAUGMENT_BINS, (side, side))
    space = SearchSpace.named("strength")
    rows = []
    for subpolicy in reference.policies:
        row: list[tuple[str, float, float]] = []
        for op, probability, level in subpolicy:
            value = 0.0 if level is None else float(values[op][0][level])
            row.append((op, probability, _strength(space.op(op), value, side)))
        rows.append(row)
    provenance: dict[str, Any] = {"name": f"autoaugment:{data}", "published": True}
    return Policy.from_rows(rows, space.name, **provenance)


def _strength(op: Op, value: float, side: int) -> float:
    """The strength at which an op of the paper's does what torchvision does with this value."""
    if not op.has_strength:
        return 0.0
    if op.name.startswith("Translate"):
        value = int(value) / side
    if op.neutral == op.high:  # a threshold or a number of bits, falling from the end
        return (op.high - value) / (op.high - op.low)
    if not op.signed:  # torchvision counts a factor from 1
        return min(1.0, value / (op.high - 1))
    return min(1.0, value / op.high)


def _randaugment_settings(settings: str, name: str) -> tuple[int, float]:
    if not settings:
        return 1, 0.5
    try:
        num_ops_text, strength_text = settings.split(",")
        num_ops, strength = int(num_ops_text), float(strength_text)
    except ValueError:
        raise ValueError(
            f"{quoted(name)}: write randaugment:n,m such as randaugment:2,0.5 "
            "(n operations at strength m in 0..1)"
        ) from None
    if num_ops not in (1, 2, 3) or not 0 <= strength <= 1:
        raise ValueError(f"{quoted(name)}: n should be 1, 2 or 3 and m in 0..1")
    return num_ops, strength
