"""Score-function estimators: reinforce, and rloo with its baseline from other views.

Shapes: N subpolicies, K ops per subpolicy, D distinct draws, V views of I images.
"""

from __future__ import annotations

from torch import Tensor

from dada.policy_search.estimators.base import DrawCosts, Estimate, Estimator
from dada.policy_search.estimators.draws import Noise, mean_at_drawn, score_functions
from dada.policy_search.parameters import PolicyParameters


class Reinforce(Estimator):
    """The plain score function: mean_d (cost_d - baseline_d) d log p(c_d, b_d). Unbiased."""

    def _estimate(self, noise: Noise, parameters: PolicyParameters, costs: DrawCosts) -> Estimate:
        advantage_D = self._advantage(costs)
        score_DN, score_DK = score_functions(noise, parameters)
        return Estimate(
            subpolicy_logits_N=(advantage_D[:, None] * score_DN).mean(dim=0),
            apply_prob_NK=mean_at_drawn(noise, parameters, advantage_D[:, None] * score_DK),
            advantage_D=advantage_D,
        )

    def _advantage(self, costs: DrawCosts) -> Tensor:
        return costs.advantage_D


class LeaveOneOut(Reinforce):
    """Score function with a baseline that belongs to the image: its other views (RLOO).

    With V views of one image, baseline_v = mean of the costs of the V - 1 others; with baseline_B
    (the clean view, say) mean of those and it. Independent of draw v, hence unbiased. One view
    needs baseline_B, and is then `reinforce` with it.
    """

    def _advantage(self, costs: DrawCosts) -> Tensor:
        cost_VI = costs.cost_D.reshape(self.views, -1)  # I images (one, when draws="batch")
        others_VI, count = cost_VI.sum(dim=0) - cost_VI, self.views - 1
        if costs.baseline_D is not None:
            others_VI, count = others_VI + costs.baseline_D.reshape(self.views, -1), count + 1
        if count == 0:
            raise ValueError(
                "rloo with views=1 has no other view to compare with; use views of 2 or more, "
                "or pass baseline_B"
            )
        return (cost_VI - others_VI / count).reshape(-1)
