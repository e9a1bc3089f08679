"""Settings: keyword-only frozen dataclasses, checked when they are built."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} should be one of {', '.join(allowed)}, got {value!r}")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} should be positive, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Base:
    """What is done to every training image besides the policy, in search and in training alike."""

    crop: int = 0  # random crop after padding this many pixels
    flip: bool = False  # random horizontal flip
    cutout: int = 0  # side of the square covered after normalising

    def __post_init__(self) -> None:
        if self.crop < 0 or self.cutout < 0:
            raise ValueError(f"crop and cutout should not be negative, got {self}")


# What the paper does to each data set. A user's own images are left as they are: whether a
# mirrored one still belongs to its class is not for us to guess.
BASES = {
    "cifar10": Base(crop=4, flip=True, cutout=16),
    "cifar100": Base(crop=4, flip=True, cutout=16),
    "svhn": Base(cutout=20),
    "svhn-extra": Base(cutout=20),
}


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
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
    hypergradient: str = "finite_difference"
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
    # How the network is trained meanwhile.
    epochs: int | None = None  # None: as many as make `least_steps`
    least_epochs: int = 10
    least_steps: int = 320
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    clip: float = 5.0
    val_fraction: float = 0.5
    base: Base = Base()

    def __post_init__(self) -> None:
        _one_of("preset", self.preset, ("dada", "paper"))
        _one_of("hypergradient", self.hypergradient, ("finite_difference", "forward"))
        _one_of("estimator", self.estimator, ("gumbel", "relax", "reinforce", "rloo"))
        _one_of("draws", self.draws, ("image", "batch"))
        _one_of("reward", self.reward, ("cosine", "slope"))
        _one_of("update", self.update, ("evidence", "adam"))
        _one_of(
            "magnitudes", self.magnitudes, ("straight_through", "pathwise", "distribution", "fixed")
        )
        for name in ("views", "batch_size", "lr", "temperature", "policy_lr", "top"):
            _positive(name, getattr(self, name))
        if self.epochs is not None:
            _positive("epochs", self.epochs)
        if not 0 <= self.measure_from < 1:
            raise ValueError(f"measure_from should lie in 0..1, got {self.measure_from}")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction should lie between 0 and 1, got {self.val_fraction}")
        if self.estimator == "rloo" and self.views == 1 and not self.clean_baseline:
            raise ValueError(
                "estimator 'rloo' compares the views of an image with each other: use views of 2 "
                "or more, or clean_baseline"
            )
        if self.update == "evidence" and self.magnitudes in ("straight_through", "pathwise"):
            raise ValueError(
                f"magnitudes {self.magnitudes!r} need update 'adam': evidence is gathered "
                "by drawing magnitudes ('distribution')"
            )

    def epochs_for(self, steps_per_epoch: int) -> int:
        if self.epochs is not None:
            return self.epochs
        return max(self.least_epochs, -(-self.least_steps // steps_per_epoch))


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
        epochs=20,
    ),
}


def search_config(preset: str = "dada", **changes: Any) -> SearchConfig:
    """A preset with some settings changed; None leaves a setting as it is."""
    if preset not in PRESETS:
        raise ValueError(f"preset should be one of {', '.join(PRESETS)}, got {preset!r}")
    known = {field.name for field in fields(SearchConfig)}
    for name in changes:
        if name not in known:
            raise ValueError(f"unknown setting {name!r}; there are {', '.join(sorted(known))}")
    return replace(PRESETS[preset], **{k: v for k, v in changes.items() if v is not None})
