"""Settings and arguments of any size and kind: named in one line, before anything begins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dada
from dada import data
from dada.config import Base, SearchConfig, TrainConfig, seed_number, whole_number

IMAGES = torch.arange(40 * 64).view(40, 1, 8, 8).remainder(251).to(torch.uint8)
PAIR = (IMAGES, torch.arange(40) % 2)
QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "device": "cpu", "model": "small"}

WRONG = {
    "epochs": ("3", 1.0, True, 10**400, -1, 0, 10**9, [1]),
    "batch_size": (1.5, "x", 0, 10**12),
    "lr": (math.inf, math.nan, 1e300, "0.1", -1, 10**400, None.__class__),
    "momentum": (1.0, math.nan, "x"),
    "clip": (math.nan, -1, "x", 10**400),
    "precision": (16, "fp8"),
    "base": ("cifar", {}),
}
WRONG_IN_SEARCH = {
    **WRONG,
    "for_images": (0, -5, 1.5, 10**12),
    "views": (0, 10**9, 1.5, "2"),
    "exclude": ("Invert", 5),
    "policy_betas": (5, "ab", (math.nan, 1)),
    "space": (5, []),
    "fixed_validation": (1, "yes"),
}
CASES = [
    (SearchConfig, name, value) for name, values in WRONG_IN_SEARCH.items() for value in values
]
CASES += [(TrainConfig, name, value) for name, values in WRONG.items() for value in values]
CASES += [(Base, "crop", value) for value in (-1, 1.5, "x", 10**9)]
CASES += [
    (Base, "flip", 1),
    (Base, "turn", 1),
    (Base, "jitter", math.nan),
    (TrainConfig, "milestones", 5),
]


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=str)
def test_a_wrong_setting_is_named(kind: Any, name: str, value: Any) -> None:
    if (kind, name) in ((SearchConfig, "momentum"), (SearchConfig, "clip")) and value in (1.0, -1):
        pytest.skip("a search takes them as they are")
    with pytest.raises((ValueError, TypeError)) as caught:
        kind(**{name: value})
    message = str(caught.value)
    named = f"`{name}`" in message or (kind is Base and name in message)
    assert named or (name == "space" and "space" in message)
    assert "\n" not in message and len(message) < 300


def test_numbers_of_numpy_become_pythons() -> None:
    config = TrainConfig(epochs=np.int64(3), lr=np.float32(0.5), batch_size=np.uint8(7))
    assert (config.epochs, config.lr, config.batch_size) == (3, 0.5, 7)
    assert [type(n) for n in (config.epochs, config.lr, config.batch_size)] == [int, float, int]
    assert type(TrainConfig(warmup_epochs=3).warmup_epochs) is int  # as config.toml of old runs has
    assert type(seed_number(np.int32(5))) is int
    with pytest.raises(TypeError, match="`n` should be a whole number, got True"):
        whole_number("n", True)


def test_seeds_of_numpy_give_what_pythons_give() -> None:
    scores = [dada.train(PAIR, seed=seed, **QUICK).scores for seed in (3, np.int64(3))]
    assert scores[0] == scores[1]
    split = data.load(PAIR, seed=np.int64(1))
    assert (
        len(data.reduce(data.split_off_validation(split, 0.5, np.int64(1)), np.int64(6)).train) == 6
    )
    dada.Policy.load("uniform").transform(seed=np.uint8(1))(IMAGES)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 1.5}, "`seed` should be a whole number"),
    "large seed": ({"seed": 2**70}, "`seed` should be smaller than"),
    "model": ({"model": {}}, "`model` should be a name or a torch.nn.Module"),
    "device": ({"device": None}, "`device` should be a name"),
    "out": ({"out": 5}, "`out` should be a path"),
    "policy": ({"policy": 5}, "`policy` should be a name, a path or a Policy"),
    "image_size": ({"image_size": 10**6}, "`image_size` must lie in"),
    "half image_size": ({"image_size": 8.5}, "`image_size` must be a whole number"),
    "memory": ({"image_size": 16_384}, "lower `image_size`"),
    "steps": ({"epochs": 10**5, "batch_size": 1}, ""),
    "data": ({"data": dict(images=IMAGES)}, "cannot read data from dict"),
    "sparse": ({"data": (IMAGES.float().to_sparse(), PAIR[1])}, "images: a tensor must be dense"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_a_run_begins(
    mistake: str, tmp_path: Any, monkeypatch: Any
) -> None:
    given, says = MISTAKES[mistake]
    monkeypatch.setattr("dada.api.settings.MOST_STEPS", 1000)
    monkeypatch.setattr("dada.data.raw.memory_of_machine", lambda: 1e9)
    arguments = {"data": PAIR, **QUICK, "out": tmp_path / "run", **given}
    with pytest.raises((ValueError, TypeError)) as caught:
        dada.train(**arguments)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_step_that_no_memory_holds_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("dada.api.settings.memory_of_machine", lambda: 1e5)
    with pytest.raises(ValueError, match="lower `batch_size`, `views` or `image_size`"):
        dada.search(PAIR, views=40, lookahead=0, **QUICK)


@pytest.mark.parametrize("seeds", [1.5, "3", 10**12, range(10**30), [1.5], -1, 0, {}])
def test_wrong_seeds_of_a_comparison(seeds: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="seed"):
        dada.compare(PAIR, ["none", "uniform"], seeds=seeds, **QUICK)


def test_a_frozen_network_is_named_and_a_partly_frozen_one_trains() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2))

    quick = {**QUICK, "model": network().requires_grad_(False)}
    with pytest.raises(ValueError, match="`model` has no weights to train: all of them are frozen"):
        dada.train(PAIR, **quick)
    partly = network()
    partly[0].requires_grad_(False)
    before = partly[0].weight.clone()
    dada.train(PAIR, **{**QUICK, "model": partly})
    assert torch.equal(partly[0].weight, before)


def test_an_error_inside_a_dataset_names_the_item() -> None:
    class Broken:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, position: int) -> Any:
            if position == 7:
                raise KeyError("gone\naway")
            return IMAGES[position], position % 2

    with pytest.raises(ValueError, match=r"Broken\[7\]: the dataset failed to give it \(KeyError"):
        data.load(Broken())


def test_a_transform_refuses_what_is_not_dense() -> None:
    with pytest.raises(ValueError, match="should be dense"):
        dada.Policy.load("uniform").transform()(IMAGES.float().to_sparse())
