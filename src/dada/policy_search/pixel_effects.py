"""What the policy could change, seen through the cost's gradient by pixel.

Letters: B images, C channels, H height, W width, K operations one after another, M branches that
were not drawn. The Gumbel estimator and the magnitudes of the paper read these inner products;
score functions do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dada.policy.augment import augment
from dada.policy.draw import Draw
from dada.policy_search.estimators.draws import Noise, to_images
from dada.policy_search.state import SearchState

# Numbers in the images of branches that are made at a time: 64 MiB as floats. On a card that is
# more than the kernels compiled for large batches need to be worth it (ops/batch.py).
ELEMENTS_AT_ONCE = 2**24


@dataclass(frozen=True, eq=False, kw_only=True)
class Branches:
    """What else could have been done to each image: M subpolicies with coins of their own."""

    subpolicy_BM: Tensor
    apply_BMK: Tensor
    magnitude_BMK: Tensor | None  # None: the subpolicy's own

    @classmethod
    def of(cls, draw: Draw, rows: Callable[[Tensor], Tensor]) -> Branches | None:
        """Those that an estimator asks for with its draw, of some of the images."""
        if not isinstance(draw.noise, Noise) or draw.noise.branches is None:
            return None
        asked, batch = draw.noise.branches, len(draw.subpolicy_B)
        magnitude_DMK = asked.magnitude_DMK
        return cls(
            subpolicy_BM=rows(to_images(asked.subpolicy_DM, batch)),
            apply_BMK=rows(to_images(asked.apply_DMK, batch)),
            magnitude_BMK=None if magnitude_DMK is None else rows(to_images(magnitude_DMK, batch)),
        )

    @classmethod
    def op_by_op(cls, draw: Draw) -> Branches:
        """O_k(x_{k-1}) for k = 1..K: coins as drawn before k, k fires, none after."""
        batch, ops = draw.apply_BK.shape
        index_K = torch.arange(ops, device=draw.apply_BK.device)
        before_KK, same_KK = index_K < index_K[:, None], index_K == index_K[:, None]
        magnitude_BK = draw.magnitude_BK
        return cls(
            subpolicy_BM=draw.subpolicy_B[:, None].expand(batch, ops),
            apply_BMK=(draw.apply_BK[:, None] & before_KK) | same_KK,
            magnitude_BMK=None
            if magnitude_BK is None
            else magnitude_BK[:, None].expand(batch, ops, ops),
        )

    def some(self, start: int, end: int) -> Branches:
        magnitude_BMK = self.magnitude_BMK
        return Branches(
            subpolicy_BM=self.subpolicy_BM[:, start:end],
            apply_BMK=self.apply_BMK[:, start:end],
            magnitude_BMK=None if magnitude_BMK is None else magnitude_BMK[:, start:end],
        )


def pixel_effects(
    state: SearchState,
    draw: Draw,
    branches: Branches | None,
    cost_grad_BCHW: Tensor,
    stages_BCHW: list[Tensor],
    views_BCHW: Tensor,
) -> dict[str, Tensor]:
    """Inner products of the cost's gradient by pixel with what the policy could change.

    `branches` are those that the estimator asks for besides the drawn one, if it asks for any.
    `views_BCHW` is what the network saw: where a square covers the last stage, nothing that the
    policy does shows.
    """
    shown = [state.normalise(stage) for stage in stages_BCHW]
    cost_grad_BCHW = cost_grad_BCHW * (views_BCHW == shown[-1])

    def product(direction_BCHW: Tensor) -> Tensor:
        return (cost_grad_BCHW * direction_BCHW).sum((1, 2, 3))

    effects: dict[str, Tensor] = {}
    if branches is not None:
        cleans_BCHW, by_op = stages_BCHW[0], Branches.op_by_op(draw)
        fired_BK = branch_effects(state, draw, by_op, cost_grad_BCHW, cleans_BCHW)
        before_BK = torch.stack([product(stage - shown[0]) for stage in shown[:-1]], 1)
        effects["branch_B"] = product(shown[-1] - shown[0])
        effects["op_effect_BK"] = fired_BK - before_BK
        effects["other_branch_BM"] = branch_effects(
            state, draw, branches, cost_grad_BCHW, cleans_BCHW
        )
    elif state.estimator.needs_pixel_effects:
        effects["branch_B"] = product(shown[-1])
        effects["op_effect_BK"] = torch.stack(
            [product(after - before) for before, after in pairwise(shown)], 1
        )
    if state.config.magnitudes == "straight_through":
        whole = cost_grad_BCHW.sum((1, 2, 3))  # d x^ / d m = 1 (eq. 10, 11)
        effects["magnitude_effect_BK"] = whole.unsqueeze(1).expand(draw.apply_BK.shape)
    elif state.config.magnitudes == "pathwise":
        effects["magnitude_effect_BK"] = pathwise_effects(state, draw, cost_grad_BCHW, stages_BCHW)
    return effects


def branch_effects(
    state: SearchState,
    draw: Draw,
    branches: Branches,
    cost_grad_BCHW: Tensor,
    cleans_BCHW: Tensor,
) -> Tensor:
    """<cost gradient, s(x) - x> for each of M branches of every image, some branches at a time.

    Signs and cutout centres are the image's: no policy decides them. The number of turns depends on
    shapes alone and nothing waits for the device, so a CUDA graph can hold it.
    """
    count, per_image = len(cleans_BCHW), cleans_BCHW[0].numel()
    # d cost / d level, for levels are what operations give: (level - mean) / std is seen.
    by_level_BP = (cost_grad_BCHW / state.normalise.std).reshape(count, 1, per_image)
    cleans_BP = cleans_BCHW.reshape(count, 1, per_image).float()
    total = branches.subpolicy_BM.shape[1]
    at_once = max(1, ELEMENTS_AT_ONCE // (count * per_image))
    effects = []
    for start in range(0, total, at_once):
        some = branches.some(start, min(start + at_once, total))
        each = some.subpolicy_BM.shape[1]
        magnitude_BMK = some.magnitude_BMK
        turn = Draw(
            subpolicy_B=some.subpolicy_BM.flatten(),
            apply_BK=some.apply_BMK.flatten(0, 1),
            sign_BK=draw.sign_BK.repeat_interleave(each, dim=0),
            center_BK2=draw.center_BK2.repeat_interleave(each, dim=0),
            magnitude_BK=None if magnitude_BMK is None else magnitude_BMK.flatten(0, 1),
        )
        images = cleans_BCHW.repeat_interleave(each, dim=0)
        done = augment(images, state.space, turn, state.sampling.magnitude_NK)
        change_BMP = done.reshape(count, each, per_image).float() - cleans_BP
        effects.append((change_BMP * by_level_BP).sum(dim=2))
    return torch.cat(effects, dim=1)


def pathwise_effects(
    state: SearchState, draw: Draw, cost_grad_BCHW: Tensor, stages_BCHW: list[Tensor]
) -> Tensor:
    """<cost gradient, d x_k / d m> for operations that have such a derivative, 0 for the others.

    Where an operation follows, its Jacobian is taken as the identity.
    """
    space = state.space
    op_index_BK = space.tables_on(cost_grad_BCHW.device)[1][draw.subpolicy_B]
    magnitude_BK = state.sampling.magnitude_NK.detach()[draw.subpolicy_B]

    def value_at(magnitude_BK: Tensor) -> Tensor:
        return space.decide(op_index_BK, draw.apply_BK, magnitude_BK, draw.sign_BK)[1]

    # A value is a straight line in m, rising or falling with the drawn sign.
    ones_BK, value_BK = torch.ones_like(magnitude_BK), value_at(magnitude_BK)
    slope_BK = (value_at(ones_BK) - value_at(0 * ones_BK)).to(cost_grad_BCHW.dtype)
    effects = []
    for k, before_BCHW in enumerate(stages_BCHW[:-1]):
        effect_B = torch.zeros_like(cost_grad_BCHW[:, 0, 0, 0])
        for index, op in enumerate(space.ops):
            derivative = getattr(op.kernel, "derivative", None)
            if derivative is not None:
                levels_BCHW = derivative(before_BCHW, value_BK[:, k]) / state.normalise.std
                along_B = (cost_grad_BCHW * levels_BCHW).sum((1, 2, 3)) * slope_BK[:, k]
                effect_B = torch.where(op_index_BK[:, k] == index, along_B, effect_B)
        effects.append(effect_B)
    return torch.stack(effects, 1)
