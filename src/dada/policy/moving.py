"""Where targets go when pixels move: maps of numbers (masks), and boxes.

Letters: B images, H height, W width, K operations, M boxes of an image at most.

A box is a row of five numbers: x0, y0, x1, y1 in pixels from the image's corner, and its class. A
row of class -1 is no box: it fills up a batch, so that shapes are the same for every image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dada import ops
from dada.ops.geometric import Affine, forward_matrix, slide_matrix, warp
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
            maps_B1HW = ops.run(
                self.space.ops, maps_B1HW, self._geometric_BK(), self.value_BK, unused_center_BK2
            )
        return maps_B1HW.squeeze(1)

    def of_boxes(self, boxes_BM5: Tensor) -> Tensor:
        """The box around the four moved corners of each, clipped; dropped where little is left."""
        x0, y0, x1, y1, class_BM = boxes_BM5.to(torch.float64).unbind(-1)
        x_BM4, y_BM4 = torch.stack([x0, x1, x0, x1], -1), torch.stack([y0, y0, y1, y1], -1)
        for matrix_B6 in self._matrices():
            (a, b, c), (d, e, f) = (
                row.unsqueeze(-1).unsqueeze(-1).unbind(1)
                for row in forward_matrix(matrix_B6).unbind(1)
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

    def _geometric_BK(self) -> Tensor:
        """The operations that move pixels; the others are left out, Cutout among them."""
        index_BK = self.op_index_BK
        for index, op in enumerate(self.space.ops):
            if not isinstance(op.kernel, Affine):
                index_BK = torch.where(index_BK == index, ops.NO_OP, index_BK)
        return index_BK

    def _matrices(self) -> list[Tensor]:
        zero_BK = torch.zeros_like(self.value_BK)
        matrix_BK6 = slide_matrix(zero_BK, zero_BK, zero_BK, zero_BK)
        for index, op in enumerate(self.space.ops):
            if isinstance(op.kernel, Affine):
                own_BK6 = op.kernel.matrix(self.value_BK, *self.size)
                matrix_BK6 = torch.where(
                    (self.op_index_BK == index).unsqueeze(-1), own_BK6, matrix_BK6
                )
        return [*self.before, *matrix_BK6.unbind(1)]


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
    flat_BP = maps_BHW.flatten(1).long()
    count = torch.zeros(len(maps_BHW), most + 1, dtype=torch.int64, device=maps_BHW.device)
    return count.scatter_add_(1, flat_BP, torch.ones_like(flat_BP))[:, 1:]


def extents(maps_BHW: Tensor, most: int) -> Tensor:
    """The box around the pixels of every object: x0, y0, x1, y1; zeros for one without pixels."""
    b, h, w = maps_BHW.shape
    maps_BHW = maps_BHW.long()
    x_W = torch.arange(w, device=maps_BHW.device)
    y_H1 = torch.arange(h, device=maps_BHW.device).unsqueeze(1)

    def ends(place_HW: Tensor, side: int) -> tuple[Tensor, Tensor]:
        seen = torch.zeros(b, (most + 1) * side, dtype=torch.uint8, device=maps_BHW.device)
        # All writers write the same number: no sums, no waiting.
        seen.scatter_(1, (maps_BHW * side + place_HW).flatten(1), 1)
        seen_BMS = seen.view(b, most + 1, side)[:, 1:]
        first_BM, last_BM = seen_BMS.argmax(-1), side - seen_BMS.flip(-1).argmax(-1)
        return first_BM, torch.where(seen_BMS.amax(-1) > 0, last_BM, 0)

    (x0, x1), (y0, y1) = ends(x_W, w), ends(y_H1, h)
    return torch.stack([x0, y0, x1, y1], -1).double()


def without_dropped(maps_BHW: Tensor, boxes_BM5: Tensor) -> Tensor:
    """The map without the pixels of rows that are no box any more."""
    there_BM = (boxes_BM5[..., 4] >= 0).to(maps_BHW.dtype)
    background_B1 = torch.ones_like(there_BM[:, :1])
    there = torch.cat([background_B1, there_BM], 1).gather(1, maps_BHW.flatten(1).long())
    return maps_BHW * there.view_as(maps_BHW)
