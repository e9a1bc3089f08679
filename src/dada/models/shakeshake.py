"""Shake-Shake networks (Gastaldi 2017), 26 layers, two branches.

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dada.models.batchnorm import BatchNormReLU
from dada.models.initial import initialise
from dada.models.noise import ShakeShake

_BLOCKS_PER_STAGE = 4  # 26 layers: stem, 3 stages of 4 blocks of 2, and the linear layer


def _branch(width_in: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ReLU(),  # not in place: both branches and the shortcut read the same input
        nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
        BatchNormReLU(width),
        nn.Identity(),  # keeps the numbers by which checkpoints know the layers
        nn.Conv2d(width, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
    )


class Shortcut(nn.Module):
    """Two samplings of the input, the second a pixel further right and down, 1x1 each, joined."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.here = nn.Conv2d(width_in, width // 2, 1, bias=False)
        self.beside = nn.Conv2d(width_in, width - width // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        active = functional.relu(x_BCHW)
        moved = functional.pad(active[:, :, 1:, 1:], (0, 1, 0, 1))
        step = self.stride
        joined = torch.cat(
            [self.here(active[:, :, ::step, ::step]), self.beside(moved[:, :, ::step, ::step])], 1
        )
        out: Tensor = self.norm(joined)
        return out


class ShakeBlock(nn.Module):
    """The input plus a random mixture of two branches."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch1 = _branch(width_in, width, stride)
        self.branch2 = _branch(width_in, width, stride)
        self.shake = ShakeShake()
        same = width_in == width and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else Shortcut(width_in, width, stride)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        mixed: Tensor = self.shake(self.branch1(x_BCHW), self.branch2(x_BCHW))
        return self.shortcut(x_BCHW) + mixed


class ShakeShakeNet(nn.Module):
    """Shake-Shake 26 2 x `width`d: stages `width`, 2 `width` and 4 `width` wide."""

    def __init__(self, width: int, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"shakeshake26_2x{width}d: the width must be at least 1")
        self.stem = nn.Sequential(nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        blocks = []
        width_in = 16
        for stage in range(3):
            for block in range(_BLOCKS_PER_STAGE):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(ShakeBlock(width_in, width * 2**stage, stride))
                width_in = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width_in, num_classes)
        initialise(self)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        features = self.blocks(self.stem(images_BCHW))
        logits: Tensor = self.head(functional.relu(features).mean((2, 3)))
        return logits
