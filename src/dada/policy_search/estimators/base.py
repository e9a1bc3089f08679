"""What all estimators share: sampling, and the way from costs to gradients.

Shapes: B images, N subpolicies, K ops per subpolicy, D distinct draws, R rows of M magnitude
logits, M other branches of gumbel.

The objective is the expected cost of an image, E_{p(c,b)}[cost]; every estimator returns the mean
over its D independent draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from dada.policy.draw import Draw, policy_free_noise
from dada.policy_search.estimators.draws import (
    Noise,
    draw_bins,
    exponential,
    magnitude_score,
    mean_at_drawn,
    open_uniform,
    to_draws,
    to_images,
)
from dada.policy_search.parameters import PolicyParameters


@dataclass(frozen=True, eq=False, kw_only=True)
class Gradients:
    """Gradients of the expected cost, shaped like the parameters they belong to."""

    subpolicy_logits_N: Tensor
    apply_prob_NK: Tensor
    magnitude_NK: Tensor | None = None
    magnitude_logits_RM: Tensor | None = None
    control_variate: tuple[Tensor, ...] = ()  # in the order of estimator.parameters()

    def store_(self, parameters: PolicyParameters, estimator: Estimator) -> None:
        """Writes the gradients into `.grad`, in place when there is one (CUDA graphs need that)."""
        pairs: list[tuple[nn.Parameter, Tensor | None]] = [
            (parameters.subpolicy_logits_N, self.subpolicy_logits_N),
            (parameters.apply_prob_NK, self.apply_prob_NK),
            (parameters.magnitude_NK, self.magnitude_NK),
            *zip(estimator.parameters(), self.control_variate, strict=False),
        ]
        if parameters.magnitude_distribution is not None:
            logits_RM = parameters.magnitude_distribution.logits_RM
            pairs.append((logits_RM, self.magnitude_logits_RM))
        for parameter, grad in pairs:
            if grad is None:
                continue
            if parameter.grad is None:
                parameter.grad = grad.detach().clone()
            else:
                parameter.grad.copy_(grad)


class DrawCosts(NamedTuple):
    """The arguments of gradients(), averaged over the images that share a draw."""

    cost_D: Tensor
    baseline_D: Tensor | None
    branch_D: Tensor | None
    op_effect_DK: Tensor | None
    other_branch_DM: Tensor | None

    @property
    def advantage_D(self) -> Tensor:
        return self.cost_D if self.baseline_D is None else self.cost_D - self.baseline_D


class Estimate(NamedTuple):
    """What a subclass makes of them. advantage_D weighs the score of drawn magnitudes."""

    subpolicy_logits_N: Tensor
    apply_prob_NK: Tensor
    advantage_D: Tensor
    control_variate: tuple[Tensor, ...] = ()


class EstimatorSettings(TypedDict, total=False):
    """What an estimator may be given besides the size of the policy."""

    temperature: float  # of the relaxed draws
    views: int  # of every image in a batch
    branches: int | None  # how many that were not drawn gumbel evaluates; None: all of them
    generator: torch.Generator | None  # what relax learns begins with its numbers


class Estimator(nn.Module):
    """Sampling shared by all of them; a subclass says what becomes of the costs.

    An estimator is a module because RELAX learns: optimise `estimator.parameters()` with the
    policy's and keep `estimator.state_dict()` in checkpoints. The others have nothing in either.
    """

    needs_pixel_effects: ClassVar[bool] = False  # reads branch_B and op_effect_BK

    def __init__(
        self,
        num_subpolicies: int,
        ops_per_subpolicy: int,
        *,
        temperature: float = 0.5,
        views: int = 1,
        branches: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature should be positive, but got {temperature}")
        if views < 1:
            raise ValueError(f"views should be at least 1, but got {views}")
        if branches is not None and branches < 1:
            raise ValueError(f"branches should be at least 1, but got {branches}")
        self.num_subpolicies, self.ops_per_subpolicy = num_subpolicies, ops_per_subpolicy
        self.temperature, self.views, self.branches = temperature, views, branches
        self._learn_from(generator)

    def _learn_from(self, generator: torch.Generator | None) -> None:
        """What a subclass learns begins here, with random numbers of this generator."""

    @torch.no_grad()
    def sample(
        self,
        parameters: PolicyParameters,
        batch: int,
        *,
        draws: str = "image",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Draws for `batch` images (with several views: view-major, views x images).

        draws="image": every image has its own draw. draws="batch": one draw for the whole batch (of
        each view), the setting of the authors' experiments; signs and cutout centres, which belong
        to no policy, still differ between images.
        """
        if draws not in ("image", "batch"):
            raise ValueError(f"draws should be 'image' or 'batch', but got {draws!r}")
        if batch < 1 or batch % self.views:
            raise ValueError(
                f"batch should be a positive multiple of views ({self.views}), but got {batch}"
            )
        noise = self._draw(parameters, batch if draws == "image" else self.views, generator)
        device = noise.subpolicy_D.device
        sign_BK, center_BK2 = policy_free_noise(batch, self.ops_per_subpolicy, generator, device)
        magnitude_BK = None
        if noise.magnitude_bin_DK is not None:
            assert parameters.magnitude_distribution is not None
            bin_BK = to_images(noise.magnitude_bin_DK, batch)
            inside_BK = torch.rand(bin_BK.shape, generator=generator, device=device)
            magnitude_BK = (bin_BK + inside_BK) / parameters.magnitude_distribution.bins
        return Draw(
            subpolicy_B=to_images(noise.subpolicy_D, batch),
            apply_BK=to_images(noise.apply_DK, batch),
            sign_BK=sign_BK,
            center_BK2=center_BK2,
            magnitude_BK=magnitude_BK,
            noise=noise,
        )

    @torch.no_grad()
    def gradients(
        self,
        draw: Draw,
        parameters: PolicyParameters,
        cost_B: Tensor,
        *,
        baseline_B: Tensor | None = None,
        magnitude_effect_BK: Tensor | None = None,
        branch_B: Tensor | None = None,
        op_effect_BK: Tensor | None = None,
        other_branch_BM: Tensor | None = None,
    ) -> Gradients:
        """The mean over draws of the estimated gradient of the expected cost.

        baseline_B: a cost known without looking at the draw, e.g. that of the same image left
        clean. It is subtracted (rloo: averaged in with the other views), and adds no bias.

        The others are inner products with cost_grad_BCHW, the gradient of the cost with respect
        to the augmented image x_K, where x_k is the image after op position k and x_0 before all:
        magnitude_effect_BK  <cost_grad, d x_K / d m_k>; counted for the ops that fired. The sum of
                      cost_grad over channels and pixels for straight-through magnitudes (eq. 10,
                      11: d x / d m = 1). Without it magnitude_NK gets no gradient.
        branch_B      <cost_grad, x_K - x_0> of the drawn branch (gumbel; gumbel-sampled, which
                      has no other branch to take x_0 from, reads <cost_grad, x_K>).
        other_branch_BM  <cost_grad, s(x_0) - x_0> of the branches in draw.noise (gumbel only).
        op_effect_BK  <cost_grad, O_k(x_{k-1}) - x_{k-1}>, from x_k = b_k O_k(x_{k-1}) +
                      (1 - b_k) x_{k-1}, whether O_k fired or not (gumbel; gumbel-sampled reads
                      those that fired). Where ops follow k, their Jacobian is taken as the
                      identity.
        """
        noise = draw.noise
        if not isinstance(noise, Noise):
            raise ValueError("draw.noise should come from this estimator's sample(), but does not")
        batch = draw.subpolicy_B.shape[0]

        def per_draw(x: Tensor | None, name: str) -> Tensor | None:
            return None if x is None else to_draws(x.detach(), noise, batch, name)

        cost_D = to_draws(cost_B.detach(), noise, batch, "cost_B")
        costs = DrawCosts(
            cost_D,
            per_draw(baseline_B, "baseline_B"),
            per_draw(branch_B, "branch_B"),
            per_draw(op_effect_BK, "op_effect_BK"),
            per_draw(other_branch_BM, "other_branch_BM"),
        )
        estimate = self._estimate(noise, parameters, costs)
        magnitude_effect_DK = per_draw(magnitude_effect_BK, "magnitude_effect_BK")
        magnitude_NK = magnitude_logits_RM = None
        if parameters.magnitude_distribution is not None:
            magnitude_logits_RM = magnitude_score(
                noise, parameters.magnitude_distribution, estimate.advantage_D
            )
        elif magnitude_effect_DK is not None:
            magnitude_NK = mean_at_drawn(noise, parameters, noise.apply_DK * magnitude_effect_DK)
        return Gradients(
            subpolicy_logits_N=estimate.subpolicy_logits_N,
            apply_prob_NK=estimate.apply_prob_NK,
            magnitude_NK=magnitude_NK,
            magnitude_logits_RM=magnitude_logits_RM,
            control_variate=estimate.control_variate,
        )

    def _estimate(self, noise: Noise, parameters: PolicyParameters, costs: DrawCosts) -> Estimate:
        raise NotImplementedError

    def _draw(
        self, parameters: PolicyParameters, distinct: int, generator: torch.Generator | None
    ) -> Noise:
        """c by Gumbel-max (eq. 8; multinomial would synchronise), b by a threshold (eq. 9)."""
        logits_N, apply_prob_NK = parameters.subpolicy_logits_N, parameters.apply_prob_NK
        if apply_prob_NK.shape != (self.num_subpolicies, self.ops_per_subpolicy):
            raise ValueError(
                f"the estimator was built for {self.num_subpolicies} subpolicies of "
                f"{self.ops_per_subpolicy} ops, but apply_prob_NK has shape "
                f"{tuple(apply_prob_NK.shape)}"
            )
        gumbel_DN = -exponential((distinct, self.num_subpolicies), logits_N, generator).log()
        subpolicy_D = (logits_N + gumbel_DN).argmax(dim=1)
        logistic_DK = open_uniform((distinct, self.ops_per_subpolicy), logits_N, generator).logit()
        log_odds_DK = apply_prob_NK.index_select(0, subpolicy_D).logit()
        magnitude_bin_DK = None
        distribution = parameters.magnitude_distribution
        if distribution is not None:
            magnitude_bin_DK = draw_bins(distribution, subpolicy_D, generator)
        return Noise(
            subpolicy_D=subpolicy_D,
            apply_DK=log_odds_DK + logistic_DK > 0,
            gumbel_DN=gumbel_DN,
            logistic_DK=logistic_DK,
            magnitude_bin_DK=magnitude_bin_DK,
        )
