"""Boxes around objects, and masks of single objects where the data has them.

Letters: B images of a batch, M boxes of an image at most, H height, W width.

A network is called as torchvision's detectors are: in training with a list of images and a list of
dict(boxes, labels[, masks]), for a dict of losses; else with images, for a list of dict(boxes,
labels, scores[, masks]). Labels are 1 .. C there. One that has `padded = True` takes the targets as
they are here, and gives its losses by `losses(images, boxes)`: its step can be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from dada.engine import seeded
from dada.policy.moving import Moves
from dada.tasks import coco, drawing
from dada.tasks.base import OF_PLACES, Called, Meter, Passes, Targets, Task


@dataclass(frozen=True, kw_only=True)
class DetectionScores:
    """COCO's average precision, in 0..1: over overlaps 0.5 to 0.95, at 0.5, and at 0.75."""

    ap: float
    ap50: float
    ap75: float
    mask_ap: float | None  # None where network or data have no masks
    mask_ap50: float | None
    mask_ap75: float | None
    loss: float
    images: int
    class_ap50_C: list[float | None] = field(repr=False)


class Detection(Task):
    """The target is boxes_BM5 (see `policy.moving`) and perhaps a map_BHW of objects: the pixels
    of the m-th box hold m + 1, in 8 bits, or in 16 for more than 255 of them."""

    name = "detection"
    decides = "ap50"  # of few images it is steadier than the mean over overlaps
    metrics = ("ap50", "ap", "ap75")
    moves = True
    settings: ClassVar[Mapping[str, Any]] = {**OF_PLACES, "least_epochs": 30, "least_steps": 600}
    scores = DetectionScores
    of_classes = "class_ap50_C"
    told: ClassVar[Mapping[str, str]] = {
        "ap50": "average precision at overlap 0.5 (AP50)",
        "ap": "average precision (COCO's AP)",
        "ap75": "at overlap 0.75 (AP75)",
        "mask_ap": "AP of masks",
        "mask_ap50": "AP50 of masks",
    }

    def loss(
        self, model: nn.Module, called: Called, views_BCHW: Tensor, targets: Targets, **how: Any
    ) -> Tensor:
        return _loss_of(model, views_BCHW, targets)

    def moved(self, targets: Targets, moves: Moves) -> tuple[Tensor, ...]:
        if len(targets) == 1:
            return (moves.of_boxes(targets[0]),)
        return moves.of_objects(*targets)

    def resized(self, targets: Targets, size: tuple[int, int], to: tuple[int, int]) -> Targets:
        y, x = to[0] / size[0], to[1] / size[1]
        boxes_BM5 = targets[0] * torch.tensor([x, y, x, y, 1.0], device=targets[0].device)
        if len(targets) == 1:
            return (boxes_BM5,)
        map_B1HW = targets[1].unsqueeze(1).float()
        smaller = nn.functional.interpolate(map_B1HW, to, mode="nearest-exact")
        return boxes_BM5, smaller.squeeze(1).to(targets[1].dtype)

    def output_shape(self, images_shape: Sequence[int], num_classes: int) -> None:
        return None

    def records(self, model: nn.Module) -> bool:
        return _is_padded(model)

    def meter(self, num_classes: int, device: Any) -> Meter:
        return _Found(num_classes)

    def loss_meter(self, num_classes: int, device: Any) -> Meter:
        return _Losses()

    def default_model(self, device_type: str, image_size: tuple[int, int]) -> str:
        return "detector"

    def check_packages(self) -> None:
        if find_spec("pycocotools") is None:
            raise ValueError(
                "detection is scored by pycocotools; run: pip install 'dada-augment[detection]'"
            )

    def drawn(
        self, picture: Image.Image, target: Sequence[Tensor], classes: Sequence[str]
    ) -> Image.Image:
        if len(target) > 1:
            picture = drawing.overlay(picture, target[1])
        return drawing.boxes(picture, target[0], classes)


def _is_padded(model: nn.Module) -> bool:
    return bool(getattr(model, "padded", False))


def _loss_of(model: Any, views_BCHW: Tensor, targets: Targets) -> Tensor:
    if _is_padded(model):
        return model.losses(views_BCHW, targets[0]).mean()  # type: ignore[no-any-return]
    losses = model(list(views_BCHW), as_torchvision(targets))
    return torch.stack([loss.float() for loss in losses.values()]).sum()


def as_torchvision(targets: Targets) -> list[dict[str, Tensor]]:
    """The targets of every image as torchvision's detectors take them; labels begin with 1."""
    made = []
    for row, boxes_M5 in enumerate(targets[0]):
        there_M = boxes_M5[:, 4] >= 0
        one = {"boxes": boxes_M5[there_M, :4], "labels": boxes_M5[there_M, 4].long() + 1}
        if len(targets) > 1:
            number_M = torch.arange(1, len(boxes_M5) + 1, device=boxes_M5.device)[there_M]
            one["masks"] = (targets[1][row] == number_M.view(-1, 1, 1)).to(torch.uint8)
        made.append(one)
    return made


@contextmanager
def losses_without_learning(model: nn.Module) -> Iterator[None]:
    """Training mode, in which alone such networks give losses, but nothing in it changes or is
    drawn: layers that keep statistics or drop values stay as they are in evaluation."""
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm | _DropoutNd):
            module.eval()
    device = next(model.parameters()).device
    try:
        with seeded(0, device):  # which boxes count is drawn: always alike
            yield
    finally:
        for module, training in modes:
            module.training = training


@dataclass(frozen=True, kw_only=True)
class LossAlone:
    loss: float
    images: int


class _Losses:
    """Nothing waits for the device but a network of torchvision's."""

    adds_up = False

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.images = 0

    def add(self, model: nn.Module, views_BCHW: Tensor, targets: Targets, passes: Passes) -> None:
        learning = nullcontext() if _is_padded(model) else losses_without_learning(model)
        with passes(), learning:
            loss = _loss_of(model, views_BCHW, targets)
        self.losses.append(loss.double() * len(views_BCHW))
        self.images += len(views_BCHW)

    def sums(self) -> list[Tensor]:
        return [torch.stack(self.losses).sum()]

    def scores(self, sums: Sequence[Tensor]) -> Any:
        return LossAlone(loss=float(sums[0]) / max(1, self.images), images=self.images)


class _Found(_Losses):
    """What was found is kept, and scored at the end."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.found: list[coco.Objects] = []
        self.true: list[coco.Objects] = []

    def add(self, model: nn.Module, views_BCHW: Tensor, targets: Targets, passes: Passes) -> None:
        with passes():
            found = model(views_BCHW)
        super().add(model, views_BCHW, targets, passes)
        for one, true in zip(found, as_torchvision(targets), strict=True):
            self.found.append(coco.Objects.of(one))
            self.true.append(coco.Objects.of(true))

    def scores(self, sums: Sequence[Tensor]) -> DetectionScores:
        judge = partial(coco.average_precision, self.true, self.found, self.num_classes)
        has_masks = all(each.masks is not None for each in (*self.true, *self.found))
        boxes, masks = judge(), judge(masks=True) if has_masks else None
        return DetectionScores(
            ap=boxes.ap,
            ap50=boxes.ap50,
            ap75=boxes.ap75,
            mask_ap=None if masks is None else masks.ap,
            mask_ap50=None if masks is None else masks.ap50,
            mask_ap75=None if masks is None else masks.ap75,
            **asdict(super().scores(sums)),
            class_ap50_C=boxes.class_ap50_C,
        )
