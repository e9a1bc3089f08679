"""Ends of one training, each under a policy of its own, trained as one stack of networks.

They share their beginning, order of images and random numbers. On a card, a stack trains faster
than networks on streams of their own, which wait for launches (benchmarks/speed/stacks.py). Each
end is what it would be alone, but for rounding. Used where DADA_STACKS=1 asks for it.

Letters: B images, C channels, H height, W width, G ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dada.engine import Captured, generator_on, whole_networks_pay
from dada.models.stacked import StackedWideResNet
from dada.models.stacked_plan import Plan, card_suits, suits
from dada.models.wideresnet import WideResNet
from dada.policy import Policy
from dada.policy.augment import PolicyTables
from dada.policy.space import SPACES, SearchSpace
from dada.training.loop import Slot
from dada.training.optimisers import SGD
from dada.training.state import TrainState

MOST_NETWORKS, SHARE_OF_MEMORY = 16, 0.5  # more gain nothing; other trainings need memory too


@dataclass(frozen=True, eq=False)
class Arm:
    """Under what an end is trained: a policy as tables, and random numbers of its own."""

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


def ends_at_once(slot: Slot, ends: int, steps_of_all: int) -> int:
    """How many ends of this training a stack may hold; with one there is no stack.

    `steps_of_all` that this process will make say whether compiling kernels will pay; they are
    used where the environment asks for them (DADA_STACKS=1).
    """
    state, device = slot.state, slot.state.device
    if not (whole_networks_pay(steps_of_all) and card_suits(device) and _suits(slot)):
        return 1
    plan = Plan(_network(state), slot.split.image_size[0])
    free, _ = torch.cuda.mem_get_info(device)
    room = int(SHARE_OF_MEMORY * free) // plan.bytes_of(slot.job.length.batch)
    stacks = -(-ends // max(1, min(MOST_NETWORKS, room)))
    return -(-ends // stacks)  # of nearly one size


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
        and slot.job.graph
        and slot.job.ranks.world == 1
    )


def _network(state: TrainState) -> WideResNet:
    assert isinstance(state.model, WideResNet)
    return state.model


class Ends:
    """The network, momentum and random numbers of a slot, going on under several policies."""

    dtype = torch.bfloat16

    def __init__(self, slot: Slot, policies: Sequence[Policy]) -> None:
        self.state = state = slot.state
        assert isinstance(state.optimizer, SGD)
        with state.lane:
            self.arms = [Arm.of(policy, state) for policy in policies]
            beginning = [_network(state)] * len(policies)
            stack = StackedWideResNet(beginning, slot.split.image_size[0]).to(state.device)
            self.network = stack
            self.optimizer = SGD(
                stack.parameters(),
                momentum=state.optimizer.momentum,
                weight_decay=state.optimizer.weight_decay,
            )
            names = (name for name, _ in state.model.named_parameters())
            velocity = dict(zip(names, state.optimizer.velocity, strict=True))
            for g in range(len(policies)):
                stack.write_(g, velocity, self.optimizer.velocity[0])
        self.step = Captured(
            self._step, generators=[arm.noise for arm in self.arms], enabled=slot.job.graph
        )

    def _step(self, images_BCHW: Tensor, labels_B: Tensor, lr: Tensor) -> Tensor:
        """One step of all; returns the mean of their losses."""
        state, config = self.state, self.state.config
        views_GBCHW = torch.stack(
            [state.augmented(images_BCHW, [labels_B], arm)[0] for arm in self.arms]
        )
        self.optimizer.zero_grad()
        logits_GBL = self.network(views_GBCHW, self.dtype).float()
        loss = cross_entropy(
            logits_GBL.flatten(0, 1),
            labels_B.repeat(len(self.arms)),
            label_smoothing=config.label_smoothing,
        )
        (loss * len(self.arms)).backward()  # each end has the gradient of its own mean
        if config.clip > 0:
            grad_GN = self.network.weights_GN.grad
            assert grad_GN is not None
            norm_G1 = torch.linalg.vector_norm(grad_GN, dim=1, keepdim=True)
            grad_GN.mul_((config.clip / (norm_G1 + 1e-6)).clamp(max=1))
        self.optimizer.step(lr)
        return loss.detach()

    def move_to_slot(self, g: int) -> None:
        """End g becomes the slot's network, to be evaluated."""
        with self.state.lane, torch.no_grad():
            self.network.unstack_to(_network(self.state), g)
