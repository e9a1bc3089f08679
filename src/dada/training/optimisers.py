"""The two optimisers of the paper, and AdamW, over lists of tensors.

torch's own give the same numbers (a test compares), but making the first of them loads torch's
compiler: seconds at the start of every run, which nobody here asked to compile anything.
Everything stays a tensor, the learning rate too, so a step can be recorded in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

EPSILON = 1e-8


class Optimiser:
    """What trains weights, and what it remembers of them."""

    weights: list[nn.Parameter]  # those that learn
    memory: ClassVar[tuple[str, ...]]  # a list for each, of a tensor for every weight

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {name: getattr(self, name) for name in self.memory}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """In place: a recorded step reads where these are."""
        for name, held in self.state_dict().items():
            for mine, theirs in zip(held, saved[name], strict=True):
                mine.copy_(theirs)

    def reset(self) -> None:
        for held in self.state_dict().values():
            torch._foreach_zero_(held)


class SGD(Optimiser):
    """Nesterov momentum and weight decay: v = mu v + g, w = w - lr (g + mu v), g with decay."""

    memory = ("velocity",)

    def __init__(
        self, weights: Iterable[nn.Parameter], *, momentum: float, weight_decay: float
    ) -> None:
        self.weights = [weight for weight in weights if weight.requires_grad]
        self.velocity = [torch.zeros_like(weight) for weight in self.weights]
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, lr: Tensor) -> None:
        """A weight that the network did not use has no gradient and stays as it is."""
        used = [i for i, weight in enumerate(self.weights) if weight.grad is not None]
        weights: list[Tensor] = [self.weights[i] for i in used]
        velocity = [self.velocity[i] for i in used]
        grads = [grad for i in used if (grad := self.weights[i].grad) is not None]
        if not weights:
            return
        if weights[0].is_cuda:
            torch._fused_sgd_(
                weights,
                grads,
                velocity if self.momentum > 0 else [],
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=lr,
                dampening=0.0,
                nesterov=self.momentum > 0,
                maximize=False,
                is_first_step=False,
            )
            return
        step = list(torch._foreach_add(grads, weights, alpha=self.weight_decay))
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, step)
        torch._foreach_add_(step, velocity, alpha=self.momentum)
        torch._foreach_add_(weights, step, alpha=-float(lr))


class Moments(Optimiser):
    """Adam's memory: the mean and the mean square of every weight's gradients."""

    memory = ("mean", "square", "steps")

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        self.weights = list(weights)
        self.mean = [torch.zeros_like(weight) for weight in self.weights]
        self.square = [torch.zeros_like(weight) for weight in self.weights]
        # Of each, because some get their first gradient later than others.
        self.steps = [torch.zeros((), device=weight.device) for weight in self.weights]


class Adam(Moments):
    """m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w = w - lr m^ / (sqrt(v^) + epsilon)."""

    def __init__(
        self, weights: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float]
    ) -> None:
        super().__init__(weights)
        self.lr, self.betas = lr, betas

    @torch.no_grad()
    def step(self) -> None:
        first, second = self.betas
        held = zip(self.weights, self.mean, self.square, self.steps, strict=True)
        for weight, mean, square, steps in held:
            grad = weight.grad
            if grad is None:
                continue
            steps += 1
            mean.lerp_(grad, 1 - first)
            square.mul_(second).addcmul_(grad, grad, value=1 - second)
            size = self.lr / (1 - first**steps)
            spread = (square / (1 - second**steps)).sqrt() + EPSILON
            weight.sub_(size * mean / spread)


class AdamW(Moments):
    """Adam with decoupled weight decay: w = w - lr (m^ / (sqrt(v^) + epsilon) + decay w).

    Biases and the factors of normalising layers do not decay, as is usual.
    """

    betas = (0.9, 0.999)

    def __init__(self, weights: Iterable[nn.Parameter], *, weight_decay: float) -> None:
        # Those that decay first, so that each kind is one run of the lists.
        trained = [weight for weight in weights if weight.requires_grad]
        super().__init__(sorted(trained, key=lambda weight: weight.dim() <= 1))
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self, lr: Tensor) -> None:
        """A weight that the network did not use has no gradient and stays as it is."""
        used = [i for i, weight in enumerate(self.weights) if weight.grad is not None]
        for decays in (True, False):
            some = [i for i in used if (self.weights[i].dim() > 1) == decays]
            if not some:
                continue
            grads = [grad for i in some if (grad := self.weights[i].grad) is not None]
            steps = [self.steps[i] for i in some]
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                [self.weights[i] for i in some],
                grads,
                [self.mean[i] for i in some],
                [self.square[i] for i in some],
                [],
                steps,
                lr=lr if lr.is_cuda else float(lr),  # type: ignore[arg-type]
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=self.weight_decay if decays else 0.0,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )
