"""How good a network is: every number against one that is counted image by image.

Shapes: B images of a batch, C classes, N images in all.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dada.data import TensorPart
from dada.engine import Precision
from dada.models import evaluating
from dada.policy.augment import Normalise
from dada.training.scores import BATCH, Scores, evaluate

CPU = torch.device("cpu")
EXACT = Precision("fp32", CPU)


class Lookup(nn.Module):
    """Says of every image the row of a table that its first pixel names."""

    def __init__(self, logits_NC: Tensor) -> None:
        super().__init__()
        self.register_buffer("logits_NC", logits_NC)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        high, low = images_BCHW[:, 0, 0, 0], images_BCHW[:, 0, 0, 1]
        rows: Tensor = self.logits_NC[(high * 256 + low).round().long()]
        return rows


AS_THEY_ARE = Normalise([0.0], [1 / 255])  # (x - 0) / 1


def numbered(labels_N: Tensor) -> TensorPart:
    """Images that carry their own position in their first two pixels."""
    position_N = torch.arange(len(labels_N))
    images = torch.stack([position_N // 256, position_N % 256], 1).view(-1, 1, 1, 2)
    return TensorPart(images.to(torch.uint8), labels_N)


def judged(logits_NC: Tensor, labels_N: Tensor) -> Scores:
    model = Lookup(logits_NC)
    return evaluate(model, AS_THEY_ARE, numbered(labels_N), logits_NC.shape[1], EXACT)


def by_hand(logits_NC: Tensor, labels_N: Tensor) -> Scores:
    """The definitions, in plain Python."""
    rows, labels = logits_NC.tolist(), labels_N.tolist()
    classes = range(logits_NC.shape[1])
    confusion = [[0 for _ in classes] for _ in classes]
    right = among_five = 0
    loss = 0.0
    for row, label in zip(rows, labels, strict=True):
        ranking = sorted(classes, key=lambda c: -row[c])
        confusion[label][ranking[0]] += 1
        right += ranking[0] == label
        among_five += label in ranking[:5]
        loss += math.log(sum(math.exp(value) for value in row)) - row[label]
    errors = [
        None if not (images := labels.count(c)) else 1 - confusion[c][c] / images for c in classes
    ]
    there = [error for error in errors if error is not None]
    return Scores(
        accuracy=right / len(rows),
        top5=among_five / len(rows) if len(classes) > 5 else None,
        balanced_accuracy=1 - sum(there) / len(there),
        loss=loss / len(rows),
        images=len(rows),
        confusion_CC=confusion,
        class_error_C=errors,
    )


@pytest.mark.parametrize("classes", [2, 5, 6, 11])
@pytest.mark.parametrize("count", [7, BATCH, BATCH + 3])
def test_every_number_is_the_one_counted_by_hand(classes, count):
    noise = torch.Generator().manual_seed(classes * count)
    logits_NC = 3 * torch.randn(count, classes, generator=noise)
    # Uneven classes, or the mean of the classes would be the mean of the images.
    labels_N = (torch.rand(count, generator=noise) ** 2 * classes).long()
    scores, wanted = judged(logits_NC, labels_N), by_hand(logits_NC, labels_N)
    assert scores.confusion_CC == wanted.confusion_CC
    assert scores.images == wanted.images == count
    assert scores.accuracy == pytest.approx(wanted.accuracy, abs=1e-12)
    assert scores.error == pytest.approx(1 - wanted.accuracy, abs=1e-12)
    assert scores.balanced_accuracy == pytest.approx(wanted.balanced_accuracy, abs=1e-12)
    assert scores.class_error_C == pytest.approx(wanted.class_error_C, abs=1e-12)
    assert scores.loss == pytest.approx(wanted.loss, rel=1e-6)
    assert scores.top5 == (None if classes <= 5 else pytest.approx(wanted.top5, abs=1e-12))
    assert scores.balanced_loss == pytest.approx(balanced_loss(logits_NC, labels_N), rel=1e-6)


def balanced_loss(logits_NC: Tensor, labels_N: Tensor) -> float:
    """The mean over classes of the mean over their images."""
    loss_N = F.cross_entropy(logits_NC.double(), labels_N, reduction="none")
    return float(torch.stack([loss_N[labels_N == c].mean() for c in labels_N.unique()]).mean())


def test_the_calibrated_loss_leaves_out_how_confident_a_network_is():
    noise = torch.Generator().manual_seed(0)
    labels_N = torch.arange(600) % 3
    logits_NC = F.one_hot(labels_N, 3) + torch.randn(600, 3, generator=noise)
    sure, right, unsure = (judged(by * logits_NC, labels_N) for by in (2.0, 1.0, 0.5))
    assert sure.balanced_loss > right.balanced_loss < unsure.balanced_loss
    assert sure.calibrated_loss == pytest.approx(right.calibrated_loss)
    assert unsure.calibrated_loss == pytest.approx(right.calibrated_loss)
    assert right.calibrated_loss <= right.balanced_loss


def test_a_class_without_images_has_no_error_and_no_part_in_the_balance():
    logits_NC = torch.eye(4)[torch.tensor([0, 0, 1, 3])]
    scores = judged(logits_NC, torch.tensor([0, 0, 0, 1]))
    assert scores.class_error_C == [pytest.approx(1 / 3), 1.0, None, None]
    assert scores.balanced_accuracy == pytest.approx((2 / 3 + 0) / 2)
    assert scores.accuracy == 0.5
    assert scores.confusion_CC == [[2, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_the_network_is_judged_in_evaluation_mode_and_left_as_it_was():
    """Half of the numbers dropped at random would differ from call to call."""
    noise = torch.Generator().manual_seed(0)
    logits_NC, labels_N = torch.randn(40, 6, generator=noise), torch.arange(40) % 6
    model = nn.Sequential(Lookup(logits_NC), nn.Dropout(0.5), nn.BatchNorm1d(6)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    scores = evaluate(model, AS_THEY_ARE, numbered(labels_N), 6, EXACT)
    assert scores.accuracy == by_hand(logits_NC, labels_N).accuracy
    assert model.training and all(part.training for part in model.modules())
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    model.eval()
    evaluate(model, AS_THEY_ARE, numbered(labels_N), 6, EXACT)
    assert not model.training


class Merging(nn.Linear):
    """As LoRA's layers do: `train` and `eval` do more than set the mode."""

    merged = False

    def train(self, mode: bool = True) -> Merging:
        self.merged = not mode
        return super().train(mode)


def test_a_layer_that_changes_for_evaluation_is_changed_back():
    model = nn.Sequential(Merging(2, 2), nn.BatchNorm1d(2).eval(), nn.Linear(2, 2))
    with evaluating(model):
        assert model[0].merged
        assert not any(layer.training for layer in model.modules())
    assert not model[0].merged
    assert [layer.training for layer in model] == [True, False, True]
