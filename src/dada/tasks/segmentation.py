"""A class for every pixel.

Letters: B images of a batch, C classes, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from dada.policy.moving import Moves
from dada.tasks import drawing
from dada.tasks.base import OF_PLACES, Meter, Passes, Targets, Task

IGNORED = 255  # a pixel of no class: nobody says what it is, or it came from outside the image


@dataclass(frozen=True, kw_only=True)
class SegmentationScores:
    """Fractions are in 0..1: intersection over union of all pixels of a class in all images."""

    mean_iou: float  # over the classes that are there, or were seen where they are not
    pixel_accuracy: float
    loss: float
    images: int
    class_iou_C: list[float | None] = field(repr=False)


class Segmentation(Task):
    """The target is a map_BHW of class numbers in 8 bits, IGNORED for pixels of no class."""

    name = "segmentation"
    decides = "mean_iou"
    metrics = ("mean_iou", "pixel_accuracy")
    moves = True
    settings: ClassVar[Mapping[str, Any]] = {**OF_PLACES, "least_epochs": 20, "least_steps": 400}
    scores = SegmentationScores
    of_classes = "class_iou_C"
    told: ClassVar[Mapping[str, str]] = {
        "mean_iou": "mean intersection over union",
        "pixel_accuracy": "pixels of the right class",
    }

    def loss_of(self, outputs: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        return _loss_B(outputs.float(), target, label_smoothing).mean()

    def moved(self, targets: Targets, moves: Moves) -> tuple[Tensor, ...]:
        # One more and one less, in 8 bits: 0, which comes in from outside, is then IGNORED.
        return (moves.of_maps(targets[0] + 1) - 1,)

    def resized(self, targets: Targets, size: tuple[int, int], to: tuple[int, int]) -> Targets:
        map_B1HW = targets[0].unsqueeze(1).float()
        return (F.interpolate(map_B1HW, to, mode="nearest-exact").squeeze(1).to(torch.uint8),)

    def output_shape(self, images_shape: Sequence[int], num_classes: int) -> tuple[int, ...]:
        return (images_shape[0], num_classes, *images_shape[2:])

    def meter(self, num_classes: int, device: Any) -> Meter:
        return _Pixels(num_classes, device)

    def default_model(self, device_type: str, image_size: tuple[int, int]) -> str:
        return "unet"

    def drawn(
        self, picture: Image.Image, target: Sequence[Tensor], classes: Sequence[str]
    ) -> Image.Image:
        map_HW = target[0].clone()
        map_HW[map_HW == IGNORED] = 0
        return drawing.overlay(picture, map_HW)


def _loss_B(logits_BCHW: Tensor, map_BHW: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Of every image the mean over its pixels of some class."""
    target_BHW = map_BHW.long()
    loss_BHW = F.cross_entropy(
        logits_BCHW,
        target_BHW,
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return loss_BHW.sum((1, 2)) / (target_BHW != IGNORED).sum((1, 2)).clamp(min=1)


class _Pixels:
    adds_up = True

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self.confusion_CC = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.images = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, model: nn.Module, views_BCHW: Tensor, targets: Targets, passes: Passes) -> None:
        with passes():
            logits_BCHW = model(views_BCHW).float()
        self.loss += _loss_B(logits_BCHW, targets[0]).sum()
        self.images += len(views_BCHW)
        true_BHW, found_BHW = targets[0].long(), logits_BCHW.argmax(1)
        # Pixels of no class are counted beyond the others, and cut off.
        pair = torch.where(
            true_BHW == IGNORED, self.num_classes**2, true_BHW * self.num_classes + found_BHW
        )
        counts = torch.bincount(pair.flatten(), minlength=self.num_classes**2 + 1)[:-1]
        self.confusion_CC += counts.view_as(self.confusion_CC)

    def sums(self) -> list[Tensor]:
        return [self.confusion_CC, self.loss, self.images]

    def scores(self, sums: Sequence[Tensor]) -> SegmentationScores:
        confusion_CC, images = sums[0].cpu().double(), int(sums[2])
        right_C = confusion_CC.diagonal()
        union_C = confusion_CC.sum(0) + confusion_CC.sum(1) - right_C
        iou_C = [
            right / union if union else None
            for right, union in zip(right_C.tolist(), union_C.tolist(), strict=True)
        ]
        known = [each for each in iou_C if each is not None]
        return SegmentationScores(
            mean_iou=sum(known) / max(1, len(known)),
            pixel_accuracy=float(right_C.sum() / confusion_CC.sum().clamp(min=1)),
            loss=float(sums[1]) / max(1, images),
            images=images,
            class_iou_C=iou_C,
        )
