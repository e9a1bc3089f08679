"""Operations that change the value of pixels and leave them where they are.

Letters: B images, C channels, H height, W width. All arithmetic repeats Pillow's, roundings
included: 8-bit tables, a 16-bit luma, and a blend in float32 that truncates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def per_image(value_B: Tensor) -> Tensor:
    return value_B.view(-1, 1, 1, 1)


# Tables: every grey level of a channel goes to another, decided by all of the channel.


def histogram(images_BCHW: Tensor) -> Tensor:
    """Counts of the 256 grey levels of every channel of every image, histogram_BC256."""
    b, c, h, w = images_BCHW.shape
    if images_BCHW.device.type == "cpu":
        # Over disjoint ranges; on a CPU faster than scatter_add, on CUDA it would synchronise.
        start = torch.arange(0, b * c * 256, 256, dtype=torch.int32).view(b, c, 1, 1)
        flat = images_BCHW.to(torch.int32).add_(start).view(-1)
        return torch.bincount(flat, minlength=b * c * 256).view(b, c, 256)
    counts = torch.zeros(b, c, 256, dtype=torch.int64, device=images_BCHW.device)
    one = torch.ones(1, 1, 1, dtype=torch.int64, device=images_BCHW.device)
    return counts.scatter_add_(2, images_BCHW.view(b, c, h * w).long(), one.expand(b, c, h * w))


def equalize_table(images_BCHW: Tensor) -> Tensor:
    """ImageOps.equalize: level i goes to (step // 2 + how many pixels lie below i) // step."""
    histogram_BC256 = histogram(images_BCHW)
    levels = torch.arange(256, device=images_BCHW.device)
    below = histogram_BC256.cumsum(-1) - histogram_BC256
    last_level = images_BCHW.flatten(2).amax(-1, keepdim=True).to(torch.int64)
    step = below.gather(-1, last_level) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table, levels)


def autocontrast_table(images_BCHW: Tensor) -> Tensor:
    """ImageOps.autocontrast: stretch lowest..highest onto 0..255, truncating in float64."""
    levels = torch.arange(256, device=images_BCHW.device)
    low = images_BCHW.flatten(2).amin(-1, keepdim=True).to(torch.int64)
    high = images_BCHW.flatten(2).amax(-1, keepdim=True).to(torch.int64)
    # A true division: torch turns `255.0 / tensor` into a product with the reciprocal,
    # one rounding more than Pillow makes.
    span = (high - low).clamp(min=1).to(torch.float64)
    scale = torch.full_like(span, 255.0) / span
    stretched = torch.trunc(levels * scale - low * scale).clamp(0, 255).to(torch.int64)
    return torch.where(high > low, stretched, levels)


@dataclass(frozen=True)
class Table:
    """A kernel that sends grey levels through a table_BC256 of their channel's own."""

    table: Callable[[Tensor], Tensor]

    def __call__(self, images_BCHW: Tensor, value_B: Tensor, center_B2: Tensor) -> Tensor:
        b, c, h, w = images_BCHW.shape
        table_BC256 = self.table(images_BCHW).to(torch.uint8)
        levels_BCP = images_BCHW.reshape(b, c, h * w).to(torch.int64)
        return torch.gather(table_BC256, 2, levels_BCP).view(b, c, h, w)


equalize = Table(equalize_table)
autocontrast = Table(autocontrast_table)


# Bits: no table is needed, the same comes out of byte arithmetic.


def invert(images_BCHW: Tensor, value_B: Tensor, center_B2: Tensor) -> Tensor:
    return images_BCHW ^ 255


def posterize(images_BCHW: Tensor, value_B: Tensor, center_B2: Tensor) -> Tensor:
    """Keep the int(value) highest bits."""
    dropped_B = 8 - torch.trunc(value_B).to(torch.int64)
    keep_B = (256 - torch.bitwise_left_shift(torch.ones_like(dropped_B), dropped_B)).to(torch.uint8)
    return images_BCHW & per_image(keep_B)


def solarize(images_BCHW: Tensor, value_B: Tensor, center_B2: Tensor) -> Tensor:
    """Invert the grey levels that are not below the threshold; above 255 there are none."""
    threshold_B = torch.ceil(value_B).clamp(0, 256).to(torch.int64)
    flip_B = torch.where(threshold_B < 256, 255, 0).to(torch.uint8)
    # x >= t without a comparison of bytes, which torch does not vectorise on a CPU:
    # max(x, t) equals x exactly there.
    threshold_B = threshold_B.clamp(max=255).to(torch.uint8)
    reached = torch.maximum(images_BCHW, per_image(threshold_B)) == images_BCHW
    return images_BCHW ^ (reached.view(torch.uint8) * per_image(flip_B))


# Blends: Pillow's enhancers mix the image with a duller version of itself.


def luma(images_BCHW: Tensor) -> Tensor:
    """Pillow's RGB to L in 16-bit fixed point, int32_B1HW; a grey image is its own luma."""
    levels = images_BCHW.to(torch.int32)
    if images_BCHW.shape[1] == 1:
        return levels
    red, green, blue = levels.unbind(1)
    weighted = (red * 19595).add_(green * 38470).add_(blue * 7471).add_(0x8000)
    return weighted.bitwise_right_shift_(16).unsqueeze(1)


def black(images_BCHW: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float32, device=images_BCHW.device)


def mean_luma(images_BCHW: Tensor) -> Tensor:
    h, w = images_BCHW.shape[-2:]
    total = luma(images_BCHW).sum((1, 2, 3), keepdim=True).to(torch.float64)
    return torch.floor(total / (h * w) + 0.5).to(torch.float32)


def grey(images_BCHW: Tensor) -> Tensor:
    return luma(images_BCHW).to(torch.float32)


def smooth(images_BCHW: Tensor) -> Tensor:
    """ImageFilter.SMOOTH: 3x3 with weight 5 in the middle, over 13; the border stays."""
    h, w = images_BCHW.shape[-2:]
    smoothed = images_BCHW.to(torch.float32)
    if h < 3 or w < 3:
        return smoothed
    levels = images_BCHW.to(torch.int16)
    rows = levels[..., :-2, :] + levels[..., 1:-1, :] + levels[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + levels[..., 1:-1, 1:-1] * 4
    # total / 13 is never within 1/26 of a half, so float32 rounds as Pillow does.
    smoothed[..., 1:-1, 1:-1] = torch.floor(total.to(torch.float32).mul_(1 / 13).add_(0.5))
    return smoothed


@dataclass(frozen=True)
class Blend:
    """A kernel that enhances: degenerate + value x (image - degenerate), clipped, truncated."""

    degenerate: Callable[[Tensor], Tensor]

    def __call__(self, images_BCHW: Tensor, value_B: Tensor, center_B2: Tensor) -> Tensor:
        duller = self.degenerate(images_BCHW)
        mixed = images_BCHW.to(torch.float32).sub_(duller)
        mixed.mul_(per_image(value_B.to(torch.float32))).add_(duller).clamp_(0, 255)
        # Through int16: torch converts float to uint8 one element at a time.
        return mixed.to(torch.int16).to(torch.uint8)

    def derivative(self, images_BCHW: Tensor, value_B: Tensor) -> Tensor:
        """d output / d value, in grey levels: image - degenerate wherever nothing was clipped."""
        duller = self.degenerate(images_BCHW)
        difference = images_BCHW.to(torch.float32) - duller
        mixed = difference * per_image(value_B.to(torch.float32)) + duller
        return torch.where((mixed > 0) & (mixed < 255), difference, 0.0)


brightness = Blend(black)
contrast = Blend(mean_luma)
color = Blend(grey)
sharpness = Blend(smooth)
