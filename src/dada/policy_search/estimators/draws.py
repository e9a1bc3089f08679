"""Draws and their log-probability: what every estimator is made of.

Shapes: B images, N subpolicies, K ops per subpolicy, D distinct draws, M magnitude bins (or other
branches, of gumbel), R rows of magnitude logits. D = B with one draw per image; D = views with one
draw per batch, each shared by B / D consecutive images.

log p(c, b) = log pi_c + sum_k log Bernoulli(b_k; beta_ck) has one categorical term, a scalar per
draw, and the K coins of the drawn subpolicy and no others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dada.policy_search.parameters import MagnitudeDistribution, PolicyParameters


@dataclass(frozen=True, eq=False, kw_only=True)
class Noise:
    """What gradients() needs again of a draw."""

    subpolicy_D: Tensor
    apply_DK: Tensor
    gumbel_DN: Tensor
    logistic_DK: Tensor  # of the drawn subpolicy's coins
    magnitude_bin_DK: Tensor | None
    relaxed: RelaxedNoise | None = None
    branches: BranchNoise | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class RelaxedNoise:
    """The further noise of RELAX: every coin's, and that of the conditional sample z~."""

    logistic_DNK: Tensor
    exponential_DN: Tensor  # -log v of the conditional categorical
    uniform_DK: Tensor  # v of the conditional coins


@dataclass(frozen=True, eq=False, kw_only=True)
class BranchNoise:
    """The branches of gumbel that were not drawn: which, their coins, and what each counts."""

    subpolicy_DM: Tensor
    apply_DMK: Tensor
    magnitude_DMK: Tensor | None  # None: the subpolicy's own
    weight_DM: Tensor


def open_uniform(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform in the open interval: rand() can return 0, whose logarithm is not finite."""
    u = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
    edge = torch.finfo(like.dtype).eps / 4
    return u.clamp(edge, 1 - 2 * edge)


def exponential(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Exp(1), always positive; -log of it is a Gumbel variable."""
    return -open_uniform(shape, like, generator).log()


def draw_bins(
    law: MagnitudeDistribution, subpolicy: Tensor, generator: torch.Generator | None
) -> Tensor:
    """A magnitude bin for each of the K ops of these subpolicies, by Gumbel-max."""
    logits = law.logits_RM[law.row_NK[subpolicy]]
    return (logits - exponential(tuple(logits.shape), logits, generator).log()).argmax(dim=-1)


def to_images(x_D: Tensor, batch: int) -> Tensor:
    """Repeats each draw for the B / D consecutive images that share it."""
    each = batch // x_D.shape[0]
    return x_D[:, None].expand(-1, each, *x_D.shape[1:]).reshape(batch, *x_D.shape[1:])


def to_draws(x_B: Tensor, noise: Noise, batch: int, name: str) -> Tensor:
    """Averages over the images that share a draw."""
    if x_B.shape[:1] != (batch,):
        raise ValueError(
            f"{name} should have {batch} rows, one for each image of the draw, "
            f"but has shape {tuple(x_B.shape)}"
        )
    return x_B.reshape(noise.subpolicy_D.shape[0], -1, *x_B.shape[1:]).mean(dim=1)


def one_hot(noise: Noise, parameters: PolicyParameters) -> Tensor:
    index_N = torch.arange(parameters.num_subpolicies, device=noise.subpolicy_D.device)
    return (noise.subpolicy_D[:, None] == index_N).to(parameters.apply_prob_NK.dtype)


def score_functions(noise: Noise, parameters: PolicyParameters) -> tuple[Tensor, Tensor]:
    """d log p / d alpha = one_hot(c) - pi and d log p / d beta_c = (b - beta) / (beta (1 - beta)).

    The second for the drawn subpolicy's K coins, the only ones in log p.
    """
    prob_DK = parameters.apply_prob_NK.index_select(0, noise.subpolicy_D)
    score_DN = one_hot(noise, parameters) - parameters.subpolicy_prob_N
    return score_DN, (noise.apply_DK.to(prob_DK.dtype) - prob_DK) / (prob_DK * (1 - prob_DK))


def mean_at_drawn(noise: Noise, parameters: PolicyParameters, x_DK: Tensor) -> Tensor:
    """Mean over draws of x_DK put at the drawn subpolicy's row; a product, hence deterministic."""
    return one_hot(noise, parameters).T @ x_DK / x_DK.shape[0]


def magnitude_score(
    noise: Noise, distribution: MagnitudeDistribution, advantage_D: Tensor
) -> Tensor:
    """mean_d advantage_d sum_k b_k (one_hot(bin_k) - q_k).

    b_k, because an op that did not fire has no magnitude: its score would only add noise.
    """
    assert noise.magnitude_bin_DK is not None
    rows_DK, prob_RM = distribution.rows_DK(noise.subpolicy_D), distribution.prob_RM
    bins_M = torch.arange(distribution.bins, device=rows_DK.device)
    score_DKM = (noise.magnitude_bin_DK[..., None] == bins_M).to(prob_RM.dtype) - prob_RM[rows_DK]
    weight_DK = advantage_D[:, None] * noise.apply_DK
    row_index_R = torch.arange(prob_RM.shape[0], device=rows_DK.device)
    row_DKR = (rows_DK[..., None] == row_index_R).to(prob_RM.dtype)
    return torch.einsum("dk,dkr,dkm->rm", weight_DK, row_DKR, score_DKM) / advantage_D.shape[0]
