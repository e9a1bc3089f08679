"""What one search is asked, ready to begin: shared by its three phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from dada import tasks
from dada.config import FROM_SCRATCH, Base, LookaheadConfig, SearchConfig, TrainConfig, VerifyConfig
from dada.data import Split
from dada.engine import ALONE, Ranks
from dada.policy.space import SearchSpace
from dada.runlog import RunLog


@dataclass(frozen=True, kw_only=True)
class TrainingLength:
    """How long the training is that a policy is for.

    Lengths are compared in images seen. A small data set and a large one, or small batches and
    large ones (whose learning rates are larger), differ in epochs and in steps where a network has
    had as much to learn from.
    """

    epochs: int
    images: int
    asked: bool  # else it is what `dada train` would do

    @property
    def images_seen(self) -> int:
        return self.epochs * self.images


@dataclass(frozen=True, kw_only=True)
class SearchJob:
    """With `run`, every phase writes what it has to its directory, and continues from there."""

    split: Split  # trained on, and validated on
    undivided: Split | None  # the images before they were divided at random; None: a user did that
    network: nn.Module = field(repr=False)  # trained by the first phase
    build: Callable[[int], nn.Module]  # seed -> a new network, for the trainings of the others
    # The same for images of another size; None: the network is a user's own.
    build_for: Callable[[tuple[int, int]], Callable[[int], nn.Module]] | None = None
    model_name: str
    config: SearchConfig
    training: TrainConfig = FROM_SCRATCH  # of those trainings; a pretrained network's are gentler
    length: TrainingLength | None = None  # None: as long as those
    pretrained: bool = False
    by_steps: bool = True  # else the first phase is left out: looking ahead decides alone
    choose_base: bool = False  # whether to mirror, turn and cut is a question: nobody said so
    lookahead: LookaheadConfig
    verify: VerifyConfig
    seed: int
    device: torch.device
    run: RunLog | None = None
    graph: bool = True  # record the steps as CUDA graphs
    ranks: Ranks = ALONE

    def with_base(self, base: Base) -> SearchJob:
        return replace(self, config=replace(self.config, base=base))

    @property
    def measures(self) -> bool:
        """Whether there is a first phase; of some tasks there is none."""
        return self.by_steps and tasks.named(self.split.task).measures

    @property
    def space(self) -> SearchSpace:
        return SearchSpace.of(self.config)
