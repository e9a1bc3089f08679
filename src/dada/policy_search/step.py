"""The paper: one step of the bi-level optimisation, section 3.5, in seven numbered lines.

Letters: B images of a batch, V views, N sub-policies, K operations in each.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from dada.config import SearchConfig
from dada.engine import Precision, channels_last, plain_kernels
from dada.models import without_noise
from dada.policy.augment import augment, augment_stages
from dada.policy.draw import Draw
from dada.policy_search.hypergradient import (
    HYPERGRADIENTS,
    Cost,
    trainable_weights,
    virtual_val_grad,
)
from dada.policy_search.pixel_effects import Branches, pixel_effects
from dada.policy_search.state import SearchState
from dada.training.base import before_policy, cover_square

LEAST_SURPRISE = 0.05  # keeps the cosine of an image that is already right from exploding


def search_step(
    state: SearchState,
    images_BCHW: Tensor,
    labels_B: Tensor,
    val_images: Tensor,
    val_labels: Tensor,
    lr: Tensor,
    *,
    measure: bool,
) -> Tensor:
    """One step of the bi-level optimisation; returns the training loss.

    `measure` says whether the policy learns from this step or only the network does.
    """
    config, model, seen, ranks = state.config, state.model, state.seen, state.ranks
    views = config.views
    # 1. One draw for every image: which sub-policy, which of its operations fire (eq. 3, 4).
    clean_BCHW = before_policy(images_BCHW, config.base, state.noise, ranks)
    clean_BCHW = clean_BCHW.repeat(views, 1, 1, 1)
    labels_VB = labels_B.repeat(views, *[1] * (labels_B.dim() - 1))
    draw_of_all = state.estimator.sample(
        state.sampling, len(labels_VB) * ranks.world, draws=config.draws, generator=state.noise
    )
    draw = draw_of_all.take(state.mine)
    # 2. The augmented images x^ = s(x), normalised.
    magnitude_NK = state.sampling.magnitude_NK
    stages: list[Tensor] = []
    if state.reads_pixels:  # the images between the operations are asked for in step 6
        stages = augment_stages(clean_BCHW, state.space, draw, magnitude_NK)
        views_BCHW = seen(stages[-1])
    else:
        views_BCHW = augment(clean_BCHW, state.space, draw, magnitude_NK, state.normalise)
        views_BCHW = channels_last(views_BCHW, state.device)
    views_BCHW = cover_square(views_BCHW, config.base.cutout, state.noise, ranks)
    # 3. The gradient of the training loss: computed once, for the virtual step and the real one.
    state.weight_optimizer.zero_grad()
    with state.precision.passes():
        loss = state.task.loss(model, model, views_BCHW, [labels_VB])
    loss.backward()
    # A weight that the network does not use has no gradient, and no part in this.
    weights = {n: w for n, w in trainable_weights(model).items() if w.grad is not None}
    ranks.average_([_gradient(weight) for weight in weights.values()])
    if config.clip > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    if measure:
        train_grads = {name: _gradient(weight) for name, weight in weights.items()}
        # 4. The virtual step w' = w - zeta grad, and the validation gradient there (eq. 17).
        with state.precision.passes():
            val_grad, _ = virtual_val_grad(
                model,
                weights,
                train_grads,
                lr,
                seen(val_images),
                val_labels,
                loss_B=state.task.loss_B,
            )
        ranks.average_(list(val_grad.values()))
        # 5. What every augmented image does to the validation loss (eq. 18, 19).
        cost = _cost(state, weights, val_grad, lr, views_BCHW, seen(clean_BCHW), labels_VB)
        # 6. The gradient of the expected cost, by the chosen estimator: evidence, or Adam's step.
        _move_policy(state, draw_of_all, draw, cost, stages, views_BCHW)
    # 7. The ordinary weight step.
    state.weight_optimizer.step(lr)
    return loss.detach()


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


@dataclass(frozen=True, eq=False)
class ImageCosts:
    """The cost of every view, what it is compared with, and its gradient by pixel if needed.

    The first two are of the whole batch, the pixels are of this process's images.
    """

    cost_B: Tensor
    baseline_B: Tensor | None
    cost_grad_BCHW: Tensor | None


def _cost(
    state: SearchState,
    weights: dict[str, Tensor],
    val_grad: dict[str, Tensor],
    lr: Tensor,
    views_BCHW: Tensor,
    clean_BCHW: Tensor,
    labels_B: Tensor,
) -> ImageCosts:
    """In float32 (on a card TF32): a difference of bfloat16 losses would be mostly rounding.

    Differences of pixel gradients are rounding in TF32 too (docs/estimators.md has how much reaches
    the policy), so where pixels are read the products are float32's, unless `pixel_precision` says
    otherwise.
    """
    config = state.config
    by_pixel = state.reads_pixels
    inner_lr = lr
    if config.reward == "cosine":
        norms = torch.stack(torch._foreach_norm(list(val_grad.values())))
        inner_lr = 1 / norms.square().sum().sqrt().clamp(min=1e-12)
    hypergradient, gather = HYPERGRADIENTS[config.hypergradient], state.gather
    count = len(labels_B)
    if config.clean_baseline:
        views_BCHW, labels_B = torch.cat([views_BCHW, clean_BCHW]), torch.cat([labels_B, labels_B])
    # torch's own kernels: to compile ours for float32 too takes longer than they save in a search.
    exact = by_pixel and config.pixel_precision == "fp32"
    products = Precision("fp32", state.device).products() if exact else nullcontext()
    with without_noise(state.model), plain_kernels(), products:
        cost = hypergradient(
            state.model,
            weights,
            val_grad,
            inner_lr,
            views_BCHW,
            labels_B,
            image_grad=by_pixel,
            loss_B=state.task.loss_B,
        )
    pixels = None if cost.cost_grad_BCHW is None else cost.cost_grad_BCHW[:count]
    cost_of_all_B = _measured(cost, config)
    cost_B = gather(cost_of_all_B[:count])
    if not config.clean_baseline:
        return ImageCosts(cost_B, None, pixels)
    clean_B = gather(cost_of_all_B[count:])
    count = len(cost_B)
    # What images under other draws gained on average knows nothing of this one: no bias, and a
    # smaller variance wherever augmenting helps or hurts as such.
    each = 1 if config.draws == "image" else count // config.views  # images that share a draw
    gain_DE = (cost_B - clean_B).view(-1, each)
    others_D = (gain_DE.sum() - gain_DE.sum(1)) / max(1, count - each)
    others_B = others_D.repeat_interleave(each)
    return ImageCosts(cost_B, clean_B + others_B, pixels)


def _measured(cost: Cost, config: SearchConfig) -> Tensor:
    """The slope itself (the paper), or nearly the cosine of the angle between the gradients: what
    the setting `reward` chooses, though less of it is better.

    A hard image has a large gradient and so a large slope, whichever way it points. Its size goes
    with 1 - p(label) = 1 - exp(-loss), which costs nothing to divide by.
    """
    if config.reward == "slope":
        return cost.cost_B
    return cost.cost_B / (LEAST_SURPRISE + 1 - torch.exp(-cost.loss_B))


def _move_policy(
    state: SearchState,
    draw_of_all: Draw,
    draw: Draw,
    cost: ImageCosts,
    stages_BCHW: list[Tensor],
    views_BCHW: Tensor,
) -> None:
    config = state.config
    effects: dict[str, Tensor] = {}
    if cost.cost_grad_BCHW is not None:
        branches = Branches.of(draw_of_all, state.mine)
        effects = pixel_effects(state, draw, branches, cost.cost_grad_BCHW, stages_BCHW, views_BCHW)
        effects = {name: state.gather(effect) for name, effect in effects.items()}
    gradients = state.estimator.gradients(
        draw_of_all, state.sampling, cost.cost_B, baseline_B=cost.baseline_B, **effects
    )
    if state.evidence is not None:
        state.evidence.add(gradients, state.sampling)
        return
    gradients.store_(state.learned, state.estimator)
    if config.magnitudes == "fixed":
        state.learned.magnitude_NK.grad = None
    state.policy_optimizer.step()
    state.learned.project_()
