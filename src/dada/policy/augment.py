"""Applies a draw to a batch: every image gets its own operations.

Letters: B images, C channels, H height, W width, N sub-policies, K operations in each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dada import ops
from dada.engine import ALONE, Ranks, few_threads
from dada.policy import Policy
from dada.policy.draw import Draw, draw_batch
from dada.policy.moving import Moves
from dada.policy.space import SearchSpace


def augment(
    images_BCHW: Tensor,
    space: SearchSpace,
    draw: Draw,
    magnitude_NK: Tensor | None = None,
    normalise: Normalise | None = None,
) -> Tensor:
    """The images under one draw each, and normalised if asked.

    The magnitude is the one the draw brings, or else the sub-policy's own in `magnitude_NK`.
    """
    steps = _steps(images_BCHW, space, draw, magnitude_NK)
    return apply_steps(images_BCHW, space, *steps, normalise=normalise)


def augment_stages(
    images_BCHW: Tensor, space: SearchSpace, draw: Draw, magnitude_NK: Tensor | None = None
) -> list[Tensor]:
    """The images before, between and after the K operations: K + 1 batches."""
    steps = _steps(images_BCHW, space, draw, magnitude_NK)
    stages = [images_BCHW]
    for k in range(draw.apply_BK.shape[1]):
        op_index, apply, magnitude, sign, center = (each[:, k : k + 1] for each in steps)
        stages.append(apply_steps(stages[-1], space, op_index, apply, magnitude, sign, center))
    return stages


def _steps(
    images_BCHW: Tensor, space: SearchSpace, draw: Draw, magnitude_NK: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `apply_steps` needs of a draw."""
    op_index_BK = space.tables_on(images_BCHW.device)[1][draw.subpolicy_B]
    magnitude_BK = draw.magnitude_BK
    if magnitude_BK is None:
        if magnitude_NK is None:
            raise ValueError("the draw brings no magnitudes, so magnitude_NK is needed")
        magnitude_BK = magnitude_NK.detach()[draw.subpolicy_B]
    return op_index_BK, draw.apply_BK, magnitude_BK, draw.sign_BK, draw.center_BK2


def apply_steps(
    images_BCHW: Tensor,
    space: SearchSpace,
    op_index_BK: Tensor,
    apply_BK: Tensor,
    magnitude_BK: Tensor,
    sign_BK: Tensor,
    center_BK2: Tensor,
    normalise: Normalise | None = None,
) -> Tensor:
    """K operations one after another, chosen for every image; centres are fractions of a side."""
    decided = _decided(space, op_index_BK, apply_BK, magnitude_BK, sign_BK)
    return _apply_decided(images_BCHW, space, *decided, center_BK2, normalise)


def _decided(space: SearchSpace, op_index_BK: Tensor, *steps: Tensor) -> tuple[Tensor, Tensor]:
    # Torch looks a few hundred numbers up with all of its threads, which then spin for a while and
    # keep those that do the operations from the cores.
    with few_threads(op_index_BK.device, op_index_BK.numel()):
        return space.decide(op_index_BK, *steps)


def _apply_decided(
    images_BCHW: Tensor,
    space: SearchSpace,
    done_BK: Tensor,
    value_BK: Tensor,
    center_BK2: Tensor,
    normalise: Normalise | None,
) -> Tensor:
    h, w = images_BCHW.shape[-2:]
    center = torch.stack([center_BK2[..., 0] * w, center_BK2[..., 1] * h], dim=-1)
    normal = None if normalise is None else (normalise.mean, normalise.std)
    return ops.run(space.ops, images_BCHW, done_BK, value_BK, center.to(torch.float64), normal)


ROWS_OF_A_TABLE = 128  # or a multiple: more than the 105 pairs of the paper's space


@dataclass(frozen=True)
class PolicyTables:
    """A policy as tensors to draw from.

    Shorter sub-policies are filled up with nothing, and rows that are never drawn are added: the
    tables of most policies then have the same shape, and a recorded step can go on with others.
    """

    cumulative_N: Tensor
    op_index_NK: Tensor
    rows_NK3: Tensor  # probability, and the low and high end of the magnitude

    @classmethod
    def of(
        cls,
        policy: Policy,
        space: SearchSpace,
        device: torch.device,
        least_ops: int = 0,
        least_rows: int = ROWS_OF_A_TABLE,
    ) -> PolicyTables:
        index = {op.name: i for i, op in enumerate(space.ops)}
        longest = max((least_ops, *(len(subpolicy.ops) for subpolicy in policy.subpolicies)))
        nothing = (ops.NO_OP, 0.0, 0.0, 0.0)
        rows = []
        for subpolicy in policy.subpolicies:
            row = [(index[s.op], s.probability, *s.magnitude_range) for s in subpolicy.ops]
            rows.append(row + [nothing] * (longest - len(row)))
        if rows or longest:
            wanted = max(least_rows, ROWS_OF_A_TABLE * (1 + len(rows) // ROWS_OF_A_TABLE))
            rows += [[nothing] * longest] * (wanted - len(rows))
        table_NK4 = torch.tensor(rows, dtype=torch.float64).view(len(rows), longest, 4)
        # Beyond the last sub-policy lies infinity: what is left by rounding goes to the last one.
        cumulative = torch.full((len(rows),), math.inf, dtype=torch.float64)
        weights = [subpolicy.weight for subpolicy in policy.subpolicies[:-1]]
        cumulative[: len(weights)] = torch.tensor(weights, dtype=torch.float64).cumsum(0)
        return cls(
            cumulative.to(device),
            table_NK4[..., 0].long().to(device),
            table_NK4[..., 1:].contiguous().to(device),
        )

    def replace_(self, other: PolicyTables) -> None:
        """Go on as `other`, in the same places; its tables should have the same shapes."""
        self.cumulative_N.copy_(other.cumulative_N)
        self.op_index_NK.copy_(other.op_index_NK)
        self.rows_NK3.copy_(other.rows_NK3)

    def augment(
        self,
        images_BCHW: Tensor,
        space: SearchSpace,
        generator: torch.Generator | None,
        ranks: Ranks = ALONE,
        normalise: Normalise | None = None,
    ) -> Tensor:
        """A draw for every image, applied; few launches, none of which waits for the device.

        With `normalise` that is done too, as the last pixels are written.
        """
        if not len(self.cumulative_N):
            return images_BCHW if normalise is None else normalise(images_BCHW)
        steps = self.draw(len(images_BCHW), generator, ranks)
        return apply_steps(images_BCHW, space, *steps, normalise)

    def draw(
        self, images: int, generator: torch.Generator | None, ranks: Ranks = ALONE
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What `apply_steps` needs, drawn for so many images."""
        k = self.op_index_NK.shape[1]
        device = self.op_index_NK.device
        with few_threads(device, images):  # as in `_decided`
            numbers = ranks.uniform(images, 1 + 5 * k, device, generator, torch.float64)
            position_B1, numbers_BK5 = numbers.split([1, 5 * k], dim=1)
            numbers_BK5 = numbers_BK5.view(images, k, 5)
            position_B = position_B1.squeeze(1).contiguous()
            chosen_B, fires_BK, row_BK3 = draw_batch(
                position_B, numbers_BK5, self.cumulative_N, self.rows_NK3
            )
            between, direction, *center = numbers_BK5[..., 1:].unbind(-1)
            return (
                self.op_index_NK[chosen_B],
                fires_BK,
                torch.lerp(row_BK3[..., 1], row_BK3[..., 2], between),
                torch.where(direction < 0.5, -1.0, 1.0),
                torch.stack(center, dim=-1),
            )

    def augment_with_moves(
        self,
        images_BCHW: Tensor,
        space: SearchSpace,
        generator: torch.Generator | None,
        before: Sequence[Tensor] = (),
        ranks: Ranks = ALONE,
        normalise: Normalise | None = None,
    ) -> tuple[Tensor, Moves]:
        """`augment`, and where the pixels went, which happened to them after `before`."""
        if not len(self.cumulative_N):
            done_BK = torch.zeros(len(images_BCHW), 0, dtype=torch.int64, device=images_BCHW.device)
            value_BK = done_BK.double()
            views_BCHW = images_BCHW if normalise is None else normalise(images_BCHW)
        else:
            *steps, center_BK2 = self.draw(len(images_BCHW), generator, ranks)
            done_BK, value_BK = decided = _decided(space, *steps)
            views_BCHW = _apply_decided(images_BCHW, space, *decided, center_BK2, normalise)
        height, width = images_BCHW.shape[-2:]
        return views_BCHW, Moves(
            size=(height, width),
            before=before,
            space=space,
            op_index_BK=done_BK,
            value_BK=value_BK,
        )


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
