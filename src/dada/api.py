"""dada.search() as users call it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dada import models
from dada.config import BASES, Base, SearchConfig, search_config
from dada.data import Split, load, split_off_validation
from dada.engine import few_threads, resolve_device, seeded
from dada.policy import Policy
from dada.runlog import RunLog, check_run_path, read_log
from dada.search import search as run_search
from dada.space import SearchSpace


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
    verify: bool = True,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: str = "auto",
    image_size: int | tuple[int, int] | None = None,
    on_start: Callable[[Split, SearchConfig, str], None] | None = None,
    on_epoch: Callable[[dict[str, Any], int], None] | None = None,
    **settings: Any,
) -> Result:
    """Learn an augmentation policy for a data set.

    `train_data` is anything `dada.data.load` reads: a name, a folder, a dataset of (image, label),
    or a pair of tensors. Without `val_data`, half of it is set aside to judge on. `model` is a
    name, or a network of one's own that returns logits. `settings` are those of `SearchConfig`.
    `verify` has no effect yet: the policy has not been compared with the free ones
    (`policy.provenance["verification"]` is None).
    """
    if out is not None:
        check_run_path(out, resume=resume)
    target = resolve_device(device)
    if not abs(seed) < 2**62:  # torch takes 64 bits
        raise ValueError(f"seed should be smaller than 2^62, got {seed}")
    # Mistakes first: reading the data may take minutes.
    config = search_config(preset, **settings)
    SearchSpace.named(
        config.space, ops_per_subpolicy=config.ops_per_subpolicy, exclude=config.exclude
    )
    split = load(train_data, val_source=val_data, image_size=image_size, seed=seed)
    if settings.get("base") is None:
        config = replace(config, base=BASES.get(split.name.partition(":")[0], Base()))
    if split.val is None:
        split = split_off_validation(split, config.val_fraction, seed)
    name = model if isinstance(model, str) else type(model).__name__
    if model is None:
        name = models.default_model(target.type, split.image_size)
    network = (
        model
        if isinstance(model, nn.Module)
        else models.build(name, split.num_classes, split.channels, split.image_size, seed=seed)
    )
    if isinstance(model, nn.Module):  # one by name was checked when it was built
        example = torch.zeros(2, split.channels, *split.image_size, device=target)
        models.check_logits(network.to(target), example, split.num_classes)
    if on_start is not None:
        on_start(split, config, name)
    run = None
    if out is not None:
        run = RunLog(out, resume=resume)
        facts = {"data": split.name, "fingerprint": split.fingerprint, "model": name, "seed": seed}
        run.config({"command": "search", **facts, "device": target.type, "search": asdict(config)})
        if run.finished:
            return Result(
                policy=Policy.load(run.path),
                history=read_log(run.path),
                seconds=float(run.summary["seconds"]),
                out=run.path,
            )
    height, width = split.image_size
    elements = config.batch_size * split.channels * height * width
    with seeded(seed, target), few_threads(target, elements):
        found = run_search(
            split,
            network,
            config,
            seed=seed,
            device=target,
            run=run,
            model_name=name,
            on_epoch=on_epoch,
        )
    if run is not None:
        run.save_text("policy.json", found.policy.to_json())
        run.finish({"seconds": round(found.seconds, 2)})
    return Result(
        policy=found.policy,
        history=found.history,
        seconds=found.seconds,
        out=None if run is None else run.path,
    )
