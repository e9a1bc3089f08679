"""Applies a draw to a batch: every image gets its own operations.

Letters: B images, C channels, H height, W width, N sub-policies, K operations in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada import ops
from dada.config import Base
from dada.space import Draw, SearchSpace


def augment(
    images_BCHW: Tensor, space: SearchSpace, draw: Draw, magnitude_NK: Tensor | None = None
) -> Tensor:
    """The images under one draw each.

    The magnitude is the one the draw brings, or else the sub-policy's own in `magnitude_NK`.
    """
    op_index_BK = space.tables_on(images_BCHW.device)[1][draw.subpolicy_B]
    magnitude_BK = draw.magnitude_BK
    if magnitude_BK is None:
        if magnitude_NK is None:
            raise ValueError("the draw brings no magnitudes, so magnitude_NK is needed")
        magnitude_BK = magnitude_NK.detach()[draw.subpolicy_B]
    return apply_steps(
        images_BCHW,
        space,
        op_index_BK,
        draw.apply_BK,
        magnitude_BK,
        draw.sign_BK,
        draw.center_BK2,
    )


def apply_steps(
    images_BCHW: Tensor,
    space: SearchSpace,
    op_index_BK: Tensor,
    apply_BK: Tensor,
    magnitude_BK: Tensor,
    sign_BK: Tensor,
    center_BK2: Tensor,
) -> Tensor:
    """K operations one after another, chosen for every image; centres are fractions of a side."""
    done_BK, value_BK = space.decide(op_index_BK, apply_BK, magnitude_BK, sign_BK)
    h, w = images_BCHW.shape[-2:]
    center = torch.stack([center_BK2[..., 0] * w, center_BK2[..., 1] * h], dim=-1)
    return ops.run(space.ops, images_BCHW, done_BK, value_BK, center.to(torch.float64))


def augment_stages(
    images_BCHW: Tensor, space: SearchSpace, draw: Draw, magnitude_NK: Tensor | None = None
) -> list[Tensor]:
    """The images before, between and after the K operations: K + 1 batches."""
    stages = [images_BCHW]
    for k in range(draw.apply_BK.shape[1]):
        only_k = torch.arange(draw.apply_BK.shape[1], device=images_BCHW.device) == k
        stages.append(
            augment(stages[-1], space, replace(draw, apply_BK=draw.apply_BK & only_k), magnitude_NK)
        )
    return stages


def crop_and_flip(
    images_BCHW: Tensor, base: Base, generator: torch.Generator | None = None
) -> Tensor:
    """Every image padded, cut out at its own place, and mirrored half the time."""
    if not base.crop and not base.flip:
        return images_BCHW
    b, c, h, w = images_BCHW.shape
    device = images_BCHW.device
    uniform = torch.rand(3, b, generator=generator, device=device)
    shift_2B = (uniform[:2] * (2 * base.crop + 1)).long()
    x = torch.arange(w, device=device).expand(b, w)
    if base.flip:
        x = torch.where((uniform[2] < 0.5).unsqueeze(1), w - 1 - x, x)
    x = x + shift_2B[0].unsqueeze(1)
    y = torch.arange(h, device=device) + shift_2B[1].unsqueeze(1)
    padded = F.pad(images_BCHW, (base.crop,) * 4)
    index = (y.unsqueeze(2) * (w + 2 * base.crop) + x.unsqueeze(1)).view(b, 1, h * w)
    return torch.gather(padded.flatten(2), 2, index.expand(b, c, h * w)).view(b, c, h, w)


def cover_square(
    images_BCHW: Tensor, side: int, generator: torch.Generator | None = None
) -> Tensor:
    """The paper's Cutout baseline: a square of the mean colour, after normalising."""
    if not side:
        return images_BCHW
    b, _, h, w = images_BCHW.shape
    device = images_BCHW.device
    center_B2 = torch.rand(b, 2, generator=generator, device=device)
    left = ((center_B2[:, 0] * w).long() - side // 2).view(b, 1, 1, 1)
    top = ((center_B2[:, 1] * h).long() - side // 2).view(b, 1, 1, 1)
    x = torch.arange(w, device=device)
    y = torch.arange(h, device=device).unsqueeze(1)
    covered = (x >= left) & (x < left + side) & (y >= top) & (y < top + side)
    return images_BCHW.masked_fill(covered, 0.0)


class Normalise(nn.Module):
    """uint8 images to floats of mean 0 and deviation 1, by the data's own numbers."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1) * 255)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return (images_BCHW.float() - self.mean) / self.std
