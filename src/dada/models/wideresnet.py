"""Wide residual networks (Zagoruyko and Komodakis, BMVC 2016), without dropout.

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from dada.models.initial import initialise


class WideBlock(nn.Module):
    """BN-ReLU-conv3x3-BN-ReLU-conv3x3 beside a shortcut, which is 1x1 where the width changes."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if width_in != width or stride != 1:
            self.shortcut = nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        active = functional.relu(self.norm1(x_BCHW), inplace=True)
        out: Tensor = self.conv1(active)
        out = self.conv2(functional.relu(self.norm2(out), inplace=True))
        # Where the width changes, the shortcut starts behind the activation.
        return out + (x_BCHW if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """WRN-depth-width: three stages of (depth - 4) / 6 blocks, 16, 32 and 64 times `width` wide."""

    def __init__(self, depth: int, width: int, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6 != 0 or width < 1:
            raise ValueError(
                f"wrn{depth}_{width}: the depth of a wide residual network is 6n + 4 "
                "(10, 16, 22, 28, 34, 40, ...) and its width at least 1"
            )
        blocks_per_stage = (depth - 4) // 6
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        blocks = []
        width_in = 16
        for stage in range(3):
            stage_width = 16 * width * 2**stage
            for block in range(blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(WideBlock(width_in, stage_width, stride))
                width_in = stage_width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(width_in)
        self.head = nn.Linear(width_in, num_classes)
        initialise(self)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        features = self.norm(self.blocks(self.stem(images_BCHW)))
        logits: Tensor = self.head(functional.relu(features, inplace=True).mean((2, 3)))
        return logits
