"""What search, train and compare have in common before they begin.

Device, recipe, settings, data, what is done to every image, network, run directory: asked for in
the same words, checked in the same order. Mistakes come first, because reading data may take
minutes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    real_number,
    search_config,
    seed_number,
    whole_number,
)
from dada.data import Split, load_with_base
from dada.data.one_size import asked_size
from dada.engine import Ranks, fitting, out_of_memory_named, resolve_device
from dada.engine.memory import memory_of_machine
from dada.policy.space import SearchSpace
from dada.recipes import Recipe
from dada.runlog import RunLog, check_run_path
from dada.safe_text import printable, quoted

MOST_STEPS = 50_000_000  # of a run: the learning rates of all of them are held in memory
MOST_SEEDS = 10_000

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
    skip_bad: bool

    def load(
        self, base: Base, settings: Mapping[str, Any], *, val_data: Any = None, seed: int
    ) -> tuple[Split, Base]:
        """The data, and what is done to every image of it.

        That is `base` where a recipe or the user said so, else what suits the data set.
        """
        wanted = None if self.recipe is None and settings.get("base") is None else base
        return load_with_base(
            self.data,
            wanted,
            val_data=val_data,
            image_size=self.image_size,
            seed=seed,
            skip_bad=self.skip_bad,
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
            if not any(weight.requires_grad for weight in self.model.parameters()):
                raise ValueError(
                    "`model` has no weights to train: all of them are frozen; call "
                    "model.requires_grad_(True)"
                )
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

    def open_run(self, ranks: Ranks, facts: Mapping[str, Any]) -> RunLog | None:
        """The run directory, which the first process alone writes to."""
        if self.out is None or ranks.rank > 0:
            return None
        run = RunLog(self.out, resume=self.resume)
        run.config(facts)
        return run

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
    skip_bad: bool,
) -> Preparation:
    """Check all that can be checked before data is read."""
    _check_type("out", out, (str, os.PathLike, type(None)), "a path")
    _check_type("device", device, (str, torch.device), "a name")
    _check_type("model", model, (str, nn.Module, type(None)), "a name or a torch.nn.Module")
    _check_type("recipe", recipe, (str, type(None)), "a name")
    if out is not None:
        check_run_path(out, resume=resume)
    target = resolve_device(device)
    seed = seed_number(seed)
    asked_size(image_size)
    kind = "search" if command == "search" else "train"
    chosen = None if recipe is None else recipes.named(recipe, wants=kind)
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
        skip_bad=skip_bad,
    )


def _check_type(name: str, value: Any, kinds: tuple[type, ...], words: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"`{name}` should be {words}, got {quoted(value)}")


def check_size(config: SearchConfig | TrainConfig, split: Split) -> None:
    """Refuse what could not begin: a step that no memory holds, more steps than can be counted."""
    images = len(split.train)
    batch = min(config.batch_size, images)
    steps = config.epochs_for(max(1, images // batch)) * max(1, images // batch)
    if steps > MOST_STEPS:
        problem = f"`epochs` and `batch_size` make {steps:,} steps, more than {MOST_STEPS:,}"
        raise ValueError(f"{problem}; lower the first or raise the second")
    views = config.views if isinstance(config, SearchConfig) else 1
    size = batch * views * split.channels * math.prod(split.image_size) * 4  # of a float
    if size > (room := memory_of_machine()):
        raise ValueError(
            f"the images of one step would take {size / 1e9:,.0f} GB, and this machine has "
            f"{room / 1e9:,.0f}; lower `batch_size`, `views` or `image_size`"
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
            settings = replace(settings, seconds=float(real_number("verify_budget", seconds)))
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
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        seeds = range(whole_number("seeds", seeds))
    many = isinstance(seeds, range) and seeds.stop - seeds.start > MOST_SEEDS
    numbers = () if many else tuple(whole_number("seeds", n) for n in seeds)
    if many or len(numbers) > MOST_SEEDS:
        raise ValueError(f"`seeds` should be at most {MOST_SEEDS:,} trainings of every policy")
    if not numbers:
        raise ValueError("there should be one seed or more, got none")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"`seeds` should differ, got {_some(numbers)}")
    if any(not 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"a seed should be in 0..2^62, got {_some(numbers)}")
    return numbers


def _some(numbers: Sequence[int]) -> str:
    return printable(", ".join(map(str, numbers[:20])))


def as_typed(source: Any) -> str | None:
    """What a user would type for this data; None for a dataset or tensors."""
    if source is None:
        return "digits"
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None


def several_processes() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


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
