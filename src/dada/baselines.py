"""The policies that cost no search, by name. What each name means is in `docs/policy-format.md`."""

from __future__ import annotations

from dada.policy import Policy, PolicyOp, SubPolicy
from dada.space import SearchSpace

NAMES = ("none", "uniform", "init", "trivialaugment", "randaugment:n,m")


def by_name(name: str) -> Policy | None:
    """The baseline of that name, or None when it is not one."""
    kind, _, settings = name.partition(":")
    if kind == "randaugment":
        return randaugment(*_randaugment_settings(settings, name))
    makers = {"none": none, "uniform": uniform, "init": init, "trivialaugment": trivialaugment}
    return makers[kind]() if name in makers else None


def none() -> Policy:
    return Policy((), provenance={"name": "none"})


def uniform(space: SearchSpace | None = None) -> Policy:
    """Every sub-policy of a space, probability 0.5, magnitude drawn from all of its range."""
    space = space or SearchSpace.named("paper")
    rows = [[(op, 0.5, (0.0, 1.0)) for op in names] for names in space.subpolicies]
    return Policy.uniform(rows, space.name, name="uniform")


def init(space: SearchSpace | None = None) -> Policy:
    """Where the paper's search starts: probability and magnitude one half."""
    space = space or SearchSpace.named("paper")
    rows = [[(op, 0.5, 0.5) for op in names] for names in space.subpolicies]
    return Policy.uniform(rows, space.name, name="init")


def trivialaugment() -> Policy:
    """One operation for every image, or none, at a strength drawn uniformly (wide ranges)."""
    space = SearchSpace.named("wide", ops_per_subpolicy=1)
    rows = [[(op, 1.0, (0.0, 1.0)) for op in names] for names in space.subpolicies]
    return Policy.uniform([[], *rows], "wide", name="trivialaugment")


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


def _randaugment_settings(settings: str, name: str) -> tuple[int, float]:
    if not settings:
        return 1, 0.5
    try:
        num_ops_text, strength_text = settings.split(",")
        num_ops, strength = int(num_ops_text), float(strength_text)
    except ValueError:
        raise ValueError(
            f"{name!r}: write randaugment:n,m such as randaugment:2,0.5 "
            "(n operations at strength m in 0..1)"
        ) from None
    if num_ops not in (1, 2, 3) or not 0 <= strength <= 1:
        raise ValueError(f"{name!r}: n should be 1, 2 or 3 and m in 0..1")
    return num_ops, strength
