"""One name for each search and each evaluation of the paper.

    recipe = recipes.named("cifar10_wrn40_2")
    recipe.model, recipe.train.epochs          # wrn40_2, 200

`reduced_...` are the searches, on the stratified part of the data set that the paper searched on,
`full_...` the same on all of it (the paper's last table); the others train and evaluate a model. A
recipe is settings only: it may be used on other images than those it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dada.config import BASES, SearchConfig, TrainConfig, search_config
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


def _search(data: str, model: str, reduce_to: int, **settings: Any) -> Recipe:
    return Recipe(
        name=f"reduced_{data}_{model}",
        data=data,
        model=model,
        reduce_to=reduce_to,
        search=search_config("paper", base=BASES[data], **settings),
    )


def reduced_cifar10_wrn40_2() -> Recipe:
    return _search("cifar10", "wrn40_2", 4000, batch_size=128, lr=0.1, weight_decay=2e-4)


def reduced_cifar100_wrn40_2() -> Recipe:
    """The learning rate follows the linear rule; a public script of the authors says 0.1."""
    return _search("cifar100", "wrn40_2", 4000, batch_size=32, lr=0.025, weight_decay=5e-4)


def reduced_svhn_wrn28_10() -> Recipe:
    """1,000 images of the core training set, `svhn:ROOT` and not `svhn-extra:ROOT`."""
    return _search("svhn", "wrn28_10", 1000, batch_size=32, lr=0.00125, weight_decay=1e-3)


def reduced_imagenet_resnet50() -> Recipe:
    recipe = _search("imagenet", "resnet50", 6000, batch_size=32, lr=0.00125, weight_decay=1e-4)
    return replace(recipe, classes=120)


def _full(reduced: Recipe) -> Recipe:
    """The same search on all training images; the paper names no other settings for it."""
    return replace(reduced, name=reduced.name.replace("reduced_", "full_"), reduce_to=None)


def full_cifar10_wrn40_2() -> Recipe:
    return _full(reduced_cifar10_wrn40_2())


def full_cifar100_wrn40_2() -> Recipe:
    return _full(reduced_cifar100_wrn40_2())


def full_svhn_wrn28_10() -> Recipe:
    """All of the core training set, `svhn:ROOT` and not `svhn-extra:ROOT`."""
    return _full(reduced_svhn_wrn28_10())


def _evaluation(data: str, model: str, **settings: Any) -> Recipe:
    """Nesterov momentum 0.9, clip 5, cosine; five epochs of warm-up to four times the rate."""
    usual: dict[str, Any] = {"warmup_epochs": 5, "warmup_factor": 4.0, "base": BASES[data]}
    return Recipe(
        name=f"{data.removesuffix('-extra')}_{model}",
        data=data,
        model=model,
        train=TrainConfig(**(usual | settings)),
    )


def _wide_resnet(data: str, model: str, weight_decay: float) -> Recipe:
    return _evaluation(data, model, epochs=200, batch_size=512, lr=0.1, weight_decay=weight_decay)


def cifar10_wrn40_2() -> Recipe:
    return _wide_resnet("cifar10", "wrn40_2", 2e-4)


def cifar10_wrn28_10() -> Recipe:
    return _wide_resnet("cifar10", "wrn28_10", 5e-4)


def cifar100_wrn40_2() -> Recipe:
    return _wide_resnet("cifar100", "wrn40_2", 5e-4)


def cifar100_wrn28_10() -> Recipe:
    return _wide_resnet("cifar100", "wrn28_10", 5e-4)


def _shake_shake(data: str, width: int, weight_decay: float) -> Recipe:
    model = f"shakeshake26_2x{width}d"
    return _evaluation(data, model, epochs=1800, batch_size=512, lr=0.01, weight_decay=weight_decay)


def cifar10_shakeshake26_2x32d() -> Recipe:
    return _shake_shake("cifar10", 32, 1e-3)


def cifar10_shakeshake26_2x96d() -> Recipe:
    return _shake_shake("cifar10", 96, 1e-3)


def cifar10_shakeshake26_2x112d() -> Recipe:
    return _shake_shake("cifar10", 112, 2e-3)


def cifar100_shakeshake26_2x96d() -> Recipe:
    return _shake_shake("cifar100", 96, 2.5e-3)


def _pyramid(data: str, lr: float, weight_decay: float) -> Recipe:
    return _evaluation(
        data,
        "pyramidnet272_shakedrop",
        epochs=1800,
        batch_size=64,
        lr=lr,
        weight_decay=weight_decay,
        warmup_epochs=0,
        warmup_factor=1.0,
    )


def cifar10_pyramidnet272_shakedrop() -> Recipe:
    return _pyramid("cifar10", 0.05, 5e-5)


def cifar100_pyramidnet272_shakedrop() -> Recipe:
    return _pyramid("cifar100", 0.025, 5e-4)


def _svhn(model: str, weight_decay: float) -> Recipe:
    """All of SVHN's training images: the core set and the 531,131 extra ones."""
    return _evaluation(
        "svhn-extra",
        model,
        epochs=200,
        batch_size=1024,
        lr=0.02,
        weight_decay=weight_decay,
    )


def svhn_wrn28_10() -> Recipe:
    return _svhn("wrn28_10", 5e-4)


def svhn_shakeshake26_2x96d() -> Recipe:
    return _svhn("shakeshake26_2x96d", 1.5e-4)


def imagenet_resnet50() -> Recipe:
    """Three epochs of warm-up to twice the rate, then a tenth at epochs 90, 180 and 240."""
    return _evaluation(
        "imagenet",
        "resnet50",
        epochs=270,
        batch_size=512,
        lr=0.1,
        weight_decay=1e-4,
        warmup_epochs=3,
        warmup_factor=2.0,
        schedule="step",
        clip=0.0,
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    maker.__name__: maker
    for maker in (
        reduced_cifar10_wrn40_2,
        reduced_cifar100_wrn40_2,
        reduced_svhn_wrn28_10,
        reduced_imagenet_resnet50,
        full_cifar10_wrn40_2,
        full_cifar100_wrn40_2,
        full_svhn_wrn28_10,
        cifar10_wrn40_2,
        cifar10_wrn28_10,
        cifar10_shakeshake26_2x32d,
        cifar10_shakeshake26_2x96d,
        cifar10_shakeshake26_2x112d,
        cifar10_pyramidnet272_shakedrop,
        cifar100_wrn40_2,
        cifar100_wrn28_10,
        cifar100_shakeshake26_2x96d,
        cifar100_pyramidnet272_shakedrop,
        svhn_wrn28_10,
        svhn_shakeshake26_2x96d,
        imagenet_resnet50,
    )
}


def named(name: str, *, wants: str | None = None) -> Recipe:
    """A recipe by name; `wants` ("search" or "train") insists on one of that kind."""
    makers = {
        known: maker
        for known, maker in RECIPES.items()
        if wants is None or (maker().search is not None) == (wants == "search")
    }
    if name not in makers:
        kind = "" if wants is None else f" to {wants} with"
        raise ValueError(
            f"no recipe {quoted(name)}{kind}; there are {', '.join(makers)}"
            f"{did_you_mean(name, makers)}"
        )
    return makers[name]()
