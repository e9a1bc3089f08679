"""The policies that cost no search, and how long a short training is."""

from __future__ import annotations

from dataclasses import replace

from dada import baselines
from dada.config import TrainConfig
from dada.data import Split, reduce
from dada.policy import Policy
from dada.space import SearchSpace

# Augmentation pays where images are seen many times over. So a short training has few steps and
# many epochs: a large data set is reduced, not passed over once.
STEPS, LEAST_EPOCHS = 400, 20
MOST_IMAGES, MOST_IMAGES_OF_A_CLASS = 4000, 40
SMALLEST_BATCH, LARGEST_BATCH = 16, 128
STEPS_PER_EPOCH = 10  # wanted of small data sets, which else would have one or two
WARMUP = 0.1  # largest part of a short training


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
    return Policy.uniform(steps, policy.space, name=name)


def short_config(base: TrainConfig, images: int, *, steps: int = STEPS) -> TrainConfig:
    """`base` for a training of about `steps` steps on that many images."""
    if images < 1 or steps < 1:
        raise ValueError(f"images and steps should be 1 or more, got {images} and {steps}")
    batch = min(base.batch_size, LARGEST_BATCH, max(SMALLEST_BATCH, images // STEPS_PER_EPOCH))
    steps_per_epoch = max(1, images // min(batch, images))
    epochs = max(LEAST_EPOCHS, -(-steps // steps_per_epoch))
    return replace(
        base,
        epochs=epochs,
        batch_size=batch,
        warmup_epochs=min(base.warmup_epochs, WARMUP * epochs),
        compile=False,  # a minute of compiling for seconds of training
    )


def shorten(
    split: Split, base: TrainConfig, *, seed: int, steps: int = STEPS
) -> tuple[Split, TrainConfig]:
    """What to train on and how, for short trainings: at most a few thousand images, many times."""
    most = max(MOST_IMAGES, MOST_IMAGES_OF_A_CLASS * split.num_classes)
    if len(split.train) > most:
        split = reduce(split, most, seed)
    return split, short_config(base, len(split.train), steps=steps)
