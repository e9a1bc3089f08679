"""Everything that changes during a run, and so everything a checkpoint must hold."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dada import tasks
from dada.config import SearchConfig, TrainConfig
from dada.data import Batch, Part, Split, batches, resized_crops
from dada.engine import Lane, Precision, Ranks, channels_last, generator_on
from dada.models import set_training
from dada.policy import Policy
from dada.policy.augment import Normalise, PolicyTables
from dada.policy.space import SPACES, SearchSpace
from dada.tasks import TaskScores
from dada.training.base import before_policy, cover_square
from dada.training.optimisers import SGD, Adam, AdamW
from dada.training.scores import evaluate


class RunState(nn.Module):
    """What a search and a training hold alike, and how it goes into a checkpoint and back."""

    config: SearchConfig | TrainConfig
    model: nn.Module
    normalise: Normalise

    def __init__(
        self,
        split: Split,
        config: SearchConfig | TrainConfig,
        seed: int,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        super().__init__()
        self.config, self.device, self.ranks = config, device, ranks
        self.num_classes = split.num_classes
        self.task = tasks.named(split.task)
        self.precision = Precision.of(config.precision, device)
        elements = config.batch_size * split.channels * math.prod(split.image_size)
        self.lane = Lane(device, self.precision, seed, elements)
        self.order = generator_on(torch.device("cpu"), seed)  # which images, in which order
        self.noise = generator_on(device, seed + 1)  # everything drawn on the device

    @property
    def optimizers(self) -> dict[str, SGD | Adam | AdamW]:
        """Each under its name in a checkpoint."""
        raise NotImplementedError

    def batches(self, part: Part, index: Sequence[Tensor]) -> Iterator[Batch]:
        """The images of every batch, cut at random where the base asks for it."""
        if self.config.base.resized_crop:
            if self.task.moves:
                raise ValueError(
                    "random resized crops are cut from files, without boxes and masks; leave out "
                    "`resized_crop`, or use base 'photo'"
                )
            return resized_crops(part, index, self.order, self.ranks)
        return batches(part, index)

    def checkpoint(self, epoch: int, history: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "epoch": epoch,
            "history": history,
            "modules": self.state_dict(),
            **{name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "generators": [self.order.get_state(), self.noise.get_state()],
            "global_generators": self.lane.random,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """To be called between two turns."""
        with self.lane:
            self.load_state_dict(saved["modules"])
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(saved[name])
        for generator, position in zip((self.order, self.noise), saved["generators"], strict=True):
            generator.set_state(position.cpu())
        self.lane.random = [position.cpu() for position in saved["global_generators"]]

    @property
    def networks(self) -> list[nn.Module]:
        return [self.model]

    @property
    def evaluated(self) -> nn.Module:
        return self.model

    def scores_on(self, part: Part, *, loss_alone: bool = False) -> TaskScores:
        network, about = self.evaluated, (self.num_classes, self.precision, self.ranks, self.task)
        return evaluate(network, self.normalise, part, *about, loss_alone=loss_alone)

    def agree_on_statistics(self) -> None:
        """BatchNorm's statistics are of each process's own images: all go on with their mean.

        After every epoch, so that a checkpoint, which is the first process's, is everyone's.
        """
        buffers = [buffer for network in self.networks for buffer in network.buffers()]
        self.ranks.average_([buffer for buffer in buffers if buffer.is_floating_point()])


class Drawn(Protocol):
    """A policy as tables, and the random numbers with which views of images are drawn."""

    @property
    def space(self) -> SearchSpace: ...
    @property
    def tables(self) -> PolicyTables: ...
    @property
    def noise(self) -> torch.Generator: ...


class TrainState(RunState):
    """The network, its averaged twin if asked for, the optimiser, and the random generators."""

    config: TrainConfig

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        policy: Policy,
        config: TrainConfig,
        seed: int,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        super().__init__(split, config, seed, device, ranks)
        with self.lane:
            self.normalise = Normalise(*split.mean_std()).to(device)
            self.model = channels_last(model.to(device), device)
            set_training(self.model)
            if ranks.world > 1:  # a network of a user's own may begin elsewhere in every process
                mine = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
                self.model.load_state_dict(ranks.same(mine))
            self.average: nn.Module | None = copy.deepcopy(self.model) if config.ema else None
            self.space = SPACES[policy.space]
            self.tables = PolicyTables.of(policy, self.space, device)
            self.optimizer = optimizer_for(self.model, config)
        self.called: Callable[[Tensor], Tensor] = self.model.__call__
        if config.compile:
            self.called = torch.compile(self.model.forward)

    @property
    def optimizers(self) -> dict[str, SGD | Adam | AdamW]:
        return {"optimizer": self.optimizer}

    def can_restart_with(self, model: nn.Module, policy: Policy) -> bool:
        """Whether another network and policy can go where these are: all shapes are the same."""
        if policy.space != self.space.name:
            return False
        tables = PolicyTables.of(policy, self.space, torch.device("cpu"))
        return (
            tables.op_index_NK.shape == self.tables.op_index_NK.shape
            and repr(model) == repr(self.model)  # its layers and their settings
            and _shapes(model) == _shapes(self.model)
        )

    def restart_with(self, model: nn.Module, policy: Policy, seed: int) -> None:
        """As a new state would begin, in the same places, so that a recorded step stays valid."""
        self.lane.reseed(seed)
        with self.lane:
            self.model.load_state_dict(model.state_dict())
            set_training(self.model)
            if self.average is not None:
                self.average.load_state_dict(self.model.state_dict())
            self.tables.replace_(PolicyTables.of(policy, self.space, self.device))
            self.optimizer.reset()
        self.order.manual_seed(seed)
        self.noise.manual_seed(seed + 1)

    def switch_policy(self, policy: Policy) -> None:
        """Go on under another policy; the random numbers stay, if it is not longer."""
        rows, longest = self.tables.op_index_NK.shape
        with self.lane:
            self.space = SPACES[policy.space]
            tables = PolicyTables.of(
                policy, self.space, self.device, least_ops=longest, least_rows=rows
            )
            if tables.op_index_NK.shape == self.tables.op_index_NK.shape:
                self.tables.replace_(tables)
            else:
                self.tables = tables

    @property
    def evaluated(self) -> nn.Module:
        return self.model if self.average is None else self.average

    def augmented(
        self, images_BCHW: Tensor, *targets: Tensor, arm: Drawn | None = None
    ) -> tuple[Tensor, ...]:
        """Crop and flip, policy, normalise, cutout: the stations of the search; then the targets.

        Those that are places in the image go where the pixels go. With `arm`, under that policy
        and with its random numbers.
        """
        arm = arm or self
        base, draws = self.config.base, (arm.noise, self.ranks)
        if self.task.moves:
            before: list[Tensor] = []
            before_BCHW = before_policy(images_BCHW, base, *draws, before)
            done_BCHW, moves = arm.tables.augment_with_moves(
                before_BCHW, arm.space, arm.noise, before, self.ranks, self.normalise
            )
            targets = tuple(self.task.moved(targets, moves))
        else:
            before_BCHW = before_policy(images_BCHW, base, *draws)
            done_BCHW = arm.tables.augment(before_BCHW, arm.space, *draws, self.normalise)
        views_BCHW = cover_square(done_BCHW, base.cutout, *draws)
        return channels_last(views_BCHW, self.device), *targets

    @torch.no_grad()
    def update_average(self) -> None:
        if self.average is None:
            return
        averaged: list[Tensor] = list(self.average.parameters())
        newest: list[Tensor] = list(self.model.parameters())
        torch._foreach_lerp_(averaged, newest, 1 - self.config.ema)
        for mean, now in zip(self.average.buffers(), self.model.buffers(), strict=True):
            mean.copy_(now)

    @property
    def networks(self) -> list[nn.Module]:
        return [self.model] if self.average is None else [self.model, self.average]


def optimizer_for(model: nn.Module, config: TrainConfig) -> SGD | AdamW:
    if config.optimizer == "adamw":
        return AdamW(model.parameters(), weight_decay=config.weight_decay)
    return SGD(model.parameters(), momentum=config.momentum, weight_decay=config.weight_decay)


def _shapes(model: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (t.shape, t.dtype) for name, t in model.state_dict().items()}
