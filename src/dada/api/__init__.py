"""dada.search(), dada.train() and dada.compare() as users call them: prepare, run, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from dada.api.comparing import DEFAULT_POLICIES, comparison_job
from dada.api.preparation import ImageSize, OutPath, SharedOptions, prepare
from dada.api.progress import followed
from dada.api.results import Result, Trained
from dada.api.searching import OnEpoch, run_search, search_job
from dada.api.training import run_training, train_job
from dada.api.verifying import verify
from dada.comparison import Comparison, OnTrial, PolicyLike, run_comparison
from dada.comparison.plan import Plan, plan_of
from dada.config import LookaheadConfig, SearchConfig, TrainConfig, VerifyConfig
from dada.data import Split
from dada.models.weights import Tell
from dada.policy import Policy
from dada.policy_search.duration import OnPlan
from dada.policy_search.lookahead import OnRun
from dada.policy_search.verify import OnTraining
from dada.safe_text import one_line_errors
from dada.trials.runners import OnTrialEpoch

__all__ = [
    "DEFAULT_POLICIES",
    "Comparison",
    "Result",
    "Trained",
    "compare",
    "search",
    "train",
    "verify",
]


@one_line_errors
@followed
def search(
    train_data: Any = None,
    val_data: Any = None,
    model: str | nn.Module | None = None,
    preset: str = "dada",
    *,
    recipe: str | None = None,
    verify: bool | VerifyConfig = True,
    verify_budget: float | None = None,
    lookahead: float | LookaheadConfig | None = None,
    seed: int = 0,
    out: OutPath = None,
    resume: bool = False,
    device: str = "auto",
    image_size: ImageSize = None,
    pretrained: bool = False,
    weights: OutPath = None,
    freeze: str | None = None,
    skip_bad: bool = False,
    graph: bool = True,
    progress: bool = False,
    on_start: Callable[[Split, SearchConfig, str], None] | None = None,
    on_plan: OnPlan | None = None,
    on_epoch: OnEpoch | None = None,
    on_lookahead: OnRun | None = None,
    on_training: OnTraining | None = None,
    on_note: Tell | None = None,
    **settings: Any,
) -> Result:
    """Learn an augmentation policy for a data set.

    `train_data` is anything `dada.data.load` reads: a name, a folder, a dataset of (image, label),
    or a pair of tensors. Without `val_data`, and where the data
    has no validation images of its own, half of it is set aside to validate on. `model` is a
    name, or a network of one's own that returns logits. `settings` are those of `SearchConfig`,
    over those of the preset or of a recipe of the paper. `lookahead` is in seconds, roughly. With a
    `verify_budget` (seconds, roughly; by default there is one on a GPU) and `verify`, short
    trainings then choose between the policy found and the free ones:
    `result.policy.provenance["verification"]` says what was seen. Both also take their
    settings as a value, a `LookaheadConfig` or a `VerifyConfig`. With `skip_bad`, image files that
    cannot be read are left out. `progress` shows bars; without it the logger "dada" is told.
    """
    asked = prepare("search", train_data, SharedOptions.of(locals()))
    asked, job, facts = search_job(asked, val_data, preset, lookahead, verify, verify_budget)
    if on_start is not None:
        on_start(job.split, job.config, job.model_name)
    return run_search(asked, job, facts, on_plan, on_epoch, on_lookahead, on_training)


@one_line_errors
@followed
def train(
    data: Any = None,
    policy: str | os.PathLike[str] | Policy = "none",
    model: str | nn.Module | None = None,
    *,
    recipe: str | None = None,
    seed: int = 0,
    out: OutPath = None,
    resume: bool = False,
    device: str = "auto",
    image_size: ImageSize = None,
    pretrained: bool = False,
    weights: OutPath = None,
    freeze: str | None = None,
    skip_bad: bool = False,
    graph: bool = True,
    progress: bool = False,
    on_start: Callable[[Split, TrainConfig, str], None] | None = None,
    on_epoch: OnEpoch | None = None,
    on_note: Tell | None = None,
    **settings: Any,
) -> Trained:
    """Train a network under a policy, and score it on images it has not seen.

    Those are the test images, else the validation images, else a fifth of the training images that
    is set aside. `settings` are those of `TrainConfig`, over the defaults or over those of a recipe
    of the paper. `progress` shows a bar; without it the logger "dada" is told.
    """
    asked, job = train_job(prepare("train", data, SharedOptions.of(locals())), policy)
    if on_start is not None:
        on_start(job.split, job.config, asked.model_name(job.split))
    return run_training(asked, job, on_epoch)


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
    asked = prepare("compare", data, SharedOptions.of(locals()))
    job, example = comparison_job(asked, policies, seeds, metric, at_once, on_trial_epoch)
    if on_start is not None:
        on_start(job.setting.split, job.model_name, len(job.trials))
    if on_plan is not None:
        on_plan(plan_of(job.setting, job.trials, job.at_once, example))
    return run_comparison(replace(job, on_trial=on_trial))
