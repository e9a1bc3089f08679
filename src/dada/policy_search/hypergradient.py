"""What one augmented image does to the validation loss after one virtual training step.

Shapes: B images, C channels, H x W pixels. `Weights` maps parameter names to tensors.

With l_i the training loss of image i, w' = w - zeta grad_w mean_i l_i and g = grad L_val(w'),

    d L_val(w') = -zeta < g, d grad_w mean_i l_i >  =  mean_i d cost_i,
    cost_i = -zeta < g, grad_w l_i(w) >:

the cost of image i is the slope of its loss along g, so the mean of the per-image costs is the
whole objective and B images give B policy samples. g is a constant here (eq. 17, 18). Two ways to
the slope: a central difference over w +- epsilon g (eq. 19), or forward mode, exact, in one pass.

Everything stays a tensor (epsilon too), so a step can be captured in a CUDA graph. The model is
called through `functional_call` on cloned buffers: its weights, `.grad`, BatchNorm statistics and
train/eval mode stay as they were. In train mode BatchNorm lets images touch each other's loss;
docs/estimators.md says how much bias that adds.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from dada.engine import plain_kernels, side_by_side
from dada.engine.device import random_state, set_random_state

Weights = Mapping[str, Tensor]
LossPerImage = Callable[[Tensor, Tensor], Tensor]

# ||w+ - w|| = 0.01, as in the paper (and DARTS).
STEP_NORM = 0.01
# Words in the class names of modules that draw random numbers in train mode.
RANDOM_MODULES = ("Drop", "Shake", "Stochastic")


@dataclass(frozen=True, eq=False, kw_only=True)
class Cost:
    """Cost and training loss of each image; on request cost_grad = d (sum_j cost_j) / d image_i."""

    cost_B: Tensor
    loss_B: Tensor
    cost_grad_BCHW: Tensor | None = None


def cross_entropy_B(logits_BL: Tensor, labels_B: Tensor) -> Tensor:
    """Cross-entropy of each image; labels are class indices or rows of class probabilities."""
    return F.cross_entropy(logits_BL, labels_B, reduction="none")


def trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights the virtual step moves, by name. They are the model's own tensors, not copies."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def virtual_val_grad(
    model: nn.Module,
    weights: Weights,
    train_grads: Weights,
    inner_lr: float | Tensor,
    val_images: Tensor,
    val_labels: Tensor,
    *,
    loss_B: LossPerImage = cross_entropy_B,
) -> tuple[dict[str, Tensor], Tensor]:
    """grad L_val at w' = w - zeta grad_w L_train, and the validation losses there.

    `train_grads` is the gradient of the ordinary weight step: the virtual step costs no extra pass.
    L_val is the mean over the validation batch.
    """
    _check_names(weights, train_grads, "train_grads")
    steps = _scaled([train_grads[name] for name in weights], inner_lr)
    moved = torch._foreach_sub([weight.detach() for weight in weights.values()], steps)
    unrolled = {name: w.requires_grad_() for name, w in zip(weights, moved, strict=True)}
    with torch.enable_grad():
        val_loss_B = _losses(model, unrolled, val_images, val_labels, loss_B)
        grads = torch.autograd.grad(val_loss_B.mean(), tuple(unrolled.values()))
    return dict(zip(unrolled, grads, strict=True)), val_loss_B.detach()


@dataclass(frozen=True, eq=False)
class Question:
    """What does each of these images cost, at these weights, along this validation gradient?"""

    model: nn.Module
    weights: Weights
    val_grad: Weights
    inner_lr: float | Tensor
    images_BCHW: Tensor
    labels_B: Tensor
    image_grad: bool = False  # whether the gradient by pixel is asked for too
    loss_B: LossPerImage = cross_entropy_B

    def __post_init__(self) -> None:
        _check_names(self.weights, self.val_grad, "val_grad")

    def losses(self, weights: Weights, images_BCHW: Tensor) -> Tensor:
        return _losses(self.model, weights, images_BCHW, self.labels_B, self.loss_B)


def _asked_by_arguments(way: Callable[[Question], Cost]) -> Callable[..., Cost]:
    """A way to the costs, called with the fields of a `Question`."""

    @functools.wraps(way)
    def cost(*asked: Any, **further: Any) -> Cost:
        return way(Question(*asked, **further))

    return cost


@_asked_by_arguments
def finite_difference_cost(asked: Question) -> Cost:
    """cost_i = -zeta (l_i(w+) - l_i(w-)) / (2 epsilon), w+- = w +- epsilon g, epsilon = 0.01/||g||.

    Two forward passes (and two backward passes to the pixels with `image_grad`). Both see the same
    dropout masks, or the difference would be noise divided by epsilon. Keep the passes in float32
    or TF32: in bfloat16 rounding is a large part of the difference (docs/results.md has errors).
    """
    weights, images_BCHW, image_grad = asked.weights, asked.images_BCHW, asked.image_grad
    grads = [asked.val_grad[name].detach() for name in weights]
    norm = torch.stack(torch._foreach_norm(grads)).square().sum().sqrt()
    epsilon = STEP_NORM / norm.clamp_min(torch.finfo(norm.dtype).tiny ** 0.5)
    steps = _scaled(grads, epsilon)
    rng = _RandomState(asked.model, images_BCHW.device)

    def at(shift: Callable[[list[Tensor], list[Tensor]], Iterable[Tensor]]) -> list[Tensor]:
        """The losses at shifted weights, and their gradient by pixel if asked for."""
        shifted = shift([weight.detach() for weight in weights.values()], steps)
        rng.rewind()
        images = images_BCHW.detach().requires_grad_(image_grad)
        with torch.set_grad_enabled(image_grad):
            loss = asked.losses(dict(zip(weights, shifted, strict=True)), images)
        pixels = [torch.autograd.grad(loss.sum(), images)[0]] if image_grad else []
        return [loss.detach(), *pixels]

    plus, minus = side_by_side(
        lambda: at(torch._foreach_add), lambda: at(torch._foreach_sub), images_BCHW.device
    )
    scale = -asked.inner_lr / (2 * epsilon)
    return Cost(
        cost_B=scale * (plus[0] - minus[0]),
        loss_B=(plus[0] + minus[0]) / 2,
        cost_grad_BCHW=scale * (plus[1] - minus[1]) if image_grad else None,
    )


@_asked_by_arguments
@plain_kernels()  # a hand-written backward pass has no forward-mode rule
def forward_mode_cost(asked: Question) -> Cost:
    """cost_i = -zeta J_i g with J_i = d l_i / d w, by one forward-mode pass; no epsilon.

    With `image_grad`, forward mode over the reverse pass to the pixels. The other way round, which
    differentiates torch's own forward rule of BatchNorm, is silently wrong in train mode (7% here;
    https://github.com/pytorch/pytorch/issues/196699).
    """
    _load_forward_mode()
    primal = {name: weight.detach() for name, weight in asked.weights.items()}
    tangent = {name: asked.val_grad[name].detach() for name in asked.weights}
    images, inner_lr = asked.images_BCHW.detach(), asked.inner_lr

    def losses(weights: Weights, images: Tensor) -> tuple[Tensor, Tensor]:
        loss = asked.losses(weights, images)
        return loss.sum(), loss

    def losses_and_pixel_grad(weights: Weights) -> tuple[Tensor, Tensor]:
        grad_BCHW, loss = torch.func.grad(losses, argnums=1, has_aux=True)(weights, images)
        return loss, grad_BCHW

    if not asked.image_grad:
        both = torch.func.jvp(lambda w: losses(w, images)[1], (primal,), (tangent,))
        return Cost(cost_B=-inner_lr * both[1], loss_B=both[0])
    both = torch.func.jvp(losses_and_pixel_grad, (primal,), (tangent,))
    (loss, _), (slope_B, slope_BCHW) = both[0], both[1]
    return Cost(cost_B=-inner_lr * slope_B, loss_B=loss, cost_grad_BCHW=-inner_lr * slope_BCHW)


HYPERGRADIENTS: dict[str, Callable[..., Cost]] = {
    "finite_difference": finite_difference_cost,
    "forward": forward_mode_cost,
}


def _losses(
    model: nn.Module, weights: Weights, images: Tensor, labels: Tensor, loss_B: LossPerImage
) -> Tensor:
    """l_i at the given weights. Buffers are clones: a forward pass in train mode writes to them."""
    buffers: dict[str, Tensor] = {}
    for dtype in {buffer.dtype for buffer in model.buffers()}:  # one launch for all of a kind
        held = {name: b for name, b in model.named_buffers() if b.dtype == dtype}
        copies = [torch.empty_like(buffer) for buffer in held.values()]
        torch._foreach_copy_(copies, list(held.values()))
        buffers |= dict(zip(held, copies, strict=True))
    return loss_B(functional_call(model, {**weights, **buffers}, (images,)), labels)


def _scaled(tensors: list[Tensor], factor: float | Tensor) -> list[Tensor]:
    """All tensors times one number, in few launches; a step has hundreds of them."""
    return list(torch._foreach_mul([tensor.detach() for tensor in tensors], factor))


@functools.cache
def _load_forward_mode() -> None:
    """torch builds its forward-mode formulas at the first use, with warnings about its own code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))


def _check_names(weights: Weights, other: Weights, what: str) -> None:
    missing = [name for name in weights if name not in other]
    if missing:
        raise ValueError(
            f"{what} has no entry for weight {missing[0]!r}; "
            "pass one tensor for each name in weights (frozen weights belong in neither)"
        )


class _RandomState:
    """Lets the two halves of a finite difference draw the same dropout masks.

    While a CUDA graph is captured the generator cannot be rewound; a model with dropout (told by
    the names of its modules) is then an error rather than a cost made of noise. Forward mode has
    one pass and no such limit.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.device = device
        self.capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if self.capturing:
            _check_draws_nothing(model)
            return
        self.start = random_state(device)

    def rewind(self) -> None:
        if not self.capturing:
            set_random_state(self.start, self.device)


def _check_draws_nothing(model: nn.Module) -> None:
    for name, module in model.named_modules():
        random = any(word in type(module).__name__ for word in RANDOM_MODULES)
        if random and module.training and getattr(module, "p", 1.0) != 0:
            raise ValueError(
                f"module {name!r} drops activations at random, which a finite difference "
                "inside a CUDA graph cannot repeat; use hypergradient 'forward'"
            )
