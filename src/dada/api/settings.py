"""Settings as they were asked for: presets, recipes and defaults, checked against the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from dada import recipes, tasks
from dada.api.preparation import Preparation
from dada.comparison import METRICS
from dada.config import (
    LOOKAHEAD,
    LOOKAHEAD_FINE_TUNING,
    LOOKAHEAD_OF_PLACES,
    VERIFY,
    VERIFY_FINE_TUNING,
    LookaheadConfig,
    SearchConfig,
    TrainConfig,
    VerifyConfig,
    changed,
    real_number,
    search_config,
    whole_number,
)
from dada.data import Split, is_grey, reduce
from dada.engine import fitting, out_of_memory_named
from dada.engine.memory import memory_of_machine
from dada.models.weights import Tell
from dada.ops import Op
from dada.policy.space import SearchSpace
from dada.policy_search.job import TrainingLength
from dada.recipes import Recipe
from dada.safe_text import printable, quoted

MOST_STEPS = 50_000_000  # of a run: the learning rates of all of them are held in memory
MOST_SEEDS = 10_000

Config = TypeVar("Config", SearchConfig, TrainConfig)


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
    asked: Preparation, preset: str, lookahead: float | LookaheadConfig | None
) -> SearchConfig:
    seconds = lookahead.seconds if isinstance(lookahead, LookaheadConfig) else lookahead
    settings = {**asked.settings, "lookahead": seconds}
    start, recipe = search_config(preset), asked.recipe
    if recipe is not None:
        start = recipe.search or replace(start, base=recipe.base)
    config = changed(start, settings)
    SearchSpace.of(config)  # an operation that is not there is a mistake, too
    return replace(config, exclude=SearchSpace.named(config.space).spelled(config.exclude))


def without_idle_operations(config: SearchConfig, split: Split, tell: Tell) -> SearchConfig:
    """Without the operations that can change no image like these: Color, where all are grey."""
    grey = is_grey(split)
    shape = split.channels, *split.image_size
    idle = [op.name for op in SearchSpace.of(config).ops if _changes_nothing(op, shape, grey)]
    if idle:
        kind = f"{'grey ' if grey else ''}images of {split.image_size[1]}x{split.image_size[0]}"
        tell(f"{', '.join(idle)} cannot change {kind}: left out of the search")
    return replace(config, exclude=(*config.exclude, *idle))


def _changes_nothing(op: Op, shape: tuple[int, int, int], grey: bool) -> bool:
    """Asked of noise in a narrow range, at both ends of the operation's range."""
    _, height, width = shape
    # Noise, as a pattern of any period may be the same in all colours at some size.
    levels_CHW = torch.randint(60, 188, shape, generator=torch.Generator().manual_seed(0))
    levels_CHW[:, 0, 0] = 188  # a brightest level that comes often can make Equalize do nothing
    image_CHW = levels_CHW[:1].expand(shape) if grey else levels_CHW
    images_BCHW = image_CHW.to(torch.uint8).repeat(2, 1, 1, 1)
    values_B = torch.tensor([op.low, op.high], dtype=torch.float64)
    centers_B2 = torch.tensor([[width / 2, height / 2]] * 2, dtype=torch.float64)
    return torch.equal(op.kernel(images_BCHW, values_B, centers_B2), images_BCHW)


def lookahead_settings(
    asked: Preparation,
    task: str,
    config: SearchConfig,
    lookahead: float | LookaheadConfig | None,
) -> LookaheadConfig:
    """How to look ahead: what was asked for, or the preset's seconds, or the device's default."""
    if isinstance(lookahead, LookaheadConfig):
        return lookahead
    settings = LOOKAHEAD_OF_PLACES if tasks.named(task).moves else LOOKAHEAD
    if asked.weights is not None:
        settings = LOOKAHEAD_FINE_TUNING
    usual = settings[asked.device.type]
    return usual if config.lookahead is None else replace(usual, seconds=config.lookahead)


def verify_settings(
    asked: Preparation, config: SearchConfig, verify: bool | VerifyConfig, seconds: float | None
) -> VerifyConfig:
    """How to verify: what was asked for, or else the default of the default search, or not."""
    if isinstance(verify, VerifyConfig):
        settings = verify
    else:
        settings = usual_verification(asked)
        # The paper's search is the paper's, without what came after it.
        default = config.preset == "dada" and not asked.by_recipe
        if seconds is not None:
            settings = replace(settings, seconds=float(real_number("verify_budget", seconds)))
        if not verify or (seconds is None and not default):
            settings = replace(settings, seconds=0.0)
    return settings


def usual_verification(asked: Preparation) -> VerifyConfig:
    settings = VERIFY if asked.weights is None else VERIFY_FINE_TUNING
    return settings[asked.device.type]


def train_settings(asked: Preparation) -> TrainConfig:
    recipe = asked.recipe
    start = TrainConfig() if recipe is None or recipe.train is None else recipe.train
    return changed(start, asked.settings)


def check_metric(metric: str | None) -> None:
    """Before any data is read: one of some task's."""
    if metric is not None and metric not in METRICS:
        raise ValueError(f"`metric` should be one of {', '.join(METRICS)}, got {quoted(metric)}")


def metric_for(split: Split, metric: str | None) -> str:
    """The score that a comparison is about."""
    task = tasks.named(split.task)
    if metric is not None and metric not in task.metrics:
        known = ", ".join(task.metrics)
        raise ValueError(f"`metric` of {task.name} should be one of {known}, got {quoted(metric)}")
    return metric or task.decides


def training_length(asked: Preparation, config: SearchConfig, split: Split) -> TrainingLength:
    """Of the training that the policy is for: as the user said, or a recipe for training; else what
    `dada train` would do on all of these images, or the paper after one of its searches."""
    images, recipe = config.for_images or len(split.train), asked.recipe
    said = config.for_epochs is not None or config.for_images is not None
    if recipe is None:
        usual = replace(asked, command="train", settings={}).usual(TrainConfig(), split, images)
    elif recipe.train is not None:
        usual, said = recipe.train, True
    else:
        evaluation = recipes.named(f"{recipe.data}_{recipe.model}", wants="train").train
        assert evaluation is not None
        usual = evaluation
    epochs = config.for_epochs or usual.epochs_for(max(1, images // usual.batch_size))
    return TrainingLength(epochs=epochs, images=images, asked=said)


def reduced(split: Split, recipe: Recipe, seed: int) -> Split:
    """The part of the data that the paper searched on, drawn by seed."""
    if recipe.reduce_to is None:
        return split
    return reduce(split, recipe.reduce_to, seed, classes=recipe.classes)


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        seeds = range(whole_number("seeds", seeds))
    many = isinstance(seeds, range) and seeds.stop - seeds.start > MOST_SEEDS
    numbers = () if many else tuple(whole_number("seeds", n) for n in seeds)
    if many or len(numbers) > MOST_SEEDS:
        raise ValueError(f"`seeds` should be at most {MOST_SEEDS:,} trainings of every policy")
    if not numbers:
        raise ValueError("`seeds` should be one or more")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"`seeds` should differ, got {_some(numbers)}")
    if any(not 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"a seed should be in 0..2^62, got {_some(numbers)}")
    return numbers


def with_room(
    config: Config, attempt: Callable[[Config], None], image_size: tuple[int, int]
) -> Config:
    """The largest batch size up to the usual one with which a step fits on the card."""
    with out_of_memory_named(1, image_size):
        size = fitting(config.batch_size, lambda size: attempt(replace(config, batch_size=size)))
    return replace(config, batch_size=size)


def _some(numbers: Sequence[int]) -> str:
    return printable(", ".join(map(str, numbers[:20])))
