"""The first phase: one training in which every step asks what each augmentation did.

`measure` is the loop around `search_step`. The presets (`config.PRESETS`) choose how the gradient
is estimated and how the policy moves: with Adam after every step (`paper`), or by the evidence of
all steps together (`dada`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dada import tasks
from dada.config import SearchConfig, TrainConfig
from dada.data import Batch, Part, Split, batches
from dada.engine import Captured, kernels_for
from dada.models import check_logits, set_training
from dada.policy import Policy
from dada.policy.space import SearchSpace
from dada.policy_search.job import SearchJob
from dada.policy_search.parameters import PolicyParameters
from dada.policy_search.state import SearchState, starting_point
from dada.policy_search.step import search_step
from dada.runlog import UNFINISHED_POLICY, versions
from dada.training.epochs import Length, Metrics, OnEpoch, Turns, exhaust, run_epochs

EVALUATED = 1000  # validation images looked at after an epoch, for the progress bar


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the steps found, and what they saw on the way."""

    policy: Policy
    parameters: PolicyParameters  # what the policy was made of
    space: SearchSpace
    goodness_O: Tensor | None  # what all steps together say of every operation; more is better
    history: list[dict[str, Any]]  # one entry per epoch
    seconds: float


def measure(job: SearchJob, on_epoch: OnEpoch | None = None) -> Measured:
    """Learn a policy for `job.split.train`, validated on `job.split.val`.

    In the run directory the policy so far and the log are written after every epoch, a checkpoint
    as often as costs little, and a run that was killed continues from its last one.
    `on_epoch(metrics, epochs)` is told of every epoch.
    """
    if not job.measures:
        return _not_measured(job)
    start = time.perf_counter()
    config, run, ranks = job.config, job.run, job.ranks
    split = job.split.to(job.device)
    state = SearchState(job.network, split, config, job.seed, job.device, ranks)
    example = state.seen(split.train.batch(torch.arange(2))[0])
    check_logits(job.network, example, split.num_classes)
    length = Length.of(config, len(split.train), ranks)
    provenance = _provenance(job, split)
    steps = {
        measures: Captured(
            partial(search_step, state, measure=measures),
            generators=[state.noise],
            enabled=job.graph and ranks.world == 1,
        )
        for measures in (False, True)
    }

    def policy(epochs: int) -> Policy:
        return state.policy(provenance | {"epochs": epochs})

    def save_and_tell(metrics: Metrics, epochs: int) -> None:
        if run is not None:
            run.save_text(UNFINISHED_POLICY, policy(metrics["epoch"]).to_json())
        if on_epoch is not None:
            on_epoch(metrics, epochs)

    # A cosine from the first step on; a search needs no warm-up.
    schedule = TrainConfig(lr=config.lr, warmup_epochs=0, warmup_factor=1.0)
    epoch = partial(_epoch, state, split, length, steps)
    rates_ES = length.rates_ES(schedule)
    ran = exhaust(run_epochs(state, rates_ES, epoch, run=run, on_epoch=save_and_tell))
    return Measured(
        policy=policy(length.epochs),
        parameters=state.learned,
        space=state.space,
        goodness_O=None if state.evidence is None else state.evidence.goodness_O().cpu(),
        history=ran.history,
        seconds=ran.seconds_before + time.perf_counter() - start,
    )


def _not_measured(job: SearchJob) -> Measured:
    """For a task whose targets move with the pixels, or that has no loss of single images, and for
    a network that is fine-tuned.

    The paper's step compares losses of single images; looking ahead asks whole trainings, and so
    decides alone. Fine-tuning is over before steps know anything.
    """
    if job.lookahead.seconds <= 0 or job.config.preset == "paper":
        raise ValueError(
            f"{job.split.task} is searched by looking ahead alone: the paper's step is for "
            "classification; leave `preset` as it is and give `lookahead` some seconds"
        )
    parameters = starting_point(job.space, job.config)
    provenance = _provenance(job, job.split) | {"epochs": 0}
    return Measured(
        policy=parameters.to_policy(job.space, provenance=provenance),
        parameters=parameters,
        space=job.space,
        goodness_O=None,
        history=[],
        seconds=0.0,
    )


def _epoch(
    state: SearchState,
    split: Split,
    length: Length,
    steps: dict[bool, Captured],  # by whether they measure
    number: int,
    rates_S: Tensor,
) -> Turns[Metrics]:
    """All training images once, each step at its learning rate."""
    train, val = split.train, split.val
    assert val is not None
    first = number * length.steps_per_epoch
    measure_from = state.config.measure_from * length.steps
    with state.lane, kernels_for(length.steps):
        set_training(state.model)
        losses = []
        reader = read_steps(state, train, val, length.batch, length.steps_per_epoch)
        for i, (some, others) in enumerate(reader):
            step = steps[first + i >= measure_from]
            losses.append(step(*some, *others, rates_S[i]))
        state.agree_on_statistics()
        loss = float(state.ranks.gather(torch.stack(losses)).mean())
        watched = val.take(torch.arange(min(len(val), EVALUATED)))
        metrics = _conclude_epoch(state, watched, loss)
    yield
    return metrics


def try_step(split: Split, model: nn.Module, config: SearchConfig, device: torch.device) -> None:
    """One step of a copy, to see whether there is room for it."""
    if not tasks.named(split.task).measures:
        return
    split = split.to(device)
    assert split.val is not None
    batch = min(config.batch_size, len(split.train))
    state = SearchState(copy.deepcopy(model), split, config, 0, device)
    with state.lane:
        read = read_steps(state, split.train, split.val, batch, 1)
        (images, labels), (val_images, val_labels) = next(read)
        rate = torch.tensor(config.lr, device=device)
        search_step(state, images, labels, val_images, val_labels, rate, measure=True)


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
    images = state.batches(train, [ranks.mine(index_B) for index_B in order_N.view(steps, batch)])
    return zip(images, batches(val, [ranks.mine(index_B) for index_B in val_SB]), strict=True)


@torch.no_grad()
def _conclude_epoch(state: SearchState, watched: Part, loss: float) -> Metrics:
    learned = state.learned
    if state.evidence is not None and state.evidence.op.count > 1:
        state.evidence.conclude_(learned)
    change = float(learned.distance(state.previous))
    state.previous.load_state_dict(learned.state_dict())
    op_index_NK = state.space.tables_on(learned.subpolicy_logits_N.device)[1]
    rate_O = learned.op_rate_O(op_index_NK, len(state.space.ops)).tolist()
    return {
        "loss": loss,
        "val_accuracy": getattr(state.scores_on(watched), state.task.decides),
        "entropy": float(learned.entropy()),
        "change": change,
        "op_rate": {op.name: rate for op, rate in zip(state.space.ops, rate_O, strict=True)},
    }


def _provenance(job: SearchJob, split: Split) -> dict[str, Any]:
    return {
        "name": f"{job.config.preset} policy for {split.name}",
        "data": _data_facts(split),
        "model": job.model_name,
        "preset": job.config.preset,
        "seed": job.seed,
        "settings": asdict(job.config),
        "versions": versions(),
        "verification": None,
        **({} if split.task == "classification" else {"task": split.task}),
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
