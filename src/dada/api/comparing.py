"""A comparison as it was asked for, made into a job."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from dada.api.preparation import Preparation
from dada.api.settings import (
    check_metric,
    check_size,
    metric_for,
    seeds_of,
    train_settings,
    with_room,
)
from dada.comparison import ComparisonJob, PolicyLike, named_policies, trials_of
from dada.config import whole_number
from dada.data import split_for_scoring
from dada.engine import several_processes
from dada.training.loop import try_step
from dada.trials.runners import OnTrialEpoch, Setting, default_at_once

DEFAULT_POLICIES = ("uniform", "trivialaugment", "cutout", "none")


def comparison_job(
    asked: Preparation,
    policies: Sequence[PolicyLike],
    seeds: int | Sequence[int],
    metric: str | None,
    at_once: int | None,
    on_trial_epoch: OnTrialEpoch | None,
) -> tuple[ComparisonJob, nn.Module]:
    """The comparison that was asked for, ready to begin, and a network like those it trains."""
    numbers = seeds_of(seeds)
    check_metric(metric)
    if at_once is not None:
        at_once = whole_number("at_once", at_once, least=1)
    config = train_settings(asked)
    named = named_policies(policies)  # unknown names and broken files, before the data is read
    if asked.path is None and several_processes():
        raise ValueError("under torchrun the processes meet in the run directory: give `out`")
    # Everyone is scored on the same images, whatever the seed of the training.
    asked, whole, base = asked.load(config.base, seed=0)
    base = asked.base_with(named.values(), base, whole)
    config = replace(asked.usual(config, whole), base=base)
    split, _ = split_for_scoring(whole, seed=0)
    check_size(config, split)
    # A network that cannot be built, or gives no logits, is a mistake to find before any training.
    example = replace(asked, seed=numbers[0], model=copy.deepcopy(asked.model)).network(split)
    name = asked.model_name(split)
    setting = Setting(
        split=split,
        model=asked.model if isinstance(asked.model, nn.Module) else name,
        weights=asked.weights,
        device=asked.device,
        graph=asked.options.graph,
        on_epoch=on_trial_epoch,
    )
    trials = trials_of(named, config, numbers, split, asked.tell)
    if asked.auto_batch:
        job = setting.job(trials[0])
        config = with_room(config, lambda fit: try_step(replace(job, config=fit)), split.image_size)
        trials = trials_of(named, config, numbers, split)
    return ComparisonJob(
        setting=setting,
        model_name=name,
        trials=trials,
        metric=metric_for(split, metric),
        at_once=at_once or default_at_once(asked.device, split.image_size),
        out=asked.path,
        resume=asked.options.resume,
    ), example
