"""A search as it was asked for, made into a job, and carried out in its run directory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from torch import nn

from dada import models
from dada.api.preparation import Preparation, as_typed
from dada.api.results import Result
from dada.api.settings import (
    check_size,
    lookahead_settings,
    reduced,
    search_settings,
    training_length,
    verify_settings,
    with_room,
    without_idle_operations,
)
from dada.config import LookaheadConfig, TrainConfig, VerifyConfig
from dada.data import split_off_validation
from dada.engine import joined, memory_kept, out_of_memory_named
from dada.policy_search import SearchJob, find_policy
from dada.policy_search.duration import OnPlan
from dada.policy_search.lookahead import OnRun, with_fewer_steps
from dada.policy_search.measuring import try_step
from dada.policy_search.verify import OnTraining
from dada.report import save_samples, write_report
from dada.report.base import chosen_base

OnEpoch = Callable[[dict[str, Any], int], None]
"""(what was measured, epochs in all)"""


def search_job(
    asked: Preparation,
    val_data: Any,
    preset: str,
    lookahead: float | LookaheadConfig | None,
    verify: bool | VerifyConfig,
    verify_budget: float | None,
) -> tuple[Preparation, SearchJob, dict[str, Any]]:
    """The search that was asked for, ready to begin, and the facts that its run directory keeps."""
    seed = asked.seed
    config = search_settings(asked, preset, lookahead)
    verify_settings(asked, config, verify, verify_budget)  # mistakes, before data is read
    asked, split, base = asked.load(config.base, val_data=val_data, seed=seed)
    # What is usual depends on whether the network is pretrained, which the data may decide.
    ahead = lookahead_settings(asked, split.task, config, lookahead)
    verification = verify_settings(asked, config, verify, verify_budget)
    config = replace(asked.usual(config, split), base=base)
    length = training_length(asked, config, split)  # of all images, before some are drawn
    if asked.recipe is not None:
        split = reduced(split, asked.recipe, seed)
    undivided = split if split.val is None else None
    if undivided is not None:
        split = split_off_validation(split, config.val_fraction, seed)
    check_size(config, split)
    config = without_idle_operations(config, split, asked.tell)
    network, name = asked.network(split), asked.model_name(split)
    if asked.auto_batch:
        config = with_room(
            config, lambda fit: try_step(split, network, fit, asked.device), split.image_size
        )
    # The search trains the network it is given; what comes after it begins with new ones, or with
    # copies of the user's own as it was given.
    own = isinstance(asked.model, nn.Module)
    pristine = copy.deepcopy(network) if own else name

    def build_for(size: tuple[int, int]) -> Callable[[int], nn.Module]:
        return models.untrained(pristine, split.num_classes, split.channels, size, asked.weights)

    job = with_fewer_steps(
        SearchJob(
            split=split,
            undivided=undivided,
            network=network,
            build=build_for(split.image_size),
            build_for=None if own else build_for,
            training=replace(asked, settings={}).usual(TrainConfig(), split),
            length=length,
            pretrained=asked.weights is not None,
            choose_base=asked.leaves_base_open(split),
            model_name=name,
            config=config,
            lookahead=ahead,
            verify=verification,
            seed=seed,
            device=asked.device,
            graph=asked.options.graph,
        )
    )
    given = {"lookahead": lookahead, "verify": verify}  # where they are values, not seconds
    facts = asked.facts(split) | {
        "val_source": None if val_data is None else as_typed(val_data),
        "recipe": None if asked.recipe is None else asked.recipe.name,
        "verify_budget": verification.seconds or None,
        # As asked: of the same steps a search that repeats this one makes fewer again.
        "search": asdict(replace(job.config, least_steps=config.least_steps)),
        **{name: asdict(each) for name, each in given.items() if is_dataclass(each)},
    }
    return asked, job, facts


def run_search(
    asked: Preparation,
    job: SearchJob,
    facts: dict[str, Any],
    on_plan: OnPlan | None,
    on_epoch: OnEpoch | None,
    on_lookahead: OnRun | None,
    on_training: OnTraining | None,
) -> Result:
    """In its run directory, and told of by the first process alone."""
    with (
        memory_kept(job.device),
        joined(job.device) as ranks,
        out_of_memory_named(job.config.batch_size, job.split.image_size),
        asked.open_run(ranks, facts) as run,
    ):
        if ranks.same(run is not None and run.finished):
            assert asked.path is not None
            return Result.load(asked.path)
        if run is not None:
            save_samples(job.split, run.path)
        speaks = ranks.rank == 0
        found = find_policy(
            replace(job, run=run, ranks=ranks),
            on_plan=on_plan if speaks else None,
            on_epoch=on_epoch if speaks else None,
            on_lookahead=on_lookahead if speaks else None,
            on_training=on_training,
        )
        if run is not None:
            if (chosen := chosen_base(found.policy)) is not None:
                run.config({**facts, "chosen_base": chosen})
            run.finish({"seconds": round(found.seconds, 2)})
            write_report(run.path)
    return Result(policy=found.policy, history=found.history, seconds=found.seconds, out=asked.path)
