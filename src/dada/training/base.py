"""What is done to every training image besides the policy: crop, flip, turn, colours, a square.

Letters: B images, C channels, H height, W width, K operations. It happens on the device, a
batch at a time, and is the same in search and training; only random resized crops are cut as the
files are read.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dada import ops
from dada.config import Base
from dada.engine import ALONE, Ranks
from dada.ops.geometric import fixed, warp

Noise = torch.Generator | None
"""Where random numbers come from; None: torch's own."""
Moves = list[Tensor] | None
"""A list to which the matrix of every move is added (see `ops.geometric.warp`), so that boxes and
masks can be moved as the pixels were; None: nobody asks."""


def before_policy(
    images_BCHW: Tensor, base: Base, noise: Noise = None, ranks: Ranks = ALONE, moves: Moves = None
) -> Tensor:
    """What every training image gets before the policy: crop, flip, turn, ImageNet's colours."""
    if base.scale < 1:
        images_BCHW = zoom(images_BCHW, base.scale, noise, ranks, moves)
    images_BCHW = crop_and_flip(images_BCHW, base, noise, ranks, moves)
    if base.turn:
        images_BCHW = turn(images_BCHW, noise, ranks, moves)
    if base.jitter:
        images_BCHW = jitter_colours(images_BCHW, base.jitter, noise, ranks)
    if base.lighting:
        images_BCHW = change_lighting(images_BCHW, base.lighting, noise, ranks)
    return images_BCHW


def crop_and_flip(
    images_BCHW: Tensor, base: Base, noise: Noise = None, ranks: Ranks = ALONE, moves: Moves = None
) -> Tensor:
    """Every image padded, cut out at its own place, and mirrored half the time."""
    if not base.crop and not base.flip:
        return images_BCHW
    b, c, h, w = images_BCHW.shape
    device = images_BCHW.device
    uniform = ranks.uniform(b, 3, device, noise).T
    shift_2B = (uniform[:2] * (2 * base.crop + 1)).long()
    x = torch.arange(w, device=device).expand(b, w)
    if base.flip:
        x = torch.where((uniform[2] < 0.5).unsqueeze(1), w - 1 - x, x)
    x = x + shift_2B[0].unsqueeze(1)
    y = torch.arange(h, device=device) + shift_2B[1].unsqueeze(1)
    padded = F.pad(images_BCHW, (base.crop,) * 4)
    if moves is not None:
        mirrored_B = (uniform[2] < 0.5) & base.flip
        start_x, start_y = (shift_2B - base.crop).double().unbind(0)
        moves.append(
            _matrix(
                torch.where(mirrored_B, -1.0, 1.0).double(),
                torch.where(mirrored_B, w + start_x, start_x),
                torch.ones_like(start_y),
                start_y,
            )
        )
    index = (y.unsqueeze(2) * (w + 2 * base.crop) + x.unsqueeze(1)).view(b, 1, h * w)
    return torch.gather(padded.flatten(2), 2, index.expand(b, c, h * w)).view(b, c, h, w)


def turn(
    images_BCHW: Tensor, noise: Noise = None, ranks: Ranks = ALONE, moves: Moves = None
) -> Tensor:
    """Every image upside down half the time and, if images are square, transposed half the time.

    After a flip, each of the eight symmetries of a square comes up equally often; of a rectangle,
    each of its four. Pixels are moved by the matrices that targets are moved by.
    """
    b, _, h, w = images_BCHW.shape
    upside_down_B, transposed_B = ranks.uniform(b, 2, images_BCHW.device, noise).T < 0.5
    scale_y = torch.where(upside_down_B, -1.0, 1.0).double()
    start_y = torch.where(upside_down_B, float(h), 0.0).double()
    matrix_B6 = _matrix(torch.ones_like(scale_y), torch.zeros_like(scale_y), scale_y, start_y)
    if h == w:
        a0, a1, a2, a3, a4, a5 = matrix_B6.unbind(-1)
        x_for_y_B6 = torch.stack([a1, a0, a2, a4, a3, a5], dim=-1)
        matrix_B6 = torch.where(transposed_B.unsqueeze(-1), x_for_y_B6, matrix_B6)
    if moves is not None:
        moves.append(matrix_B6)
    return warp(images_BCHW, matrix_B6)


LOG_RATIO = math.log(4 / 3)  # of width to height, at most, as for ImageNet


def zoom(
    images_BCHW: Tensor,
    smallest: float,
    noise: Noise = None,
    ranks: Ranks = ALONE,
    moves: Moves = None,
) -> Tensor:
    """A random part of every image, `smallest` to all of its area, at the image's size again.

    Area uniform, width to height log-uniform in 3/4..4/3. Unlike torchvision's, a part that is
    wider or higher than the image is made to fit, so that there is one draw and no second try.
    """
    b, _, h, w = images_BCHW.shape
    uniform = ranks.uniform(b, 4, images_BCHW.device, noise).T
    side_B = (smallest + (1 - smallest) * uniform[0]).sqrt()
    stretch_B = torch.exp(LOG_RATIO * (uniform[1] - 0.5))  # the root of the ratio
    width_B, height_B = (side_B * stretch_B).clamp(max=1), (side_B / stretch_B).clamp(max=1)
    left_B, top_B = (1 - width_B) * uniform[2], (1 - height_B) * uniform[3]
    if moves is not None:
        scales = width_B.double(), left_B.double() * w, height_B.double(), top_B.double() * h
        moves.append(_matrix(*scales))
    x_BW = left_B[:, None] + width_B[:, None] * _centres(w, images_BCHW.device)
    y_BH = top_B[:, None] + height_B[:, None] * _centres(h, images_BCHW.device)
    # Pixel centres in 0..1 to grid_sample's -1..1.
    grid_BHW2 = torch.stack(
        [(2 * x_BW - 1)[:, None, :].expand(b, h, w), (2 * y_BH - 1)[:, :, None].expand(b, h, w)], 3
    )
    found_BCHW = F.grid_sample(
        images_BCHW.float(), grid_BHW2, mode="bilinear", padding_mode="border", align_corners=False
    )
    return found_BCHW.round_().clamp_(0, 255).to(torch.uint8)


def _matrix(scale_x: Tensor, start_x: Tensor, scale_y: Tensor, start_y: Tensor) -> Tensor:
    """`warp`'s matrix_B6: a pixel shows what was at scale * its own place + start."""
    none = torch.zeros_like(scale_x)
    # A pixel looks from its centre.
    x = [scale_x, none, start_x + 0.5 * scale_x]
    y = [none, scale_y, start_y + 0.5 * scale_y]
    return fixed(torch.stack([*x, *y], dim=-1))


def _centres(count: int, device: torch.device) -> Tensor:
    return (torch.arange(count, device=device) + 0.5) / count


JITTERED = ("Brightness", "Contrast", "Color")


def jitter_colours(
    images_BCHW: Tensor, strength: float, noise: Noise = None, ranks: Ranks = ALONE
) -> Tensor:
    """Brightness, contrast and colour times a factor in 1 +- strength, in an order of its own."""
    b, device = len(images_BCHW), images_BCHW.device
    uniform = ranks.uniform(b, 2 * len(JITTERED), device, noise)
    order_BK = uniform[:, : len(JITTERED)].argsort(dim=1)
    factor_BK = 1 + strength * (2 * uniform[:, len(JITTERED) :] - 1)
    unused_center_BK2 = torch.zeros(b, len(JITTERED), 2, dtype=torch.float64, device=device)
    chosen = tuple(ops.BY_NAME[name] for name in JITTERED)
    return ops.run(chosen, images_BCHW, order_BK, factor_BK.double(), unused_center_BK2)


# Principal components of the colours of ImageNet's training images: (R, G, B), and their
# deviations, of images in 0..1 (Krizhevsky et al. 2012, as published with many trainers since).
PRINCIPAL_COLOURS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)
PRINCIPAL_DEVIATIONS = (0.2175, 0.0188, 0.0045)


def change_lighting(
    images_BCHW: Tensor, strength: float, noise: Noise = None, ranks: Ranks = ALONE
) -> Tensor:
    """A colour along the principal components added to the whole image; RGB only."""
    if images_BCHW.shape[1] != 3:
        return images_BCHW
    uniform_B6 = ranks.uniform(len(images_BCHW), 6, images_BCHW.device, noise)
    # Box and Muller: two uniform numbers make a normal one.
    radius = (-2 * torch.log1p(-uniform_B6[:, :3])).sqrt()
    normal_B3 = radius * torch.cos(2 * torch.pi * uniform_B6[:, 3:])
    # Added up in numbers, not in a tensor from Python's: a CUDA graph may be recording.
    shifts = [
        sum(
            normal_B3[:, k] * (component * deviation * 255 * strength)
            for k, (component, deviation) in enumerate(zip(row, PRINCIPAL_DEVIATIONS, strict=True))
        )
        for row in PRINCIPAL_COLOURS
    ]
    shift_B311 = torch.stack(shifts, 1).view(-1, 3, 1, 1)  # type: ignore[arg-type]
    return (images_BCHW + shift_B311).round_().clamp_(0, 255).to(torch.uint8)


def cover_square(
    images_BCHW: Tensor, side: int, noise: Noise = None, ranks: Ranks = ALONE
) -> Tensor:
    """The paper's Cutout baseline: a square of the mean colour, after normalising."""
    if not side:
        return images_BCHW
    b, _, h, w = images_BCHW.shape
    device = images_BCHW.device
    center_B2 = ranks.uniform(b, 2, device, noise)
    left = ((center_B2[:, 0] * w).long() - side // 2).view(b, 1, 1, 1)
    top = ((center_B2[:, 1] * h).long() - side // 2).view(b, 1, 1, 1)
    x = torch.arange(w, device=device)
    y = torch.arange(h, device=device).unsqueeze(1)
    covered = (x >= left) & (x < left + side) & (y >= top) & (y < top + side)
    return images_BCHW.masked_fill(covered, 0.0)
