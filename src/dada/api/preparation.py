"""What search, train and compare have in common before they begin.

Device, recipe, settings, data, what is done to every image, network, run directory: asked for in
the same words, checked in the same order. Mistakes come first, because reading data may take
minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
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
from dada.engine import Ranks, join, resolve_device, several_processes
from dada.models.weights import FREEZE, Published, Tell, Weights, from_file, published
from dada.policy import Policy
from dada.recipes import Recipe
from dada.report.base import chosen_base, is_about
from dada.runlog import RunLog, check_run_path, opened_run
from dada.safe_text import quoted
from dada.training.scores import check_network

Config = TypeVar("Config", SearchConfig, TrainConfig)
OutPath = str | os.PathLike[str] | None
ImageSize = int | tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """What search, train and compare are all asked, by the names of their parameters."""

    model: str | nn.Module | None = None
    recipe: str | None = None
    seed: int = 0
    out: OutPath = None
    resume: bool = False
    device: str = "auto"
    image_size: ImageSize = None
    pretrained: bool = False
    weights: OutPath = None
    freeze: str | None = None  # what of a trained network does not learn
    skip_bad: bool = False
    graph: bool = True
    on_note: Tell | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> SharedOptions:
        """Those among the arguments of a function: its `locals()`, as it begins."""
        names = {each.name for each in fields(cls)} & arguments.keys()
        return cls(**{name: arguments[name] for name in names})


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a user asked of any of the three, checked."""

    command: str  # "search", "train" or "compare"
    data: Any
    options: SharedOptions  # as they were given
    settings: Mapping[str, Any]  # of the search or the training; None leaves one as it is
    auto_batch: bool  # whether the batch size is to be found, and the setting left until it is
    base_changes: Mapping[str, Any]  # crop, flip, turn and scale
    model: str | nn.Module | None
    start: Weights | Published | None  # trained weights; published ones are not read yet
    recipe: Recipe | None
    seed: int
    device: torch.device
    image_size: ImageSize
    task: str | None  # None: the one that the data is plainly for
    tell: Tell

    def load(
        self, base: Base, *, val_data: Any = None, seed: int
    ) -> tuple[Preparation, Split, Base]:
        """The data, what is done to every image of it, and what was asked, with a network chosen.

        Every image gets `base` where a recipe or the user said so, else what suits the data set.
        """
        asked = self

        def fit(task: str, size: tuple[int, int], images: int) -> tuple[int, int]:
            nonlocal asked
            asked, suits = self._with_network(task, size, images)
            asked.check_freeze()
            if self.image_size is not None or isinstance(self.data, Split) or suits == size:
                return size
            side = suits[0] if suits[0] == suits[1] else suits
            asked = replace(asked, image_size=side)  # to be repeated
            return suits

        named = self.recipe is not None or self.settings.get("base") is not None
        split, found = load_with_base(
            self.data,
            base if named else None,
            val_data=val_data,
            image_size=self.image_size,
            seed=seed,
            skip_bad=self.options.skip_bad,
            task=self.task,
            fit=fit,
        )
        if isinstance(asked.start, Published):
            asked = replace(asked, start=asked.start.read(self.tell))
        if (weights := asked.weights) is not None:
            kept = replace(weights, freeze=self.options.freeze or weights.freeze)
            asked = replace(asked, start=kept)
            split = replace(split, normalisation=weights.normalisation(split.channels))
        return asked, split, replace(found, **self.base_changes)

    @property
    def weights(self) -> Weights | None:
        """To start from, once they have been read."""
        return self.start if isinstance(self.start, Weights) else None

    @property
    def by_recipe(self) -> bool:
        """Whether the settings are a recipe's. A search that a recipe for training tells what its
        policy is for has its own."""
        if self.recipe is None:
            return False
        return self.command != "search" or self.recipe.search is not None

    def check_freeze(self) -> None:
        """Once the network is known: only what was trained before is worth keeping."""
        freeze = self.options.freeze
        if self.start is not None or freeze in (None, "none"):
            return
        if isinstance(self.model, nn.Module):
            raise ValueError(
                f"`freeze={freeze!r}` is for networks by name; call requires_grad_(False) on what "
                "should not learn of your own"
            )
        raise ValueError(
            f"`freeze={freeze!r}`: nothing of an untrained network is kept as it is; give "
            "`pretrained` or `weights` too"
        )

    def _with_network(
        self, task_name: str, size: tuple[int, int], images: int
    ) -> tuple[Preparation, tuple[int, int]]:
        """With a network for a user who named none, and the image size that suits it."""
        task = tasks.named(task_name)
        task.check_packages()
        if self.model is not None:
            return self, size
        if (name := task.default_model(self.device.type, size)) is not None:
            side = models.CPU_SIDE if self.device.type == "cpu" else None
            return replace(self, model=name), models.shrunk(size, side)
        choice = models.default_network(self.device.type, size, images)
        for problem in choice.damaged:
            self.tell(f"passed over: {problem}")
        if choice.why is not None:
            self.tell(f"network: {choice.why}")
        start = published(choice.name) if choice.pretrained else None
        return replace(self, model=choice.name, start=start), choice.image_size(size)

    def leaves_base_open(self, split: Split) -> bool:
        """Whether nobody said what to do to every image: not the user, a recipe or the paper."""
        said = self.settings.get("base") is not None or self.base_changes or self.recipe is not None
        known = split.name.partition(":")[0] in BASES
        return not said and not known

    def base_with(self, policies: Iterable[Policy], base: Base, split: Split) -> Base:
        """`base`, or what the search of one of the policies chose for these very data."""
        if not self.leaves_base_open(split):
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

    def usual(self, config: Config, split: Split, images: int | None = None) -> Config:
        """Other settings where the network was trained before, or for another optimiser or task.

        Those that the user gave stay. Few images make small batches, for fine-tuning has few steps.
        `images` are as many as in `split`, unless it is said.
        """
        if self.by_recipe:
            return config
        images = len(split.train) if images is None else images
        of_task = tasks.named(split.task).settings_for(self.model_name(split))
        if of_task and isinstance(config, TrainConfig):
            return replace(config, **self._not_given(of_task))
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
        return replace(config, **self._not_given(other))

    def _not_given(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if self.settings.get(name) is None}

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

    def open_run(
        self, ranks: Ranks, facts: Mapping[str, Any]
    ) -> AbstractContextManager[RunLog | None]:
        """The run directory, which the first process alone writes to."""
        out = None if ranks.rank > 0 else self.path
        return opened_run(out, lambda: facts, resume=self.options.resume)

    @property
    def path(self) -> Path | None:
        return None if self.options.out is None else Path(self.options.out)


def prepare(command: str, data: Any, options: SharedOptions) -> Preparation:
    """Check all that can be checked before data is read."""
    out, recipe, freeze = options.out, options.recipe, options.freeze
    _check_type("out", out, (str, os.PathLike, type(None)), "a path")
    _check_type("device", options.device, (str, torch.device), "a name")
    _check_type("model", options.model, (str, nn.Module, type(None)), "a name or a torch.nn.Module")
    _check_type("recipe", recipe, (str, type(None)), "a name")
    if out is not None:
        check_run_path(out, resume=options.resume)
    device, seed = resolve_device(options.device), seed_number(options.seed)
    asked_size(options.image_size)
    kind = "search" if command == "search" else "train"
    # A search may be told by a recipe for training what its policy is for.
    wants = None if kind == "search" else kind
    chosen = None if recipe is None else recipes.named(recipe, wants=wants)
    settings = dict(options.settings)
    task, backbone = settings.pop("task", None), settings.pop("backbone", None)
    if task is not None:
        task = tasks.named(task).name
    model, start = _starting_point(options, chosen, task, backbone)
    if freeze is not None and freeze not in FREEZE:
        raise ValueError(f"`freeze` should be one of {', '.join(FREEZE)}, got {quoted(freeze)}")
    changes = {name: settings.pop(name, None) for name in ("crop", "flip", "turn", "scale")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if settings.get("base") is not None:
        settings["base"] = base_named(settings["base"])
    replace(settings.get("base") or Base(), **changes)  # a mistake in it is found here
    if several_processes() and "RANK" in os.environ:
        join(device)
    if auto := settings.get("batch_size") == "auto":
        if several_processes():
            raise ValueError("`batch_size='auto'` is for one process; under torchrun give a number")
        settings["batch_size"] = None
    asked = Preparation(
        command=command,
        data=data,
        options=options,
        settings=settings,
        auto_batch=auto,
        base_changes=changes,
        model=model,
        start=start,
        recipe=chosen,
        seed=seed,
        device=device,
        image_size=options.image_size,
        task=task,
        tell=options.on_note or LOG.warning,
    )
    if model is not None:  # else the data decides which network, and it may be a trained one
        asked.check_freeze()
    return asked


BACKBONE_USERS = {"detection": "fasterrcnn", "segmentation": "deeplabv3"}
PRETRAINED = "timm:tf_efficientnet_lite0"  # for who asks for a pretrained network and names none


def _starting_point(
    options: SharedOptions, recipe: Recipe | None, task: str | None, backbone: OutPath
) -> tuple[str | nn.Module | None, Weights | Published | None]:
    """The network, and the weights it starts from: a file is read, a download waits."""
    pretrained, weights = options.pretrained, options.weights
    model = options.model or (recipe.model if recipe else None)
    if backbone is not None:
        if pretrained or weights is not None:
            raise ValueError("`backbone` and `weights` or `pretrained` all say what to start from")
        return _with_backbone(model, task, backbone)
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


def _with_backbone(
    model: str | nn.Module | None, task: str | None, path: str | os.PathLike[str]
) -> tuple[str, Weights]:
    """The network of a task on a backbone: that of a run of `dada train`, or of a file."""
    if isinstance(model, nn.Module) or task in ("classification", "multilabel"):
        raise ValueError("`backbone` is for networks by name, for detection or segmentation")
    kind, _, own = (model or BACKBONE_USERS[task or "detection"]).partition(":")
    if kind not in models.ON_BACKBONES:
        known = ", ".join(models.ON_BACKBONES)
        raise ValueError(f"`backbone`: model {kind!r} has none; those that have are {known}")
    name, start = from_file(path, own or None, option="backbone")
    return f"{kind}:{name}", start


def _check_type(name: str, value: Any, kinds: tuple[type, ...], words: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"`{name}` should be {words}, got {quoted(value)}")


def as_typed(source: Any) -> str | None:
    """What a user would type for this data; None for a dataset or tensors."""
    if source is None:
        return "digits"
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None
