"""A stand-in is the user's data, smaller: which images, which classes, what is done to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dada
from dada import models
from dada.api.preparation import SharedOptions, prepare
from dada.api.searching import search_job as begun
from dada.config import BASES, LOOKAHEAD, Base, SearchConfig, search_config
from dada.data import Split, load, split_off_validation
from dada.data.parts import TensorPart
from dada.policy_search.lookahead import with_fewer_steps
from dada.policy_search.lookahead.stand_in import StandIn
from dada.report.repeat import search_command
from quick import QUICK_LOOKAHEAD, search_job

CPU = torch.device("cpu")
PLAIN = Base()


def of_size(height: int, width: int, images: int = 24, classes: int = 3) -> Split:
    """Every image has one grey level of its own, every class its own levels."""
    level_N = torch.linspace(0, 250, images).round().to(torch.uint8)
    images_NCHW = level_N.view(-1, 1, 1, 1).expand(-1, 3, height, width).contiguous()
    labels_N = (torch.arange(images) * classes // images).long()
    return split_off_validation(load((images_NCHW, labels_N)), 0.5, 0)


def stand_in(split: Split, base: Base = PLAIN, device: torch.device = CPU) -> StandIn:
    return StandIn.of(split, base, LOOKAHEAD[device.type], device, seed=0)


@pytest.mark.parametrize(
    ("size", "shrunk"),
    [((48, 48), (12, 12)), ((24, 96), (6, 24)), ((20, 2000), (4, 120)), ((8, 8), (8, 8))],
    ids=["square", "wide", "a strip", "small already"],
)
def test_images_have_as_many_pixels_as_a_small_square(size, shrunk):
    small = stand_in(of_size(*size), Base())
    assert small.split.image_size == small.split.val.image_size == shrunk
    assert small.model == "small"
    assert small.build(0)(torch.zeros(2, 3, *shrunk)).shape == (2, 3)


def test_an_image_keeps_what_it_shows_and_its_label():
    split = of_size(48, 36)
    small = stand_in(split, Base()).split
    for part, from_ in ((small.train, split.train), (small.val, split.val)):
        assert isinstance(part, TensorPart)
        assert torch.equal(part.labels_N, from_.labels_N)
        level_N = from_.load().images_NCHW[:, 0, 0, 0]
        assert torch.equal(part.images_NCHW.float().mean((1, 2, 3)), level_N.float())


def test_a_checkerboard_becomes_its_mean():
    split = of_size(48, 48)
    rows, columns = torch.meshgrid(torch.arange(48), torch.arange(48), indexing="ij")
    board_HW = (((rows + columns) % 2) * 200).to(torch.uint8)
    images_NCHW = board_HW.expand(len(split.train), 3, -1, -1).contiguous()
    split = replace(split, train=TensorPart(images_NCHW, split.train.labels_N))
    small = stand_in(split, Base()).split
    assert small.train.load().images_NCHW.unique().tolist() == [100]


def test_of_many_images_some_are_taken_of_every_class():
    settings = LOOKAHEAD["cpu"]
    images, of_a_class = settings.stand_in_images, settings.stand_in_images_of_a_class
    for count in (4, images // of_a_class + 10):
        small = stand_in(of_size(13, 13, 3 * images, count)).split
        for part in (small.train, small.val):
            assert len(part) == max(images, of_a_class * count)
            assert len(part.labels_N.unique()) == count


def test_what_is_done_to_every_image_shrinks_with_it():
    small = stand_in(of_size(32, 32), BASES["cifar10"])
    assert small.base == Base(crop=2, flip=True, cutout=6)
    imagenet = stand_in(of_size(32, 32), BASES["imagenet"]).base
    assert imagenet == replace(BASES["imagenet"], resized_crop=False)


def test_a_card_keeps_more_pixels_and_a_larger_network():
    small = stand_in(of_size(64, 64), Base(), torch.device("cuda"))
    assert small.split.image_size == (32, 32)
    assert small.model == "wrn40_2"


def test_a_search_takes_it_where_its_own_images_take_too_long():
    """And a network of one's own is left alone, whatever sizes it can read."""
    split = of_size(64, 64, 48)
    given, val = ((p.images_NCHW, p.labels_N) for p in (split.train, split.val))
    shapes = []

    class Own(torch.nn.Sequential):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            shapes.append(images.shape[2:])
            return super().forward(images)

    own = Own(torch.nn.Conv2d(3, 64, 9, padding=4), torch.nn.Flatten(), torch.nn.Linear(64**3, 3))
    how = {"epochs": 1, "batch_size": 8, "device": "cpu", "seed": 0}
    how["lookahead"] = replace(QUICK_LOOKAHEAD, seconds=2.4)
    policy = dada.search(given, val, own, **how).policy
    assert policy.provenance["lookahead"]["stand_in"] == {"image_size": [12, 12], "model": "small"}
    assert set(shapes) == {(64, 64)}
    small = dada.search(given, val, "small", image_size=12, **how).policy
    assert "stand_in" not in small.provenance["lookahead"]


@pytest.mark.parametrize(
    ("side", "asked", "least_steps"),
    [(64, {}, 160), (8, {}, 320), (64, {"epochs": 3}, 320), (64, {"lookahead": 9.0}, 320)],
    ids=["a stand-in", "its own images", "epochs asked for", "a budget asked for"],
)
def test_there_are_fewer_steps_where_it_decides(side, asked, least_steps):
    split = of_size(side, side, 400)
    network = models.build("small", 3, 3, (side, side), seed=0)
    job = search_job(split, network, search_config("dada", **asked), device=CPU)
    job = replace(job, lookahead=LOOKAHEAD["cpu"])
    assert with_fewer_steps(job).config.least_steps == least_steps


def test_the_command_that_repeats_a_search_does_not_make_its_steps_fewer_twice():
    images_NCHW = torch.randint(256, (240, 3, 160, 160), dtype=torch.uint8)
    options = SharedOptions(model="small", device="cpu")
    asked = prepare("search", (images_NCHW, torch.arange(240) % 3), options)
    _, job, facts = begun(asked, None, "dada", None, False, None)
    assert job.config.least_steps < SearchConfig().least_steps
    command = search_command(facts, "run")
    assert command is not None and command.startswith("dada search ")
