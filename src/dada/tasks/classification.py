"""One label for an image.

Letters: B images of a batch, N in all, C classes, T temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.tasks.base import Meter, Passes, Targets, Task

# By which logits are divided before the loss is taken, to see how much of it is confidence.
TEMPERATURES = tuple(2 ** (step / 4) for step in range(-6, 7))


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Fractions are in 0..1. A class without images has no error and no part in the balance."""

    accuracy: float
    top5: float | None  # None with five classes or fewer, where it would say nothing
    balanced_accuracy: float
    loss: float
    images: int
    confusion_CC: list[list[int]] = field(repr=False)  # [true class][predicted class]
    class_error_C: list[float | None] = field(repr=False)
    # Every class counts the same; None in files of versions that did not measure it.
    balanced_loss: float | None = None
    calibrated_loss: float | None = None  # the same at the temperature that suits it best

    @property
    def error(self) -> float:
        return 1 - self.accuracy


class Classification(Task):
    name = "classification"
    decides = "accuracy"
    metrics = ("accuracy", "balanced_accuracy")
    measures = True
    told: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy",
        "top5": "among the best five",
        "balanced_accuracy": "mean accuracy of the classes",
    }

    def loss_of(self, outputs: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        return F.cross_entropy(outputs, target, label_smoothing=label_smoothing)

    def loss_B(self, outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target, reduction="none")

    def meter(self, num_classes: int, device: Any) -> Meter:
        return _Counts(num_classes, device)

    def class_scores(self, scores: Scores) -> list[float | None]:
        return [None if error is None else 1 - error for error in scores.class_error_C]

    def kept(self, scores: Scores) -> dict[str, Any]:
        return {
            "accuracy": scores.accuracy,
            "top5": scores.top5,
            "balanced_accuracy": scores.balanced_accuracy,
            "loss": scores.loss if math.isfinite(scores.loss) else None,
            "images": scores.images,
            "class_error_C": list(scores.class_error_C),
        }

    def read(self, content: Mapping[str, Any], num_classes: int) -> Scores:
        scores = Scores(**content)
        rows = [[*map(int, row)] for row in scores.confusion_CC]
        assert len(rows) == len(scores.class_error_C) == num_classes
        assert all(len(row) == num_classes for row in rows)
        known = (n for n in (scores.top5, *scores.class_error_C) if n is not None)
        numbers = (scores.accuracy, scores.balanced_accuracy, scores.loss, scores.images, *known)
        assert all(map(math.isfinite, numbers))
        return scores


class _Counts:
    adds_up = True

    def __init__(self, num_classes: int, device: torch.device) -> None:
        # Summed on the device: nothing waits until all images have been seen.
        self.num_classes = num_classes
        self.confusion_CC = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)
        self.among_five = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        shape = len(TEMPERATURES), num_classes
        self.loss_TC = torch.zeros(shape, dtype=torch.float64, device=device)

    def add(self, model: nn.Module, views_BCHW: Tensor, targets: Targets, passes: Passes) -> None:
        (labels_B,) = targets
        with passes():
            logits_BC = model(views_BCHW).float()
        self.loss += F.cross_entropy(logits_BC, labels_B, reduction="sum")
        self.loss_TC += _class_losses_TC(logits_BC, labels_B)
        confusion_CC, among_five = _counted(logits_BC, labels_B, self.num_classes)
        self.confusion_CC += confusion_CC
        self.among_five += among_five

    def sums(self) -> list[Tensor]:
        return [self.confusion_CC, self.among_five, self.loss, self.loss_TC]

    def scores(self, sums: Sequence[Tensor]) -> Scores:
        return _scores(*sums)


def scores_of_logits(logits_NC: Tensor, labels_N: Tensor, num_classes: int) -> Scores:
    """The same numbers, of logits that are there already."""
    confusion_CC, among_five = _counted(logits_NC, labels_N, num_classes)
    loss = F.cross_entropy(logits_NC.double(), labels_N, reduction="sum")
    return _scores(confusion_CC, among_five, loss, _class_losses_TC(logits_NC, labels_N))


def _counted(logits_BC: Tensor, labels_B: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The confusion matrix, and how many labels are among the best five."""
    pair_B = labels_B * num_classes + logits_BC.argmax(1)
    counts = torch.bincount(pair_B, minlength=num_classes**2)
    best_B5 = logits_BC.topk(min(5, num_classes)).indices
    among_five = (best_B5 == labels_B.unsqueeze(1)).sum()
    return counts.view(num_classes, num_classes), among_five


def _class_losses_TC(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """The loss of all images of a class together, at every temperature."""
    one_hot_BC = F.one_hot(labels_B, logits_BC.shape[1]).double()
    # A product, not a scattered sum: that would differ from run to run on a card.
    loss_TB = torch.stack(
        [F.cross_entropy(logits_BC / t, labels_B, reduction="none") for t in TEMPERATURES]
    )
    return loss_TB.double() @ one_hot_BC


def _scores(confusion_CC: Tensor, among_five: Tensor, loss: Tensor, loss_TC: Tensor) -> Scores:
    confusion_CC, loss_TC = confusion_CC.cpu(), loss_TC.cpu()
    total = int(confusion_CC.sum())
    right_C, count_C = confusion_CC.diagonal().double(), confusion_CC.sum(1)
    recall_C = right_C / count_C.clamp(min=1)
    present_C = count_C > 0
    balanced_T = (loss_TC / count_C.clamp(min=1))[:, present_C].mean(1)
    return Scores(
        accuracy=float(right_C.sum()) / total,
        top5=int(among_five) / total if len(confusion_CC) > 5 else None,
        balanced_accuracy=float(recall_C[present_C].mean()),
        loss=float(loss) / total,
        images=total,
        confusion_CC=confusion_CC.tolist(),
        class_error_C=[
            1 - recall if present else None
            for recall, present in zip(recall_C.tolist(), present_C.tolist(), strict=True)
        ],
        balanced_loss=float(balanced_T[TEMPERATURES.index(1.0)]),
        calibrated_loss=float(balanced_T.min()),
    )
