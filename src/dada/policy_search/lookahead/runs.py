"""Looks further ahead than one step: half a training again, once for each of several policies.

A network is trained under `uniform`. From its middle on, the training is then repeated, each time
under another policy, an arm, and every end is judged on the validation images. All ends of a run
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

from dada.config import TrainConfig
from dada.data import Split
from dada.engine import ALONE, Ranks
from dada.policy import Policy
from dada.runlog import RunLog
from dada.training.epochs import Turns
from dada.training.loop import Job, Slot, at_once_for, take_turns
from dada.training.scores import Scores
from dada.trials.cost import forward_operations, training_seconds
from dada.trials.short import seed_of, shorten

REPEATED = 0.5  # of the schedule: its end
STEPS = {"cpu": 100, "cuda": 600}  # of a whole schedule
IMAGES = {"cpu": 500, "cuda": 4000}  # to train on, at most
BATCH = {"cpu": 64, "cuda": 128}
# At least. On a CPU, few images make large batches, or the ends differ by chance. A card makes many
# more steps, and batches of 128 would have few images seen hundreds of times, at twice the price.
STEPS_PER_EPOCH = {"cpu": 1, "cuda": 8}
MOST_RUNS = 8


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training whose end is repeated under each of `arms`, judged on the validation images."""

    job: Job
    arms: Mapping[str, Policy]

    @property
    def shared_epochs(self) -> int:
        epochs = self.job.length.epochs
        return epochs - max(1, round(REPEATED * epochs))

    @property
    def steps(self) -> int:
        length = self.job.length
        repeated = len(self.arms) * (length.epochs - self.shared_epochs)
        return (self.shared_epochs + repeated) * length.steps_per_epoch


def look_ahead(runs: Sequence[Run], at_once: int = 1) -> Iterator[tuple[Run, dict[str, Scores]]]:
    """The scores of every arm, run by run in the order in which they end."""
    total = sum(run.steps for run in runs)
    return take_turns(((run, _ends(run, total)) for run in runs), at_once)


def _ends(run: Run, steps_of_all: int) -> Turns[dict[str, Scores]]:
    job = run.job
    assert job.split.val is not None
    slot = Slot(job)
    state = slot.state
    rates_ES = job.length.rates_ES(job.config).to(job.device)
    for rates_S in rates_ES[: run.shared_epochs]:
        yield from slot.epoch(rates_S, steps_of_all)
    with state.lane:
        middle = _copied(state.checkpoint(run.shared_epochs, []))
    scores = {}
    for name, arm in run.arms.items():
        state.restore(middle)
        state.model.train()
        slot.switch_policy(arm)
        for rates_S in rates_ES[run.shared_epochs :]:
            yield from slot.epoch(rates_S, steps_of_all)
        scores[name] = slot.evaluate(job.split.val)
        if not math.isfinite(scores[name].loss):
            raise ValueError(
                f"looking ahead, the validation loss with {name} became {scores[name].loss}; "
                "look for broken images, or leave it out with --lookahead 0"
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
class Seen:
    """The validation loss with each arm, run by run."""

    loss: dict[str, list[float]]

    @property
    def runs(self) -> int:
        return len(next(iter(self.loss.values())))


def schedule(
    split: Split, training: TrainConfig, seed: int, device: torch.device
) -> tuple[Split, TrainConfig]:
    """The images of a run, and how it is trained."""
    kind = device.type
    return shorten(
        split,
        replace(training, batch_size=BATCH[kind]),
        seed=seed,
        images=IMAGES[kind],
        steps=STEPS[kind],
        per_epoch=STEPS_PER_EPOCH[kind],
    )


@dataclass(frozen=True, kw_only=True)
class Lookout:
    """What all runs share.

    Every second run may be trained on the validation images and judged on the others. `build(seed)`
    gives a new network. With `run`, what has ended is written to its directory, and the same call
    goes on from there.
    """

    halves: tuple[tuple[Split, TrainConfig], tuple[Split, TrainConfig]]  # as they are, exchanged
    build: Callable[[int], nn.Module]
    trunk: Policy
    seed: int
    device: torch.device
    run: RunLog | None = None
    graph: bool = True
    ranks: Ranks = ALONE

    @classmethod
    def over(
        cls,
        split: Split,
        training: TrainConfig,
        *,
        exchange: bool,
        seed: int,
        device: torch.device,
        **how: Any,
    ) -> Lookout:
        """`split` and `training` are what a user would train with, `how` the other fields.

        With `exchange`, which is for halves that chance has made, every second run exchanges them.
        """
        assert split.val is not None
        here = there = schedule(split, training, seed, device)
        if exchange:
            other = replace(split, train=split.val, val=split.train)
            there = schedule(other, training, seed, device)
        return cls(halves=(here, there), seed=seed, device=device, **how)

    def _run(self, arms: Mapping[str, Policy], number: int) -> Run:
        split, config = self.halves[number % 2]
        seed = seed_of(self.seed, "looking ahead", number)
        job = Job(
            split=split,
            model=self.build(seed),
            policy=self.trunk,
            config=config,
            seed=seed,
            device=self.device,
            graph=self.graph,
            ranks=self.ranks,
        )
        return Run(job=job, arms=arms)

    def affordable(self, arms: int, budget: float) -> int:
        """How many runs of so many arms, by counting: no clock has a say in a result.

        They come in pairs, one run for each half: a half lacks images that the other has, which
        changes more than another network does. None where one run alone is too much.
        """
        run = self._run({str(i): self.trunk for i in range(arms)}, 0)
        job = run.job
        operations = forward_operations(job.model, (job.split.channels, *job.split.image_size))
        whole = training_seconds(job.split, job.config, operations, job.device.type)
        each = whole * run.steps / job.length.steps
        pairs = max(1, round(budget / (2 * each))) if each <= budget else 0
        return min(MOST_RUNS, 2 * pairs)

    def see(
        self,
        arms: Mapping[str, Policy],
        count: int,
        *,
        file: str,
        first: int = 0,
        on_run: Callable[[int], None] | None = None,
    ) -> Seen:
        """`count` runs, with seeds from `first` on; what they saw goes to `file`.

        `on_run` is told how many have ended.
        """
        numbers = range(first, first + count)
        known = self.ranks.same(self._on_disk(file, arms))
        left = {number: self._run(arms, number) for number in numbers if number not in known}
        number_of = {run.job.seed: number for number, run in left.items()}
        size = self.halves[0][0].image_size
        at_once = 1 if self.ranks.world > 1 else at_once_for(self.device, size)
        for one, scores in look_ahead(list(left.values()), at_once):
            known[number_of[one.job.seed]] = {name: each.loss for name, each in scores.items()}
            if self.run is not None:
                ended = {str(number): known[number] for number in sorted(known)}
                self.run.save_text(file, json.dumps(ended, indent=1) + "\n")
            if on_run is not None:
                on_run(len(known))
        return Seen(loss={name: [known[number][name] for number in numbers] for name in arms})

    def _on_disk(self, file: str, arms: Mapping[str, Policy]) -> dict[int, dict[str, float]]:
        """What an earlier session of the same run wrote, of the same arms."""
        path = None if self.run is None else self.run.path / file
        if path is None or not path.exists():
            return {}
        held = json.loads(path.read_text())
        return {
            int(number): {name: float(loss[name]) for name in arms}
            for number, loss in held.items()
            if arms.keys() <= loss.keys()
        }
