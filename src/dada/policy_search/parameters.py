"""What the search learns: d = {alpha, beta, m} of the paper, and an optional law for magnitudes.

Shapes: N subpolicies, K ops per subpolicy, M magnitude bins, R rows of magnitude logits,
O ops of the space, D distinct draws.

The joint distribution of one draw is p(c, b) = p(c | alpha) prod_k p(b_k | beta, c): one subpolicy
c, and for each of *its* K ops a coin b_k. The coins of the other subpolicies do not exist in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dada.policy import Magnitude, Policy, PolicyOp, SubPolicy
from dada.policy.space import SearchSpace

# Apply probabilities live in [APPLY_PROB_MARGIN, 1 - APPLY_PROB_MARGIN]. At 0 or 1 the log-odds of
# the relaxed coin are infinite, and an op that never fires can never earn its way back. The score
# of a coin, (b - beta) / (beta (1 - beta)), reaches 1 / margin, and its variance too: 0.01 keeps
# both at 100 and the log-odds within 4.6. Adam's steps of 5e-3 are half of it.
APPLY_PROB_MARGIN = 0.01


class MagnitudeDistribution(nn.Module):
    """Magnitudes drawn for each image from a learned histogram over [0, 1].

    q(m | r) = M softmax(logits_r)[bin(m)]: a categorical over M equal bins, uniform inside the
    bin. Its gradient is a score function of the same per-image cost as everything else, so it asks
    nothing of the op: straight-through magnitudes (d x / d m = 1) do not know what an op does.

    One row r of logits for every op position (n, k), or, when `op_index_NK` is given, one for every
    op, shared by all subpolicies that use it (15 rows instead of 210 learn 14 times faster).
    """

    row_NK: Tensor

    def __init__(
        self,
        num_subpolicies: int,
        ops_per_subpolicy: int,
        *,
        bins: int = 10,
        op_index_NK: Tensor | None = None,
    ) -> None:
        super().__init__()
        shape_NK = (num_subpolicies, ops_per_subpolicy)
        if bins < 2:
            raise ValueError(f"bins should be at least 2, but got {bins}")
        if op_index_NK is None:
            row_NK = torch.arange(num_subpolicies * ops_per_subpolicy).reshape(shape_NK)
        elif tuple(op_index_NK.shape) != shape_NK:
            raise ValueError(
                f"op_index_NK should have shape {shape_NK}, but got {tuple(op_index_NK.shape)}"
            )
        else:
            row_NK = op_index_NK.detach().clone().to(torch.int64)
        self.bins = bins
        self.register_buffer("row_NK", row_NK)
        self.logits_RM = nn.Parameter(torch.zeros(int(row_NK.max()) + 1, bins))

    @property
    def prob_RM(self) -> Tensor:
        """Probability of every bin, one row for each op position (or op)."""
        return self.logits_RM.softmax(dim=1)

    def rows_DK(self, subpolicy_D: Tensor) -> Tensor:
        """The rows of logits behind the ops of the drawn subpolicies."""
        return self.row_NK.index_select(0, subpolicy_D)


class PolicyParameters(nn.Module):
    """alpha, beta and m of the paper, at the paper's starting point.

    `magnitude_distribution` is None for the paper's method, where `magnitude_NK` is the magnitude.
    When it is given, magnitudes are drawn from it and `magnitude_NK` keeps its initial value.
    """

    def __init__(
        self,
        num_subpolicies: int,
        ops_per_subpolicy: int,
        *,
        subpolicy_logit: float = 1e-3,
        apply_prob: float = 0.5,
        magnitude: float = 0.5,
        magnitude_distribution: MagnitudeDistribution | None = None,
    ) -> None:
        super().__init__()
        if num_subpolicies < 1 or ops_per_subpolicy < 1:
            raise ValueError(
                "num_subpolicies and ops_per_subpolicy should be at least 1, "
                f"but got {num_subpolicies} and {ops_per_subpolicy}"
            )
        if not APPLY_PROB_MARGIN <= apply_prob <= 1 - APPLY_PROB_MARGIN:
            raise ValueError(
                f"apply_prob should lie in [{APPLY_PROB_MARGIN}, {1 - APPLY_PROB_MARGIN}], "
                f"but got {apply_prob}"
            )
        if not 0.0 <= magnitude <= 1.0:
            raise ValueError(f"magnitude should lie in [0, 1], but got {magnitude}")
        if magnitude_distribution is not None and tuple(magnitude_distribution.row_NK.shape) != (
            num_subpolicies,
            ops_per_subpolicy,
        ):
            raise ValueError(
                "magnitude_distribution was built for (subpolicies, ops) "
                f"{tuple(magnitude_distribution.row_NK.shape)}, but the policy has "
                f"{(num_subpolicies, ops_per_subpolicy)}"
            )
        shape_NK = (num_subpolicies, ops_per_subpolicy)
        self.subpolicy_logits_N = nn.Parameter(torch.full((num_subpolicies,), subpolicy_logit))
        self.apply_prob_NK = nn.Parameter(torch.full(shape_NK, apply_prob))
        self.magnitude_NK = nn.Parameter(torch.full(shape_NK, magnitude))
        self.magnitude_distribution = magnitude_distribution

    @property
    def num_subpolicies(self) -> int:
        return self.apply_prob_NK.shape[0]

    @property
    def ops_per_subpolicy(self) -> int:
        return self.apply_prob_NK.shape[1]

    @property
    def subpolicy_prob_N(self) -> Tensor:
        """pi_s = exp(alpha_s) / sum_s' exp(alpha_s')  (eq. 3)."""
        return self.subpolicy_logits_N.softmax(dim=0)

    @torch.no_grad()
    def project_(self) -> PolicyParameters:
        """Back into the feasible set after an optimiser step (in place, no synchronisation)."""
        self.apply_prob_NK.clamp_(APPLY_PROB_MARGIN, 1 - APPLY_PROB_MARGIN)
        self.magnitude_NK.clamp_(0.0, 1.0)
        return self

    @torch.no_grad()
    def subpolicy_entropy(self) -> Tensor:
        """H(c) in nats; log N when no subpolicy is preferred."""
        log_prob_N = self.subpolicy_logits_N.log_softmax(dim=0)
        return -(log_prob_N.exp() * log_prob_N).sum()

    @torch.no_grad()
    def entropy(self) -> Tensor:
        """Entropy of a whole draw in nats: H(c, b) = H(c) + sum_s pi_s sum_k H(b_sk)."""
        prob_NK = self.apply_prob_NK
        coin_NK = -torch.xlogy(prob_NK, prob_NK) - torch.xlogy(1 - prob_NK, 1 - prob_NK)
        return self.subpolicy_entropy() + (self.subpolicy_prob_N * coin_NK.sum(dim=1)).sum()

    @torch.no_grad()
    def distance(self, other: PolicyParameters) -> Tensor:
        """How much the policy changed: total variation of p(c, b), in [0, 1].

        1/2 sum_{c,b} |p(c, b) - p'(c, b)|, exactly: N times 2^K outcomes. It is the largest change
        in probability of any event about which ops an image meets. Magnitudes are not part of it.
        """
        return 0.5 * (self._joint_prob_NE() - other._joint_prob_NE()).abs().sum()

    @torch.no_grad()
    def op_rate_O(self, op_index_NK: Tensor, num_ops: int) -> Tensor:
        """Expected number of times each op of the space is applied to one image."""
        rate_NK = self.subpolicy_prob_N[:, None] * self.apply_prob_NK
        one_hot_NKO = op_index_NK[..., None] == torch.arange(num_ops, device=op_index_NK.device)
        return (rate_NK[..., None] * one_hot_NKO).sum(dim=(0, 1))

    @torch.no_grad()
    def to_policy(
        self,
        space: SearchSpace,
        *,
        top: int | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Policy:
        """The policy these parameters stand for.

        All subpolicies with their weights, or, as in the paper, the `top` likeliest ones, each as
        likely as the others.
        """
        prob_N = self.subpolicy_prob_N.double().cpu()
        if top is not None:
            keep = sorted(torch.argsort(-prob_N, stable=True)[:top].tolist())
            weight_N = torch.full_like(prob_N, 1 / len(keep))
        else:
            keep, weight_N = list(range(len(prob_N))), prob_N / prob_N.sum()
        # Read once: on a device every number asked for on its own waits for the device.
        prob_NK = self.apply_prob_NK.tolist()
        magnitude_NK = self._magnitudes(space)
        subpolicies = tuple(
            SubPolicy(
                float(weight_N[n]),
                tuple(
                    PolicyOp(name, round(prob_NK[n][k], 6), magnitude_NK[n][k])
                    for k, name in enumerate(space.subpolicies[n])
                ),
            )
            for n in keep
        )
        sampling = "weighted" if top is None else "uniform"
        return Policy(subpolicies, space.name, sampling, provenance or {})

    def _magnitudes(self, space: SearchSpace) -> list[list[Magnitude]]:
        """The magnitude of every op position: a number, or what a learned histogram stands for."""
        magnitude_NK = self.magnitude_NK.tolist()
        distribution = self.magnitude_distribution
        prob_RM = [] if distribution is None else distribution.prob_RM.double().tolist()
        row_NK = [] if distribution is None else distribution.row_NK.tolist()
        ops = {op.name: op for op in space.ops}
        return [
            [
                _uniform_law(prob_RM[row_NK[n][k]], ops[name].signed and not space.strengths)
                if distribution is not None and ops[name].has_strength
                else round(magnitude_NK[n][k], 6)
                for k, name in enumerate(names)
            ]
            for n, names in enumerate(space.subpolicies)
        ]

    def _joint_prob_NE(self) -> Tensor:
        """p(c, b) for every subpolicy and every one of the E = 2^K patterns of its coins."""
        prob_NE = []
        for pattern in itertools.product((False, True), repeat=self.ops_per_subpolicy):
            prob_N = self.subpolicy_prob_N
            for k, fires in enumerate(pattern):
                prob_N = prob_N * (
                    self.apply_prob_NK[:, k] if fires else 1 - self.apply_prob_NK[:, k]
                )
            prob_NE.append(prob_N)
        return torch.stack(prob_NE, dim=1)


def _uniform_law(prob_M: list[float], folded: bool) -> tuple[float, float]:
    """The interval whose uniform law has the mean and spread of a histogram over 0..1.

    `folded`: in the paper's space m and 1 - m are the same for an op whose sign is random, so the
    histogram is folded onto the strength first.
    """
    bins = len(prob_M)
    places = [(i + 0.5) / bins for i in range(bins)]
    if folded:
        places = [abs(2 * place - 1) for place in places]
    mean = sum(p * place for p, place in zip(prob_M, places, strict=True))
    spread = sum(p * (place - mean) ** 2 for p, place in zip(prob_M, places, strict=True))
    half = math.sqrt(3 * (spread + ((1 + folded) / bins) ** 2 / 12))
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    if folded:
        low, high = 0.5 + low / 2, 0.5 + high / 2
    return round(low, 6), round(high, 6)
