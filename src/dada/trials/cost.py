"""What one training costs on a nominal machine, by counting: no clock has a say in a result.

Two equal runs have to make the same trainings, on a machine that is idle and on one that is busy.
So a budget in seconds becomes a number of trainings by arithmetic. How long they really take
depends on the machine; `docs/verify.md` has both numbers side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dada.config import TrainConfig
from dada.data import Split
from dada.engine import ALONE

FORWARDS_OF_A_STEP = 3  # a forward pass, and a backward pass of twice that


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What a device does in a second, and what does not depend on the size of a network."""

    operations: float  # floating-point operations a second
    step: float  # seconds of a step besides: reading, augmenting, the optimiser, launching
    start: float  # seconds until a training's first step, and around its judgement
    decode: float  # seconds for an image that is not held in memory


# cpu: one core (AVX2), `small` on 8-pixel grey to 128-pixel colour and wrn40_2 at 32 pixels: 15 to
#      30 operations a nanosecond below 64 pixels, 44 for wrn40_2; 12 ms a step whatever the size.
# cuda: H200, bf16, several small networks at once: wrn40_2 at batch 128 takes 3.0 ms a step (this
#      says 2.9), at batch 512 8.2 (8.7); resnet50 at 224 pixels and batch 128 29 (25).
SPEEDS = {
    "cpu": Speed(operations=3e10, step=0.012, start=0.05, decode=0.004),
    "cuda": Speed(operations=1.3e14, step=0.001, start=0.5, decode=0.0005),
}


def forward_operations(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Floating-point operations of one image's forward pass: its convolutions and linear layers.

    torch has counters that see everything, and to use one loads torch's compiler: seconds.
    """
    operations = 0

    def count(layer: nn.Module, given: Any, made: Tensor) -> None:
        nonlocal operations
        weight = layer.weight
        assert isinstance(weight, Tensor)
        operations += 2 * made.numel() * weight[0].numel()

    layers = [layer for layer in model.modules() if isinstance(layer, (_ConvNd, nn.Linear))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    where = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, *shape, device=where))
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return operations


def training_seconds(split: Split, config: TrainConfig, operations: int, device_type: str) -> float:
    """Nominal seconds of one training on `split.train`, judged on `split.val`."""
    assert split.val is not None
    speed = SPEEDS[device_type]
    batch = ALONE.share(config.batch_size, len(split.train))
    steps_per_epoch = len(split.train) // batch
    steps = steps_per_epoch * config.epochs_for(steps_per_epoch)
    forwards = FORWARDS_OF_A_STEP * steps * batch + len(split.val)
    decoded = 0 if split.train_is_held else steps * batch + len(split.val)
    return (
        speed.start
        + speed.step * steps
        + operations * forwards / speed.operations
        + speed.decode * decoded
    )
