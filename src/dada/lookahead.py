"""Looks further ahead than one step: the end of a training again, once for each operation.

Letters: O operations, R training runs.

A network is trained under `uniform`. From its middle on, the training is then repeated, each time
with one operation alone in place of the whole policy, and every end is judged on the validation
images. All ends of a run share their beginning, order of images and random numbers, so what differs
between them is the operation. The effect of an operation is how much lower its validation loss is
than the mean of all.

One step of the paper's search asks the same question of the next step only, where an operation
that makes images harder always looks bad. Here the network has time to learn from it, and the
learning rate falls to zero, as at the end of every training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dada.augment import PolicyTables
from dada.config import TrainConfig
from dada.data import Split
from dada.policy import Policy
from dada.scores import Scores
from dada.space import SPACES, SearchSpace
from dada.train import Job, Length, Place, Turns, learning_rates_T, take_turns

REPEATED = 0.5  # of the schedule, its end, in which the operation is alone


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training under `trunk`, whose end is repeated under each of `arms`."""

    split: Split  # judged on its validation images
    network: nn.Module
    trunk: Policy
    arms: Mapping[str, Policy]
    config: TrainConfig
    seed: int
    device: torch.device
    repeated: float = REPEATED
    graph: bool = True


def look_ahead(runs: Sequence[Run], at_once: int = 1) -> Iterator[tuple[Run, dict[str, Scores]]]:
    """The scores of every arm, run by run in the order in which they end."""
    total = sum(_steps(run) for run in runs)
    begun = ((run, _ends(run, total)) for run in runs)
    return take_turns(begun, at_once)


def _steps(run: Run) -> int:
    length = Length.of(_job(run))
    ends = len(run.arms) * (length.epochs - _branching_epoch(run, length))
    return _branching_epoch(run, length) * length.steps_per_epoch + ends * length.steps_per_epoch


def _branching_epoch(run: Run, length: Length) -> int:
    return length.epochs - max(1, round(run.repeated * length.epochs))


def _job(run: Run) -> Job:
    return Job(
        split=run.split,
        model=run.network,
        policy=run.trunk,
        config=run.config,
        seed=run.seed,
        device=run.device,
        graph=run.graph,
    )


def _ends(run: Run, steps_of_all: int) -> Turns[dict[str, Scores]]:
    assert run.split.val is not None
    job = _job(run)
    length, place = Length.of(job), Place(job)
    state, space = place.state, SPACES[run.trunk.space]
    rates_T = learning_rates_T(run.config, length.epochs, length.steps_per_epoch).to(run.device)
    rates_ES = rates_T.view(length.epochs, length.steps_per_epoch)
    branching = _branching_epoch(run, length)
    for rates_S in rates_ES[:branching]:
        yield from place.epoch(rates_S, steps_of_all)
    with state.lane:
        checkpoint = _copied(state.checkpoint(branching, []))
    scores = {}
    for name, arm in run.arms.items():
        with state.lane:
            state.restore(_copied(checkpoint))
            state.model.train()
            longest = state.tables.op_index_NK.shape[1]
            state.tables.replace_(PolicyTables.of(arm, space, run.device, least_ops=longest))
        for rates_S in rates_ES[branching:]:
            yield from place.epoch(rates_S, steps_of_all)
        scores[name] = place.judged_on(run.split.val)
    return scores


def _copied(held: Any) -> Any:
    """Checkpoints hold the very tensors that the next step changes."""
    if isinstance(held, Tensor):
        return held.clone()
    if isinstance(held, dict):
        return {name: _copied(each) for name, each in held.items()}
    return [_copied(each) for each in held] if isinstance(held, list) else held


def runs_for(
    split: Split,
    build: Callable[[int], nn.Module],
    arms: Mapping[str, Policy],
    trunk: Policy,
    config: TrainConfig,
    *,
    count: int,
    seed: int,
    device: torch.device,
) -> list[Run]:
    """`count` runs, every second with training and validation images exchanged."""
    assert split.val is not None
    exchanged = replace(split, train=split.val, val=split.train)
    return [
        Run(
            split=exchanged if i % 2 else split,
            network=build(seed + i),
            trunk=trunk,
            arms=arms,
            config=config,
            seed=seed + i,
            device=device,
        )
        for i in range(count)
    ]


def arms_of(space: SearchSpace) -> dict[str, Policy]:
    """Every operation alone, at any magnitude, half of the time."""
    return {
        op.name: Policy.uniform([[(op.name, 0.5, (0.0, 1.0))]], space.name, name=op.name)
        for op in space.ops
    }
