"""A short training: few steps, many epochs, on no more images than that allows."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from dada.config import TrainConfig
from dada.data import Split, reduce

# Augmentation pays where images are seen many times over. So a short training has few steps and
# many epochs: a large data set is reduced, not passed over once.
STEPS, LEAST_EPOCHS = 400, 20
MOST_IMAGES, MOST_IMAGES_OF_A_CLASS = 4000, 40
SMALLEST_BATCH, LARGEST_BATCH = 16, 128
STEPS_PER_EPOCH = 10  # wanted of small data sets, which else would have one or two
WARMUP = 0.1  # largest part of a short training


def short_config(
    base: TrainConfig, images: int, *, steps: int = STEPS, per_epoch: int = STEPS_PER_EPOCH
) -> TrainConfig:
    """`base` for a training of about `steps` steps on that many images, at least a few an epoch."""
    if images < 1 or steps < 1:
        raise ValueError(f"images and steps should be 1 or more, got {images} and {steps}")
    batch = min(base.batch_size, LARGEST_BATCH, max(SMALLEST_BATCH, images // per_epoch))
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
    split: Split, base: TrainConfig, *, seed: int, images: int = MOST_IMAGES, **how: int
) -> tuple[Split, TrainConfig]:
    """What to train on and how, for short trainings: at most so many images, many times.

    `how` are the other arguments of `short_config`.
    """
    most = max(images, MOST_IMAGES_OF_A_CLASS * split.num_classes)
    if len(split.train) > most:
        split = reduce(split, most, seed)
    return split, short_config(base, len(split.train), **how)


def seed_of(seed: int, purpose: str, number: int) -> int:
    """The same for the same three, and no neighbour of another: trainings use seed + 1 as well."""
    digest = hashlib.sha256(f"{purpose} {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
