"""dada.search(), dada.train() and dada.compare() as users call them: prepare, run, write."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from dada.api.comparing import DEFAULT_POLICIES, compare
from dada.api.preparation import ImageSize, OutPath, prepare
from dada.api.progress import followed
from dada.api.results import Result, Trained, write_training
from dada.api.searching import OnEpoch, run_search, search_job
from dada.api.settings import check_size, train_settings, wants_auto, with_room
from dada.api.verifying import verify
from dada.comparison import Comparison
from dada.config import LookaheadConfig, SearchConfig, TrainConfig, VerifyConfig
from dada.data import Split, split_for_scoring
from dada.engine import joined, out_of_memory_named
from dada.models.weights import Tell
from dada.policy import Policy, baselines
from dada.policy_search.lookahead import OnRun
from dada.policy_search.verify import OnTraining
from dada.runlog import POLICY
from dada.safe_text import one_line_errors
from dada.training.loop import Job, run_job
from dada.training.loop import try_step as training_step

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
    asked = prepare(
        "search",
        train_data,
        model,
        recipe,
        seed,
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
    asked, job, facts = search_job(
        asked, val_data, preset, lookahead, verify, verify_budget, settings, graph=graph
    )
    if on_start is not None:
        on_start(job.split, job.config, job.model_name)
    return run_search(asked, job, facts, on_epoch, on_lookahead, on_training)


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
    asked = prepare(
        "train",
        data,
        model,
        recipe,
        seed,
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
    seed = asked.seed
    auto = wants_auto(settings)
    config = train_settings(asked, settings)
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
    asked, whole, base = asked.load(config.base, settings, seed=seed)
    base = asked.base_with([loaded], base, settings, whole)
    config = asked.usual(config, settings, whole)
    split, unseen = split_for_scoring(whole, seed)
    if not isinstance(policy, Policy):
        loaded = Policy.load(baselines.name_for_data(policy, split.name, split.image_size))
    check_size(config, split)
    name_of_policy = str(loaded.provenance.get("name"))
    config = replace(config, base=baselines.base_for(name_of_policy, base, split.image_size))
    job = Job(
        split=split,
        model=asked.network(split),
        policy=loaded,
        config=config,
        seed=seed,
        device=asked.device,
        judge=unseen,
        graph=graph,
    )
    if auto:
        config = with_room(
            config, lambda fit: training_step(replace(job, config=fit)), split.image_size
        )
    name = asked.model_name(split)
    if on_start is not None:
        on_start(split, config, name)
    facts = asked.facts(split) | {
        "policy": hashlib.sha256(loaded.to_json().encode()).hexdigest(),
        "train": asdict(config),
    }
    with (
        joined(asked.device) as ranks,
        out_of_memory_named(config.batch_size, split.image_size),
        asked.open_run(ranks, facts) as run,
    ):
        if ranks.same(run is not None and run.finished):
            assert asked.path is not None
            return Trained.load(asked.path, job.model.to(asked.device), split)
        if run is not None:
            run.save_text(POLICY, loaded.to_json())
        told = on_epoch if ranks.rank == 0 else None
        result = run_job(replace(job, config=config, run=run, on_epoch=told, ranks=ranks))
        if run is not None:
            write_training(run, result, name, split)
    return Trained(
        model=result.model,
        scores=result.scores,
        history=result.history,
        seconds=result.seconds,
        images_per_second=result.images_per_second,
        classes=split.classes,
        task=split.task,
        out=asked.path,
    )
