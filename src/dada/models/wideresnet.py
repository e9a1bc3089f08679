"""Wide residual networks (Zagoruyko and Komodakis, BMVC 2016), without dropout.

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dada.engine import wants_whole_networks
from dada.models.batchnorm import BatchNormReLU
from dada.models.initial import initialise
from dada.models.stacked import logits_of_one
from dada.models.stacked_plan import card_suits, suits


class WideBlock(nn.Module):
    """BN-ReLU-conv3x3-BN-ReLU-conv3x3 beside a shortcut, which is 1x1 where the width changes.

    The two ends are added by whoever reads them: the next BatchNorm does it in the same pass.
    """

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = BatchNormReLU(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm2 = BatchNormReLU(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if width_in != width or stride != 1:
            self.shortcut = nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, branch_BCHW: Tensor, skip_BCHW: Tensor | None) -> tuple[Tensor, Tensor]:
        """(branch, skip) of which the input is the sum -> (branch, skip) of the output."""
        if skip_BCHW is None:  # the first block
            active, x_BCHW = self.norm1(branch_BCHW), branch_BCHW
        else:
            active, x_BCHW = self.norm1.add(branch_BCHW, skip_BCHW)
        out: Tensor = self.conv2(self.norm2(self.conv1(active)))
        # Where the width changes, the shortcut starts behind the activation.
        return out, x_BCHW if self.shortcut is None else self.shortcut(active)


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
        self.blocks = nn.ModuleList(blocks)
        self.norm = BatchNormReLU(width_in)
        self.head = nn.Linear(width_in, num_classes)
        initialise(self)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        compiled = torch.compiler.is_compiling()
        if not compiled and wants_whole_networks() and self._has_kernels_for(images_BCHW):
            return logits_of_one(self, images_BCHW)
        first, *others = self.blocks
        branch, skip = first(self.stem(images_BCHW), None)
        for block in others:
            branch, skip = block(branch, skip)
        logits: Tensor = self.head(self.norm.add(branch, skip)[0].mean((2, 3)))
        return logits

    def _has_kernels_for(self, images_BCHW: Tensor) -> bool:
        """For a step of training in bfloat16 on a card that they are made for."""
        device = images_BCHW.device
        return (
            type(self) is WideResNet
            and card_suits(device)
            and device.index == torch.cuda.current_device()
            and self.training
            and not images_BCHW.requires_grad
            and torch.is_autocast_enabled("cuda")
            and torch.get_autocast_dtype("cuda") == torch.bfloat16
            and suits(self, images_BCHW.shape[2:])
        )
