"""dada.verify(): the verification of a search that has ended, or more of one that was made."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from dada.api.preparation import SharedOptions, prepare
from dada.api.results import Result
from dada.api.searching import search_job
from dada.api.settings import usual_verification
from dada.config import NAMED_BASES, real_number
from dada.engine import memory_kept
from dada.models import is_factory
from dada.models.weights import Tell
from dada.policy import Policy
from dada.policy_search import SEARCHED
from dada.policy_search.verify import OnTraining, verify_searched
from dada.report import write_report
from dada.report.repeat import asked_of, changed_settings
from dada.report.run_directory import RunDirectory, read_run_directory
from dada.runlog import POLICY, RunLog
from dada.runlog.lock import DirectoryLock
from dada.safe_json import mapping, number
from dada.safe_text import one_line_errors

BUDGET = 60.0  # nominal seconds, for a user who names none


@one_line_errors
def verify(
    run: str | os.PathLike[str],
    budget: float | None = None,
    *,
    train_data: Any = None,
    val_data: Any = None,
    model: str | nn.Module | None = None,
    device: str | None = None,
    on_training: OnTraining | None = None,
    on_note: Tell | None = None,
) -> Result:
    """Verify the policy of a finished search, or add to what was verified.

    `budget` is in seconds, roughly, and comes on top of what was spent before: trainings that were
    made are not made again. Every further look at the same run widens the interval, so that looking
    often does not make chance a finding. Data and network are those of the run; where it had them
    as Python objects, give them again. The policy file and the report are written anew.
    """
    path = Path(run)
    held = read_run_directory(path)
    if held.config.get("command") != "search" or held.unfinished or held.policy is None:
        raise ValueError(f"{path}: only a finished search can be verified; name its `out`")
    added = BUDGET if budget is None else float(real_number("budget", budget))
    if added <= 0:
        raise ValueError(f"`budget` should be more than 0 seconds, got {added:g}")
    asked, job, facts = _job_of(held, train_data, val_data, model, device, on_note)
    if facts["fingerprint"] != held.config.get("fingerprint"):
        raise ValueError(f"{path}: the images are not those of the search; give `train_data`")
    before = held.verification
    spent = number(before.get("budget")) or 0.0
    settings = replace(usual_verification(asked), seconds=spent + added)
    file = path / SEARCHED
    searched = Policy.load(file) if file.is_file() else held.policy
    lock = DirectoryLock(path)
    try:
        log = RunLog(path, resume=True)
        with memory_kept(job.device):
            found = verify_searched(
                replace(job, verify=settings, run=log),
                searched,
                on_training,
                looks=1 + int(number(before.get("looks")) or bool(before.get("seeds"))),
            )
        log.save_text(SEARCHED, searched.to_json())
        log.save_text(POLICY, found.policy.to_json())
        write_report(path)
    finally:
        lock.release()
    return replace(Result.load(path), seconds=found.seconds)


def _job_of(
    held: RunDirectory,
    train_data: Any,
    val_data: Any,
    model: str | nn.Module | None,
    device: str | None,
    on_note: Tell | None,
) -> Any:
    """The search of a run, asked for again as config.toml has it."""
    config, given = held.config, asked_of(held.config)
    source = config.get("source") if train_data is None else train_data
    if source is None:
        raise ValueError(f"{held.path}: its data was a Python object; give `train_data` again")
    named = str(config.get("model"))
    if model is None and is_factory(named):
        # A run directory may be a stranger's, and this would import what it names.
        raise ValueError(f"{held.path}: its network is code of one's own; give `model` again")
    settings = {**changed_settings(config), "task": given.get("task")}
    if config.get("chosen_base") in NAMED_BASES:
        settings["base"] = config["chosen_base"]
    seconds = settings.pop("lookahead", None)
    size = config.get("image_size")
    options = SharedOptions(
        model=named if model is None else model,
        recipe=given.get("recipe"),
        seed=config.get("seed", 0),
        device=device or str(config.get("device", "auto")),
        image_size=tuple(size) if isinstance(size, list) else size,
        pretrained=bool(given.get("pretrained")),
        weights=given.get("weights"),
        freeze=given.get("freeze"),
        settings=settings,
        on_note=on_note,
    )
    preset = str(mapping(config.get("search")).get("preset", "dada"))
    val = config.get("val_source") if val_data is None else val_data
    asked = prepare("search", source, options)
    return search_job(asked, val, preset, seconds, False, None)
