"""dada.compare() as users call it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from dada.api.preparation import ImageSize, OutPath, prepare
from dada.api.progress import followed
from dada.api.settings import (
    check_metric,
    check_size,
    metric_for,
    seeds_of,
    train_settings,
    wants_auto,
    with_room,
)
from dada.comparison import (
    Comparison,
    ComparisonJob,
    OnTrial,
    PolicyLike,
    named_policies,
    run_comparison,
    trials_of,
)
from dada.comparison.plan import Plan, plan_of
from dada.config import whole_number
from dada.data import Split, split_for_scoring
from dada.engine import several_processes
from dada.models.weights import Tell
from dada.safe_text import one_line_errors
from dada.training.loop import try_step as training_step
from dada.trials.runners import OnTrialEpoch, Setting, default_at_once

DEFAULT_POLICIES = ("uniform", "trivialaugment", "cutout", "none")


@one_line_errors
@followed
def compare(
    data: Any = None,
    policies: Sequence[PolicyLike] = DEFAULT_POLICIES,
    *,
    seeds: int | Sequence[int] = 3,
    model: str | nn.Module | None = None,
    recipe: str | None = None,
    metric: str | None = None,
    device: str = "auto",
    image_size: ImageSize = None,
    skip_bad: bool = False,
    out: OutPath = None,
    resume: bool = False,
    pretrained: bool = False,
    weights: OutPath = None,
    freeze: str | None = None,
    graph: bool = True,
    at_once: int | None = None,
    progress: bool = False,
    on_start: Callable[[Split, str, int], None] | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_trial: OnTrial | None = None,
    on_trial_epoch: OnTrialEpoch | None = None,
    on_note: Tell | None = None,
    **settings: Any,
) -> Comparison:
    """Train one network for every policy and seed, and say which policy is better.

    `data` is anything `dada.data.load` reads; scores are of its test images, else of its validation
    images, else of a fifth that is split off. `policies` are names, files, run directories or
    `Policy` objects. `seeds` is how many, or which, `metric` one of the task's scores (default: the
    one that decides). `settings` are those of `TrainConfig`, over the defaults or a recipe's.

    With `out`, every training that ends is written there, and `resume` continues from them.
    `at_once` trainings run side by side; None lets the program decide. More than one on a CPU means
    new processes, so a script has to keep its own calls under `if __name__ == "__main__":`.
    `progress` shows a bar; without it the logger "dada" is told.
    """
    asked = prepare(
        "compare",
        data,
        model,
        recipe,
        0,
        device,
        image_size,
        out,
        resume,
        pretrained=pretrained,
        weights=weights,
        freeze=freeze,
        settings=settings,
        on_note=on_note,
        skip_bad=skip_bad,
    )
    numbers = seeds_of(seeds)
    check_metric(metric)
    if at_once is not None:
        at_once = whole_number("at_once", at_once, least=1)
    auto = wants_auto(settings)
    config = train_settings(asked, settings)
    named = named_policies(policies)  # unknown names and broken files, before the data is read
    if out is None and several_processes():
        raise ValueError("under torchrun the processes meet in the run directory: give `out`")
    # Everyone is scored on the same images, whatever the seed of the training.
    asked, whole, base = asked.load(config.base, settings, seed=0)
    base = asked.base_with(named.values(), base, settings, whole)
    config = replace(asked.usual(config, settings, whole), base=base)
    split, _ = split_for_scoring(whole, seed=0)
    check_size(config, split)
    # A network that cannot be built, or gives no logits, is a mistake to find before any training.
    example = replace(asked, seed=numbers[0], model=copy.deepcopy(asked.model)).network(split)
    name = asked.model_name(split)
    network = asked.model if isinstance(asked.model, nn.Module) else name
    setting = Setting(
        split=split,
        model=network,
        weights=asked.weights,
        device=asked.device,
        graph=graph,
        on_epoch=on_trial_epoch,
    )
    trials = trials_of(named, config, numbers, split, asked.tell)
    if auto:
        job = setting.job(trials[0])
        config = with_room(
            config, lambda fit: training_step(replace(job, config=fit)), split.image_size
        )
        trials = trials_of(named, config, numbers, split)
    together = at_once or default_at_once(asked.device, split.image_size)
    if on_start is not None:
        on_start(split, name, len(trials))
    if on_plan is not None:
        on_plan(plan_of(setting, trials, together, example))
    job_of_all = ComparisonJob(
        setting=setting,
        model_name=name,
        trials=trials,
        metric=metric_for(split, metric),
        at_once=together,
        out=asked.path,
        resume=resume,
        on_trial=on_trial,
    )
    return run_comparison(job_of_all)
