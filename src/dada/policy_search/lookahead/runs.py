"""Half a training again, once for each of several policies.

A network is trained under `uniform`. From its middle on, the training is then repeated, each time
under another policy, an arm, and every end is scored on the validation images. All ends of a run
share their beginning, order of images and random numbers, so what differs between them is the arm.

One step of the paper's search asks the same question of the next step only, where an operation
that makes images harder always looks bad. Here the network has time to learn from it, and the
learning rate falls to zero, as at the end of every training (docs/search-study.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dada import tasks
from dada.config import FROM_SCRATCH, Base, LookaheadConfig, TrainConfig
from dada.data import Split
from dada.models import set_training
from dada.policy import Policy, baselines
from dada.policy.space import SearchSpace
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.arms import ArmRuns, NumberedEnds
from dada.policy_search.lookahead.stand_in import StandIn
from dada.tasks import Scores, TaskScores
from dada.training.epochs import DivergedError, Turns
from dada.training.loop import Job, Slot, at_once_for, take_turns
from dada.training.stacks import Stack, stack_size
from dada.trials.cost import forward_work, training_seconds
from dada.trials.short import seed_of, shorten


@dataclass(frozen=True, kw_only=True)
class BranchedRun:
    """A training whose end is repeated under each of `arms`, scored on the validation images."""

    job: Job
    arms: Mapping[str, Policy]
    repeated: float  # of the training
    bases: Mapping[str, Base] = field(default_factory=dict)  # of arms that have one of their own

    @property
    def shared_epochs(self) -> int:
        epochs = self.job.length.epochs
        return epochs - max(1, round(self.repeated * epochs))

    @property
    def steps(self) -> int:
        length = self.job.length
        repeated = len(self.arms) * (length.epochs - self.shared_epochs)
        return (self.shared_epochs + repeated) * length.steps_per_epoch


def run_branches(
    runs: Sequence[BranchedRun], at_once: int = 1
) -> Iterator[tuple[BranchedRun, dict[str, TaskScores]]]:
    """The scores of every arm, run by run in the order in which they end."""
    total = sum(run.steps for run in runs)
    return take_turns(((run, _branches(run, total)) for run in runs), at_once)


def _branches(run: BranchedRun, steps_of_all: int) -> Turns[dict[str, TaskScores]]:
    job = run.job
    assert job.split.val is not None
    slot = Slot(job)
    state = slot.state
    rates_ES = job.length.rates_ES(job.config).to(job.device)
    for rates_S in rates_ES[: run.shared_epochs]:
        yield from slot.epoch(rates_S, steps_of_all)
    with state.lane:
        middle = _copied(state.checkpoint(run.shared_epochs, []))
    scores: dict[str, TaskScores] = {}
    # A stack draws its views in one way: arms with bases of their own are trained one by one.
    names = list(run.arms)
    at_once = 1 if run.bases else stack_size(slot, len(names), steps_of_all)
    for some in (names[first : first + at_once] for first in range(0, len(names), at_once)):
        state.restore(middle)
        set_training(state.model)
        policies = [run.arms[name] for name in some]
        stack = Stack.of_ends(slot, policies) if len(some) > 1 else None
        if stack is None:
            slot.switch_policy(policies[0])
            slot.switch_base(run.bases.get(some[0], job.config.base))
        for rates_S in rates_ES[run.shared_epochs :]:
            yield from slot.epoch(rates_S, steps_of_all, stack.step if stack else None)
        for g, name in enumerate(some):
            if stack is not None:
                stack.move_to(state, g)
            scores[name] = slot.evaluate(job.split.val, loss_alone=True)
            if not math.isfinite(scores[name].loss):
                raise DivergedError(
                    f"looking ahead, the validation loss with {name} became {scores[name].loss}; "
                    "look for broken images, or leave it out with `lookahead=0`"
                )
    return scores


def _copied(held: Any) -> Any:
    """Checkpoints hold the very tensors that the next step changes."""
    if isinstance(held, Tensor):
        return held.clone()
    if isinstance(held, dict):
        return {name: _copied(each) for name, each in held.items()}
    return [_copied(each) for each in held] if isinstance(held, list) else held


@dataclass(frozen=True, kw_only=True)
class BranchedRuns(ArmRuns):
    """What all runs of a search share.

    Every second run may be trained on the validation images and scored on the others. `build(seed)`
    gives a new network.
    """

    halves: tuple[tuple[Split, TrainConfig], tuple[Split, TrainConfig]]  # (train, val), and swapped
    build: Callable[[int], nn.Module]
    start: Policy  # under which every training begins
    seed: int
    graph: bool = True
    unbalanced: bool = False  # classes, before they were made even

    @classmethod
    def of(
        cls, job: SearchJob, stand_in: StandIn | None = None, *, most_images: int | None = None
    ) -> BranchedRuns:
        """For a search, with its own images and network or with those that stand in for them."""
        settings = job.lookahead
        if most_images is not None:
            fewer = replace(settings.training, most_images=most_images, most_images_of_a_class=1)
            settings = replace(settings, training=fewer)
        shared = cls.over(
            job.split if stand_in is None else stand_in.split,
            job.space,
            job.config.base if stand_in is None else stand_in.base,
            settings,
            job.build if stand_in is None else stand_in.build,
            job.device,
            exchange=job.undivided is not None,
            seed=job.seed,
            training=job.training if stand_in is None else stand_in.training,
        )
        return replace(shared, run=job.run, graph=job.graph, ranks=job.ranks)

    @classmethod
    def over(
        cls,
        split: Split,
        space: SearchSpace,
        base: Base,
        settings: LookaheadConfig,
        build: Callable[[int], nn.Module],
        device: torch.device,
        *,
        exchange: bool = False,
        seed: int = 0,
        training: TrainConfig = FROM_SCRATCH,
    ) -> BranchedRuns:
        """With `exchange`, for halves divided at random, every second run exchanges them."""
        assert split.val is not None
        training = replace(training, base=base)
        here = there = shorten(split, training, settings.training, seed=seed)
        if exchange:
            other = replace(split, train=split.val, val=split.train)
            there = shorten(other, training, settings.training, seed=seed)
        unbalanced = here[0].unbalanced
        if unbalanced and settings.even_classes and split.task == "classification":
            here, there = ((evened(half, seed), config) for half, config in (here, there))
        return cls(
            halves=(here, there),
            unbalanced=unbalanced,
            build=build,
            start=baselines.uniform(space),
            settings=settings,
            seed=seed,
            device=device,
        )

    @property
    def read_on(self) -> Split:
        """The first run's images."""
        return self.halves[0][0]

    @property
    def judged_on(self) -> tuple[Split, ...]:
        # Of a small class one half has too few images to tell knowing from guessing.
        both = self.unbalanced and self.settings.even_classes and self.exchanged
        return tuple(split for split, _ in self.halves) if both else (self.read_on,)

    @property
    def exchanged(self) -> bool:
        """Whether every second run is judged on images of its own."""
        return self.halves[0][0].val is not self.halves[1][0].val

    @property
    def epochs(self) -> int:
        """Of a training."""
        epochs = self.halves[0][1].epochs
        assert epochs is not None
        return epochs

    @property
    def images_seen(self) -> int:
        """By a training."""
        return self.epochs * len(self.read_on.train)

    def lengthened(self, times: int) -> BranchedRuns:
        """The same with trainings that are so many times as long."""
        here, there = (
            (split, replace(config, epochs=times * self.epochs)) for split, config in self.halves
        )
        return replace(self, halves=(here, there))

    def numbered(self, arms: Mapping[str, Policy], number: int) -> BranchedRun:
        """The run of that number, for `run_branches`."""
        split, config = self.halves[number % 2]
        seed = seed_of(self.seed, "looking ahead", number)
        job = Job(
            split=split,
            model=self.build(seed),
            policy=self.start,
            config=config,
            seed=seed,
            device=self.device,
            graph=self.graph,
        )
        return BranchedRun(job=job, arms=arms, bases=self.bases, repeated=self.settings.repeated)

    def with_base(self, base: Base) -> BranchedRuns:
        here, there = ((split, replace(config, base=base)) for split, config in self.halves)
        return replace(self, halves=(here, there))

    def run_seconds(self, arms: int) -> float:
        run = self.numbered({str(i): self.start for i in range(arms)}, 0)
        job = run.job
        work = forward_work(job.model, (job.split.channels, *job.split.image_size))
        whole = training_seconds(job.split, job.config, work, job.device.type)
        return whole * run.steps / job.length.steps

    def _ends(self, arms: Mapping[str, Policy], numbers: Sequence[int]) -> Iterator[NumberedEnds]:
        runs = {number: self.numbered(arms, number) for number in numbers}
        number_of = {run.job.seed: number for number, run in runs.items()}
        for run, scores in run_branches(list(runs.values()), self.at_once):
            losses = {name: getattr(each, self.reading) for name, each in scores.items()}
            even = [each.balanced_accuracy for each in scores.values() if isinstance(each, Scores)]
            accuracy = max(even) if even else None
            yield number_of[run.job.seed], losses, accuracy

    @property
    def at_once(self) -> int:
        split, config = self.halves[0]
        if not tasks.named(split.task).moves:
            return super().at_once
        return at_once_for(self.device, split.image_size, config.batch_size)

    @property
    def reading(self) -> str:
        """What is compared of the ends: unequal classes count the same, or the largest decides."""
        if self.read_on.task != "classification":
            return "loss"
        wanted = self.settings.reading
        return "balanced_loss" if self.unbalanced and wanted == "loss" else wanted


def evened(split: Split, seed: int) -> Split:
    """With as many training images of every class, and as many in all: those of small classes are
    repeated, some of large ones are left out."""
    labels_N = split.train.labels_N.cpu()
    generator = torch.Generator().manual_seed(seed)
    present = labels_N.unique().tolist()
    count = max(1, len(labels_N) // len(present))
    index = []
    for label in present:
        own_N = (labels_N == label).nonzero().flatten()
        own_N = own_N[torch.randperm(len(own_N), generator=generator)]
        index.append(own_N.repeat(-(-count // len(own_N)))[:count])
    return replace(split, train=split.train.take(torch.cat(index)))
