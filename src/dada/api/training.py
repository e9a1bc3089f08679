"""A training as it was asked for, made into a job, and carried out in its run directory."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, replace

from dada.api.preparation import Preparation
from dada.api.results import Trained, write_training
from dada.api.searching import OnEpoch
from dada.api.settings import check_size, train_settings, with_room
from dada.data import split_for_scoring
from dada.engine import joined, memory_kept, out_of_memory_named
from dada.policy import Policy, baselines
from dada.runlog import POLICY
from dada.training.loop import Job, try_step
from dada.training.many import run_job


def train_job(
    asked: Preparation, policy: str | os.PathLike[str] | Policy
) -> tuple[Preparation, Job]:
    """The training that was asked for, ready to begin."""
    config = train_settings(asked)
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)  # before data is read
    asked, whole, base = asked.load(config.base, seed=asked.seed)
    base = asked.base_with([loaded], base, whole)
    config = asked.usual(config, whole)
    split, unseen = split_for_scoring(whole, asked.seed)
    if not isinstance(policy, Policy):
        loaded = Policy.load(baselines.name_for_data(policy, split.name, split.image_size))
    check_size(config, split)
    name = str(loaded.provenance.get("name"))
    job = Job(
        split=split,
        model=asked.network(split),
        policy=loaded,
        config=replace(config, base=baselines.base_for(name, base, split.image_size)),
        seed=asked.seed,
        device=asked.device,
        judge=unseen,
        graph=asked.options.graph,
    )
    if asked.auto_batch:
        fits = with_room(
            job.config, lambda fit: try_step(replace(job, config=fit)), split.image_size
        )
        return asked, replace(job, config=fits)
    return asked, job


def run_training(asked: Preparation, job: Job, on_epoch: OnEpoch | None) -> Trained:
    """In its run directory, and told of by the first process alone."""
    split, policy = job.split, job.policy.to_json()
    facts = asked.facts(split) | {
        "policy": hashlib.sha256(policy.encode()).hexdigest(),
        "train": asdict(job.config),
    }
    with (
        memory_kept(asked.device),
        joined(asked.device) as ranks,
        out_of_memory_named(job.config.batch_size, split.image_size),
        asked.open_run(ranks, facts) as run,
    ):
        if ranks.same(run is not None and run.finished):
            assert asked.path is not None
            return Trained.load(asked.path, job.model.to(asked.device), split)
        if run is not None:
            run.save_text(POLICY, policy)
        told = on_epoch if ranks.rank == 0 else None
        result = run_job(replace(job, run=run, on_epoch=told, ranks=ranks))
        if run is not None:
            write_training(run, result, asked.model_name(split), split)
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
