"""Half a training again, once for each of several policies.

A network is trained under `uniform`. From its middle on, the training is then repeated, each time
under another policy, an arm, and every end is scored on the validation images. All ends of a run
share their beginning, order of images and random numbers, so what differs between them is the arm.

One step of the paper's search asks the same question of the next step only, where an operation
that makes images harder always looks bad. Here the network has time to learn from it, and the
learning rate falls to zero, as at the end of every training (docs/search-study.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dada.config import FROM_SCRATCH, Base, LookaheadConfig, TrainConfig
from dada.data import Split
from dada.engine import ALONE, Ranks
from dada.models import set_training
from dada.policy import Policy, baselines
from dada.policy.space import SearchSpace
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.scoring import ArmLosses
from dada.policy_search.lookahead.stand_in import StandIn
from dada.runlog import RunLog
from dada.tasks import TaskScores
from dada.training.epochs import DivergedError, Turns
from dada.training.loop import Job, Slot, at_once_for, take_turns
from dada.trials.cost import forward_work, training_seconds
from dada.trials.short import seed_of, shorten


@dataclass(frozen=True, kw_only=True)
class BranchedRun:
    """A training whose end is repeated under each of `arms`, scored on the validation images."""

    job: Job
    arms: Mapping[str, Policy]
    repeated: float  # of the training

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
    for name, arm in run.arms.items():
        state.restore(middle)
        set_training(state.model)
        slot.switch_policy(arm)
        for rates_S in rates_ES[run.shared_epochs :]:
            yield from slot.epoch(rates_S, steps_of_all)
        scores[name] = slot.evaluate(job.split.val)
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
class BranchedRuns:
    """What all runs of a search share.

    Every second run may be trained on the validation images and scored on the others. `build(seed)`
    gives a new network. With `run`, what has ended is written to its directory, and the same call
    continues from there.
    """

    halves: tuple[tuple[Split, TrainConfig], tuple[Split, TrainConfig]]  # (train, val), and swapped
    build: Callable[[int], nn.Module]
    start: Policy  # under which every training begins
    settings: LookaheadConfig
    seed: int
    device: torch.device
    run: RunLog | None = None
    graph: bool = True
    ranks: Ranks = ALONE

    @classmethod
    def of(cls, job: SearchJob, stand_in: StandIn | None = None) -> BranchedRuns:
        """For a search, with its own images and network or with those that stand in for them."""
        shared = cls.over(
            job.split if stand_in is None else stand_in.split,
            job.space,
            job.config.base if stand_in is None else stand_in.base,
            job.lookahead,
            job.build if stand_in is None else stand_in.build,
            job.device,
            exchange=job.undivided is not None,
            seed=job.seed,
            training=job.training if stand_in is None else FROM_SCRATCH,
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
        return cls(
            halves=(here, there),
            build=build,
            start=baselines.uniform(space),
            settings=settings,
            seed=seed,
            device=device,
        )

    def _run(self, arms: Mapping[str, Policy], number: int) -> BranchedRun:
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
            ranks=self.ranks,
        )
        return BranchedRun(job=job, arms=arms, repeated=self.settings.repeated)

    def affordable(self, arms: int, seconds: float) -> int:
        """How many runs of so many arms: estimated from counts, so that no clock has a say.

        They come in pairs, one run for each half: a half lacks images that the other has, which
        changes more than another network does. None where one run alone is too much.
        """
        run = self._run({str(i): self.start for i in range(arms)}, 0)
        job = run.job
        work = forward_work(job.model, (job.split.channels, *job.split.image_size))
        whole = training_seconds(job.split, job.config, work, job.device.type)
        each = whole * run.steps / job.length.steps
        pairs = max(1, round(seconds / (2 * each))) if each <= seconds else 0
        return min(self.settings.most_runs, 2 * pairs)

    def losses(
        self,
        arms: Mapping[str, Policy],
        count: int,
        *,
        file: str,
        first: int = 0,
        on_run: Callable[[int], None] | None = None,
    ) -> ArmLosses:
        """Of `count` runs, numbered from `first` on; those that end are written to `file`.

        `on_run` is told how many have ended.
        """
        numbers = range(first, first + count)
        known = self.ranks.same(self._on_disk(file, arms))
        left = {number: self._run(arms, number) for number in numbers if number not in known}
        number_of = {run.job.seed: number for number, run in left.items()}
        size = self.halves[0][0].image_size
        at_once = 1 if self.ranks.world > 1 else at_once_for(self.device, size)
        for one, scores in run_branches(list(left.values()), at_once):
            known[number_of[one.job.seed]] = {name: each.loss for name, each in scores.items()}
            if self.run is not None:
                ended = {str(number): known[number] for number in sorted(known)}
                self.run.save_text(file, json.dumps(ended, indent=1) + "\n")
            if on_run is not None:
                on_run(len(known))
        return ArmLosses(loss={name: [known[number][name] for number in numbers] for name in arms})

    def _on_disk(self, file: str, arms: Mapping[str, Policy]) -> dict[int, dict[str, float]]:
        """What an earlier session of the same run wrote, of the same arms."""
        path = None if self.run is None else self.run.path / file
        if path is None or not path.exists():
            return {}
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            return {
                int(number): {name: float(loss[name]) for name in arms}
                for number, loss in held.items()
                if arms.keys() <= loss.keys()
            }
        except (ValueError, TypeError, AttributeError, RecursionError):
            problem = f"{path} is damaged; delete it"
            raise ValueError(f"{problem} to have this part of the search done again") from None
