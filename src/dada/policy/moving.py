"""Where targets go when pixels move: maps of numbers (masks), and boxes.

Letters: B images, H height, W width, K operations, M boxes of an image at most.

A box is a row of five numbers: x0, y0, x1, y1 in pixels from the image's corner, and its class. A
row of class -1 is no box: it fills up a batch, so that shapes are the same for every image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from dada import ops
from dada.ops.fused import is_available as has_triton
from dada.ops.geometric import (
    Affine,
    forward_matrix,
    motions_on,
    rotation_matrix,
    slide_matrix,
    warp,
)
from dada.policy.space import SearchSpace

NO_BOX = -1
LEAST_VISIBLE = 0.25  # of a box, or of an object's pixels: with less of it left, it is dropped
LEAST_SIDE = 1.0  # of a box, in pixels


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What moved the pixels of a batch: first what every image gets, then the policy's draws."""

    size: tuple[int, int]  # (H, W) of the images
    before: Sequence[Tensor]  # fixed-point matrices_B6, as `ops.geometric.warp` takes them
    space: SearchSpace
    op_index_BK: Tensor  # what was done; ops.NO_OP where nothing was
    value_BK: Tensor

    def of_maps(self, maps_BHW: Tensor) -> Tensor:
        """Every number where its pixel went, and 0 where a pixel came from outside.

        Whole numbers of 8 bits, or of 16, which go byte by byte: the images' own kernels do it.
        """
        if maps_BHW.dtype == torch.int16:
            low_BHW, high_BHW = (maps_BHW & 255).to(torch.uint8), (maps_BHW >> 8).to(torch.uint8)
            low_BHW, high_BHW = self.of_maps(low_BHW), self.of_maps(high_BHW)
            return low_BHW.to(torch.int16) | (high_BHW.to(torch.int16) << 8)
        maps_B1HW = maps_BHW.unsqueeze(1)
        for matrix_B6 in self.before:
            maps_B1HW = warp(maps_B1HW, matrix_B6)
        if self.op_index_BK.shape[1]:
            unused_center_BK2 = torch.zeros(
                *self.value_BK.shape, 2, dtype=torch.float64, device=maps_BHW.device
            )
            chosen, index_O = movers_on(self.space.ops, maps_BHW.device)
            # NO_OP is -1, which is the last row, too.
            index_BK = index_O[self.op_index_BK]
            maps_B1HW = ops.run(chosen, maps_B1HW, index_BK, self.value_BK, unused_center_BK2)
        return maps_B1HW.squeeze(1)

    def of_boxes(self, boxes_BM5: Tensor) -> Tensor:
        """The box around the four moved corners of each, clipped; dropped where little is left."""
        x0, y0, x1, y1, class_BM = boxes_BM5.to(torch.float64).unbind(-1)
        x_BM4, y_BM4 = torch.stack([x0, x1, x0, x1], -1), torch.stack([y0, y0, y1, y1], -1)
        for forward_B23 in forward_matrix(self._matrices_BK6()).unbind(1):
            (a, b, c), (d, e, f) = (
                row.unsqueeze(-1).unsqueeze(-1).unbind(1) for row in forward_B23.unbind(1)
            )
            x_BM4, y_BM4 = a * x_BM4 + b * y_BM4 + c, d * x_BM4 + e * y_BM4 + f
        around = [x_BM4.amin(-1), y_BM4.amin(-1), x_BM4.amax(-1), y_BM4.amax(-1)]
        height, width = self.size
        clipped = [
            edge.clamp(0, side) for edge, side in zip(around, (width, height) * 2, strict=True)
        ]
        visible_BM = _area(clipped) / _area(around).clamp(min=1e-9)
        return _kept(torch.stack([*clipped, class_BM], -1), visible_BM >= LEAST_VISIBLE)

    def of_objects(self, boxes_BM5: Tensor, maps_BHW: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes, and a map in which the pixels of the m-th are m + 1: the box around the pixels.

        A box without pixels of its own goes as its corners do. What is dropped leaves the map.
        """
        moved_BHW = self.of_maps(maps_BHW)
        most = boxes_BM5.shape[1]
        before_BM, after_BM = pixels_of(maps_BHW, most), pixels_of(moved_BHW, most)
        by_corners_BM5 = self.of_boxes(boxes_BM5)
        by_pixels_BM5 = torch.cat([extents(moved_BHW, most), boxes_BM5[..., 4:]], -1)
        visible_BM = after_BM >= LEAST_VISIBLE * before_BM
        by_pixels_BM5 = _kept(by_pixels_BM5, visible_BM & (after_BM > 0))
        has_pixels_BM1 = (before_BM > 0).unsqueeze(-1)
        found_BM5 = torch.where(has_pixels_BM1, by_pixels_BM5, by_corners_BM5)
        return found_BM5, without_dropped(moved_BHW, found_BM5)

    def _matrices_BK6(self) -> Tensor:
        """Of all steps: a turn or a slide, whichever the operation is, by its own motion."""
        kernels = tuple(op.kernel for op in self.space.ops)
        motion_O5 = motions_on(kernels, self.value_BK.device, *self.size)
        # NO_OP is -1, which is the last row, of no motion.
        turn_BK, *slide = motion_O5[self.op_index_BK].unbind(-1)
        matrix_BK6 = torch.where(
            (turn_BK != 0).unsqueeze(-1),
            rotation_matrix(self.value_BK * turn_BK, *self.size),
            slide_matrix(*(self.value_BK * by_BK for by_BK in slide)),
        )
        return torch.cat([*(each.unsqueeze(1) for each in self.before), matrix_BK6], 1)


@cache
def movers_on(
    space_ops: tuple[ops.Op, ...], device: torch.device
) -> tuple[tuple[ops.Op, ...], Tensor]:
    """The operations that move pixels, without the others, Cutout among them; and where each
    operation of the space is among them, or NO_OP, which is also the last row.

    Made once, so that no later step waits for a transfer.
    """
    chosen = tuple(op for op in space_ops if isinstance(op.kernel, Affine))
    rows = [chosen.index(op) if op in chosen else ops.NO_OP for op in space_ops]
    return chosen, torch.tensor([*rows, ops.NO_OP]).to(device)


def _area(edges: Sequence[Tensor]) -> Tensor:
    x0, y0, x1, y1 = edges
    return (x1 - x0) * (y1 - y0)


def _kept(boxes_BM5: Tensor, keep_BM: Tensor) -> Tensor:
    """Those to keep, if they are boxes of some size still; the other rows become no box."""
    x0, y0, x1, y1, class_BM = boxes_BM5.unbind(-1)
    keep_BM = keep_BM & (x1 - x0 >= LEAST_SIDE) & (y1 - y0 >= LEAST_SIDE) & (class_BM >= 0)
    kept_BM5 = boxes_BM5 * keep_BM.unsqueeze(-1)
    kept_BM5[..., 4] = torch.where(keep_BM, class_BM, NO_BOX)
    return kept_BM5.float()


def pixels_of(maps_BHW: Tensor, most: int) -> Tensor:
    """How many pixels every object has: count_BM."""
    if most and maps_BHW.is_cuda and has_triton():
        from dada.policy import moving_kernels

        return moving_kernels.pixels(maps_BHW, most)
    flat_BP = maps_BHW.flatten(1).long()
    count = torch.zeros(len(maps_BHW), most + 1, dtype=torch.int64, device=maps_BHW.device)
    return count.scatter_add_(1, flat_BP, torch.ones_like(flat_BP))[:, 1:]


def extents(maps_BHW: Tensor, most: int) -> Tensor:
    """The box around the pixels of every object: x0, y0, x1, y1; zeros for one without pixels."""
    if most and maps_BHW.is_cuda and has_triton():
        from dada.policy import moving_kernels

        in_columns_BMW, in_rows_BMH = moving_kernels.seen(maps_BHW, most)
    else:
        in_columns_BMW, in_rows_BMH = _seen(maps_BHW, most)

    def ends(seen_BMS: Tensor) -> tuple[Tensor, Tensor]:
        side = seen_BMS.shape[-1]
        first_BM, last_BM = seen_BMS.argmax(-1), side - seen_BMS.flip(-1).argmax(-1)
        return first_BM, torch.where(seen_BMS.amax(-1) > 0, last_BM, 0)

    (x0, x1), (y0, y1) = ends(in_columns_BMW), ends(in_rows_BMH)
    return torch.stack([x0, y0, x1, y1], -1).double()


def _seen(maps_BHW: Tensor, most: int) -> list[Tensor]:
    """Whether an object has a pixel in a column (seen_BMW), and in a row (seen_BMH)."""
    b, h, w = maps_BHW.shape
    device, maps_BHW = maps_BHW.device, maps_BHW.long()
    found = []
    for place, side in (
        (torch.arange(w, device=device), w),
        (torch.arange(h, device=device).unsqueeze(1), h),
    ):
        seen = torch.zeros(b, (most + 1) * side, dtype=torch.uint8, device=device)
        # All writers write the same number: no sums, no waiting.
        seen.scatter_(1, (maps_BHW * side + place).flatten(1), 1)
        found.append(seen.view(b, most + 1, side)[:, 1:])
    return found


def without_dropped(maps_BHW: Tensor, boxes_BM5: Tensor) -> Tensor:
    """The map without the pixels of rows that are no box any more."""
    there_BN = torch.nn.functional.pad((boxes_BM5[..., 4] >= 0).to(maps_BHW.dtype), (1, 0), value=1)
    if maps_BHW.is_cuda and has_triton():
        from dada.policy import moving_kernels

        return moving_kernels.without(maps_BHW, there_BN)
    return maps_BHW * there_BN.gather(1, maps_BHW.flatten(1).long()).view_as(maps_BHW)
