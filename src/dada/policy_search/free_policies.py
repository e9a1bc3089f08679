"""The policies that cost no search."""

from __future__ import annotations

from dada.policy import Policy, baselines
from dada.policy.space import SearchSpace


def free_policies(space: SearchSpace) -> dict[str, Policy]:
    """The policies to beat, by name, the most important first.

    `space` is that of the search, without the operations the user excluded: `uniform` is over
    it, and the sub-policies of others that hold an operation outside of it are taken out. A policy
    that lost some says so in its name ("trivialaugment without Invert"); one that has lost all is
    not in the list.
    """
    allowed = {op.name for op in space.ops}
    free = {"uniform": baselines.uniform(space)}
    for policy in (
        baselines.trivialaugment(),
        baselines.randaugment(1, 0.5),
        baselines.randaugment(2, 0.5),
    ):
        kept = _within(policy, allowed)
        if kept is not None:
            free[str(kept.provenance["name"])] = kept
    free["none"] = baselines.none()
    return free


def usual_policy(space: SearchSpace, *, pretrained: bool, moves: bool) -> Policy:
    """What to take where nothing is known of the data, by the studies so far: where targets move
    with the pixels none, for fine-tuning TrivialAugment, else `uniform`."""
    free = free_policies(space)
    name = "none" if moves else "trivialaugment" if pretrained else "uniform"
    return next(
        (policy for known, policy in free.items() if known.startswith(name)), free["uniform"]
    )


def _within(policy: Policy, allowed: set[str]) -> Policy | None:
    """Only sub-policies of allowed operations, as likely as each other; None when none is left."""
    outside = {step.op for s in policy.subpolicies for step in s.ops} - allowed
    if not outside:
        return policy
    rows = [s.ops for s in policy.subpolicies if all(step.op in allowed for step in s.ops)]
    if not any(rows):
        return None
    name = f"{policy.provenance['name']} without {', '.join(sorted(outside))}"
    steps = [[(step.op, step.probability, step.magnitude) for step in row] for row in rows]
    return Policy.from_rows(steps, policy.space, name=name)
