"""One name for each search and each evaluation of the paper.

    recipe = recipes.named("cifar10_wrn40_2")
    recipe.model, recipe.train.epochs          # wrn40_2, 200

`reduced_...` are the searches, on the stratified part of the data set that the paper searched on,
`full_...` the same on all of it (the paper's last table); the others train and evaluate a model. A
recipe is settings only: it may be used on other images than those it was made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dada.config import BASES, Base, SearchConfig, TrainConfig, search_config
from dada.names import did_you_mean
from dada.safe_text import quoted


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to search or train on, with which network and which settings."""

    name: str
    data: str  # what it was made for: `dada ... DATA:ROOT`
    model: str
    reduce_to: int | None = None  # training images, stratified; None: all
    classes: int | None = None  # classes drawn at random; None: all
    search: SearchConfig | None = None
    train: TrainConfig | None = None

    @property
    def base(self) -> Base:
        """What every image gets besides a policy."""
        settings = self.search or self.train
        assert settings is not None
        return settings.base


# What was searched, the network, training images (stratified), batch, learning rate, weight decay.
_SEARCHES = (
    ("cifar10", "wrn40_2", 4000, 128, 0.1, 2e-4),
    # The learning rate follows the linear rule; a public script of the authors says 0.1.
    ("cifar100", "wrn40_2", 4000, 32, 0.025, 5e-4),
    # Of the core training set, `svhn:ROOT` and not `svhn-extra:ROOT`.
    ("svhn", "wrn28_10", 1000, 32, 0.00125, 1e-3),
    ("imagenet", "resnet50", 6000, 32, 0.00125, 1e-4),
)
_CLASSES = {"imagenet": 120}
_FULL = ("cifar10", "cifar100", "svhn")  # searched on all images too, in the paper's last table

# What was trained on, the network, epochs, batch, learning rate, weight decay.
_EVALUATIONS = (
    ("cifar10", "wrn40_2", 200, 512, 0.1, 2e-4),
    ("cifar10", "wrn28_10", 200, 512, 0.1, 5e-4),
    ("cifar10", "shakeshake26_2x32d", 1800, 512, 0.01, 1e-3),
    ("cifar10", "shakeshake26_2x96d", 1800, 512, 0.01, 1e-3),
    ("cifar10", "shakeshake26_2x112d", 1800, 512, 0.01, 2e-3),
    ("cifar10", "pyramidnet272_shakedrop", 1800, 64, 0.05, 5e-5),
    ("cifar100", "wrn40_2", 200, 512, 0.1, 5e-4),
    ("cifar100", "wrn28_10", 200, 512, 0.1, 5e-4),
    ("cifar100", "shakeshake26_2x96d", 1800, 512, 0.01, 2.5e-3),
    ("cifar100", "pyramidnet272_shakedrop", 1800, 64, 0.025, 5e-4),
    # All of SVHN's training images: the core set and the 531,131 extra ones.
    ("svhn-extra", "wrn28_10", 200, 1024, 0.02, 5e-4),
    ("svhn-extra", "shakeshake26_2x96d", 200, 1024, 0.02, 1.5e-4),
    ("imagenet", "resnet50", 270, 512, 0.1, 1e-4),
)
# Besides Nesterov momentum 0.9, clip 5 and a cosine. ImageNet's rate falls to a tenth at epochs 90,
# 180 and 240.
_WARMUP: dict[str, Any] = {"warmup_epochs": 5, "warmup_factor": 4.0}
_OTHERWISE: dict[str, dict[str, Any]] = {
    "pyramidnet272_shakedrop": {"warmup_epochs": 0, "warmup_factor": 1.0},
    "resnet50": {"warmup_epochs": 3, "warmup_factor": 2.0, "schedule": "step", "clip": 0.0},
}


def _searches() -> Iterator[Recipe]:
    for data, model, images, batch, lr, decay in _SEARCHES:
        settings = {"batch_size": batch, "lr": lr, "weight_decay": decay, "base": BASES[data]}
        yield Recipe(
            name=f"reduced_{data}_{model}",
            data=data,
            model=model,
            reduce_to=images,
            classes=_CLASSES.get(data),
            search=search_config("paper", **settings),
        )


def _full(reduced: Recipe) -> Recipe:
    """The same search on all training images; the paper names no other settings for it."""
    return replace(reduced, name=reduced.name.replace("reduced_", "full_"), reduce_to=None)


def _evaluations() -> Iterator[Recipe]:
    for data, model, epochs, batch, lr, decay in _EVALUATIONS:
        others = {**_WARMUP, **_OTHERWISE.get(model, {})}
        yield Recipe(
            name=f"{data.removesuffix('-extra')}_{model}",
            data=data,
            model=model,
            train=TrainConfig(
                epochs=epochs,
                batch_size=batch,
                lr=lr,
                weight_decay=decay,
                base=BASES[data],
                **others,
            ),
        )


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *_searches(),
        *(_full(reduced) for reduced in _searches() if reduced.data in _FULL),
        *_evaluations(),
    )
}


def named(name: str, *, wants: str | None = None) -> Recipe:
    """A recipe by name; `wants` ("search" or "train") insists on one of that kind."""
    kept = {
        known: recipe
        for known, recipe in RECIPES.items()
        if wants is None or (recipe.search is not None) == (wants == "search")
    }
    if name not in kept:
        kind = "" if wants is None else f" to {wants} with"
        near = did_you_mean(name, kept)  # first: a long line is cut
        known = f"{near} There are" if near else "; there are"
        raise ValueError(f"no recipe {quoted(name)}{kind}{known} {', '.join(kept)}")
    return kept[name]
