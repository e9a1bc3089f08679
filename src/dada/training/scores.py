"""How good a network is on images it has not seen.

Letters: B images of a batch, N images in all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dada import tasks
from dada.data import Part, batches
from dada.engine import ALONE, Precision, Ranks, channels_last
from dada.models import check_detections, check_logits, evaluating
from dada.tasks import Scores, Task, TaskScores
from dada.tasks.classification import scores_of_logits

__all__ = ["Scores", "check_network", "evaluate", "scores_of_logits"]

CLASSIFICATION = tasks.named("classification")
BATCH = 500
PIXELS = 500 * 64 * 64  # of a batch whose targets are as large as its images, and of any on a card


def check_network(task: Task, model: nn.Module, views_BCHW: Tensor, num_classes: int) -> None:
    """ValueError unless the network gives what this task trains."""
    shape = task.output_shape(views_BCHW.shape, num_classes)
    if shape is None:
        check_detections(model, views_BCHW)
    else:
        check_logits(model, views_BCHW, num_classes, shape=shape if len(shape) > 2 else None)


def evaluate(
    model: nn.Module,
    normalise: nn.Module,
    part: Part,
    num_classes: int,
    precision: Precision,
    ranks: Ranks = ALONE,
    task: Task = CLASSIFICATION,
    *,
    loss_alone: bool = False,
) -> TaskScores:
    """The scores of a network on every image of a part, in evaluation mode.

    With `loss_alone` they may lack all that takes longer than the loss.
    """
    device = precision.device
    meter = (task.loss_meter if loss_alone else task.meter)(num_classes, device)
    first, step = (ranks.rank, ranks.world) if meter.adds_up else (0, 1)
    every_N = torch.arange(first, len(part), step)
    fitting = PIXELS // math.prod(part.image_size)
    size = max(1, min(BATCH, fitting)) if task.moves else BATCH
    if device.type == "cuda":
        size = max(size, fitting)  # small images in few passes, which wait for launches
    with evaluating(model):
        for images, *targets in batches(part, every_N.split(size)):
            meter.add(model, channels_last(normalise(images), device), targets, precision.passes)
    sums = meter.sums()
    if meter.adds_up:
        sums = [ranks.gather(mine.unsqueeze(0)).sum(0) for mine in sums]
    return meter.scores(sums)
