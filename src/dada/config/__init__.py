"""Settings: keyword-only frozen dataclasses, checked when they are built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from dada.config.checks import check_types, one_of, positive, real_number, seed_number, whole_number
from dada.config.phases import (
    LOOKAHEAD,
    LOOKAHEAD_FINE_TUNING,
    LOOKAHEAD_OF_PLACES,
    SHORT,
    VERIFY,
    VERIFY_FINE_TUNING,
    LookaheadConfig,
    ShortTraining,
    VerifyConfig,
)
from dada.names import did_you_mean
from dada.safe_text import quoted

__all__ = [
    "ADAMW",
    "BASES",
    "FINE_TUNING",
    "FINE_TUNING_ADAMW",
    "FROM_SCRATCH",
    "GUMBEL_BRANCHES",
    "LOOKAHEAD",
    "LOOKAHEAD_FINE_TUNING",
    "LOOKAHEAD_OF_PLACES",
    "NAMED_BASES",
    "PRESETS",
    "SEARCH_FINE_TUNING",
    "SHORT",
    "VERIFY",
    "VERIFY_FINE_TUNING",
    "Base",
    "LookaheadConfig",
    "SearchConfig",
    "ShortTraining",
    "TrainConfig",
    "VerifyConfig",
    "base_named",
    "changed",
    "few_images",
    "real_number",
    "search_config",
    "seed_number",
    "whole_number",
]

Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class Base:
    """What is done to every training image besides the policy, in search and in training alike."""

    crop: int = 0  # random crop after padding this many pixels
    flip: bool = False  # random horizontal flip
    # For images that have no up: random vertical flip and, of square ones, random transposition.
    # With `flip` these are quarter turns, too.
    turn: bool = False
    cutout: int = 0  # side of the square covered after normalising
    # ImageNet's: a random part of 8 to 100% of the picture (from image files only), brightness,
    # contrast and colour times 1 +- jitter, and a shift along the principal colours.
    resized_crop: bool = False
    jitter: float = 0.0
    lighting: float = 0.0
    # For photographs: a random part of at least this share of the image's area, at its own size
    # again. Cut on the device from what was read, so it works with any data; 1 is none.
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 < self.scale <= 1:
            raise ValueError(f"`scale` should lie in 0..1 and not be 0, got {self.scale}")
        if self.scale < 1 and (self.crop or self.resized_crop):
            other = "crop" if self.crop else "resized_crop"
            raise ValueError(f"`scale` and `{other}` both cut every image: choose one of them")
        for name in ("crop", "cutout", "lighting"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"`{name}` should not be negative, got {value}")
        if not 0 <= self.jitter <= 0.9:
            raise ValueError(f"`jitter` should lie in 0..0.9, got {self.jitter}")


# What the paper does to each data set. A user's own images are left as they are: whether a
# mirrored one still belongs to its class is not for us to guess.
BASES = {
    "cifar10": Base(crop=4, flip=True, cutout=16),
    "cifar100": Base(crop=4, flip=True, cutout=16),
    "svhn": Base(crop=4, flip=True, cutout=20),
    "svhn-extra": Base(crop=4, flip=True, cutout=20),
    "imagenet": Base(flip=True, resized_crop=True, jitter=0.4, lighting=0.1),
}

NAMED_BASES = {
    # Trainings from scratch cut down to 0.08. Milder for fine-tuning: a choice, not a measurement.
    "photo": Base(scale=0.35, flip=True),
    "photo-mild": Base(scale=0.7, flip=True),
    "flip": Base(flip=True),
    # Cells, satellites: no way up, so all mirrors and quarter turns.
    "turn": Base(flip=True, turn=True),
    "turn-mild": Base(scale=0.7, flip=True, turn=True),
    "cifar": Base(crop=4, flip=True),
    "none": Base(),
}
"""What `base` may be by name. Cutout belongs to a policy, so no name has one."""


def base_named(base: Base | str) -> Base:
    if isinstance(base, Base):
        return base
    one_of("base", base, tuple(NAMED_BASES))
    return NAMED_BASES[base]


# Branches besides the drawn one that estimator "gumbel" sums over for each image; None: all.
GUMBEL_BRANCHES: dict[str, int | None] = {"cpu": 8, "cuda": None}


class InEpochs:
    """Settings of a run in epochs."""

    epochs: int | None
    least_epochs: int
    least_steps: int

    def epochs_for(self, steps_per_epoch: int) -> int:
        if self.epochs is not None:
            return self.epochs
        return max(self.least_epochs, -(-self.least_steps // steps_per_epoch))


@dataclass(frozen=True, kw_only=True)
class SearchConfig(InEpochs):
    """Settings of a search; `PRESETS` holds the two that have a name."""

    preset: str = "dada"
    # What is searched.
    space: str = "paper"
    ops_per_subpolicy: int = 2
    exclude: tuple[str, ...] = ()
    # How the gradient of the policy is estimated.
    estimator: str = "rloo"
    draws: str = "image"  # a draw for every image, or one for the whole batch
    views: int = 1
    temperature: float = 0.5
    gumbel_branches: int | None = None  # None: all of them on a GPU, 8 on a CPU
    hypergradient: str = "finite_difference"
    pixel_precision: str = "fp32"  # of passes whose pixel gradients are read, on a GPU; or "tf32"
    reward: str = "cosine"  # or "slope", the paper's inner product
    clean_baseline: bool = True  # what the same image left clean would have cost is subtracted
    magnitudes: str = "distribution"
    magnitude_bins: int = 5
    fixed_validation: bool = False  # always the same first validation batch
    # How the policy moves.
    update: str = "evidence"
    policy_lr: float = 5e-3
    policy_betas: tuple[float, float] = (0.5, 0.999)
    measure_from: float = 0.25  # fraction of the training after which the policy may move
    top: int = 25  # sub-policies kept by update "adam"
    lookahead: float | None = None  # seconds of looking ahead, roughly; 0 is none, None as needed
    # The training that the policy is for; None: as `dada train` would, on all images of the data.
    for_epochs: int | None = None
    for_images: int | None = None
    # How the network is trained meanwhile.
    epochs: int | None = None  # None: as many as make `least_steps`
    least_epochs: int = 10
    least_steps: int = 320
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    clip: float = 5.0
    precision: str = "auto"  # of the training passes: bf16 on a GPU, fp32 on a CPU
    val_fraction: float = 0.5
    base: Base = Base()

    def __post_init__(self) -> None:
        check_types(self)
        one_of("preset", self.preset, ("dada", "paper"))
        one_of("hypergradient", self.hypergradient, ("finite_difference", "forward"))
        estimators = ("gumbel", "gumbel-sampled", "relax", "reinforce", "rloo")
        one_of("estimator", self.estimator, estimators)
        one_of("draws", self.draws, ("image", "batch"))
        one_of("pixel_precision", self.pixel_precision, ("fp32", "tf32"))
        one_of("reward", self.reward, ("cosine", "slope"))
        one_of("update", self.update, ("evidence", "adam"))
        one_of("precision", self.precision, ("auto", "bf16", "tf32", "fp32"))
        one_of(
            "magnitudes", self.magnitudes, ("straight_through", "pathwise", "distribution", "fixed")
        )
        for name in ("views", "batch_size", "lr", "temperature", "policy_lr", "top"):
            positive(name, getattr(self, name))
        for name in ("epochs", "for_epochs", "for_images", "gumbel_branches"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.lookahead is not None and not 0 <= self.lookahead < math.inf:
            raise ValueError(f"`lookahead` should be 0 or more seconds, got {self.lookahead}")
        if not 0 <= self.measure_from < 1:
            raise ValueError(f"`measure_from` should lie in 0..1, got {self.measure_from}")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"`val_fraction` should lie between 0 and 1, got {self.val_fraction}")
        if self.estimator == "rloo" and self.views == 1 and not self.clean_baseline:
            raise ValueError(
                "estimator 'rloo' compares the views of an image with each other: use `views` of 2 "
                "or more, or `clean_baseline`"
            )
        if self.update == "evidence" and self.magnitudes in ("straight_through", "pathwise"):
            raise ValueError(
                f"magnitudes {self.magnitudes!r} need update 'adam': evidence is gathered "
                "by drawing magnitudes ('distribution')"
            )


PRESETS: dict[str, SearchConfig] = {
    "dada": SearchConfig(),
    "paper": SearchConfig(
        preset="paper",
        estimator="relax",
        reward="slope",
        clean_baseline=False,
        magnitudes="straight_through",
        update="adam",
        measure_from=0.0,
        lookahead=0.0,
        epochs=20,
    ),
}


def search_config(preset: str = "dada", **changes: Any) -> SearchConfig:
    """A preset with some settings changed; None leaves a setting as it is."""
    one_of("preset", preset, tuple(PRESETS))
    return changed(PRESETS[preset], changes)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(InEpochs):
    """Settings of a training; the defaults are for a data set that nobody has tuned for.

    `recipes` has the paper's. The learning rate climbs from `lr` to `lr * warmup_factor` over the
    first epochs, then falls to zero along a cosine, or tenfold at each of `milestones`.
    """

    epochs: int | None = None  # None: as many as make `least_steps`
    least_epochs: int = 30
    least_steps: int = 1500
    batch_size: int = 128
    lr: float = 0.05
    warmup_epochs: float = 3
    warmup_factor: float = 2.0
    schedule: str = "cosine"
    milestones: tuple[float, ...] = (1 / 3, 2 / 3, 8 / 9)  # of all epochs, for schedule "step"
    optimizer: str = "sgd"  # with Nesterov momentum; or "adamw"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 5.0  # largest norm of the gradient; 0 is none
    label_smoothing: float = 0.0
    ema: float = 0.0  # decay of the averaged weights that are judged; 0 judges the last ones
    precision: str = "auto"  # bf16 on a GPU, fp32 on a CPU
    compile: bool = False  # torch.compile: a minute at the start, for networks of others
    base: Base = Base()

    def __post_init__(self) -> None:
        check_types(self)
        one_of("schedule", self.schedule, ("cosine", "step"))
        one_of("optimizer", self.optimizer, ("sgd", "adamw"))
        one_of("precision", self.precision, ("auto", "bf16", "tf32", "fp32"))
        for name in ("batch_size", "lr", "warmup_factor", "least_epochs", "least_steps"):
            positive(name, getattr(self, name))
        if self.epochs is not None:
            positive("epochs", self.epochs)
        for name in ("momentum", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` should lie in 0..1, got {getattr(self, name)}")
        for name in ("warmup_epochs", "weight_decay", "clip"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` should not be negative, got {getattr(self, name)}")


FROM_SCRATCH = TrainConfig()

# What a user who does not say otherwise gets with AdamW, and with a network that was trained
# before. Its features are good already: small steps, few of them, and a warm-up for the new head.
ADAMW: dict[str, Any] = {"lr": 5e-4, "weight_decay": 0.05}
FINE_TUNING: dict[str, Any] = {
    "least_epochs": 10,
    "least_steps": 300,
    "lr": 0.005,
    "warmup_epochs": 1,
    "weight_decay": 1e-4,
    "label_smoothing": 0.1,
}
STEPS_OF_AN_EPOCH, SMALLEST_BATCH, MOST_EPOCHS = 8, 16, 200


def few_images(images: int) -> dict[str, Any]:
    """Settings of a training from scratch on so many images, where they are few.

    Small batches make eight steps of an epoch, and no image is seen more than 200 times: with the
    usual batch 243 images would make 1,500 epochs, with this one they make 188.
    """
    usual = TrainConfig()
    batch = max(SMALLEST_BATCH, images // STEPS_OF_AN_EPOCH)
    if batch >= usual.batch_size:
        return {}
    steps = MOST_EPOCHS * max(1, images // batch)
    return {"batch_size": batch, "least_steps": min(usual.least_steps, steps)}


SMALLEST_TUNING_BATCH, LARGEST_TUNING_BATCH = 16, 64
FINE_TUNING_ADAMW: dict[str, Any] = {**FINE_TUNING, "lr": 1e-4, "weight_decay": 0.05}
SEARCH_FINE_TUNING: dict[str, Any] = {
    "least_epochs": 5,
    "least_steps": 100,
    "lr": 0.01,
    "weight_decay": 1e-4,
}


def changed(start: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with some of them changed; None leaves one as it is."""
    known = {field.name for field in fields(start)}  # type: ignore[arg-type]
    for name in changes:
        if name not in known:
            raise ValueError(
                f"unknown setting {quoted(name)}; there are {', '.join(sorted(known))}"
                f"{did_you_mean(name, known)}"
            )
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(start, **given)  # type: ignore[type-var]
