"""dada.search() and dada.train() as users call them."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from dada import models, recipes
from dada.config import SearchConfig, TrainConfig, search_config, train_config
from dada.data import Split, judged, load_with_base, split_off_validation
from dada.engine import Ranks, fitting, joined, out_of_memory_named, resolve_device
from dada.policy import Policy, baselines
from dada.policy.space import SearchSpace
from dada.policy_search.lookahead.shapes import OnRun, improved, with_fewer_steps
from dada.policy_search.measure import measure
from dada.policy_search.measure import try_step as searching_step
from dada.policy_search.verify import OnTraining, budget_for, verify_searched
from dada.report import save_samples, write_report
from dada.runlog import (
    POLICY,
    UNFINISHED_POLICY,
    RunLog,
    check_run_path,
    read_log,
    read_summary,
    read_weights,
)
from dada.training.loop import Job, run_job
from dada.training.loop import try_step as training_step
from dada.training.scores import Scores

Config = TypeVar("Config", SearchConfig, TrainConfig)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The policy that was found, what was seen on the way, and where it was written."""

    policy: Policy
    history: list[dict[str, Any]]
    seconds: float
    out: Path | None = None


def search(
    train_data: Any = None,
    val_data: Any = None,
    model: str | nn.Module | None = None,
    preset: str = "dada",
    *,
    recipe: str | None = None,
    verify: bool = True,
    verify_budget: float | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: str = "auto",
    image_size: int | tuple[int, int] | None = None,
    graph: bool = True,
    on_start: Callable[[Split, SearchConfig, str], None] | None = None,
    on_epoch: Callable[[dict[str, Any], int], None] | None = None,
    on_lookahead: OnRun | None = None,
    on_training: OnTraining | None = None,
    **settings: Any,
) -> Result:
    """Learn an augmentation policy for a data set.

    `train_data` is anything `dada.data.load` reads: a name, a folder, a dataset of (image, label),
    or a pair of tensors. Without `val_data`, half of it is set aside to judge on. `model` is a
    name, or a network of one's own that returns logits. `settings` are those of `SearchConfig`,
    over those of the preset or of a recipe of the paper. With a `verify_budget` (seconds, roughly;
    by default there is one on a GPU) and `verify`, short trainings then choose between the policy
    found and the free ones: `result.policy.provenance["verification"]` says by how much it won.
    """
    if out is not None:
        check_run_path(out, resume=resume)
    target = resolve_device(device)
    _check_seed(seed)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    # The paper's search is the paper's, without what came after it.
    usual = preset == "dada" and recipe is None and not several
    verify_budget = budget_for(verify_budget, target, usual=usual)
    verifies = verify and verify_budget > 0
    if verifies and several:
        raise ValueError("--verify-budget is for one process; leave it out under torchrun")
    # Mistakes first: reading the data may take minutes.
    chosen = None if recipe is None else recipes.named(recipe, wants="search")
    wants_auto = _wants_auto(settings)
    config = search_config(preset, **settings)
    if chosen is not None:
        assert chosen.search is not None
        given = {name: value for name, value in settings.items() if value is not None}
        config = replace(chosen.search, **given)
    SearchSpace.of(config)
    wanted = None if chosen is None and settings.get("base") is None else config.base
    split, base = load_with_base(
        train_data, wanted, val_source=val_data, image_size=image_size, seed=seed
    )
    config = replace(config, base=base)
    if chosen is not None:
        split = chosen.reduced(split, seed)
    whole = split if split.val is None else None  # then chance decides who is in which half
    if whole is not None:
        split = split_off_validation(split, config.val_fraction, seed)
    network, name = _network(model or (chosen.model if chosen else None), split, target, seed)
    if wants_auto:
        config = _with_room(
            config, lambda fit: searching_step(split, network, fit, target), split.image_size
        )
    # The search trains the network it is given; what comes after it begins with fresh ones.
    pristine = copy.deepcopy(network) if isinstance(model, nn.Module) else None
    shape = split.num_classes, split.channels, split.image_size
    build = models.untrained(pristine or name, *shape)
    config = with_fewer_steps(config, split, build, target)
    if on_start is not None:
        on_start(split, config, name)
    facts = _facts("search", train_data, image_size, split, name, seed, target)
    facts["val_source"] = None if val_data is None else _typed(val_data)
    facts |= {"recipe": recipe, "verify_budget": float(verify_budget) if verifies else None}
    with joined(target) as ranks, out_of_memory_named(config.batch_size, split.image_size):
        run = _open(out, resume, ranks, {**facts, "search": asdict(config)})
        if ranks.same(run is not None and run.finished):
            path = Path(os.fspath(out or ""))
            return Result(
                policy=Policy.load(path),
                history=read_log(path),
                seconds=float(read_summary(path)["seconds"]),
                out=path,
            )
        if run is not None:
            save_samples(split, run.path)
        found = measure(
            split,
            network,
            config,
            seed=seed,
            device=target,
            run=run,
            model_name=name,
            on_epoch=on_epoch if ranks.rank == 0 else None,
            graph=graph,
            ranks=ranks,
        )
        policy, begun = found.policy, time.perf_counter()
        if config.lookahead != 0:
            policy = improved(
                found,
                split,
                build,
                config,
                exchange=whole is not None,
                seed=seed,
                device=target,
                run=run,
                on_run=on_lookahead if ranks.rank == 0 else None,
                graph=graph,
                ranks=ranks,
            )
        searched, seconds = policy, found.seconds + time.perf_counter() - begun
        if verifies:
            verified = verify_searched(
                split,
                searched,
                build,
                config,
                budget=verify_budget,
                whole=whole,
                seed=seed,
                device=target,
                run=run,
                on_training=on_training,
            )
            policy, seconds = verified.policy, seconds + verified.seconds
        if run is not None:
            if verifies:
                run.save_text("searched.json", searched.to_json())
            run.save_text(POLICY, policy.to_json())
            (run.path / UNFINISHED_POLICY).unlink(missing_ok=True)
            run.finish({"seconds": round(seconds, 2)})
            write_report(run.path)
    return Result(
        policy=policy,
        history=found.history,
        seconds=seconds,
        out=None if out is None else Path(out),
    )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained network, how good it is, and where it was written."""

    model: nn.Module
    scores: Scores
    history: list[dict[str, Any]]
    seconds: float
    images_per_second: float
    classes: tuple[str, ...]
    out: Path | None = None


def train(
    data: Any = None,
    policy: str | os.PathLike[str] | Policy = "none",
    model: str | nn.Module | None = None,
    *,
    recipe: str | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: str = "auto",
    image_size: int | tuple[int, int] | None = None,
    graph: bool = True,
    on_start: Callable[[Split, TrainConfig, str], None] | None = None,
    on_epoch: Callable[[dict[str, Any], int], None] | None = None,
    **settings: Any,
) -> Trained:
    """Train a network under a policy, and judge it on images it has not seen.

    Judged on the test images, else on the validation images, else on a fifth of the training
    images that is set aside. `settings` are those of `TrainConfig`, over the defaults or over
    those of a recipe of the paper.
    """
    if out is not None:
        check_run_path(out, resume=resume)
    target = resolve_device(device)
    _check_seed(seed)
    chosen = None if recipe is None else recipes.named(recipe, wants="train")
    start = TrainConfig() if chosen is None or chosen.train is None else chosen.train
    wants_auto = _wants_auto(settings)
    config = train_config(start, **settings)
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
    wanted = None if chosen is None and settings.get("base") is None else config.base
    whole, base = load_with_base(data, wanted, image_size=image_size, seed=seed)
    split, judge = judged(whole, seed)
    name_of_policy = str(loaded.provenance.get("name"))
    config = replace(config, base=baselines.base_for(name_of_policy, base, split.image_size))
    network, name = _network(model or (chosen.model if chosen else None), split, target, seed)
    job = Job(
        split=split,
        model=network,
        policy=loaded,
        config=config,
        seed=seed,
        device=target,
        judge=judge,
        graph=graph,
    )
    if wants_auto:
        config = _with_room(
            config, lambda fit: training_step(replace(job, config=fit)), split.image_size
        )
    if on_start is not None:
        on_start(split, config, name)
    facts = _facts("train", data, image_size, split, name, seed, target)
    facts["policy"] = hashlib.sha256(loaded.to_json().encode()).hexdigest()
    with joined(target) as ranks, out_of_memory_named(config.batch_size, split.image_size):
        run = _open(out, resume, ranks, {**facts, "train": asdict(config)})
        if ranks.same(run is not None and run.finished):
            return _trained_before(Path(os.fspath(out or "")), network.to(target), split)
        if run is not None:
            run.save_text(POLICY, loaded.to_json())
        told = on_epoch if ranks.rank == 0 else None
        result = run_job(replace(job, config=config, run=run, on_epoch=told, ranks=ranks))
        if run is not None:
            run.save_weights("model.safetensors", result.model.state_dict())
            run.save_text("model.json", _json(_about_model(name, split)))
            run.save_text("scores.json", _json(asdict(result.scores)))
            speed = {"images_per_second": round(result.images_per_second)}
            run.finish({"seconds": round(result.seconds, 2), **speed})
    return Trained(
        model=result.model,
        scores=result.scores,
        history=result.history,
        seconds=result.seconds,
        images_per_second=result.images_per_second,
        classes=split.classes,
        out=None if out is None else Path(out),
    )


def _trained_before(path: Path, network: nn.Module, split: Split) -> Trained:
    """What a finished run has on disk."""
    network.load_state_dict(read_weights(path / "model.safetensors"))
    summary = read_summary(path)
    return Trained(
        model=network,
        scores=Scores(**json.loads((path / "scores.json").read_text(encoding="utf-8"))),
        history=read_log(path),
        seconds=float(summary["seconds"]),
        images_per_second=float(summary["images_per_second"]),
        classes=split.classes,
        out=path,
    )


def _open(
    out: str | os.PathLike[str] | None, resume: bool, ranks: Ranks, facts: dict[str, Any]
) -> RunLog | None:
    """The run directory, which the first process alone writes to."""
    if out is None or ranks.rank > 0:
        return None
    run = RunLog(out, resume=resume)
    run.config(facts)
    return run


def _facts(
    command: str,
    source: Any,
    image_size: int | tuple[int, int] | None,
    split: Split,
    model: str,
    seed: int,
    device: torch.device,
) -> dict[str, Any]:
    """What a run was asked, besides its settings; a resumed run must be asked the same."""
    return {
        "command": command,
        "source": _typed(source),
        "image_size": image_size,
        "data": split.name,
        "fingerprint": split.fingerprint,
        "model": model,
        "seed": seed,
        "device": device.type,
    }


def _typed(source: Any) -> str | None:
    """What a user would type for this data; None for a dataset or tensors."""
    if source is None:
        return "digits"
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None


def _about_model(name: str, split: Split) -> dict[str, Any]:
    """What one needs beside the weights to use them: the network, its classes and its input."""
    mean, std = split.mean_std()
    return {
        "model": name,
        "classes": split.classes,
        "channels": split.channels,
        "image_size": split.image_size,
        "mean": mean,
        "std": std,
    }


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _wants_auto(settings: dict[str, Any]) -> bool:
    """Whether the batch size is to be found; then the setting is left as it is until it is."""
    if settings.get("batch_size") != "auto":
        return False
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("--batch-size auto is for one process; under torchrun give a number")
    settings["batch_size"] = None
    return True


def _with_room(
    config: Config, attempt: Callable[[Config], None], image_size: tuple[int, int]
) -> Config:
    """The largest batch size up to the usual one with which a step fits on the card."""
    with out_of_memory_named(1, image_size):
        size = fitting(config.batch_size, lambda size: attempt(replace(config, batch_size=size)))
    return replace(config, batch_size=size)


def _check_seed(seed: int) -> None:
    if not abs(seed) < 2**62:  # torch takes 64 bits
        raise ValueError(f"seed should be smaller than 2^62, got {seed}")


def _network(
    model: str | nn.Module | None, split: Split, device: torch.device, seed: int
) -> tuple[nn.Module, str]:
    """A network for these images, and its name."""
    if isinstance(model, nn.Module):
        example = torch.zeros(2, split.channels, *split.image_size, device=device)
        models.check_logits(model.to(device), example, split.num_classes)
        return model, type(model).__name__
    name = model or models.default_model(device.type, split.image_size)
    return models.build(name, split.num_classes, split.channels, split.image_size, seed=seed), name
