"""The first phase: one training in which every step asks what each augmentation did.

`measure` is the loop around `search_step`. The presets (`config.PRESETS`) choose how the gradient
is estimated and how the policy moves: with Adam after every step (`paper`), or by the evidence of
all steps together (`dada`).
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
from torch import Tensor, nn

from dada.config import SearchConfig
from dada.data import Batch, Part, Split, batches, resized_crops
from dada.engine import ALONE, Captured, Ranks, kernels_for
from dada.models import check_logits
from dada.policy import Policy
from dada.policy.space import SearchSpace
from dada.policy_search.parameters import PolicyParameters
from dada.policy_search.state import SearchState
from dada.policy_search.step import search_step
from dada.runlog import RunLog, versions
from dada.training.scores import evaluate

EVALUATED = 1000  # validation images looked at after an epoch, for the progress bar


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found, and what it saw on the way."""

    policy: Policy
    parameters: PolicyParameters  # what the policy was made of
    space: SearchSpace
    goodness_O: Tensor | None  # what each step's evidence says of every operation; more is better
    history: list[dict[str, Any]]  # one entry per epoch
    seconds: float


def measure(
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
        "val_accuracy": evaluate(
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
