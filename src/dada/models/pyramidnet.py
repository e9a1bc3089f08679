"""PyramidNet (Han et al., CVPR 2017) with bottlenecks and ShakeDrop (Yamada et al. 2019).

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from dada.models.batchnorm import BatchNormReLU
from dada.models.initial import initialise
from dada.models.noise import ShakeDrop

_EXPANSION = 4
_STEM_WIDTH, _ADDED_WIDTH = 16, 200
_LAST_KEEP_PROB = 0.5


class PyramidBlock(nn.Module):
    """BN-1x1-BN-ReLU-3x3-BN-ReLU-1x1-BN, shaken, onto a shortcut padded with zero channels."""

    def __init__(self, width_in: int, width: int, stride: int, keep_prob: float) -> None:
        super().__init__()
        self.stride = stride
        self.added = width * _EXPANSION - width_in
        self.branch = nn.Sequential(
            nn.BatchNorm2d(width_in),
            nn.Conv2d(width_in, width, 1, bias=False),
            BatchNormReLU(width),
            nn.Identity(),  # keeps the numbers by which checkpoints know the layers
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            BatchNormReLU(width),
            nn.Identity(),
            nn.Conv2d(width, width * _EXPANSION, 1, bias=False),
            nn.BatchNorm2d(width * _EXPANSION),
        )
        self.shake = ShakeDrop(keep_prob)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        shortcut = x_BCHW
        if self.stride != 1:
            shortcut = functional.avg_pool2d(shortcut, 2, 2, ceil_mode=True)
        shaken: Tensor = self.shake(self.branch(x_BCHW))
        return shaken + functional.pad(shortcut, (0, 0, 0, 0, 0, self.added))


class PyramidNet(nn.Module):
    """Block l of L is 16 + 200 l / L wide (times 4 at its output).

    Its ShakeDrop keeps it with probability 1 - l / 2L. `depth` is 9n + 2.
    """

    def __init__(self, depth: int, num_classes: int, channels: int) -> None:
        super().__init__()
        if depth < 11 or (depth - 2) % 9 != 0:
            raise ValueError(
                f"pyramidnet{depth}: the depth of a bottleneck pyramid is 9n + 2 (11, 20, 29, ..., "
                "272)"
            )
        blocks_per_stage = (depth - 2) // 9
        total = 3 * blocks_per_stage
        self.stem = nn.Sequential(
            nn.Conv2d(channels, _STEM_WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(_STEM_WIDTH)
        )
        blocks = []
        width_in = _STEM_WIDTH
        for number in range(1, total + 1):
            width = round(_STEM_WIDTH + _ADDED_WIDTH * number / total)
            opens_stage = number > 1 and (number - 1) % blocks_per_stage == 0
            keep_prob = 1 - (1 - _LAST_KEEP_PROB) * number / total
            blocks.append(PyramidBlock(width_in, width, 2 if opens_stage else 1, keep_prob))
            width_in = width * _EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.norm = BatchNormReLU(width_in)
        self.head = nn.Linear(width_in, num_classes)
        initialise(self)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        features = self.norm(self.blocks(self.stem(images_BCHW)))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits
