"""How good a network is on images it has not seen.

Letters: B images of a batch, C classes, N images in all, T temperatures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.data import Part, batches
from dada.engine import ALONE, Precision, Ranks, channels_last
from dada.models import set_training

BATCH = 500
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
    confusion_CC: list[list[int]]  # [true class][predicted class]
    class_error_C: list[float | None]
    # Every class counts the same; None in files of versions that did not measure it.
    balanced_loss: float | None = None
    calibrated_loss: float | None = None  # the same at the temperature that suits it best

    @property
    def error(self) -> float:
        return 1 - self.accuracy


@torch.no_grad()
def evaluate(
    model: nn.Module,
    normalise: nn.Module,
    part: Part,
    num_classes: int,
    precision: Precision,
    ranks: Ranks = ALONE,
) -> Scores:
    """The scores of a network on every image of a part, in evaluation mode."""
    was_training = model.training
    model.eval()
    device = precision.device
    # Summed on the device: nothing waits until all images have been seen.
    confusion_CC = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)
    among_five = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    loss_TC = torch.zeros(len(TEMPERATURES), num_classes, dtype=torch.float64, device=device)
    every_N = torch.arange(ranks.rank, len(part), ranks.world)
    for images, labels_B in batches(part, every_N.split(BATCH)):
        with precision.passes():
            logits_BC = model(channels_last(normalise(images), device)).float()
        loss += F.cross_entropy(logits_BC, labels_B, reduction="sum")
        loss_TC += _class_losses_TC(logits_BC, labels_B)
        pair_B = labels_B * num_classes + logits_BC.argmax(1)
        confusion_CC += torch.bincount(pair_B, minlength=num_classes**2).view_as(confusion_CC)
        best_B5 = logits_BC.topk(min(5, num_classes)).indices
        among_five += (best_B5 == labels_B.unsqueeze(1)).sum()
    if was_training:
        set_training(model)
    confusion_CC, among_five, loss, loss_TC = (
        ranks.gather(mine.unsqueeze(0)).sum(0) for mine in (confusion_CC, among_five, loss, loss_TC)
    )
    return _scores(confusion_CC.cpu(), int(among_five), float(loss), loss_TC.cpu())


def scores_of_logits(logits_NC: Tensor, labels_N: Tensor, num_classes: int) -> Scores:
    """The same numbers, of logits that are there already."""
    pair_N = labels_N * num_classes + logits_NC.argmax(1)
    confusion_CC = torch.bincount(pair_N, minlength=num_classes**2).view(num_classes, num_classes)
    best_N5 = logits_NC.topk(min(5, num_classes)).indices
    among_five = int((best_N5 == labels_N.unsqueeze(1)).sum())
    loss = float(F.cross_entropy(logits_NC.double(), labels_N, reduction="sum"))
    return _scores(
        confusion_CC.cpu(), among_five, loss, _class_losses_TC(logits_NC, labels_N).cpu()
    )


def _class_losses_TC(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """The loss of all images of a class together, at every temperature."""
    one_hot_BC = F.one_hot(labels_B, logits_BC.shape[1]).double()
    # A product, not a scattered sum: that would differ from run to run on a card.
    loss_TB = torch.stack(
        [F.cross_entropy(logits_BC / t, labels_B, reduction="none") for t in TEMPERATURES]
    )
    return loss_TB.double() @ one_hot_BC


def _scores(confusion_CC: Tensor, among_five: int, loss: float, loss_TC: Tensor) -> Scores:
    total = int(confusion_CC.sum())
    right_C, count_C = confusion_CC.diagonal().double(), confusion_CC.sum(1)
    recall_C = right_C / count_C.clamp(min=1)
    present_C = count_C > 0
    balanced_T = (loss_TC / count_C.clamp(min=1))[:, present_C].mean(1)
    return Scores(
        accuracy=float(right_C.sum()) / total,
        top5=among_five / total if len(confusion_CC) > 5 else None,
        balanced_accuracy=float(recall_C[present_C].mean()),
        loss=loss / total,
        images=total,
        confusion_CC=confusion_CC.tolist(),
        class_error_C=[
            1 - recall if present else None
            for recall, present in zip(recall_C.tolist(), present_C.tolist(), strict=True)
        ],
        balanced_loss=float(balanced_T[TEMPERATURES.index(1.0)]),
        calibrated_loss=float(balanced_T.min()),
    )
