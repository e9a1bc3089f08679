"""Several labels for an image, or none.

Letters: B images of a batch, N in all, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.tasks.base import Meter, Passes, Targets, Task


@dataclass(frozen=True, kw_only=True)
class MultilabelScores:
    """Fractions are in 0..1. A class that no image has is in no mean."""

    mean_average_precision: float
    exact: float  # images all of whose labels were right, at a probability of one half
    loss: float
    images: int
    class_average_precision_C: list[float | None] = field(repr=False)


class Multilabel(Task):
    """The target is a row of C numbers, 1 for a label that the image has and 0 for the others."""

    name = "multilabel"
    decides = "mean_average_precision"
    metrics = ("mean_average_precision", "exact")
    measures = True
    scores = MultilabelScores
    of_classes = "class_average_precision_C"
    told: ClassVar[Mapping[str, str]] = {
        "mean_average_precision": "mean average precision",
        "exact": "images with all labels right",
    }

    def loss_of(self, outputs: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        smooth_BC = target.float() * (1 - label_smoothing) + label_smoothing / 2
        return F.binary_cross_entropy_with_logits(outputs.float(), smooth_BC)

    def loss_B(self, outputs: Tensor, target: Tensor) -> Tensor:
        outputs = outputs.float()
        loss_BC = F.binary_cross_entropy_with_logits(outputs, target.float(), reduction="none")
        return loss_BC.mean(-1)

    def meter(self, num_classes: int, device: Any) -> Meter:
        return _Predictions()


class _Predictions:
    adds_up = False

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []

    def add(self, model: nn.Module, views_BCHW: Tensor, targets: Targets, passes: Passes) -> None:
        with passes():
            self.logits.append(model(views_BCHW).float())
        self.labels.append(targets[0])

    def sums(self) -> list[Tensor]:
        return [torch.cat(self.logits), torch.cat(self.labels)]

    def scores(self, sums: Sequence[Tensor]) -> MultilabelScores:
        from sklearn.metrics import average_precision_score

        logits_NC, labels_NC = sums[0].double().cpu(), sums[1].cpu()
        loss = F.binary_cross_entropy_with_logits(logits_NC, labels_NC.double())
        finite_NC = np.nan_to_num(logits_NC.numpy())  # a diverged network is said so by its loss
        precision_C = [
            float(average_precision_score(own_N, of_N)) if own_N.any() else None
            for own_N, of_N in zip(labels_NC.numpy().T, finite_NC.T, strict=True)
        ]
        known = [each for each in precision_C if each is not None]
        return MultilabelScores(
            mean_average_precision=sum(known) / max(1, len(known)),
            exact=float(((logits_NC > 0) == (labels_NC > 0)).all(1).double().mean()),
            loss=float(loss),
            images=len(labels_NC),
            class_average_precision_C=precision_C,
        )
