"""THE ALGORITHM: one training pass in which the policy learns what helps the network.

Letters: B images of a batch, V views, N sub-policies, K operations in each.

Read `search_step` first: it is the paper, section 3.5, in seven steps. `search` is the loop
around it. The presets (`config.PRESETS`) choose how the gradient is estimated and how the policy
moves: with Adam after every step (`paper`), or by the evidence of all steps together (`dada`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.augment import augment, augment_stages, before_policy, cover_square
from dada.config import SearchConfig
from dada.data import Batch, Part, Split, batches, resized_crops
from dada.engine import ALONE, Captured, Ranks, channels_last, kernels_for, plain_kernels
from dada.hypergradient import HYPERGRADIENTS, Cost, trainable_weights, virtual_val_grad
from dada.models import check_logits, without_noise
from dada.parameters import PolicyParameters
from dada.pixel_effects import pixel_effects
from dada.policy import Policy
from dada.runlog import RunLog, versions
from dada.scores import judge_model
from dada.search_state import SearchState
from dada.space import Draw, SearchSpace

EVALUATED = 1000  # validation images looked at after an epoch, for the progress bar
LEAST_SURPRISE = 0.05  # keeps the cosine of an image that is already right from exploding


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found, and what it saw on the way."""

    policy: Policy
    parameters: PolicyParameters  # what the policy was made of
    space: SearchSpace
    goodness_O: Tensor | None  # what each step's evidence says of every operation; more is better
    history: list[dict[str, Any]]  # one entry per epoch
    seconds: float


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
    labels_VB = labels_B.repeat(views)
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
        loss = F.cross_entropy(model(views_BCHW), labels_VB)
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
                model, weights, train_grads, lr, seen(val_images), val_labels
            )
        ranks.average_(list(val_grad.values()))
        # 5. What every augmented image does to the validation loss (eq. 18, 19).
        cost = _cost(state, weights, val_grad, lr, views_BCHW, seen(clean_BCHW), labels_VB)
        # 6. The gradient of the expected cost, by the chosen estimator; the policy moves.
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
    """In float32 (on a card TF32): a difference of bfloat16 losses would be mostly rounding."""
    config = state.config
    by_pixel = state.reads_pixels
    inner_lr = lr
    if config.reward == "cosine":
        norms = torch.stack(torch._foreach_norm(list(val_grad.values())))
        inner_lr = 1 / norms.square().sum().sqrt().clamp(min=1e-12)
    hypergradient, gather = HYPERGRADIENTS[config.hypergradient], state.gather
    count = len(labels_B)
    if config.clean_baseline:
        views_BCHW, labels_B = torch.cat([views_BCHW, clean_BCHW]), labels_B.repeat(2)
    # torch's own kernels: to compile ours for float32 too takes longer than they save in a search.
    with without_noise(state.model), plain_kernels():
        cost = hypergradient(
            state.model, weights, val_grad, inner_lr, views_BCHW, labels_B, image_grad=by_pixel
        )
    pixels = None if cost.cost_grad_BCHW is None else cost.cost_grad_BCHW[:count]
    reward_B = _reward(cost, config)
    cost_B = gather(reward_B[:count])
    if not config.clean_baseline:
        return ImageCosts(cost_B, None, pixels)
    clean_B = gather(reward_B[count:])
    count = len(cost_B)
    # What images under other draws gained on average knows nothing of this one: no bias, and a
    # smaller variance wherever augmenting helps or hurts as such.
    each = 1 if config.draws == "image" else count // config.views  # images that share a draw
    gain_DE = (cost_B - clean_B).view(-1, each)
    others_D = (gain_DE.sum() - gain_DE.sum(1)) / max(1, count - each)
    others_B = others_D.repeat_interleave(each)
    return ImageCosts(cost_B, clean_B + others_B, pixels)


def _reward(cost: Cost, config: SearchConfig) -> Tensor:
    """The slope itself (the paper), or nearly the cosine of the angle between the gradients.

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
        effects = pixel_effects(state, draw, cost.cost_grad_BCHW, stages_BCHW, views_BCHW)
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


def search(
    split: Split,
    model: nn.Module,
    config: SearchConfig,
    *,
    seed: int,
    device: torch.device,
    run: RunLog | None = None,
    model_name: str = "model",
    on_epoch: Callable[[dict[str, Any], int], None] | None = None,
    graph: bool = True,
    ranks: Ranks = ALONE,
) -> SearchResult:
    """Learn a policy for `split.train`, judged on `split.val`.

    With `run`, the policy and the log are written after every epoch, a checkpoint as often as costs
    little, and a run that was killed continues from its last one. `on_epoch(metrics, epochs)` is
    told of every epoch. On a GPU the steps are CUDA graphs, unless `graph` is False.
    """
    assert split.val is not None
    start = time.perf_counter()
    split = split.to(device)
    train, val = split.train, split.val
    assert val is not None
    batch = ranks.share(config.batch_size, len(train)) * ranks.world
    steps_per_epoch = len(train) // batch
    epochs = config.epochs_for(steps_per_epoch)
    total = epochs * steps_per_epoch
    state = SearchState(model, split, config, seed, device, ranks)
    watched = val.take(torch.arange(min(len(val), EVALUATED)))
    check_logits(model, state.seen(train.batch(torch.arange(2))[0]), split.num_classes)
    saved = ranks.same(run.restore() if run is not None else None)
    history: list[dict[str, Any]] = []
    first = 0
    if saved is not None:
        state.restore(saved)
        history, first = list(saved["history"]), saved["epoch"]
    before = sum(entry["seconds"] for entry in history)

    provenance = {
        "name": f"{config.preset} policy for {split.name}",
        "data": _data_facts(split),
        "model": model_name,
        "preset": config.preset,
        "seed": seed,
        "settings": asdict(config),
        "versions": versions(),
        "verification": None,
    }
    done_T = torch.arange(total, dtype=torch.float64) / total
    rates_T = (config.lr * 0.5 * (1 + torch.cos(math.pi * done_T))).float().to(device)
    steps = {
        measure: Captured(
            partial(search_step, state, measure=measure),
            generators=[state.noise],
            enabled=graph and ranks.world == 1,
        )
        for measure in (False, True)
    }
    for epoch in range(first, epochs):
        begun = time.perf_counter()
        with state.lane, kernels_for(total):
            model.train()
            losses = []
            reader = read_steps(state, train, val, batch, steps_per_epoch)
            for i, (some, others) in enumerate(reader):
                step = epoch * steps_per_epoch + i
                measure = step >= config.measure_from * total
                losses.append(steps[measure](*some, *others, rates_T[step]))
            loss = float(ranks.gather(torch.stack(losses)).mean())
            metrics = _conclude_epoch(state, watched, epoch, loss)
        # The last step's weights enter no loss of this epoch, but they do enter the policy.
        for what, number in (("training loss", loss), ("policy's entropy", metrics["entropy"])):
            if not math.isfinite(number):
                raise ValueError(
                    f"the {what} became {number} in epoch {epoch + 1}; lower --lr "
                    f"(now {config.lr:g}) or look for broken images"
                )
        metrics["seconds"] = round(time.perf_counter() - begun, 3)
        history.append(metrics)
        if run is not None:
            run.save_text("policy.json", state.policy(provenance | {"epochs": epoch + 1}).to_json())
            run.log(**metrics)
            if run.wants_checkpoint or epoch + 1 == epochs:
                run.checkpoint(state.checkpoint(epoch + 1, history))
        if on_epoch is not None:
            on_epoch(metrics, epochs)
    return SearchResult(
        policy=state.policy(provenance | {"epochs": epochs}),
        parameters=state.learned,
        space=state.space,
        goodness_O=None if state.evidence is None else state.evidence.goodness_O().cpu(),
        history=history,
        seconds=before + time.perf_counter() - start,
    )


def try_step(split: Split, model: nn.Module, config: SearchConfig, device: torch.device) -> None:
    """One step of a copy, to see whether there is room for it."""
    split = split.to(device)
    assert split.val is not None
    batch = min(config.batch_size, len(split.train))
    state = SearchState(copy.deepcopy(model), split, config, 0, device)
    with state.lane:
        some, others = next(read_steps(state, split.train, split.val, batch, 1))
        search_step(state, *some, *others, torch.tensor(config.lr, device=device), measure=True)


def read_steps(
    state: SearchState, train: Part, val: Part, batch: int, steps: int
) -> Iterator[tuple[Batch, Batch]]:
    """The training and validation images of every step of an epoch, this process's share."""
    config, ranks, order = state.config, state.ranks, state.order
    order_N = torch.randperm(len(train), generator=order)[: steps * batch]
    if config.fixed_validation:  # the authors' always the same first batch
        val_SB = torch.arange(ranks.share(batch, len(val)) * ranks.world).expand(steps, -1)
    else:
        size = ranks.share(batch, len(val)) * ranks.world
        val_SB = torch.randint(len(val), (steps, size), generator=order)
    index = [ranks.mine(index_B) for index_B in order_N.view(steps, batch)]
    if config.base.resized_crop:
        images = resized_crops(train, index, order, ranks)
    else:
        images = batches(train, index)
    return zip(images, batches(val, [ranks.mine(index_B) for index_B in val_SB]), strict=True)


@torch.no_grad()
def _conclude_epoch(state: SearchState, watched: Part, epoch: int, loss: float) -> dict[str, Any]:
    learned = state.learned
    if state.evidence is not None and state.evidence.op.count > 1:
        state.evidence.conclude_(learned)
    change = float(learned.distance(state.previous))
    state.previous.load_state_dict(learned.state_dict())
    op_index_NK = state.space.tables_on(learned.subpolicy_logits_N.device)[1]
    rate_O = learned.op_rate_O(op_index_NK, len(state.space.ops)).tolist()
    return {
        "epoch": epoch + 1,
        "loss": loss,
        "val_accuracy": judge_model(
            state.model, state.normalise, watched, state.num_classes, state.precision, state.ranks
        ).accuracy,
        "entropy": float(learned.entropy()),
        "change": change,
        "op_rate": {op.name: rate for op, rate in zip(state.space.ops, rate_O, strict=True)},
    }


def _data_facts(split: Split) -> dict[str, Any]:
    return {
        "name": split.name,
        "fingerprint": split.fingerprint,
        "classes": split.num_classes,
        "image_size": list(split.image_size),
        "channels": split.channels,
        **{name: len(part) for name, part in split.parts.items()},
    }
