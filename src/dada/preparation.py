"""What search, train and compare have in common before they begin.

Device, recipe, settings, data, what is done to every image, network, run directory: asked for in
the same words, checked in the same order. Mistakes come first, because reading data may take
minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from dada import models, recipes
from dada.config import (
    LOOKAHEAD,
    VERIFY,
    Base,
    LookaheadConfig,
    SearchConfig,
    TrainConfig,
    VerifyConfig,
    changed,
    search_config,
)
from dada.data import Split, load_with_base
from dada.engine import (
    Ranks,
    fitting,
    join,
    out_of_memory_named,
    resolve_device,
    several_processes,
)
from dada.policy.space import SearchSpace
from dada.recipes import Recipe
from dada.runlog import RunLog, check_run_path

Config = TypeVar("Config", SearchConfig, TrainConfig)

OutPath = str | os.PathLike[str] | None
ImageSize = int | tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a user asked of any of the three, checked."""

    command: str  # "search", "train" or "compare"
    data: Any
    model: str | nn.Module | None
    recipe: Recipe | None
    seed: int
    device: torch.device
    image_size: ImageSize
    out: OutPath
    resume: bool

    def load(
        self, base: Base, settings: Mapping[str, Any], *, val_data: Any = None, seed: int
    ) -> tuple[Split, Base]:
        """The data, and what is done to every image of it.

        That is `base` where a recipe or the user said so, else what suits the data set.
        """
        wanted = None if self.recipe is None and settings.get("base") is None else base
        return load_with_base(
            self.data, wanted, val_data=val_data, image_size=self.image_size, seed=seed
        )

    def model_name(self, split: Split) -> str:
        if isinstance(self.model, nn.Module):
            return type(self.model).__name__
        return self.model or models.default_model(self.device.type, split.image_size)

    def network(self, split: Split) -> nn.Module:
        """A network for these images; a user's own is checked and used as it is."""
        shape = split.num_classes, split.channels, split.image_size
        if isinstance(self.model, nn.Module):
            example = torch.zeros(2, split.channels, *split.image_size, device=self.device)
            models.check_logits(self.model.to(self.device), example, split.num_classes)
            return self.model
        return models.build(self.model_name(split), *shape, seed=self.seed)

    def facts(self, split: Split) -> dict[str, Any]:
        """What a run was asked, besides its settings; a resumed run must be asked the same."""
        return {
            "command": self.command,
            "source": as_typed(self.data),
            "image_size": self.image_size,
            "data": split.name,
            "fingerprint": split.fingerprint,
            "model": self.model_name(split),
            "seed": self.seed,
            "device": self.device.type,
        }

    @contextmanager
    def open_run(self, ranks: Ranks, facts: Mapping[str, Any]) -> Iterator[RunLog | None]:
        """The run directory, which the first process alone writes to."""
        if self.out is None or ranks.rank > 0:
            yield None
            return
        with closing(RunLog(self.out, resume=self.resume)) as run:
            run.config(facts)
            yield run

    @property
    def path(self) -> Path | None:
        return None if self.out is None else Path(self.out)


def prepare(
    command: str,
    data: Any,
    model: str | nn.Module | None,
    recipe: str | None,
    seed: int,
    device: str,
    image_size: ImageSize,
    out: OutPath,
    resume: bool,
) -> Preparation:
    """Check all that can be checked before data is read."""
    if out is not None:
        check_run_path(out, resume=resume)
    target = resolve_device(device)
    if not abs(seed) < 2**62:  # torch takes 64 bits
        raise ValueError(f"`seed` should be smaller than 2^62, got {seed}")
    kind = "search" if command == "search" else "train"
    chosen = None if recipe is None else recipes.named(recipe, wants=kind)
    if several_processes() and "RANK" in os.environ:
        join(target)
    return Preparation(
        command=command,
        data=data,
        model=model or (chosen.model if chosen else None),
        recipe=chosen,
        seed=seed,
        device=target,
        image_size=image_size,
        out=out,
        resume=resume,
    )


def search_settings(
    asked: Preparation,
    preset: str,
    lookahead: float | LookaheadConfig | None,
    settings: Mapping[str, Any],
) -> SearchConfig:
    seconds = lookahead.seconds if isinstance(lookahead, LookaheadConfig) else lookahead
    settings = {**settings, "lookahead": seconds}
    config = search_config(preset, **settings)
    if asked.recipe is not None:
        assert asked.recipe.search is not None
        config = changed(asked.recipe.search, settings)
    SearchSpace.of(config)  # an operation that is not there is a mistake, too
    return config


def lookahead_settings(
    asked: Preparation, config: SearchConfig, lookahead: float | LookaheadConfig | None
) -> LookaheadConfig:
    """How to look ahead: what was asked for, or the preset's seconds, or the device's default."""
    if isinstance(lookahead, LookaheadConfig):
        return lookahead
    usual = LOOKAHEAD[asked.device.type]
    return usual if config.lookahead is None else replace(usual, seconds=config.lookahead)


def verify_settings(
    asked: Preparation, config: SearchConfig, verify: bool | VerifyConfig, seconds: float | None
) -> VerifyConfig:
    """How to verify: what was asked for, or else the default of the default search, or not."""
    if isinstance(verify, VerifyConfig):
        settings = verify
    else:
        settings = VERIFY[asked.device.type]
        # The paper's search is the paper's, without what came after it.
        default = config.preset == "dada" and asked.recipe is None and not several_processes()
        if seconds is not None:
            settings = replace(settings, seconds=float(seconds))
        if not verify or (seconds is None and not default):
            settings = replace(settings, seconds=0.0)
    if settings.seconds and several_processes():
        raise ValueError("`verify_budget` is for one process; leave it out under torchrun")
    return settings


def train_settings(asked: Preparation, settings: Mapping[str, Any]) -> TrainConfig:
    recipe = asked.recipe
    start = TrainConfig() if recipe is None or recipe.train is None else recipe.train
    return changed(start, settings)


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise ValueError("there should be one seed or more, got none")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"`seeds` should differ, got {', '.join(map(str, numbers))}")
    if any(not 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"a seed should be in 0..2^62, got {', '.join(map(str, numbers))}")
    return numbers


def as_typed(source: Any) -> str | None:
    """What a user would type for this data; None for a dataset or tensors."""
    if source is None:
        return "digits"
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None


def wants_auto(settings: dict[str, Any]) -> bool:
    """Whether the batch size is to be found; then the setting is left as it is until it is."""
    if settings.get("batch_size") != "auto":
        return False
    if several_processes():
        raise ValueError("`batch_size='auto'` is for one process; under torchrun give a number")
    settings["batch_size"] = None
    return True


def with_room(
    config: Config, attempt: Callable[[Config], None], image_size: tuple[int, int]
) -> Config:
    """The largest batch size up to the usual one with which a step fits on the card."""
    with out_of_memory_named(1, image_size):
        size = fitting(config.batch_size, lambda size: attempt(replace(config, batch_size=size)))
    return replace(config, batch_size=size)
