"""Data in which the answer is known: does a search find it, with the default settings?

Shapes: B images, C channels, H height, W width.

Either the validation images were changed by an operation and the training images were not, so that
learning under this operation helps; or the class is something that an operation destroys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dada
from dada import ops
from dada.data import load

Pair = tuple[Tensor, Tensor]  # (images, labels)
TRAIN, VAL = 600, 600
UNIFORM_RATE = 1 / 15  # two of fifteen operations, each half the time


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# --- validation images that were changed --------------------------------------------------------


def digits(seed: int, side: int = 16) -> tuple[Pair, Pair]:
    """The embedded digits, enlarged: 600 to train, 600 others to validate."""
    noise = torch.Generator().manual_seed(seed)
    part = load("digits").train
    images, labels = part.batch(torch.randperm(len(part), generator=noise)[: TRAIN + VAL])
    images = F.interpolate(images.float(), size=(side, side), mode="bilinear")
    images = images.round().clamp(0, 255).to(torch.uint8)
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def changed_by(op: str, low: float = 0.0, high: float = 1.0) -> Callable[[int], tuple[Pair, Pair]]:
    """Digits; the validation images went through `op` at a value from `low` to `high`."""

    def make(seed: int) -> tuple[Pair, Pair]:
        train, (images, labels) = digits(seed)
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


def blobs(noise: torch.Generator, side: int = 16) -> Tensor:
    """A soft spot at a random place of every image, in 0..1: (B, 1, H, W)."""
    center = side * (0.3 + 0.4 * torch.rand(TRAIN + VAL, 2, 1, 1, generator=noise))
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    square = (x - center[:, 0]) ** 2 + (y - center[:, 1]) ** 2
    return torch.exp(-square / (2 * (side / 5) ** 2)).unsqueeze(1)


def hues(seed: int) -> tuple[Pair, Pair]:
    """Spots of six hues, equally bright and saturated, on grey."""
    noise, labels = start(seed, 6)
    angle = labels * math.pi / 3 + 0.15 * torch.randn(len(labels), generator=noise)
    phases = torch.tensor([0.0, 2.0, 4.0]) * math.pi / 3
    colour_BC = torch.cos(angle[:, None] - phases)
    images = 120 + 90 * blobs(noise) * colour_BC[:, :, None, None]
    return halves(images + 12 * torch.randn(images.shape, generator=noise), labels)


def saturations(seed: int) -> tuple[Pair, Pair]:
    """Spots of one hue (any) and four saturations."""
    noise, labels = start(seed, 4)
    angle = 2 * math.pi * torch.rand(len(labels), generator=noise)
    phases = torch.tensor([0.0, 2.0, 4.0]) * math.pi / 3
    colour_BC = torch.cos(angle[:, None] - phases) * (0.15 + 0.28 * labels[:, None])
    images = 125 + 100 * blobs(noise) * colour_BC[:, :, None, None]
    return halves(images + 6 * torch.randn(images.shape, generator=noise), labels)


def shades(seed: int) -> tuple[Pair, Pair]:
    """Even grey images of six levels, six apart: four bits cannot tell most of them."""
    noise, labels = start(seed, 6)
    level = 110 + 6 * labels
    images = level[:, None, None, None] + torch.randn(len(labels), 3, 16, 16, generator=noise)
    return halves(images, labels)


def brightness(seed: int) -> tuple[Pair, Pair]:
    """Textures of five brightnesses."""
    noise, labels = start(seed, 5)
    level = (60 + 28 * labels)[:, None, None, None]
    texture = 25 * torch.randn(len(labels), 1, 16, 16, generator=noise)
    return halves((level + texture).expand(-1, 3, -1, -1), labels)


def orientations(seed: int) -> tuple[Pair, Pair]:
    """Waves of any phase in six directions, 30 degrees apart."""
    noise, labels = start(seed, 6)
    angle = (labels + 0.3 * (torch.rand(len(labels), generator=noise) - 0.5)) * math.pi / 6
    phase = 2 * math.pi * torch.rand(len(labels), 1, 1, generator=noise)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    along = torch.cos(angle)[:, None, None] * x + torch.sin(angle)[:, None, None] * y
    images = 127 + 80 * torch.sin(1.2 * along + phase)
    images = (images + 20 * torch.randn(images.shape, generator=noise)).unsqueeze(1)
    return halves(images.expand(-1, 3, -1, -1), labels)


def places(seed: int) -> tuple[Pair, Pair]:
    """A spot at any height, in one of four columns."""
    noise, labels = start(seed, 4)
    center_x = 3 + 3.3 * labels + 0.5 * torch.randn(len(labels), generator=noise)
    center_y = 3 + 10 * torch.rand(len(labels), generator=noise)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    square = (x - center_x[:, None, None]) ** 2 + (y - center_y[:, None, None]) ** 2
    images = 40 + 180 * torch.exp(-square / 5).unsqueeze(1)
    return halves(images + 15 * torch.randn(images.shape, generator=noise), labels)


# --- the cases ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    data: Callable[[int], tuple[Pair, Pair]]
    rise: tuple[str, ...] = ()
    fall: tuple[str, ...] = ()


CASES = {
    "rotated": Case(data=changed_by("Rotate", 15, 30), rise=("Rotate",)),
    "shifted": Case(data=changed_by("TranslateX", 0.15, 0.3), rise=("TranslateX",)),
    "shifted_down": Case(data=changed_by("TranslateY", 0.15, 0.3), rise=("TranslateY",)),
    "sheared": Case(data=changed_by("ShearX", 0.2, 0.3), rise=("ShearX",)),
    "inverted": Case(data=changed_by("Invert"), rise=("Invert",)),
    "darkened": Case(data=changed_by("Brightness", 0.1, 0.3), rise=("Brightness",)),
    "flattened": Case(data=changed_by("Contrast", 0.1, 0.3), rise=("Contrast",)),
    "solarized": Case(data=changed_by("Solarize", 64, 192), rise=("Solarize",)),
    "hues": Case(data=hues, fall=("Invert", "Solarize", "Equalize")),
    "saturations": Case(data=saturations, fall=("Color",)),
    "shades": Case(data=shades, fall=("Posterize",)),
    "brightness": Case(data=brightness, fall=("Brightness", "Invert", "Equalize")),
    "orientations": Case(data=orientations, fall=("Rotate", "ShearX", "ShearY")),
    "places": Case(data=places, fall=("TranslateX",)),
}
