"""What a task is asked by training, search, comparison and report.

Letters: B images, C channels or classes, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, ClassVar, Protocol

from PIL import Image
from torch import Tensor, nn

from dada.policy.moving import Moves

Targets = Sequence[Tensor]
"""What the images of a batch should become, as tensors with a row for each image."""

Called = Callable[..., Any]
"""A network's forward pass."""

Passes = Callable[[], AbstractContextManager[Any]]
"""Gives a context for a forward pass, in the precision that was asked for."""


# Settings to train a small network from scratch whose targets are places: boxes, or pixels.
OF_PLACES = {
    "batch_size": 16,
    "optimizer": "adamw",
    "lr": 2e-3,
    "warmup_factor": 1.0,
    "weight_decay": 1e-2,
}
ON_A_BACKBONE = {"lr": 2e-4, "batch_size": 8}


class TaskScores(Protocol):
    """How good a network is: a frozen dataclass with at least these."""

    @property
    def loss(self) -> float: ...
    @property
    def images(self) -> int: ...


class Meter(Protocol):
    """Sees all images of a part, batch by batch, and gives the scores at the end."""

    adds_up: bool  # whether what several processes saw can be summed; else each sees everything

    def add(self, model: nn.Module, views_BCHW: Tensor, targets: Targets, passes: Passes) -> None:
        """`views_BCHW` are normalised, the network is in evaluation mode."""
        ...

    def sums(self) -> list[Tensor]: ...
    def scores(self, sums: Sequence[Tensor]) -> TaskScores: ...


class Task:
    """One of several things that a network can be trained for."""

    name: ClassVar[str]
    decides: ClassVar[str]  # the score by which policies are compared
    metrics: ClassVar[tuple[str, ...]]  # the scores that may take its place
    moves: ClassVar[bool] = False  # whether targets move with the pixels
    # Whether the paper's step can be asked: it needs a loss of every image whose target stays.
    measures: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, Any]] = {}  # of a training, where they differ from the usual
    scores: ClassVar[type[Any]]  # what a meter gives: a dataclass
    of_classes: ClassVar[str]  # the name there of the score of every class
    told: ClassVar[Mapping[str, str]]  # and of fractions that a person is told, in which words

    def settings_for(self, model: str) -> Mapping[str, Any]:
        """Those for a network by name: on a backbone it learns in smaller steps than our own."""
        own = self.default_model("cpu", (1, 1))
        return self.settings if own in (None, model) else {**self.settings, **ON_A_BACKBONE}

    def loss(
        self,
        model: nn.Module,
        called: Called,
        views_BCHW: Tensor,
        targets: Targets,
        *,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The training loss of a batch; `called` is the network, or its compiled twin."""
        return self.loss_of(called(views_BCHW), targets[0], label_smoothing)

    def loss_of(self, outputs: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        """The same, for a network that returns what the target is compared with."""
        raise NotImplementedError

    def loss_B(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss of every image, for a task that `measures`."""
        raise NotImplementedError

    def moved(self, targets: Targets, moves: Moves) -> tuple[Tensor, ...]:
        """The targets after the pixels moved."""
        raise NotImplementedError

    def resized(self, targets: Targets, size: tuple[int, int], to: tuple[int, int]) -> Targets:
        """The targets of images that were shrunk from one (H, W) to another."""
        return targets

    def output_shape(self, images_shape: Sequence[int], num_classes: int) -> tuple[int, ...] | None:
        """Of the logits for images_BCHW of that shape; None: the network returns found objects."""
        return (images_shape[0], num_classes)

    def records(self, model: nn.Module) -> bool:
        """Whether a step of it can be recorded: shapes stay, and nothing waits for the device."""
        return True

    def meter(self, num_classes: int, device: Any) -> Meter:
        raise NotImplementedError

    def loss_meter(self, num_classes: int, device: Any) -> Meter:
        """For one who reads the loss alone: scores may cost more than the passes do."""
        return self.meter(num_classes, device)

    def default_model(self, device_type: str, image_size: tuple[int, int]) -> str | None:
        """The network for a user who names none; None: the usual choice."""
        return None

    def check_packages(self) -> None:
        """ValueError where something has to be installed first."""

    def class_scores(self, scores: Any) -> list[float | None]:
        """In 0..1, None for a class that was not there."""
        return list(getattr(scores, self.of_classes))

    def kept(self, scores: Any) -> dict[str, Any]:
        """Of the scores, what a comparison keeps of every training."""
        named = asdict(scores)
        errors = [None if each is None else 1 - each for each in self.class_scores(scores)]
        numbers = {name: named[name] for name in self.metrics}
        return {
            **numbers,
            "loss": scores.loss,
            "images": scores.images,
            "class_error_C": errors,
        }

    def read(self, content: Mapping[str, Any], num_classes: int) -> TaskScores:
        """The scores from their file; TypeError or AssertionError where that is damaged."""
        scores = self.scores(**content)
        by_class = self.class_scores(scores)
        assert len(by_class) == num_classes
        alone = {name: each for name, each in asdict(scores).items() if name != self.of_classes}
        known = [each for each in (*alone.values(), *by_class) if each is not None]
        assert all(map(math.isfinite, known))
        found: TaskScores = scores
        return found

    def words(self, scores: Any) -> dict[str, str]:
        """What a person reads: a name for each number."""
        found = {words: getattr(scores, name) for name, words in self.told.items()}
        shares = {words: f"{each:.2%}" for words, each in found.items() if each is not None}
        return {**shares, "loss": f"{scores.loss:.4f}"}

    def drawn(
        self, picture: Image.Image, target: Sequence[Tensor], classes: Sequence[str]
    ) -> Image.Image:
        """A picture with its target drawn on it; `target` is one image's."""
        return picture
