"""A short training: few steps, many epochs, on no more images than that allows."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from dada.config import SHORT, ShortTraining, TrainConfig
from dada.data import Split, reduce


def short_config(base: TrainConfig, images: int, short: ShortTraining = SHORT) -> TrainConfig:
    """`base` for a short training on that many images."""
    if images < 1:
        raise ValueError(f"images should be 1 or more, got {images}")
    wanted = max(short.smallest_batch, images // short.steps_per_epoch)
    batch = min(base.batch_size, short.largest_batch, wanted)
    steps_per_epoch = max(1, images // min(batch, images))
    epochs = max(short.least_epochs, -(-short.steps // steps_per_epoch))
    return replace(
        base,
        epochs=epochs,
        batch_size=batch,
        warmup_epochs=min(base.warmup_epochs, short.warmup * epochs),
        compile=False,  # a minute of compiling for seconds of training
    )


def shorten(
    split: Split, base: TrainConfig, short: ShortTraining = SHORT, *, seed: int
) -> tuple[Split, TrainConfig]:
    """What to train on and how, for short trainings: at most so many images, many times."""
    most = max(short.most_images, short.most_images_of_a_class * split.num_classes)
    if len(split.train) > most:
        split = reduce(split, most, seed)
    return split, short_config(base, len(split.train), short)


def seed_of(seed: int, purpose: str, number: int) -> int:
    """A seed made of these three by a digest.

    Counting up would not do: a training uses seed + 1 as well, which would be another's seed.
    """
    digest = hashlib.sha256(f"{purpose} {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
