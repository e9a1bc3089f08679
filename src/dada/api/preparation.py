"""What search, train and compare have in common before they begin.

Device, recipe, settings, data, what is done to every image, network, run directory: asked for in
the same words, checked in the same order. Mistakes come first, because reading data may take
minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from dada import models, recipes, tasks
from dada.api.tellers import LOG
from dada.config import (
    ADAMW,
    BASES,
    FINE_TUNING,
    FINE_TUNING_ADAMW,
    LARGEST_TUNING_BATCH,
    NAMED_BASES,
    SEARCH_FINE_TUNING,
    SMALLEST_TUNING_BATCH,
    Base,
    SearchConfig,
    TrainConfig,
    base_named,
    few_images,
    seed_number,
)
from dada.data import Split, load_with_base
from dada.data.one_size import asked_size
from dada.engine import (
    Ranks,
    join,
    resolve_device,
    several_processes,
)
from dada.models.weights import FREEZE, Published, Tell, Weights, from_file, published
from dada.policy import Policy
from dada.recipes import Recipe
from dada.report.base import chosen_base, is_about
from dada.runlog import RunLog, check_run_path
from dada.safe_text import quoted
from dada.training.scores import check_network

Config = TypeVar("Config", SearchConfig, TrainConfig)
OutPath = str | os.PathLike[str] | None
ImageSize = int | tuple[int, int] | None
MAY_CHANGE = ("chosen_base",)  # of config.toml: what a search adds to what it was asked


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
    skip_bad: bool = False
    task: str | None = None  # None: the one that the data is plainly for
    start: Weights | Published | None = None  # trained weights; published ones are not read yet
    base_changes: Mapping[str, Any] = field(default_factory=dict)  # crop, flip and scale
    freeze: str = "norm"  # what of a trained network does not learn
    tell: Tell

    def load(
        self, base: Base, settings: Mapping[str, Any], *, val_data: Any = None, seed: int
    ) -> tuple[Preparation, Split, Base]:
        """The data, what is done to every image of it, and what was asked, with a network chosen.

        Every image gets `base` where a recipe or the user said so, else what suits the data set.
        """
        wanted = None if self.recipe is None and settings.get("base") is None else base

        def read(image_size: ImageSize) -> tuple[Split, Base]:
            return load_with_base(
                self.data,
                wanted,
                val_data=val_data,
                image_size=image_size,
                seed=seed,
                skip_bad=self.skip_bad,
                task=self.task,
            )

        split, found = read(self.image_size)
        asked, size = self._with_network(split)
        may_resize = self.image_size is None and not isinstance(self.data, Split)
        if may_resize and size != split.image_size:
            square = size[0] == size[1]
            asked = replace(asked, image_size=size[0] if square else size)  # to be repeated
            split, found = read(size)
        if isinstance(asked.start, Published):
            asked = replace(asked, start=asked.start.read(self.tell))
        if (weights := asked.weights) is not None:
            asked = replace(asked, start=replace(weights, freeze=self.freeze))
            split = replace(split, normalisation=weights.normalisation(split.channels))
        return asked, split, replace(found, **self.base_changes)

    @property
    def weights(self) -> Weights | None:
        """To start from, once they have been read."""
        return self.start if isinstance(self.start, Weights) else None

    def _with_network(self, split: Split) -> tuple[Preparation, tuple[int, int]]:
        """With a network for a user who named none, and the image size that suits it."""
        task = tasks.named(split.task)
        task.check_packages()
        if self.model is not None:
            return self, split.image_size
        if (name := task.default_model(self.device.type, split.image_size)) is not None:
            side = models.CPU_SIDE if self.device.type == "cpu" else None
            return replace(self, model=name), models.shrunk(split.image_size, side)
        choice = models.default_network(self.device.type, split.image_size, len(split.train))
        if choice.why is not None:
            self.tell(f"network: {choice.why}")
        start = published(choice.name) if choice.pretrained else None
        asked = replace(self, model=choice.name, start=start)
        return asked, choice.image_size(split.image_size)

    def leaves_base_open(self, settings: Mapping[str, Any], split: Split) -> bool:
        """Whether nobody said what to do to every image: not the user, a recipe or the paper."""
        said = settings.get("base") is not None or self.base_changes or self.recipe is not None
        known = split.name.partition(":")[0] in BASES
        return not said and not known and split.task == "classification"

    def base_with(
        self, policies: Iterable[Policy], base: Base, settings: Mapping[str, Any], split: Split
    ) -> Base:
        """`base`, or what the search of one of the policies chose for these very data."""
        if not self.leaves_base_open(settings, split):
            return base
        here = (each for each in policies if is_about(each, split.name, split.num_classes))
        chosen = {name for each in here if (name := chosen_base(each)) not in (None, "none")}
        if len(chosen) != 1:
            return base
        (name,) = chosen
        self.tell(f"base: {name}, as the search chose for these data; --base none is without")
        return NAMED_BASES[str(name)]

    def model_name(self, split: Split) -> str:
        if isinstance(self.model, nn.Module):
            return type(self.model).__name__
        return self.model or models.default_model(self.device.type, split.image_size)

    def network(self, split: Split) -> nn.Module:
        """A network for these images; a user's own is checked and used as it is."""
        shape = split.num_classes, split.channels, split.image_size
        if isinstance(self.model, nn.Module):
            example = torch.zeros(2, split.channels, *split.image_size, device=self.device)
            network = self.model.to(self.device)
            check_network(tasks.named(split.task), network, example, split.num_classes)
            if not any(weight.requires_grad for weight in self.model.parameters()):
                raise ValueError(
                    "`model` has no weights to train: all of them are frozen; call "
                    "model.requires_grad_(True)"
                )
            return self.model
        network = models.build(self.model_name(split), *shape, seed=self.seed)
        if self.weights is not None:
            self.tell(models.fit_weights(network, self.weights, self.model_name(split)))
        return network

    def usual(self, config: Config, settings: Mapping[str, Any], split: Split) -> Config:
        """Other settings where the network was trained before, or for another optimiser or task.

        Those that the user gave stay. Few images make small batches, for fine-tuning has few steps.
        """
        if self.recipe is not None:
            return config
        images = len(split.train)
        of_task = tasks.named(split.task).settings_for(self.model_name(split))
        if of_task and isinstance(config, TrainConfig):
            mine = {name: each for name, each in of_task.items() if settings.get(name) is None}
            return replace(config, **mine)
        if isinstance(config, SearchConfig):
            other = SEARCH_FINE_TUNING if self.weights is not None else {}
        elif config.optimizer == "adamw":
            other = ADAMW if self.weights is None else FINE_TUNING_ADAMW
        else:
            other = {} if self.weights is None else FINE_TUNING
        if self.weights is None and self.command != "search":
            other = {**few_images(images), **other}
        if self.weights is not None:
            batch = min(LARGEST_TUNING_BATCH, max(SMALLEST_TUNING_BATCH, images // 16))
            other = {**other, "batch_size": batch}
        mine = {name: value for name, value in other.items() if settings.get(name) is None}
        return replace(config, **mine)

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
            **self._weights_facts(split),
            **({} if split.task == "classification" else {"task": split.task}),
        }

    def _weights_facts(self, split: Split) -> dict[str, Any]:
        if self.weights is None:
            return {}
        mean, std = split.normalisation or (None, None)
        held = {"source": self.weights.source, "digest": self.weights.digest}
        held["freeze"] = self.weights.freeze
        return {"weights": held | {"mean": mean, "std": std}}

    @contextmanager
    def open_run(self, ranks: Ranks, facts: Mapping[str, Any]) -> Iterator[RunLog | None]:
        """The run directory, which the first process alone writes to."""
        if self.out is None or ranks.rank > 0:
            yield None
            return
        with closing(RunLog(self.out, resume=self.resume)) as run:
            run.config(facts, may_change=MAY_CHANGE)
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
    *,
    pretrained: bool = False,
    weights: OutPath = None,
    freeze: str | None = None,
    settings: MutableMapping[str, Any],
    on_note: Tell | None = None,
    skip_bad: bool = False,
) -> Preparation:
    """Check all that can be checked before data is read.

    A `base` by name becomes a value in `settings`, and what changes it is taken out of there, as
    are `task` and `backbone`.
    """
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
    task, backbone = settings.pop("task", None), settings.pop("backbone", None)
    if task is not None:
        task = tasks.named(task).name
    model = model or (chosen.model if chosen else None)
    start: Weights | Published | None
    if backbone is not None:
        model, start = _with_backbone(model, task, backbone, pretrained or weights is not None)
    else:
        model, start = _starting_point(model, pretrained, weights)
    if freeze is not None and freeze not in FREEZE:
        raise ValueError(f"`freeze` should be one of {', '.join(FREEZE)}, got {quoted(freeze)}")
    base = {name: settings.pop(name, None) for name in ("crop", "flip", "scale")}
    if settings.get("base") is not None:
        settings["base"] = base_named(settings["base"])
    base = {name: value for name, value in base.items() if value is not None}
    replace(settings.get("base") or Base(), **base)  # a mistake in it is found here
    if several_processes() and "RANK" in os.environ:
        join(target)
    return Preparation(
        command=command,
        data=data,
        model=model,
        start=start,
        base_changes=base,
        freeze=freeze or "norm",
        tell=on_note or LOG.warning,
        recipe=chosen,
        seed=seed,
        device=target,
        image_size=image_size,
        out=out,
        resume=resume,
        skip_bad=skip_bad,
        task=task,
    )


BACKBONE_USERS = {"detection": "fasterrcnn", "segmentation": "deeplabv3"}


def _with_backbone(
    model: str | nn.Module | None, task: str | None, path: OutPath, other_weights: bool
) -> tuple[str, Weights]:
    """The network of a task on a backbone: that of a run of `dada train`, or of a file."""
    assert path is not None
    if isinstance(model, nn.Module) or task in ("classification", "multilabel"):
        raise ValueError("`backbone` is for networks by name, for detection or segmentation")
    if other_weights:
        raise ValueError("`backbone` and `weights` or `pretrained` all say what to start from")
    kind, _, own = (model or BACKBONE_USERS[task or "detection"]).partition(":")
    if kind not in models.ON_BACKBONES:
        known = ", ".join(models.ON_BACKBONES)
        raise ValueError(f"`backbone`: model {kind!r} has none; those that have are {known}")
    name, start = from_file(path, own or None)
    return f"{kind}:{name}", start


PRETRAINED = "timm:tf_efficientnet_lite0"  # for who asks for a pretrained network and names none


def _starting_point(
    model: str | nn.Module | None, pretrained: bool, weights: OutPath
) -> tuple[str | nn.Module | None, Weights | Published | None]:
    """The network, and the weights it starts from: a file is read, a download waits."""
    if not pretrained and weights is None:
        return model, None
    option = "weights" if weights is not None else "pretrained"
    if isinstance(model, nn.Module):
        raise ValueError(f"`{option}` is for networks by name; load the weights of your own")
    if pretrained and weights is not None:
        raise ValueError("`pretrained` and `weights` both say what to start from: give one")
    if weights is not None:
        return from_file(weights, model)
    model = model or PRETRAINED
    return model, published(model)


def _check_type(name: str, value: Any, kinds: tuple[type, ...], words: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"`{name}` should be {words}, got {quoted(value)}")


def as_typed(source: Any) -> str | None:
    """What a user would type for this data; None for a dataset or tensors."""
    if source is None:
        return "digits"
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None
