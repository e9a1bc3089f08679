"""Trains a network under any policy, and scores it.

Letters: B images of a batch, C channels, S steps of an epoch.

Every image goes through the same stations as in the search: crop and flip, policy, normalise,
cutout. On a GPU the whole step is a CUDA graph; several trainings may share one card (many.py).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dada.config import Base, TrainConfig
from dada.data import Batch, Part, Split
from dada.engine import ALONE, Captured, Ranks, kernels_for
from dada.policy import Policy
from dada.runlog import RunLog
from dada.tasks import TaskScores
from dada.training.epochs import Length, Metrics, OnEpoch, Turns, check_finite, run_epochs
from dada.training.scores import check_network
from dada.training.state import TrainState

TRAININGS_ON_A_CARD, SMALL_SIDE = 3, 64  # more of them gain nothing (benchmarks/speed/train.py)
USUAL_BATCH = 128

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The trained network, how good it is, and what was seen on the way."""

    scores: TaskScores
    history: list[dict[str, Any]]  # one entry per epoch
    seconds: float
    images_per_second: float
    model: nn.Module = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training, ready to begin. `judge` defaults to the test images, or the validation's."""

    split: Split
    model: nn.Module = field(repr=False)
    policy: Policy
    config: TrainConfig
    seed: int
    device: torch.device
    judge: Part | None = None
    run: RunLog | None = None
    on_epoch: OnEpoch | None = None
    graph: bool = True
    ranks: Ranks = ALONE

    @property
    def length(self) -> Length:
        return Length.of(self.config, len(self.split.train), self.ranks)


def take_turns(begun: Iterator[tuple[K, Turns[T]]], at_once: int) -> Iterator[tuple[K, T]]:
    """Does several at a time, a step of each in turn; gives their results as they end.

    `begun` gives the next one, under its key, whenever fewer than `at_once` are left.
    """
    assert at_once >= 1, f"nothing is done with at_once={at_once}"
    running: list[tuple[K, Turns[T]]] = []
    while True:
        while len(running) < at_once and (one := next(begun, None)) is not None:
            running.append(one)
        if not running:
            return
        for one in list(running):
            try:
                next(one[1])
            except StopIteration as ended:
                running.remove(one)
                yield one[0], ended.value


class Slot:
    """A network on the device and its step, which is recorded once for many trainings."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.split = job.split.to(job.device)
        self.state = TrainState(
            job.model, self.split, job.policy, job.config, job.seed, job.device, job.ranks
        )
        train = self.split.train
        seen = self.state.normalise(train.batch(torch.arange(2))[0])
        check_network(self.state.task, job.model, seen, self.split.num_classes)
        self.step = self._step()

    def _step(self) -> Captured:
        return recorded_step(self.state, enabled=self.job.graph)

    def suits(self, job: Job) -> bool:
        """Whether a job can go on here. One with a run directory never reuses a slot."""
        here = self.job
        return (
            job.run is None
            and here.run is None
            and job.split is here.split
            and (job.config, job.device, job.graph) == (here.config, here.device, here.graph)
            and job.ranks is here.ranks
            and self.state.can_restart_with(job.model, job.policy)
        )

    def restart_with(self, job: Job) -> None:
        self.job = job
        self.state.restart_with(job.model, job.policy, job.seed)

    def switch_policy(self, policy: Policy) -> None:
        """Another policy from the next step on, of the same space or another."""
        before = self.state.space, self.state.tables
        self.state.switch_policy(policy)
        if self.state.space is not before[0] or self.state.tables is not before[1]:
            self.step = self._step()  # the recorded one has the operations, or tables, of before

    def switch_base(self, base: Base) -> None:
        """Something else is done to every image from the next step on, besides the policy."""
        if base != self.state.config.base:
            self.state.config = replace(self.state.config, base=base)
            self.step = self._step()

    def batches(self, steps: int) -> Iterator[Batch]:
        """Those of the next epoch."""
        batch, part, ranks = self.job.length.batch, self.split.train, self.job.ranks
        order_N = torch.randperm(len(part), generator=self.state.order)
        order = order_N[: steps * batch].view(-1, batch)
        return self.state.batches(part, [ranks.mine(index_B) for index_B in order])

    def epoch(
        self, rates_T: Tensor, steps_of_all: int, step: Captured | None = None
    ) -> Turns[float]:
        """All images once, at these learning rates; returns the mean loss.

        `steps_of_all` is how many steps this process will make in all: compiling kernels pays only
        for many. `step` is this slot's own, unless given.
        """
        step = step or self.step
        state, ranks = self.state, self.job.ranks
        losses = []
        with state.lane:
            reader = self.batches(len(rates_T))
        for rate in rates_T:
            with state.lane, kernels_for(steps_of_all):
                losses.append(step(*next(reader), rate))
            yield
        with state.lane:
            return float(ranks.gather(torch.stack(losses)).mean())

    def evaluate(self, part: Part, *, loss_alone: bool = False) -> TaskScores:
        state = self.state
        with state.lane:
            state.agree_on_statistics()
            return state.scores_on(part.to(self.job.device), loss_alone=loss_alone)


def at_once_for(device: torch.device, image_size: tuple[int, int], batch: int = USUAL_BATCH) -> int:
    """How many trainings share a device: a few small ones on a card, large ones fill it alone.

    Small are images of 64 pixels, or batches of no more pixels than `USUAL_BATCH` of them.
    """
    few = batch < USUAL_BATCH and batch * math.prod(image_size) <= USUAL_BATCH * SMALL_SIDE**2
    on_a_card = TRAININGS_ON_A_CARD if few or max(image_size) <= SMALL_SIDE else 1
    return on_a_card if device.type == "cuda" else 1


def recorded_step(state: TrainState, *, enabled: bool = True) -> Captured:
    """`train_step` of (images, targets, learning rate) as a CUDA graph.

    Where the network cannot be recorded its images are made by a graph of their own.
    """
    # Recording what processes tell each other is left to those who can try it.
    enabled = enabled and state.ranks.world == 1
    recorded = partial(Captured, generators=[state.noise])
    views = recorded(state.augmented, enabled=enabled)
    return recorded(
        partial(train_step, state, views=views),
        enabled=enabled and state.task.records(state.model),
    )


def train_step(
    state: TrainState, images_BCHW: Tensor, *targets_and_lr: Tensor, views: Captured
) -> Tensor:
    """One step; returns the training loss."""
    config, ranks, task = state.config, state.ranks, state.task
    *targets, lr = targets_and_lr
    views_BCHW, *targets = views(images_BCHW, *targets)
    state.optimizer.zero_grad()
    with state.precision.passes():
        loss = task.loss(
            state.model,
            state.called,
            views_BCHW,
            targets,
            label_smoothing=config.label_smoothing,
        )
    loss.backward()
    ranks.average_([weight.grad for weight in state.model.parameters() if weight.grad is not None])
    if config.clip > 0:
        nn.utils.clip_grad_norm_(state.model.parameters(), config.clip, foreach=True)
    state.optimizer.step(lr)
    state.update_average()
    return loss.detach()


def try_step(job: Job) -> None:
    """One step of a copy, to see whether there is room for it."""
    job = replace(job, model=copy.deepcopy(job.model), graph=False)
    steps = training_of(job, Slot(job), 1)
    next(steps)
    steps.close()


def training_of(job: Job, slot: Slot, steps_of_all: int) -> Turns[TrainResult]:
    """One training, and the scores at its end."""
    start = time.perf_counter()

    def epoch(number: int, rates_S: Tensor) -> Turns[Metrics]:
        loss = yield from slot.epoch(rates_S, steps_of_all)
        with slot.state.lane:
            slot.state.agree_on_statistics()
        return {"loss": loss}

    rates_ES = job.length.rates_ES(job.config)
    ran = yield from run_epochs(slot.state, rates_ES, epoch, run=job.run, on_epoch=job.on_epoch)
    return result_of(job, slot, ran.history, start - ran.seconds_before)


def result_of(job: Job, slot: Slot, history: list[Metrics], since: float) -> TrainResult:
    """Of a training that began at `since` and whose last step is done."""
    judge = job.judge or job.split.test or job.split.val
    assert judge is not None, "the caller splits off what a training is judged on"
    length = job.length
    scores = slot.evaluate(judge)
    # The last step's weights enter no training loss, but they are what is judged.
    check_finite("loss of the trained network", scores.loss, length.epochs, job.config.lr)
    steps_took = sum(entry["seconds"] for entry in history)
    return TrainResult(
        scores=scores,
        history=history,
        seconds=time.perf_counter() - since,
        images_per_second=length.steps * length.batch / max(steps_took, 1e-9),
        model=slot.state.evaluated,
    )
