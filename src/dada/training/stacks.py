"""Trainings of one kind, or the ends of one training under several policies, as one stack.

On a card, a stack trains faster than networks on streams of their own, which wait for launches
(benchmarks/speed/stacks.py). Each network is what it would be alone, but for rounding.

Letters: B images, C channels, H height, W width, G networks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dada.engine import Captured, generator_on, kernels_for, whole_networks_pay
from dada.models.stacked import StackedWideResNet
from dada.models.stacked_plan import Plan, card_suits, suits
from dada.models.wideresnet import WideResNet
from dada.policy import Policy
from dada.policy.augment import PolicyTables
from dada.policy.space import SPACES, SearchSpace
from dada.training.epochs import Metrics, Record, Turns, run_together
from dada.training.loop import Job, Slot, TrainResult, result_of
from dada.training.optimisers import SGD
from dada.training.state import Drawn, TrainState

MOST_NETWORKS, SHARE_OF_MEMORY = 16, 0.5  # more gain nothing; other trainings need memory too
BESIDE = 4  # streams on which views are drawn


@dataclass(frozen=True, eq=False)
class Arm:
    """A policy under which the end of a training is repeated, with random numbers of its own."""

    space: SearchSpace
    tables: PolicyTables
    noise: torch.Generator

    @classmethod
    def of(cls, policy: Policy, state: TrainState) -> Arm:
        """With the random numbers that come next in `state`."""
        space, (rows, longest) = SPACES[policy.space], state.tables.op_index_NK.shape
        tables = PolicyTables.of(policy, space, state.device, least_ops=longest, least_rows=rows)
        noise = generator_on(state.device, 0)
        noise.set_state(state.noise.get_state())
        return cls(space, tables, noise)


def alike(one: Job, other: Job) -> bool:
    """Whether a stack may hold both, if they have done equally many epochs.

    They may differ in seed, weights, policy and images only.
    """
    return (
        one.length == other.length
        and one.split.image_size == other.split.image_size
        and one.ranks is other.ranks
        and (one.config, one.device, one.graph) == (other.config, other.device, other.graph)
        and repr(one.model) == repr(other.model)
    )


def epochs_done(job: Job) -> int:
    """Of a job whose run directory has a checkpoint."""
    saved = None if job.run is None else job.run.restore()
    history = None if saved is None else saved.get("history")
    return len(history) if isinstance(history, list) else 0


def stack_size(slot: Slot, networks: int, steps_of_all: int) -> int:
    """How many of these networks, all like this slot's, a stack may hold; 1: better no stack.

    `steps_of_all` is how many steps this process will make in all.
    """
    state, device = slot.state, slot.state.device
    if not (whole_networks_pay(steps_of_all) and card_suits(device) and _suits(slot)):
        return 1
    plan = Plan(_network(state), slot.split.image_size[0])
    free, _ = torch.cuda.mem_get_info(device)
    room = int(SHARE_OF_MEMORY * free) // plan.bytes_of(slot.job.length.batch)
    stacks = -(-networks // max(1, min(MOST_NETWORKS, room)))
    return -(-networks // stacks)  # of nearly one size


def _suits(slot: Slot) -> bool:
    state, config = slot.state, slot.job.config
    return (
        type(state.model) is WideResNet
        and suits(state.model, slot.split.image_size)
        and state.task.name == "classification"
        and isinstance(state.optimizer, SGD)
        and state.precision.name == "bf16"
        and state.average is None
        and not config.compile
        and not config.base.resized_crop
        and slot.job.graph
        and slot.job.ranks.world == 1
    )


def _network(state: TrainState) -> WideResNet:
    assert isinstance(state.model, WideResNet)
    return state.model


def _velocity(state: TrainState) -> dict[str, Tensor]:
    """The momentum, by the names of the weights."""
    assert isinstance(state.optimizer, SGD)
    names = (name for name, _ in _network(state).named_parameters())
    return dict(zip(names, state.optimizer.velocity, strict=True))


class Stack:
    """Networks in training, each with a policy and random numbers of its own."""

    dtype = torch.bfloat16

    def __init__(
        self,
        slot: Slot,
        states: Sequence[TrainState],
        arms: Sequence[Drawn],
        *,
        same_images: bool = False,
    ) -> None:
        """Of the networks and momentum of `states`, on the stream of `slot`."""
        self.state, self.states, self.arms = slot.state, states, arms
        self.same_images = same_images
        with self.state.lane:
            networks = [_network(state) for state in states]
            self.network = StackedWideResNet(networks, slot.split.image_size[0]).to(slot.job.device)
            self.optimizer = SGD(
                self.network.parameters(),
                momentum=slot.job.config.momentum,
                weight_decay=slot.job.config.weight_decay,
            )
            for g, state in enumerate(states):
                self.network.write_(g, _velocity(state), self.optimizer.velocity[0])
        if slot.job.device.type == "cuda":
            self.beside = [torch.cuda.Stream(slot.job.device) for _ in range(BESIDE)]
        self.step = Captured(
            self._step, generators=[arm.noise for arm in arms], enabled=slot.job.graph
        )

    @classmethod
    def of_ends(cls, slot: Slot, policies: Sequence[Policy]) -> Stack:
        """A training that goes on under several policies, with the same images for all of them."""
        with slot.state.lane:
            arms = [Arm.of(policy, slot.state) for policy in policies]
        return cls(slot, [slot.state] * len(policies), arms, same_images=True)

    def _step(self, images_BCHW: Tensor, labels_B: Tensor, lr: Tensor) -> Tensor:
        """One step of all, with the same images, or with those of each behind each other; returns
        the loss of each."""
        config, networks = self.state.config, len(self.arms)
        if self.same_images:
            images, labels_B = [images_BCHW] * networks, labels_B.repeat(networks)
        else:
            images = list(images_BCHW.chunk(networks))
        views = self._views(images)
        self.optimizer.zero_grad()
        logits_GBL = self.network(torch.stack(views), self.dtype).float()
        smoothing = config.label_smoothing
        losses = cross_entropy(
            logits_GBL.flatten(0, 1), labels_B, label_smoothing=smoothing, reduction="none"
        )
        loss_G = losses.view(networks, -1).mean(1)
        loss_G.sum().backward()  # each has the gradient of its own mean
        if config.clip > 0:
            grad_GN = self.network.weights_GN.grad
            assert grad_GN is not None
            norm_G1 = torch.linalg.vector_norm(grad_GN, dim=1, keepdim=True)
            grad_GN.mul_((config.clip / (norm_G1 + 1e-6)).clamp(max=1))
        self.optimizer.step(lr)
        return loss_G.detach()

    def _views(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Each network's own, drawn side by side: the launches of one wait for each other."""

        def drawn(g: int) -> Tensor:
            return self.states[g].augmented(images[g], arm=self.arms[g])[0]

        if self.state.device.type != "cuda":
            return [drawn(g) for g in range(len(images))]
        here, views = torch.cuda.current_stream(self.state.device), []
        for stream in self.beside:
            stream.wait_stream(here)
        for g in range(len(images)):
            with torch.cuda.stream(self.beside[g % BESIDE]):
                views.append(drawn(g))
        for stream in self.beside:
            here.wait_stream(stream)
        return views

    def move_to(self, state: TrainState, g: int) -> None:
        """Network g and its momentum become those of a slot, to be evaluated or kept."""
        with self.state.lane, torch.no_grad():
            self.network.unstack_to(_network(state), g)
            momentum = self.network.plan.rows_of(g, self.optimizer.velocity[0])
            for name, held in _velocity(state).items():
                held.copy_(momentum[name])
            if self.state.lane.stream is not None:  # others read on streams of their own
                self.state.lane.stream.synchronize()


def stacked_trainings(
    slot: Slot, more: Sequence[Job], steps_of_all: int
) -> Turns[list[tuple[Job, TrainResult]]]:
    """The training of a slot and others like it, from where they are to their last step.

    Each keeps its own run directory, if it has one, as if it were trained alone: so it may go on in
    another stack, or without.
    """
    start, job, split = time.perf_counter(), slot.job, slot.split
    jobs = [job, *more]
    # What has the same images finds them on the device.
    there = [replace(each, split=split) if each.split is job.split else each for each in more]
    slots = [slot, *map(Slot, there)]
    states = [each.state for each in slots]
    records = [
        Record(state, each.run, each.on_epoch) for state, each in zip(states, jobs, strict=True)
    ]
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)  # each was made on a stream of its own
    stack = Stack(slot, states, states)
    kept = any(each.run is not None for each in jobs)

    def epoch(number: int, rates_S: Tensor) -> Turns[list[Metrics]]:
        losses = []
        with slot.state.lane:
            readers = [each.batches(len(rates_S)) for each in slots]
        for rate in rates_S:
            with slot.state.lane, kernels_for(steps_of_all):
                images, labels = zip(*map(next, readers), strict=True)
                losses.append(stack.step(torch.cat(images), torch.cat(labels), rate))
            yield
        with slot.state.lane:
            loss_G = torch.stack(losses).mean(0).tolist()
        if kept:
            move_all()
        return [{"loss": loss} for loss in loss_G]

    def move_all() -> None:
        for g, state in enumerate(states):
            stack.move_to(state, g)

    yield from run_together(records, job.length.rates_ES(job.config), epoch)
    move_all()
    return [
        (each, result_of(each, own, record.history, start - record.seconds_before))
        for each, own, record in zip(jobs, slots, records, strict=True)
    ]
