"""A small U-Net, and a small detector with the same trunk: both learn on a CPU in a minute.

Letters: B images, C classes (channels of images in names of shapes), H height, W width of a map.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.models.initial import initialise

SMALLEST_SIDE, SMALL_SIDE = 40, 64  # of images; a full map of larger ones would cost most
SMALLEST_MAP = 4  # of the deepest features, a side
MOST_LEVELS = 4


def _layers(width_in: int, width: int, stride: int = 1, count: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(count):
        first = i == 0
        layers += [
            nn.Conv2d(
                width_in if first else width, width, 3, stride if first else 1, 1, bias=False
            ),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class Trunk(nn.Module):
    """Down to small maps and up again (Ronneberger et al. 2015), each way joined by what was there.

    Features come at 1 / `stride` of the image's size.
    """

    def __init__(self, channels: int, image_size: tuple[int, int], stride: int) -> None:
        super().__init__()
        side = min(image_size)
        width = 16 if side <= SMALL_SIDE else 24
        levels = 0
        while levels < MOST_LEVELS and side / stride / 2 ** (levels + 1) >= SMALLEST_MAP:
            levels += 1
        stem, width_in = [], channels
        for _ in range(stride.bit_length() - 1):
            stem.append(_layers(width_in, width, 2))
            width_in = width
        self.stem = nn.Sequential(*stem, _layers(width_in, width))
        widths = [width * min(1 + level, 4) for level in range(levels + 1)]
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(_layers(wide, deep, 2, count=2) for wide, deep in pairs)
        self.up = nn.ModuleList(_layers(deep + wide, wide) for wide, deep in reversed(pairs))
        self.stride, self.width = stride, width

    def forward(self, images_BCHW: Tensor) -> Tensor:
        features = [self.stem(images_BCHW)]
        for down in self.down:
            features.append(down(features[-1]))
        found = features.pop()
        for up in self.up:
            beside = features.pop()
            larger = F.interpolate(found, beside.shape[-2:], mode="nearest")
            found = up(torch.cat([larger, beside], 1))
        return found


class UNet(nn.Module):
    """Logits of every pixel."""

    def __init__(self, num_classes: int, channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.trunk = Trunk(channels, image_size, 1 if min(image_size) <= SMALLEST_SIDE else 2)
        self.head = nn.Conv2d(self.trunk.width, num_classes, 1)
        initialise(self)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.head(self.trunk(images_BCHW))
        if logits.shape[-2:] != images_BCHW.shape[-2:]:
            logits = F.interpolate(logits, images_BCHW.shape[-2:], mode="bilinear")
        return logits
