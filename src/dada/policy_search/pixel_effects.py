"""What the policy could change, seen through the cost's gradient by pixel.

Letters: B images, C channels, H height, W width, K operations one after another. The Gumbel
estimator and the magnitudes of the paper read these inner products; score functions do not.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from dada.policy.draw import Draw
from dada.policy_search.state import SearchState


def pixel_effects(
    state: SearchState,
    draw: Draw,
    cost_grad_BCHW: Tensor,
    stages_BCHW: list[Tensor],
    views_BCHW: Tensor,
) -> dict[str, Tensor]:
    """Inner products of the cost's gradient by pixel with what the policy could change.

    `views_BCHW` is what the network saw: where a square covers the last stage, nothing that the
    policy does shows.
    """
    shown = [state.normalise(stage) for stage in stages_BCHW]
    cost_grad_BCHW = cost_grad_BCHW * (views_BCHW == shown[-1])

    def product(direction_BCHW: Tensor) -> Tensor:
        return (cost_grad_BCHW * direction_BCHW).sum((1, 2, 3))

    effects = {
        "branch_B": product(shown[-1]),
        "op_effect_BK": torch.stack(
            [product(after - before) for before, after in pairwise(shown)], 1
        ),
    }
    if state.config.magnitudes == "straight_through":
        whole = cost_grad_BCHW.sum((1, 2, 3))  # d x^ / d m = 1 (eq. 10, 11)
        effects["magnitude_effect_BK"] = whole.unsqueeze(1).expand(draw.apply_BK.shape)
    elif state.config.magnitudes == "pathwise":
        effects["magnitude_effect_BK"] = pathwise_effects(state, draw, cost_grad_BCHW, stages_BCHW)
    return effects


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
