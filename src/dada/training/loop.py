"""Trains a network under any policy, and scores it.

Letters: B images of a batch, C channels, S steps of an epoch.

Every image goes through the same stations as in the search: crop and flip, policy, normalise,
cutout. On a GPU the whole step is a CUDA graph; several trainings may share one card.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dada.config import Base, TrainConfig
from dada.data import Part, Split
from dada.engine import ALONE, Captured, Ranks, kernels_for
from dada.policy import Policy
from dada.runlog import RunLog
from dada.tasks import TaskScores
from dada.training.epochs import Length, Metrics, OnEpoch, Turns, check_finite, run_epochs
from dada.training.scores import check_network, evaluate
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
    model: nn.Module


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training, ready to begin. `judge` defaults to the test images, or the validation's."""

    split: Split
    model: nn.Module
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


def run_job(job: Job) -> TrainResult:
    """Train a network under a policy.

    With `run`, a log and checkpoints are written, and a training that was killed continues from
    its last checkpoint.
    """
    return next(result for _, result in train_many([job]))


def train_many(jobs: Sequence[Job], at_once: int = 1) -> Iterator[tuple[Job, TrainResult]]:
    """Each job's result, in the order in which they end; `at_once` of them share the device.

    They take turns, a step each, on streams of their own: while the host launches one's step, the
    card works on the others'. A job that is like one that has ended runs in its slot, with its
    recorded step.
    """
    waiting, free = list(jobs), list[Slot]()
    total = sum(job.length.steps for job in jobs)

    def begun() -> Iterator[tuple[tuple[Job, Slot], Turns[TrainResult]]]:
        while waiting:
            job = waiting.pop(0)
            slot = next((slot for slot in free if slot.suits(job)), None)
            if slot is None:
                slot = Slot(job)
            else:
                free.remove(slot)
                slot.restart_with(job)
            yield (job, slot), _training(job, slot, total)

    for (job, slot), result in take_turns(begun(), at_once):
        if any(slot.suits(other) for other in waiting):
            free.append(slot)
            result = replace(result, model=copy.deepcopy(result.model))
        yield job, result


def take_turns(begun: Iterator[tuple[K, Turns[T]]], at_once: int) -> Iterator[tuple[K, T]]:
    """What each returns, in the order in which they end; the next begins when there is room."""
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
        return Captured(
            partial(train_step, self.state),
            generators=[self.state.noise],
            # Recording what processes tell each other is left to those who can try it.
            enabled=self.job.graph
            and self.job.ranks.world == 1
            and self.state.task.records(self.state.model),
        )

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

    def epoch(
        self, rates_T: Tensor, steps_of_all: int, step: Captured | None = None
    ) -> Turns[float]:
        """All images once, at these learning rates; returns the mean loss.

        `steps_of_all` that this process will make say whether compiling kernels will pay. `step` is
        this slot's own, unless given.
        """
        step = step or self.step
        state, ranks, part = self.state, self.job.ranks, self.split.train
        batch = self.job.length.batch
        losses = []
        with state.lane:
            order_N = torch.randperm(len(part), generator=state.order)
            whole = order_N[: len(rates_T) * batch].view(-1, batch)
            reader = state.batches(part, [ranks.mine(index_B) for index_B in whole])
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
            return evaluate(
                state.evaluated,
                state.normalise,
                part.to(self.job.device),
                self.split.num_classes,
                state.precision,
                state.ranks,
                state.task,
                loss_alone=loss_alone,
            )


def at_once_for(device: torch.device, image_size: tuple[int, int], batch: int = USUAL_BATCH) -> int:
    """How many trainings share a device: a few small ones on a card, large ones fill it alone.

    Small are images of 64 pixels, or batches of no more pixels than `USUAL_BATCH` of them.
    """
    few = batch < USUAL_BATCH and batch * math.prod(image_size) <= USUAL_BATCH * SMALL_SIDE**2
    on_a_card = TRAININGS_ON_A_CARD if few or max(image_size) <= SMALL_SIDE else 1
    return on_a_card if device.type == "cuda" else 1


def train_step(state: TrainState, images_BCHW: Tensor, *targets_and_lr: Tensor) -> Tensor:
    """One step; returns the training loss."""
    config, ranks, task = state.config, state.ranks, state.task
    *targets, lr = targets_and_lr
    views_BCHW, targets = state.augmented(images_BCHW, targets)
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
    steps = _training(job, Slot(job), 1)
    next(steps)
    steps.close()


def _training(job: Job, slot: Slot, steps_of_all: int) -> Turns[TrainResult]:
    """One training, and the scores at its end."""
    start = time.perf_counter()
    judge = job.judge or job.split.test or job.split.val
    assert judge is not None, "the caller splits off what a training is judged on"
    length = job.length

    def epoch(number: int, rates_S: Tensor) -> Turns[Metrics]:
        loss = yield from slot.epoch(rates_S, steps_of_all)
        with slot.state.lane:
            slot.state.agree_on_statistics()
        return {"loss": loss}

    rates_ES = length.rates_ES(job.config)
    ran = yield from run_epochs(slot.state, rates_ES, epoch, run=job.run, on_epoch=job.on_epoch)
    scores = slot.evaluate(judge)
    # The last step's weights enter no training loss, but they are what is judged.
    check_finite("loss of the trained network", scores.loss, length.epochs, job.config.lr)
    steps_took = sum(entry["seconds"] for entry in ran.history)
    return TrainResult(
        scores=scores,
        history=ran.history,
        seconds=ran.seconds_before + time.perf_counter() - start,
        images_per_second=length.steps * length.batch / max(steps_took, 1e-9),
        model=slot.state.evaluated,
    )
