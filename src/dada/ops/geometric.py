"""Operations that move pixels or cover them.

Letters: B images, C channels, H height, W width.

Pillow warps with nearest neighbour in 16.16 fixed point: output pixel (x, y) shows source pixel
((a2 + a0 x + a1 y) >> 16, (a5 + a3 x + a4 y) >> 16), black where that lies outside. Writing the
matrix in the same integers makes equality exact on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

FIXED_ONE = 1 << 16
LARGEST_SIDE = 32767  # beyond it Pillow leaves fixed point
# a0 x + a1 y + a2 stays within 32 bits for every matrix built here; at 8192 the fused kernel would
# also need 65536 programs for one image, one more than CUDA's second grid axis has.
SAFE_SIDE_INT32 = 8191


def fixed(value: Tensor) -> Tensor:
    """Pillow's FIX: a float64 to 16.16 fixed point, rounding halves up."""
    return torch.floor(value * FIXED_ONE + 0.5).to(torch.int64)


def rotation_matrix(degrees_B: Tensor, height: int, width: int) -> Tensor:
    """Image.rotate's matrix_B6: counterclockwise about the centre, entries rounded to 15 digits."""
    radians = -torch.deg2rad(degrees_B)
    cos = torch.round(torch.cos(radians), decimals=15)
    sin = torch.round(torch.sin(radians), decimals=15)
    center_x, center_y = width / 2, height / 2
    offset_x = cos * -center_x + sin * -center_y + center_x
    offset_y = -sin * -center_x + cos * -center_y + center_y
    # Pillow looks from the centre of a pixel: half a step along each axis.
    a2, a5 = offset_x + cos * 0.5 + sin * 0.5, offset_y + -sin * 0.5 + cos * 0.5
    return fixed(torch.stack([cos, sin, a2, -sin, cos, a5], dim=-1))


def slide_matrix(shear_x: Tensor, shear_y: Tensor, pixels_x: Tensor, pixels_y: Tensor) -> Tensor:
    """The matrix_B6 of a shear, or of a shift by whole pixels: Pillow truncates a pure shift."""
    one, half = torch.ones_like(shear_x), 0.5 * torch.ones_like(shear_x)
    floats = [one, shear_x, half + shear_x * 0.5, shear_y, one, shear_y * 0.5 + half]
    matrix_B6 = fixed(torch.stack(floats, dim=-1))
    shift = torch.floor(torch.stack([pixels_x, pixels_y], dim=-1) + 0.5).to(torch.int64)
    matrix_B6[..., 2::3] += shift * FIXED_ONE
    return matrix_B6


def warp(images_BCHW: Tensor, matrix_B6: Tensor) -> Tensor:
    """Show every image through its own fixed-point matrix, black outside."""
    b, c, h, w = images_BCHW.shape
    index_type = torch.int32 if max(h, w) <= SAFE_SIDE_INT32 else torch.int64
    device = images_BCHW.device
    x = torch.arange(w, dtype=index_type, device=device)
    y = torch.arange(h, dtype=index_type, device=device).unsqueeze(-1)
    a0, a1, a2, a3, a4, a5 = matrix_B6.to(index_type).view(b, 6, 1, 1).unbind(1)
    # A border of zeros, and coordinates clamped onto it, takes two passes where testing
    # the four sides takes eight.
    source_x = (a0 * x + (a1 * y + a2)).bitwise_right_shift_(16).clamp_(-1, w)
    source_y = (a3 * x + (a4 * y + a5)).bitwise_right_shift_(16).clamp_(-1, h)
    index = source_y.add_(1).mul_(w + 2).add_(source_x).add_(1)
    padded = F.pad(images_BCHW, (1, 1, 1, 1)).view(b, c, (h + 2) * (w + 2))
    index_BCP = index.to(torch.int64).view(b, 1, h * w).expand(b, c, h * w)
    return torch.gather(padded, 2, index_BCP).view(b, c, h, w)


def shift_rows(images_BCHW: Tensor, matrix_B6: Tensor) -> Tensor:
    """`warp` for matrices that only move whole rows (a0 = a4 = 1, a3 = 0).

    Every output row is a window of a source row between two borders of zeros, so it is one copy of
    W bytes instead of W look-ups.
    """
    b, c, h, w = images_BCHW.shape
    device = images_BCHW.device
    a1, a2, a5 = matrix_B6[:, 1:2], matrix_B6[:, 2:3], matrix_B6[:, 5:6]
    y = torch.arange(h, device=device)
    source_BH = ((a5 >> 16) + y).view(b, 1, h)
    shift_BH = ((a2 + a1 * y) >> 16).clamp(-w, w).view(b, 1, h)
    # A row from outside is the window that lies all in the left border.
    shift_BH = torch.where((source_BH >= 0) & (source_BH < h), shift_BH, -w)
    plane_BC = torch.arange(b * c, device=device).view(b, c, 1) * h
    start = (plane_BC + source_BH.clamp(0, h - 1)) * (3 * w) + w + shift_BH
    padded = F.pad(images_BCHW, (w, w)).view(-1)
    windows = padded.as_strided((padded.numel() - w + 1, w), (1, 1))
    return windows.index_select(0, start.view(-1)).view(b, c, h, w)


@dataclass(frozen=True, kw_only=True)
class Affine:
    """A kernel that warps: how far a value of 1 turns, shears or shifts."""

    degrees: float = 0.0
    shear_x: float = 0.0
    shear_y: float = 0.0
    widths: float = 0.0  # shift in x, as a fraction of the width
    heights: float = 0.0  # shift in y, as a fraction of the height
    pixels_x: float = 0.0
    pixels_y: float = 0.0

    def motion(self, height: int, width: int) -> tuple[float, ...]:
        """(degrees, shear x, shear y, shift x, shift y in pixels) of a value of 1."""
        shift_x = self.widths * width + self.pixels_x
        shift_y = self.heights * height + self.pixels_y
        return self.degrees, self.shear_x, self.shear_y, shift_x, shift_y

    @property
    def only_shifts(self) -> bool:
        return not (self.degrees or self.shear_x or self.shear_y)

    def matrix(self, value_B: Tensor, height: int, width: int) -> Tensor:
        """The fixed-point matrix_B6 of every value."""
        degrees, *slide = self.motion(height, width)
        if degrees:
            return rotation_matrix(value_B * degrees, height, width)
        return slide_matrix(*(value_B * by for by in slide))

    def __call__(self, images_BCHW: Tensor, value_B: Tensor, center_B2: Tensor) -> Tensor:
        matrix_B6 = self.matrix(value_B, *images_BCHW.shape[-2:])
        moves_whole_rows = self.degrees == 0 and self.shear_y == 0
        return (shift_rows if moves_whole_rows else warp)(images_BCHW, matrix_B6)


@cache
def motions_on(
    kernels: tuple[object, ...], device: torch.device, height: int, width: int
) -> Tensor:
    """How far a value of 1 moves the image, of every kernel and of none at the end: motion_O5.

    Made once, so that no later step waits for a transfer.
    """
    still = Affine()
    rows = [
        (kernel if isinstance(kernel, Affine) else still).motion(height, width)
        for kernel in (*kernels, still)
    ]
    return torch.tensor(rows, dtype=torch.float64).to(device)


CUTOUT_FILL = (125, 123, 114)
CUTOUT_GREY = 123  # the same colour by Pillow's RGB to L


def cutout_corners(value_B: Tensor, center_B2: Tensor, height: int, width: int) -> Tensor:
    """(x0, y0, x1, y1) of the covered square, both edges included, as int64."""
    side = value_B * width
    start = torch.trunc((center_B2 - side.unsqueeze(-1) / 2).clamp(min=0))
    end_x = torch.trunc((start[..., 0] + side).clamp(max=width))
    end_y = torch.trunc((start[..., 1] + side).clamp(max=height))
    return torch.stack([start[..., 0], start[..., 1], end_x, end_y], dim=-1).to(torch.int64)


def cutout(images_BCHW: Tensor, value_B: Tensor, center_B2: Tensor) -> Tensor:
    """Cover a square whose side is value x image width, as ImageDraw.rectangle would."""
    b, c, h, w = images_BCHW.shape
    x0, y0, x1, y1 = cutout_corners(value_B, center_B2, h, w).view(b, 4, 1, 1, 1).unbind(1)
    x = torch.arange(w, device=images_BCHW.device)
    y = torch.arange(h, device=images_BCHW.device).unsqueeze(-1)
    # Masks of bytes, 0 or 255: torch vectorises bit operations on bytes, and not torch.where.
    columns, rows = ((x >= x0) & (x <= x1)), ((y >= y0) & (y <= y1))
    covered_B1HW = (columns.to(torch.uint8) * 255) & (rows.to(torch.uint8) * 255)
    fill = CUTOUT_FILL if c == 3 else (CUTOUT_GREY,)
    fill_BCHW = torch.cat([covered_B1HW & level for level in fill], dim=1)
    return (images_BCHW & ~covered_B1HW) | fill_BCHW


def forward_matrix(matrix_B6: Tensor) -> Tensor:
    """The float64 inverse of a fixed-point matrix: where a source point goes, matrix_B23.

    Boxes and key points move along with this one.
    """
    a0, a1, a2, a3, a4, a5 = (matrix_B6.to(torch.float64) / FIXED_ONE).unbind(-1)
    # Undo the half-pixel the fixed-point matrix looks from, to speak of continuous coordinates.
    a2, a5 = a2 - a0 * 0.5 - a1 * 0.5, a5 - a3 * 0.5 - a4 * 0.5
    determinant = a0 * a4 - a1 * a3
    b0, b1, b3, b4 = a4 / determinant, -a1 / determinant, -a3 / determinant, a0 / determinant
    return torch.stack(
        [
            torch.stack([b0, b1, -(b0 * a2 + b1 * a5)], dim=-1),
            torch.stack([b3, b4, -(b3 * a2 + b4 * a5)], dim=-1),
        ],
        dim=-2,
    )
