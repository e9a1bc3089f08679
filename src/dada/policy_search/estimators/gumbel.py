"""Straight-through Gumbel-Softmax, the paper's section 3.3.

Shapes: N subpolicies, K ops per subpolicy, D distinct draws.
"""

from __future__ import annotations

from typing import ClassVar

from dada.policy_search.estimators.base import DrawCosts, Estimate, Estimator
from dada.policy_search.estimators.draws import Noise, mean_at_drawn, one_hot
from dada.policy_search.parameters import PolicyParameters


class GumbelSoftmax(Estimator):
    """Straight-through Gumbel-Softmax (eq. 7-9): low variance, biased.

    Forward, the hard draw: only the sampled branch is evaluated. Backward, the relaxed one:
    c_s = softmax((alpha + gumbel) / tau)_s for the drawn s, b = sigmoid((logit beta + logistic) /
    tau), each multiplying what it multiplies in x = sum_s c_s s(x). How biased: docs/estimators.md.
    """

    needs_pixel_effects: ClassVar[bool] = True

    def _estimate(self, noise: Noise, parameters: PolicyParameters, costs: DrawCosts) -> Estimate:
        if costs.branch_D is None or costs.op_effect_DK is None:
            raise ValueError(
                "gumbel needs branch_B and op_effect_BK: ask the hypergradient for cost_grad_BCHW"
            )
        tau, one_hot_DN = self.temperature, one_hot(noise, parameters)
        relaxed_DN = ((parameters.subpolicy_logits_N + noise.gumbel_DN) / tau).softmax(dim=1)
        drawn_D1 = (relaxed_DN * one_hot_DN).sum(dim=1, keepdim=True)
        slope_DN = drawn_D1 * (one_hot_DN - relaxed_DN) / tau  # d c_s / d alpha
        prob_DK = parameters.apply_prob_NK.index_select(0, noise.subpolicy_D)
        coin_DK = ((prob_DK.logit() + noise.logistic_DK) / tau).sigmoid()
        slope_DK = coin_DK * (1 - coin_DK) / (tau * prob_DK * (1 - prob_DK))  # d b / d beta
        return Estimate(
            subpolicy_logits_N=(costs.branch_D[:, None] * slope_DN).mean(dim=0),
            apply_prob_NK=mean_at_drawn(noise, parameters, costs.op_effect_DK * slope_DK),
            advantage_D=costs.cost_D - (0.0 if costs.baseline_D is None else costs.baseline_D),
        )
