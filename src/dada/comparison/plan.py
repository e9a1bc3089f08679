"""What a comparison will take, and what it can show: said before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from dada.engine import ALONE
from dada.training.epochs import Length
from dada.trials.cost import forward_work, training_seconds
from dada.trials.runners import Setting, Trial
from dada.trials.statistics import smallest_visible

FEW_SEEDS = 3
HOPELESS = 5.0  # points: policies seldom differ by more
LONG = 300.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Of all trainings together. `seconds` are counted for a nominal machine, not measured."""

    trainings: int
    seeds: int
    epochs: int
    images: int  # judged on
    seconds: float
    visible: float | None  # points; smaller differences will hardly show; None with one seed

    def seconds_with(self, seeds: int) -> float:
        return self.seconds * seeds / self.seeds

    @property
    def hopeless(self) -> bool:
        return self.visible is not None and self.visible > HOPELESS


def plan_of(setting: Setting, trials: Sequence[Trial], at_once: int, network: nn.Module) -> Plan:
    """`network` is one like those that will be trained."""
    split, config = setting.split, trials[0].config
    judged = split.test or split.val
    assert judged is not None, "the caller splits off what a training is judged on"
    work = forward_work(network, (split.channels, *split.image_size))
    device = setting.device.type
    one = training_seconds(replace(split, val=judged), config, work, device)
    # On a card the nominal seconds are those of a training that has it to itself.
    rows = math.ceil(len(trials) / at_once) if device == "cpu" else len(trials)
    seeds = len({trial.seed for trial in trials})
    return Plan(
        trainings=len(trials),
        seeds=seeds,
        epochs=Length.of(config, len(split.train), ALONE).epochs,
        images=len(judged),
        seconds=rows * one,
        visible=smallest_visible(len(judged), seeds),
    )
