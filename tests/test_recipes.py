"""The recipes are the paper's tables, written down here a second time."""

from __future__ import annotations

import pytest
import torch

from dada import recipes
from dada.api.settings import reduced as reduced_by
from dada.config import BASES
from dada.data import Split, TensorPart
from dada.names import MODELS

# name: data, model, images, classes, batch, lr, weight decay, cutout
SEARCHES = {
    "reduced_cifar10_wrn40_2": ("cifar10", "wrn40_2", 4000, None, 128, 0.1, 2e-4, 16),
    "reduced_cifar100_wrn40_2": ("cifar100", "wrn40_2", 4000, None, 32, 0.025, 5e-4, 16),
    "reduced_svhn_wrn28_10": ("svhn", "wrn28_10", 1000, None, 32, 0.00125, 1e-3, 20),
    "reduced_imagenet_resnet50": ("imagenet", "resnet50", 6000, 120, 32, 0.00125, 1e-4, 0),
    "full_cifar10_wrn40_2": ("cifar10", "wrn40_2", None, None, 128, 0.1, 2e-4, 16),
    "full_cifar100_wrn40_2": ("cifar100", "wrn40_2", None, None, 32, 0.025, 5e-4, 16),
    "full_svhn_wrn28_10": ("svhn", "wrn28_10", None, None, 32, 0.00125, 1e-3, 20),
}
# name: data, batch, epochs, lr, weight decay, factor and epochs of the warm-up, cutout
EVALUATIONS = {
    "cifar10_wrn40_2": ("cifar10", 512, 200, 0.1, 2e-4, 4, 5, 16),
    "cifar10_wrn28_10": ("cifar10", 512, 200, 0.1, 5e-4, 4, 5, 16),
    "cifar100_wrn40_2": ("cifar100", 512, 200, 0.1, 5e-4, 4, 5, 16),
    "cifar100_wrn28_10": ("cifar100", 512, 200, 0.1, 5e-4, 4, 5, 16),
    "cifar10_shakeshake26_2x32d": ("cifar10", 512, 1800, 0.01, 1e-3, 4, 5, 16),
    "cifar10_shakeshake26_2x96d": ("cifar10", 512, 1800, 0.01, 1e-3, 4, 5, 16),
    "cifar10_shakeshake26_2x112d": ("cifar10", 512, 1800, 0.01, 2e-3, 4, 5, 16),
    "cifar100_shakeshake26_2x96d": ("cifar100", 512, 1800, 0.01, 2.5e-3, 4, 5, 16),
    "cifar10_pyramidnet272_shakedrop": ("cifar10", 64, 1800, 0.05, 5e-5, 1, 0, 16),
    "cifar100_pyramidnet272_shakedrop": ("cifar100", 64, 1800, 0.025, 5e-4, 1, 0, 16),
    "svhn_wrn28_10": ("svhn-extra", 1024, 200, 0.02, 5e-4, 4, 5, 20),
    "svhn_shakeshake26_2x96d": ("svhn-extra", 1024, 200, 0.02, 1.5e-4, 4, 5, 20),
    "imagenet_resnet50": ("imagenet", 512, 270, 0.1, 1e-4, 2, 3, 0),
}


def test_every_recipe_is_here():
    assert set(recipes.RECIPES) == SEARCHES.keys() | EVALUATIONS.keys()
    for name, recipe in recipes.RECIPES.items():
        assert recipes.named(name) is recipe and recipe.name == name


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search(name):
    recipe = recipes.named(name, wants="search")
    search = recipe.search
    facts = (recipe.data, recipe.model, recipe.reduce_to, recipe.classes)
    numbers = (search.batch_size, search.lr, search.weight_decay, search.base.cutout)
    assert (*facts, *numbers) == SEARCHES[name]
    assert (search.preset, search.estimator, search.epochs) == ("paper", "relax", 20)
    assert (search.momentum, search.clip, search.val_fraction) == (0.9, 5.0, 0.5)
    on_imagenet = recipe.data == "imagenet"
    assert (search.base.crop, search.base.flip) == (0 if on_imagenet else 4, True)
    assert recipe.train is None


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation(name):
    recipe = recipes.named(name, wants="train")
    train = recipe.train
    warmup = (train.warmup_factor, train.warmup_epochs)
    numbers = (train.batch_size, train.epochs, train.lr, train.weight_decay, *warmup)
    assert (recipe.data, *numbers, train.base.cutout) == EVALUATIONS[name]
    on_imagenet = recipe.data == "imagenet"
    assert train.schedule == ("step" if on_imagenet else "cosine")
    assert train.clip == (0.0 if on_imagenet else 5.0)
    assert train.momentum == 0.9 and train.label_smoothing == train.ema == 0
    assert recipe.search is None and recipe.reduce_to is None
    assert train.base == BASES[recipe.data]
    assert (train.base.crop, train.base.flip) == (0 if on_imagenet else 4, True)


def test_imagenet_falls_at_the_published_epochs():
    train = recipes.named("imagenet_resnet50").train
    assert [round(train.epochs * at) for at in train.milestones] == [90, 180, 240]


def test_every_model_is_one_we_have():
    for recipe in recipes.RECIPES.values():
        assert recipe.model in MODELS


@pytest.mark.parametrize(
    ("name", "wants", "says"),
    [
        ("cifar10", None, r"no recipe 'cifar10'; there are reduced_cifar10_wrn40_2, .*imagenet_re"),
        ("cifar10_wrn40_2", "search", r"to search with; did you mean .*red.*\? There are red"),
        ("cifar10_wrn40", None, r"no recipe 'cifar10_wrn40'; did you mean cifar10_wrn40_2 or "),
        ("reduced_svhn_wrn28_10", "train", r"to train with; did you mean svhn_.*There are cifar"),
    ],
)
def test_a_recipe_that_is_not(name, wants, says):
    with pytest.raises(ValueError, match=says):
        recipes.named(name, wants=wants)


def test_the_data_is_reduced_as_the_recipe_says():
    labels_N = torch.arange(130 * 60) % 130
    part = TensorPart(torch.zeros(len(labels_N), 1, 2, 2, dtype=torch.uint8), labels_N)
    split = Split(train=part, classes=tuple(f"c{i:03d}" for i in range(130)), name="x")
    reduced = reduced_by(split, recipes.named("reduced_imagenet_resnet50"), 1)
    assert len(reduced.train) == 6000 and reduced.num_classes == 120
    assert torch.bincount(reduced.train.labels_N).tolist() == [50] * 120
    assert reduced_by(split, recipes.named("cifar10_wrn40_2"), 0) is split
