"""Data in which the answer is known: does a search find it, with the default settings?

Shapes: B images, C channels, H height, W width.

Either the validation images were changed by an operation and the training images were not, so that
learning under this operation helps; or the class is something that an operation destroys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dada
from dada import ops
from dada.data import load
from dada.ops import PAPER

Pair = tuple[Tensor, Tensor]  # (images, labels)
Data = Callable[..., tuple[Pair, Pair]]  # (seed, side = 16) -> training and validation images
TRAIN, VAL = 600, 600


# --- validation images that were changed --------------------------------------------------------


def digits(seed: int, side: int = 16) -> tuple[Pair, Pair]:
    """The embedded digits, enlarged: 600 to train, 600 others to validate."""
    noise = torch.Generator().manual_seed(seed)
    part = load("digits").train
    images, labels = part.batch(torch.randperm(len(part), generator=noise)[: TRAIN + VAL])
    images = F.interpolate(images.float(), size=(side, side), mode="bilinear")
    images = images.round().clamp(0, 255).to(torch.uint8)
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def changed_by(op: str, low: float = 0.0, high: float = 1.0) -> Data:
    """Digits; the validation images went through `op` at a value from `low` to `high`."""

    def make(seed: int, side: int = 16) -> tuple[Pair, Pair]:
        train, (images, labels) = digits(seed, side)
        noise = torch.Generator().manual_seed(seed + 1000)
        value_B = low + (high - low) * torch.rand(VAL, generator=noise, dtype=torch.float64)
        sign_B = torch.where(torch.rand(VAL, generator=noise) < 0.5, -1.0, 1.0).double()
        if not ops.BY_NAME[op].signed:
            sign_B = torch.ones_like(sign_B)
        return train, (ops.apply(op, images, value_B, sign_B=sign_B), labels)

    return make


# --- classes that an operation destroys ---------------------------------------------------------


def halves(images: Tensor, labels: Tensor) -> tuple[Pair, Pair]:
    images = images.round().clamp(0, 255).to(torch.uint8)
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def start(seed: int, classes: int) -> tuple[torch.Generator, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return noise, torch.randint(0, classes, (TRAIN + VAL,), generator=noise)


def flat_colour(angle_B: Tensor, side: int) -> Tensor:
    """A hue as an angle, to red, green and blue in -1..1 that add up to 0.

    Twice as wide as high: Equalize leaves images of fewer than 256 pixels as they are.
    """
    phases = torch.tensor([0.0, 2.0, 4.0]) * math.pi / 3
    colour_BC = torch.cos(angle_B[:, None] - phases)
    return colour_BC[:, :, None, None].expand(-1, 3, side, 2 * side)


def hues(seed: int, side: int = 16) -> tuple[Pair, Pair]:
    """Even images of six hues, equally bright and saturated, with noise."""
    noise, labels = start(seed, 6)
    angle = labels * math.pi / 3 + 0.15 * torch.randn(len(labels), generator=noise)
    images = 125 + 70 * flat_colour(angle, side)
    return halves(images + 25 * torch.randn(images.shape, generator=noise), labels)


def saturations(seed: int, side: int = 16) -> tuple[Pair, Pair]:
    """Even images of any hue and four saturations, with noise."""
    noise, labels = start(seed, 4)
    angle = 2 * math.pi * torch.rand(len(labels), generator=noise)
    images = 125 + (12 + 25 * labels[:, None, None, None]) * flat_colour(angle, side)
    return halves(images + 12 * torch.randn(images.shape, generator=noise), labels)


def brightness(seed: int, side: int = 16) -> tuple[Pair, Pair]:
    """Textures of five brightnesses."""
    noise, labels = start(seed, 5)
    level = (60 + 28 * labels)[:, None, None, None]
    texture = 25 * torch.randn(len(labels), 1, side, 2 * side, generator=noise)
    return halves(level + texture, labels)


def orientations(seed: int, side: int = 16) -> tuple[Pair, Pair]:
    """Waves of any phase in six directions, 30 degrees apart."""
    noise, labels = start(seed, 6)
    angle = (labels + 0.3 * (torch.rand(len(labels), generator=noise) - 0.5)) * math.pi / 6
    phase = 2 * math.pi * torch.rand(len(labels), 1, 1, generator=noise)
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    along = torch.cos(angle)[:, None, None] * x + torch.sin(angle)[:, None, None] * y
    images = 127 + 80 * torch.sin(1.2 * along + phase)
    return halves((images + 20 * torch.randn(images.shape, generator=noise)).unsqueeze(1), labels)


# --- the cases ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    data: Data
    rise: tuple[str, ...] = ()
    strength: float = 0.0  # what rises does so at no less than this
    fall: tuple[str, ...] = ()
    fade: tuple[str, ...] = ()


CASES = {
    "rotated": Case(data=changed_by("Rotate", 15, 30), rise=("Rotate",), strength=0.2),
    "shifted": Case(data=changed_by("TranslateX", 0.15, 0.3), rise=("TranslateX",)),
    "hues": Case(
        data=hues,
        fall=("Invert", "Solarize", "Equalize", "AutoContrast"),
        fade=("Color", "Posterize"),
    ),
    "shifted_down": Case(data=changed_by("TranslateY", 0.15, 0.3), rise=("TranslateY",)),
    "sheared": Case(data=changed_by("ShearX", 0.2, 0.3), rise=("ShearX",)),
    "inverted": Case(data=changed_by("Invert"), rise=("Invert",)),
    "darkened": Case(data=changed_by("Brightness", 0.1, 0.3), rise=("Brightness",)),
    "flattened": Case(data=changed_by("Contrast", 0.1, 0.3), rise=("Contrast",)),
    "solarized": Case(data=changed_by("Solarize", 64, 192), rise=("Solarize",)),
    "saturations": Case(data=saturations, fall=("Color", "AutoContrast")),
    "brightness": Case(data=brightness, fall=("Brightness", "Invert", "Equalize", "AutoContrast")),
    "orientations": Case(data=orientations, fall=("Rotate",)),
}
LARGE = ("rotated", "shifted")  # 16 pixels a side in place of 12


def side_of(name: str) -> int:
    return 16 if name in LARGE else 12


def searched(case: Case, seed: int, side: int, lookahead: float | None = None) -> dada.Policy:
    train, val = case.data(seed, side)
    return dada.search(train, val, seed=seed, device="cpu", lookahead=lookahead).policy


def check(case: Case, policy: dada.Policy) -> None:
    """What should rise is among the three likeliest operations, and twice as likely as the mean;
    what should fall is in the lower half, and half as likely; what should fade is less likely by a
    third: it does harm at some strengths only, so it may look like one that does nothing.
    """
    rate = {op.name: 0.0 for op in PAPER} | policy.op_probabilities()  # wide ranges lack some
    usual = sum(rate.values()) / len(rate)
    ranked = sorted(rate, key=lambda name: -rate[name])
    seen = {name: f"#{ranked.index(name) + 1}, {rate[name]:.3f}" for name in ranked}
    for name in case.rise:
        assert ranked.index(name) < 3 and rate[name] > 2 * usual, seen
    ahead = policy.provenance.get("lookahead") or {"shape": "magnitudes as found"}
    if case.strength and "as found" in ahead["shape"]:
        for step in (step for subpolicy in policy.subpolicies for step in subpolicy.ops):
            if step.op in case.rise:
                assert 2 * step.magnitude_range[0] - 1 > case.strength  # 0.5 does nothing
    for name in case.fall:
        assert ranked.index(name) >= 8 and rate[name] < usual / 2, seen
    for name in case.fade:
        assert rate[name] < 2 * usual / 3, seen


# Of these, only one looks ahead: it triples the time.
@pytest.mark.parametrize(("name", "lookahead"), [("rotated", 0), ("shifted", 0), ("hues", None)])
def test_the_planted_answer_is_found(name, lookahead):
    check(CASES[name], searched(CASES[name], seed=0, side=12, lookahead=lookahead))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_planted_answer_is_found_again(name, seed):
    check(CASES[name], searched(CASES[name], seed, side_of(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rotated", "shifted", "hues", "saturations"])
def test_a_stand_in_finds_it_in_larger_images(name):
    policy = searched(CASES[name], seed=0, side=32)
    check(CASES[name], policy)
    assert "stand_in" in policy.provenance["lookahead"]
