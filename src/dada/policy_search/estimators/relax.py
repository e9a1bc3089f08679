"""RELAX, the paper's section 3.4: a score function with a learned control variate.

Shapes: N subpolicies, K ops per subpolicy, D distinct draws. z and z_cond (z~) are pairs: the
relaxed one-hot (DN) and the relaxed coins of all subpolicies (DNK), all in (0, 1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from dada.policy_search.estimators.base import DrawCosts, Estimate, Estimator
from dada.policy_search.estimators.draws import (
    Noise,
    RelaxedNoise,
    exponential,
    one_hot,
    open_uniform,
    score_functions,
)
from dada.policy_search.parameters import PolicyParameters

HIDDEN = 100  # units, as in the paper


class ControlVariate(nn.Module):
    """c_phi: two layers, on all N + N K relaxed values; zero at the start.

    It reads every relaxed value, never the drawn row alone: gathering by the argmax would make it
    jump where the draw changes, and RELAX needs it continuous in z.
    """

    def __init__(self, inputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        device = generator.device if generator is not None else None
        bound = inputs**-0.5
        weight = torch.empty(HIDDEN, inputs, device=device).uniform_(
            -bound, bound, generator=generator
        )
        self.hidden_weight = nn.Parameter(weight)
        self.hidden_bias = nn.Parameter(torch.zeros(HIDDEN, device=device))
        self.output_weight = nn.Parameter(torch.zeros(HIDDEN, device=device))
        self.output_bias = nn.Parameter(torch.zeros((), device=device))

    def forward(self, z_DN: Tensor, z_DNK: Tensor) -> Tensor:
        # Centred coins; tanh because phi is trained through the slope, which relu would make jump.
        z = torch.cat([z_DN, (2 * z_DNK - 1).flatten(start_dim=1)], dim=1)
        return torch.tanh(z @ self.hidden_weight.T + self.hidden_bias) @ self.output_weight + (
            self.output_bias
        )


class Relax(Estimator):
    """RELAX on the cost itself (section 3.4): unbiased for any phi, phi trained to cut variance.

        g = [cost - c_phi(z~)] d log p(c, b) + d c_phi(z) - d c_phi(z~)        (eq. 12)

    z is the relaxed draw, z~ a relaxed draw given the same (c, b). The control variate belongs to
    the cost: put into both halves of the finite difference, which share z, z~ and phi, it would
    cancel and leave plain REINFORCE. Coins of subpolicies not drawn are not given by (c, b), so
    their z~ is unconditional; reusing their z keeps that law and cancels their noise.
    phi descends the mean over draws of ||g_d||^2, whose gradient is that of the variance (eq. 13).
    Costs are divided by their running root mean square, so that c_phi works at scale one.
    """

    cost_square: Tensor
    updates: Tensor
    scale_decay: ClassVar[float] = 0.99

    def _learn_from(self, generator: torch.Generator | None) -> None:
        relaxed = self.num_subpolicies * (1 + self.ops_per_subpolicy)
        self.control = ControlVariate(relaxed, generator)
        self.register_buffer("cost_square", self.control.output_bias.detach().clone())
        self.register_buffer("updates", self.control.output_bias.detach().clone())

    def _draw(
        self, parameters: PolicyParameters, distinct: int, generator: torch.Generator | None
    ) -> Noise:
        noise = super()._draw(parameters, distinct, generator)
        like, shape_DNK = parameters.apply_prob_NK, (distinct, *parameters.apply_prob_NK.shape)
        others_DNK = open_uniform(shape_DNK, like, generator).logit()
        drawn_DN1 = one_hot(noise, parameters)[..., None] > 0
        relaxed = RelaxedNoise(
            logistic_DNK=torch.where(drawn_DN1, noise.logistic_DK[:, None], others_DNK),
            exponential_DN=exponential(shape_DNK[:2], like, generator),
            uniform_DK=open_uniform((distinct, shape_DNK[2]), like, generator),
        )
        return replace(noise, relaxed=relaxed)

    def _estimate(self, noise: Noise, parameters: PolicyParameters, costs: DrawCosts) -> Estimate:
        cost_D = costs.advantage_D
        scale = self._cost_scale(cost_D)
        score_DN, score_DK = score_functions(noise, parameters)
        drawn_DN = one_hot(noise, parameters)
        score_DNK = drawn_DN[..., None] * score_DK[:, None]
        distinct = score_DNK.shape[0]
        with torch.enable_grad():
            # A copy of the policy for each draw: one backward pass then gives a gradient per draw.
            logits_DN = parameters.subpolicy_logits_N.detach().repeat(distinct, 1).requires_grad_()
            prob_DNK = parameters.apply_prob_NK.detach().repeat(distinct, 1, 1).requires_grad_()
            z, z_cond = self._relax(noise, drawn_DN > 0, logits_DN, prob_DNK)
            control_D, control_cond_D = self.control(*z), self.control(*z_cond)
            path_DN, path_DNK = torch.autograd.grad(
                (control_D - control_cond_D).sum(), (logits_DN, prob_DNK), create_graph=True
            )
            residual_D = cost_D / scale - control_cond_D
            grad_DN = residual_D[:, None] * score_DN + path_DN
            grad_DNK = residual_D[:, None, None] * score_DNK + path_DNK
            square_norm = grad_DN.square().sum() + grad_DNK.square().sum()
            phi_grads = torch.autograd.grad(square_norm / distinct, tuple(self.parameters()))
        self._update_scale(cost_D)
        return Estimate(
            subpolicy_logits_N=scale * grad_DN.detach().mean(dim=0),
            apply_prob_NK=scale * grad_DNK.detach().mean(dim=0),
            advantage_D=scale * residual_D.detach(),
            control_variate=phi_grads,
        )

    def _relax(
        self, noise: Noise, drawn_DN: Tensor, logits_DN: Tensor, prob_DNK: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """z and z~ as differentiable functions of (alpha, beta): (categorical, coins) each."""
        more, tau = noise.relaxed, self.temperature
        if more is None:
            raise ValueError("relax needs a draw of its own sample(), but got another estimator's")
        log_prob_DN = logits_DN.log_softmax(dim=1)
        z_DN = ((log_prob_DN + noise.gumbel_DN) / tau).softmax(dim=1)
        z_DNK = ((prob_DNK.logit() + more.logistic_DNK) / tau).sigmoid()
        # Eq. 14, e = -log v: z~ = softmax(z^ / tau), z^_c = -log e_c, z^_i = -log(e_i / p_i + e_c).
        log_e_DN = more.exponential_DN.log()
        log_e_drawn_D1 = log_e_DN.gather(1, noise.subpolicy_D[:, None])
        others_DN = -torch.logaddexp(log_e_DN - log_prob_DN, log_e_drawn_D1)
        z_cond_DN = (torch.where(drawn_DN, -log_e_drawn_D1, others_DN) / tau).softmax(dim=1)
        # Eq. 15: logit(beta) + logit(v'), simplified so that nothing is subtracted:
        # b = 1: log(1 + odds(v) / (1 - beta));  b = 0: -log(1 + 1 / (odds(v) beta)).
        odds_D1K = (more.uniform_DK / (1 - more.uniform_DK))[:, None]
        cond_DNK = torch.where(
            noise.apply_DK[:, None],
            torch.log1p(odds_D1K / (1 - prob_DNK)),
            -torch.log1p(1 / (odds_D1K * prob_DNK)),
        )
        z_cond_DNK = torch.where(drawn_DN[..., None], (cond_DNK / tau).sigmoid(), z_DNK)
        return (z_DN, z_DNK), (z_cond_DN, z_cond_DNK)

    def _cost_scale(self, cost_D: Tensor) -> Tensor:
        """Root mean square of *past* costs: one that knew this draw would bias c_phi's terms.

        At the first call there is no past, and c_phi is zero, so the present may serve.
        """
        past = self.cost_square / (1 - self.scale_decay**self.updates).clamp_min(1e-12)
        square = torch.where(self.updates > 0, past, cost_D.square().mean())
        return square.sqrt().clamp_min(torch.finfo(square.dtype).tiny)

    def _update_scale(self, cost_D: Tensor) -> None:
        self.cost_square.lerp_(cost_D.square().mean().to(self.cost_square), 1 - self.scale_decay)
        self.updates.add_(1)
