"""From uniform random numbers to a draw: which sub-policy, and which of its operations fire.

Letters: B images, N sub-policies, K operations in each, R numbers that describe an operation.

One number chooses the sub-policy, by its place among the running weights. Five belong to each of
its operations: the first says whether it fires, four are left for its value and Cutout's centre.
The rule is here twice, for one image in plain numbers (an exported file has its source) and for a
batch in tensors; a test holds them together. Where the numbers come from is the caller's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def draw_one(
    position: float, numbers: list[float], cumulative: list[float], subpolicies: list[Any]
) -> list[tuple[Any, list[float]]]:
    """The operations that fire in one image, each with the four numbers that are left for it.

    An operation is a tuple whose second entry is its probability. `position` lies between 0 and the
    sum of the weights, the last of `cumulative`; rounding that reaches it means the last one.
    """
    chosen = bisect_right(cumulative, position, hi=len(cumulative) - 1)
    return [
        (operation, numbers[5 * k + 1 : 5 * k + 5])
        for k, operation in enumerate(subpolicies[chosen])
        if numbers[5 * k] < operation[1]
    ]


def draw_batch(
    position_B: Tensor, numbers_BK5: Tensor, cumulative_N: Tensor, rows_NKR: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Which sub-policy every image has, which of its operations fire, and their rows.

    The first number of an operation's row is its probability.
    """
    # Looking a number up in the running sum does not synchronise; torch.multinomial does.
    chosen_B = torch.searchsorted(cumulative_N[:-1], position_B, right=True)
    row_BKR = rows_NKR[chosen_B]
    return chosen_B, numbers_BK5[..., 0] < row_BKR[..., 0], row_BKR


@dataclass(frozen=True, eq=False, kw_only=True)
class Draw:
    """One draw per image of a search: what is done to it, and the randomness behind."""

    subpolicy_B: Tensor  # int64, which sub-policy
    apply_BK: Tensor  # bool, which of its operations fire
    sign_BK: Tensor  # +1 or -1, the direction of two-sided operations
    center_BK2: Tensor  # Cutout's centre as a fraction of (width, height)
    magnitude_BK: Tensor | None = None  # drawn for this image; None: the sub-policy's own
    noise: object | None = None  # what an estimator needs again for its gradients

    def take(self, rows: Callable[[Tensor], Tensor]) -> Draw:
        """The draws of some images; without `noise`, which belongs to all of them."""
        return Draw(
            subpolicy_B=rows(self.subpolicy_B),
            apply_BK=rows(self.apply_BK),
            sign_BK=rows(self.sign_BK),
            center_BK2=rows(self.center_BK2),
            magnitude_BK=None if self.magnitude_BK is None else rows(self.magnitude_BK),
        )


def policy_free_noise(
    batch: int, ops_per_subpolicy: int, generator: torch.Generator | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The randomness no policy decides: sign_BK and center_BK2."""
    shape = (batch, ops_per_subpolicy)
    uniform = torch.rand(3, *shape, generator=generator, device=device)
    sign_BK = torch.where(uniform[0] < 0.5, -1.0, 1.0)
    return sign_BK, uniform[1:].movedim(0, -1)
