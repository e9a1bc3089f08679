"""From many noisy gradients to a policy, moving as far as the evidence reaches.

Letters: N sub-policies, K operations in each, O operations of the space, M magnitude bins.

The network trains under the uniform policy, so every step measures the gradient of the expected
cost at the same point. Averaged, the gradients say what each operation does to the validation
loss, in each of its magnitude bins, with a standard error. The policy is the one that minimises

    <effect, p> + scale KL(p || uniform),     p proportional to exp(-effect / scale),

the last step of dual averaging, after effects that noise could explain have been shrunk. The
scale is the effect of a typical operation, so it need not be tuned. What 15 operations do is
learned once and shared by the 105 sub-policies; a pair gets a residual of its own when there is
evidence for it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dada.policy.space import SearchSpace
from dada.policy_search.estimators import Gradients
from dada.policy_search.parameters import PolicyParameters

NOISE_Z = 1.5  # an effect within this many standard errors counts for nothing
LARGEST_SCORE = 3.0  # odds of e^3 = 20 to 1 are as far as one operation is trusted
SCALE_IN_ERRORS = 3.0  # the scale is at least this many standard errors


class RunningMean(nn.Module):
    """Mean and standard error of vectors that come one by one (Welford)."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("squares", torch.zeros(shape))

    def add(self, sample: Tensor) -> None:
        self.count += 1
        difference = sample - self.mean
        self.mean += difference / self.count
        self.squares += difference * (sample - self.mean)

    def error(self) -> Tensor:
        variance = self.squares / (self.count - 1).clamp(min=1)
        return (variance / self.count.clamp(min=1)).sqrt()


class Evidence(nn.Module):
    """Collects the gradients of a search under the uniform policy, and concludes."""

    op_index_NK: Tensor
    share_O: Tensor

    def __init__(self, space: SearchSpace, bins: int) -> None:
        super().__init__()
        self.register_buffer("op_index_NK", space.op_index_NK.clone())
        counts = torch.bincount(space.op_index_NK.flatten(), minlength=len(space.ops))
        self.register_buffer("share_O", counts / space.num_subpolicies)  # of draws that offer it
        self.bins = bins
        self.op = RunningMean(len(space.ops))
        self.bin = RunningMean(len(space.ops), bins)
        self.pair = RunningMean(space.num_subpolicies)

    @torch.no_grad()
    def add(self, gradients: Gradients, uniform: PolicyParameters) -> None:
        """One step's gradients, turned from derivatives into effects.

        d J / d beta_nk = p(n) effect_nk; d J / d logit_om = p(o fires) q_m (effect_om - effect_o);
        d J / d alpha_n = p(n) (cost_n - mean cost).
        """
        slope_O = torch.zeros_like(self.share_O)
        slope_O.index_add_(0, self.op_index_NK.flatten(), gradients.apply_prob_NK.flatten())
        self.op.add(slope_O / self.share_O)
        self.pair.add(gradients.subpolicy_logits_N * len(self.op_index_NK))
        if gradients.magnitude_logits_RM is not None:
            fires_O = self.share_O * uniform.apply_prob_NK.mean()
            self.bin.add(gradients.magnitude_logits_RM * self.bins / fires_O.unsqueeze(1))

    @torch.no_grad()
    def conclude_(self, parameters: PolicyParameters) -> None:
        """Write the policy that the evidence so far supports."""
        scale, score_O, bin_score_OM = self._scores()
        parameters.apply_prob_NK.copy_(torch.sigmoid(-score_O)[self.op_index_NK])
        parameters.subpolicy_logits_N.copy_(
            -score_O[self.op_index_NK].sum(1) - self._pair_score_N(scale)
        )
        if parameters.magnitude_distribution is not None:
            parameters.magnitude_distribution.logits_RM.copy_(-bin_score_OM)
        parameters.project_()

    @torch.no_grad()
    def goodness_O(self) -> Tensor:
        """What is known of every operation: more is better."""
        return -self._scores()[1]

    def _scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """The scale, the cost of every operation in it, and that of its bins against each other."""
        typical = self.op.mean.abs().median()
        scale = torch.maximum(typical, SCALE_IN_ERRORS * self.op.error().median()).clamp(min=1e-12)
        bin_score_OM = bounded(_score(self.bin, scale))
        bin_prob_OM = torch.softmax(-bin_score_OM, dim=1)
        # An operation that helps at the magnitudes that will be drawn is worth that; one that is
        # only less harmful there is still worth what it is over its whole range.
        score_O = _score(self.op, scale)
        chosen_O = score_O + (bin_prob_OM * bin_score_OM).sum(1)
        return scale, bounded(torch.where(chosen_O < 0, chosen_O, score_O)), bin_score_OM

    def _pair_score_N(self, scale: Tensor) -> Tensor:
        """What a pair does beyond its two operations (each of which fires half the time)."""
        expected_N = self.op.mean[self.op_index_NK].sum(1) / 2
        residual = RunningMean(len(expected_N)).to(expected_N.device)
        residual.count.copy_(self.pair.count)
        residual.mean.copy_(self.pair.mean - (expected_N - expected_N.mean()))
        residual.squares.copy_(self.pair.squares)
        # Of 105 pairs five pass two standard errors by chance: ask twice as much of each.
        return bounded(_score(residual, scale, noise_z=2 * NOISE_Z))


def _score(evidence: RunningMean, scale: Tensor, noise_z: float = NOISE_Z) -> Tensor:
    """Effects in units of `scale`, without what noise could explain."""
    return shrunk(evidence.mean, evidence.error(), noise_z) / scale


def shrunk(effect: Tensor, error: Tensor, noise_z: float = NOISE_Z) -> Tensor:
    """Effects within the noise become zero, large ones stay (the non-negative garrote)."""
    return effect * beyond_noise(effect, error, noise_z)


def beyond_noise(effect: Tensor, error: Tensor, noise_z: float = NOISE_Z) -> Tensor:
    """How much of an effect noise cannot explain: 0 within `noise_z` errors, then up to 1."""
    kept = (1 - (noise_z * error.clamp(min=1e-12) / effect).square()).clamp(min=0)
    return torch.where(effect == 0, 0.0, kept)


def bounded(score: Tensor) -> Tensor:
    """Within LARGEST_SCORE, and still in order: two strong operations do not become equal."""
    return LARGEST_SCORE * torch.tanh(score / LARGEST_SCORE)
