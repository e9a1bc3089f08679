"""For Kornia; needs torch and kornia, nothing else.

    from this_file import DadaPolicy
    augment = kornia.augmentation.AugmentationSequential(DadaPolicy(), data_keys=['input'])

An augmentation of Kornia's for BCHW batches of float in 0..1, alone or in a container; every
image has its own draw. Masks, boxes and key points are moved along by the containers.
Images are rounded to 8 bits and changed byte for byte as by Pillow, which Kornia's own
operations do not do: no gradient flows through. Randomness is torch's.
"""

# Letters: B images, C channels, H height, W width, N sub-policies, K operations in each.
from __future__ import annotations

from typing import Any

import torch
from kornia.augmentation import GeometricAugmentationBase2D
from torch import Tensor

from dada.exchange.exports.kernels import KERNELS
from dada.ops.batch import to_uint8
from dada.ops.geometric import Affine, forward_matrix, warp
from dada.policy.draw import draw_batch

# (weight, [(operation, probability, ranges), ...]): one sub-policy is drawn for every image; of the
# ranges one is taken, and a value drawn between its ends.
SUBPOLICIES: list = []

Named = dict[str, Any]  # the numbers of a draw, or Kornia's settings
NAMES = list(KERNELS)
NOTHING = -1


class DadaPolicy(GeometricAugmentationBase2D):
    """Draws a sub-policy for every image of a batch and does its operations in their order."""

    def __init__(self) -> None:
        super().__init__(p=1.0, p_batch=1.0, same_on_batch=False, keepdim=True)
        longest = max([1, *(len(steps) for _, steps in SUBPOLICIES)])
        rows = []
        for _, steps in SUBPOLICIES:
            row = [
                [probability, NAMES.index(name), len(ranges), *ranges[0], *ranges[-1]]
                for name, probability, ranges in steps
            ]
            rows.append(row + [[0.0, NOTHING, 1, 0.0, 0.0, 0.0, 0.0]] * (longest - len(row)))
        weights = [weight for weight, _ in SUBPOLICIES]
        self.cumulative_N = torch.tensor(weights, dtype=torch.float64).cumsum(0)
        self.rows_NK7 = torch.tensor(rows, dtype=torch.float64).view(len(rows), longest, 7)

    def generate_parameters(self, batch_shape: Any) -> dict[str, Tensor]:
        """A draw for every image: the operations, their values and Cutout's centres in 0..1."""
        b, (n, k) = int(batch_shape[0]), self.rows_NK7.shape[:2]
        numbers_BK5 = torch.rand(b, k, 5, dtype=torch.float64)
        which, between, *center = numbers_BK5[..., 1:].unbind(-1)
        if not n:
            op_BK = torch.full((b, k), NOTHING)
            value_BK = torch.zeros(b, k, dtype=torch.float64)
        else:
            position_B = torch.rand(b, dtype=torch.float64) * self.cumulative_N[-1]
            _, fires_BK, row_BK7 = draw_batch(
                position_B, numbers_BK5, self.cumulative_N, self.rows_NK7
            )
            first = (which * row_BK7[..., 2] < 1).unsqueeze(-1)
            start, end = torch.where(first, row_BK7[..., 3:5], row_BK7[..., 5:7]).unbind(-1)
            value_BK = start + between * (end - start)
            op_BK = torch.where(fires_BK, row_BK7[..., 1].long(), NOTHING)
        return {"op": op_BK, "value": value_BK, "center": torch.stack(center, -1)}

    def compute_transformation(self, input: Tensor, params: Named, flags: Named) -> Tensor:
        """Where a pixel goes, in Kornia's convention (whole numbers are centres of pixels)."""
        matrix_B33 = torch.eye(3, dtype=torch.float64).repeat(len(input), 1, 1)
        for rows, kernel, value_R, _ in self._stages(params):
            if isinstance(kernel, Affine):
                forward_R23 = forward_matrix(kernel.matrix(value_R, *input.shape[-2:]))
                step_R33 = torch.eye(3, dtype=torch.float64).repeat(len(rows), 1, 1)
                step_R33[:, :2] = forward_R23
                step_R33[:, :2, 2] += 0.5 * forward_R23[:, :, :2].sum(-1) - 0.5
                matrix_B33[rows] = step_R33 @ matrix_B33[rows]
        return matrix_B33.to(input)

    def apply_transform(
        self, input: Tensor, params: Named, flags: Named, transform: Tensor | None = None
    ) -> Tensor:
        if input.shape[1] not in (1, 3):
            raise ValueError(f"images should have 1 or 3 channels, got {tuple(input.shape)}")
        levels = to_uint8(input).clone()
        size_2 = torch.tensor([input.shape[-1], input.shape[-2]], dtype=torch.float64)
        for rows, kernel, value_R, center_R2 in self._stages(params):
            rows = rows.to(input.device)
            some = levels[rows].contiguous()
            center = (center_R2 * size_2).to(input.device)
            levels[rows] = kernel(some, value_R.to(input.device), center)
        return levels.to(input.dtype) / 255

    def apply_transform_mask(
        self, input: Tensor, params: Named, flags: Named, transform: Tensor | None = None
    ) -> Tensor:
        h, w = input.shape[-2:]
        moved = input.clone()
        for rows, kernel, value_R, _ in self._stages(params):
            if isinstance(kernel, Affine):
                rows = rows.to(input.device)
                moved[rows] = warp(moved[rows], kernel.matrix(value_R, h, w).to(input.device))
        return moved

    def _stages(self, params: dict[str, Tensor]) -> Any:
        """(rows, kernel, value_R, center_R2): R images of one stage that share a kernel."""
        op_BK = params["op"].cpu()
        for k in range(op_BK.shape[1]):
            for index in op_BK[:, k].unique().tolist():
                if index != NOTHING:
                    rows = (op_BK[:, k] == index).nonzero().squeeze(1)
                    value_R = params["value"].cpu()[rows, k].to(torch.float64)
                    center_R2 = params["center"].cpu()[rows, k].to(torch.float64)
                    yield rows, KERNELS[NAMES[index]], value_R, center_R2
