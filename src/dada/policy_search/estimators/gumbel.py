"""Straight-through Gumbel-Softmax, the paper's section 3.3.

Shapes: N subpolicies, K ops per subpolicy, D distinct draws, M other branches of a draw.

Forward, the hard draw: the network sees the sampled branch. Backward, the relaxed one, in

    x^ = sum_s c_s s(x),   c = softmax((alpha + gumbel) / tau)                            (eq. 7)
    x_k = b_k O_k(x_{k-1}) + (1 - b_k) x_{k-1},   b = sigmoid((logit beta + logistic) / tau)

so with f_s = <d cost / d x^, s(x)> the gradient of alpha is the whole sum over branches,

    sum_s f_s d c_s / d alpha = sum_s f_s c_s (one_hot(s) - c) / tau.

As the d c_s sum to zero, what all branches share cancels: the image itself is taken from each f_s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from dada.policy_search.estimators.base import DrawCosts, Estimate, Estimator
from dada.policy_search.estimators.draws import (
    BranchNoise,
    Noise,
    draw_bins,
    mean_at_drawn,
    one_hot,
    open_uniform,
)
from dada.policy_search.parameters import PolicyParameters


class GumbelSoftmax(Estimator):
    """The paper's: every branch of the sum, or a stated number of them, unbiased.

    With `branches` M, the drawn branch enters with its weight c_d, and M others s, drawn from c
    without it, with (1 - c_d) / M each: the expectation given the Gumbel noise is the whole sum.
    What a branch that was not drawn would have looked like takes its own coins (and magnitudes).
    Biased all the same, as the relaxation is; docs/estimators.md has numbers.
    """

    needs_pixel_effects: ClassVar[bool] = True

    def _draw(
        self, parameters: PolicyParameters, distinct: int, generator: torch.Generator | None
    ) -> Noise:
        noise = super()._draw(parameters, distinct, generator)
        relaxed_DN = relaxed_choice(noise, parameters, self.temperature)
        others_DN = relaxed_DN * (1 - one_hot(noise, parameters))
        num = self.num_subpolicies
        if self.branches is None or self.branches >= num:
            subpolicy_DM = torch.arange(num, device=others_DN.device).expand(distinct, num)
            weight_DM = others_DN
        else:
            # One number in each M-th of the running weights: still unbiased, and less noise.
            position_DM = open_uniform((distinct, self.branches), others_DN, generator)
            position_DM = position_DM + torch.arange(self.branches, device=others_DN.device)
            running_DN = others_DN.cumsum(dim=1)
            total_D1 = running_DN[:, -1:]
            subpolicy_DM = torch.searchsorted(
                running_DN, position_DM * (total_D1 / self.branches), right=True
            ).clamp(max=num - 1)
            weight_DM = (total_D1 / self.branches).expand(distinct, self.branches)
        prob_DMK = parameters.apply_prob_NK[subpolicy_DM]
        coin_DMK = open_uniform(tuple(prob_DMK.shape), prob_DMK, generator)
        magnitude_DMK = None
        law = parameters.magnitude_distribution
        if law is not None:
            bin_DMK = draw_bins(law, subpolicy_DM, generator)
            inside_DMK = open_uniform(tuple(bin_DMK.shape), prob_DMK, generator)
            magnitude_DMK = (bin_DMK + inside_DMK) / law.bins
        branches = BranchNoise(
            subpolicy_DM=subpolicy_DM,
            apply_DMK=coin_DMK < prob_DMK,
            magnitude_DMK=magnitude_DMK,
            weight_DM=weight_DM,
        )
        return replace(noise, branches=branches)

    def _estimate(self, noise: Noise, parameters: PolicyParameters, costs: DrawCosts) -> Estimate:
        if costs.branch_D is None or costs.op_effect_DK is None or costs.other_branch_DM is None:
            raise ValueError(
                "gumbel needs branch_B, other_branch_BM and op_effect_BK: "
                "ask the hypergradient for cost_grad_BCHW"
            )
        if noise.branches is None:
            raise ValueError("gumbel needs a draw of its own sample(), but got another estimator's")
        relaxed_DN = relaxed_choice(noise, parameters, self.temperature)
        drawn_DN = one_hot(noise, parameters)
        # sum over branches of weight f one_hot, at the branch's place; then - c sum weight f.
        index_N = torch.arange(self.num_subpolicies, device=relaxed_DN.device)
        at_DMN = (noise.branches.subpolicy_DM[..., None] == index_N).to(relaxed_DN.dtype)
        weighted_DM = noise.branches.weight_DM * costs.other_branch_DM
        at_branch_DN = (weighted_DM[..., None] * at_DMN).sum(dim=1)
        at_branch_DN = at_branch_DN + drawn_DN * relaxed_DN * costs.branch_D[:, None]
        shared_D1 = at_branch_DN.sum(dim=1, keepdim=True)
        slope_DN = (at_branch_DN - relaxed_DN * shared_D1) / self.temperature
        slope_DK = coin_slope(noise, parameters, self.temperature)
        return Estimate(
            subpolicy_logits_N=slope_DN.mean(dim=0),
            apply_prob_NK=mean_at_drawn(noise, parameters, costs.op_effect_DK * slope_DK),
            advantage_D=costs.advantage_D,
        )


class SampledGumbelSoftmax(Estimator):
    """The sampled branch alone, in the backward pass too, as in the authors' published program.

    f_drawn d c_drawn is one term of the sum above: <d cost / d x^, x> does not cancel, and an
    operation that did not fire gets no gradient. For comparison with that program, no more.
    """

    needs_pixel_effects: ClassVar[bool] = True

    def _estimate(self, noise: Noise, parameters: PolicyParameters, costs: DrawCosts) -> Estimate:
        if costs.branch_D is None or costs.op_effect_DK is None:
            raise ValueError(
                "gumbel-sampled needs branch_B and op_effect_BK: "
                "ask the hypergradient for cost_grad_BCHW"
            )
        drawn_DN = one_hot(noise, parameters)
        relaxed_DN = relaxed_choice(noise, parameters, self.temperature)
        drawn_D1 = (relaxed_DN * drawn_DN).sum(dim=1, keepdim=True)
        slope_DN = drawn_D1 * (drawn_DN - relaxed_DN) / self.temperature  # d c_s / d alpha
        effect_DK = costs.op_effect_DK * noise.apply_DK
        slope_DK = coin_slope(noise, parameters, self.temperature)
        return Estimate(
            subpolicy_logits_N=(costs.branch_D[:, None] * slope_DN).mean(dim=0),
            apply_prob_NK=mean_at_drawn(noise, parameters, effect_DK * slope_DK),
            advantage_D=costs.advantage_D,
        )


def relaxed_choice(noise: Noise, parameters: PolicyParameters, temperature: float) -> Tensor:
    """c of every draw (eq. 7)."""
    return ((parameters.subpolicy_logits_N + noise.gumbel_DN) / temperature).softmax(dim=1)


def coin_slope(noise: Noise, parameters: PolicyParameters, temperature: float) -> Tensor:
    """d b / d beta of the drawn subpolicy's relaxed coins (eq. 9)."""
    prob_DK = parameters.apply_prob_NK.index_select(0, noise.subpolicy_D)
    coin_DK = ((prob_DK.logit() + noise.logistic_DK) / temperature).sigmoid()
    return coin_DK * (1 - coin_DK) / (temperature * prob_DK * (1 - prob_DK))
