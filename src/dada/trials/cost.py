"""What one training costs on a nominal machine, by counting: no clock has a say in a result.

Two equal runs have to make the same trainings, on a machine that is idle and on one that is busy.
So a budget in seconds becomes a number of trainings by arithmetic. A layer takes as long as its
multiplications or as long as moving its numbers, whichever is more (a roofline). How long trainings
really take depends on the machine: `benchmarks/speed/costs.py` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from dada.config import TrainConfig
from dada.data import Split
from dada.engine import ALONE
from dada.models import evaluating
from dada.training.epochs import Length

FORWARDS_OF_A_STEP = 3  # a forward pass, and a backward pass of twice that
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm)  # read what they normalise twice
FREE = (nn.Identity, nn.Dropout, nn.Flatten)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The forward pass of one image through one layer."""

    operations: float = 0.0  # floating-point operations of products
    moved: float = 0.0  # numbers read and written
    weights: float = 0.0  # numbers read once for a whole batch
    grouped: bool = False  # every channel by itself, which matrix units are no use for


@dataclass(frozen=True, kw_only=True)
class Work:
    """The forward pass of one image, layer by layer."""

    layers: tuple[Layer, ...]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What a device does in a second, and what does not depend on the size of a network."""

    operations: float  # floating-point operations a second
    grouped: float  # the same, of convolutions that take every channel by itself
    numbers: float  # moved a second, to and from memory
    launch: float  # seconds to begin a layer
    step: float  # seconds of a step besides: reading, augmenting, the optimiser
    start: float  # seconds until a training's first step, and around its judgement
    decode: float  # seconds for an image that is not held in memory
    head: float  # seconds to fit a head to features

    def forward(self, work: Work, batch: int) -> float:
        """Seconds of a forward pass of that many images."""
        return sum(self._layer(layer, batch) for layer in work.layers)

    def _layer(self, layer: Layer, batch: int) -> float:
        rate = self.grouped if layer.grouped else self.operations
        moved = (layer.moved * batch + layer.weights) / self.numbers
        return self.launch + max(layer.operations * batch / rate, moved)


# cpu: one core of a fast server. Fitted to steps of `small`, wrn16_2 and EfficientNet-Lite0
#      (benchmarks/results/costs-cpu-fast.json; another server is half as fast: -slow.json), and so
#      that the default budgets make the runs that were judged with earlier constants.
# cuda: H200, bf16, the step recorded as a CUDA graph, a training alone on the card. Fitted to ten
#      steps of seven networks (benchmarks/results/costs-h200.json). Where three small trainings
#      share the card, each takes less than this says.
SPEEDS = {
    "cpu": Speed(
        operations=1.3e11,
        grouped=8.4e9,
        numbers=2.6e9,
        launch=0.0,
        step=0.0035,
        start=0.048,
        decode=0.0038,
        head=0.095,
    ),
    "cuda": Speed(
        operations=2.01e14,
        grouped=3.02e12,
        numbers=1.95e12,
        launch=6.36e-6,
        step=0.000459,
        start=0.5,
        decode=0.0005,
        head=0.2,
    ),
}


def forward_work(model: nn.Module, shape: tuple[int, ...]) -> Work:
    """One image's forward pass: products, and the numbers that all layers move.

    torch has counters that see everything, and to use one loads torch's compiler: seconds. What a
    network does between its layers (sums of branches, attention's own products) is not seen.
    """
    layers: list[Layer] = []

    def count(layer: nn.Module, given: Any, made: Any) -> None:
        layers.append(_counted(layer, given, made))

    hooks = [layer.register_forward_hook(count) for layer in model.modules() if _counts(layer)]
    where = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    try:
        with evaluating(model):
            model(torch.zeros(1, *shape, device=where))
    finally:
        for hook in hooks:
            hook.remove()
    return Work(layers=tuple(layers))


def _counts(layer: nn.Module) -> bool:
    if isinstance(layer, FREE):
        return False
    known = (_ConvNd, nn.Linear, nn.MultiheadAttention, *NORMS)
    return isinstance(layer, known) or next(layer.children(), None) is None


def _counted(layer: nn.Module, given: tuple[Any, ...], made: Any) -> Layer:
    made = made[0] if isinstance(made, tuple) else made
    if not isinstance(made, Tensor) or not given or not isinstance(given[0], Tensor):
        return Layer()
    moved = given[0].numel() + made.numel()
    weights = sum(weight.numel() for weight in layer.parameters(recurse=False))
    if isinstance(layer, (_ConvNd, nn.Linear)):
        operations = 2 * made.numel() * layer.weight[0].numel()
        grouped = isinstance(layer, _ConvNd) and layer.groups > 1
        return Layer(operations=operations, moved=moved, weights=weights, grouped=grouped)
    if isinstance(layer, nn.MultiheadAttention):  # four products with all tokens, two between them
        tokens, width = made.shape[-2], made.shape[-1]
        operations = 8 * tokens * width**2 + 4 * tokens**2 * width
        return Layer(operations=operations, moved=4 * moved, weights=4 * width**2)
    if isinstance(layer, NORMS):
        moved += given[0].numel()
    return Layer(moved=moved, weights=weights)


def training_seconds(split: Split, config: TrainConfig, work: Work, device_type: str) -> float:
    """Nominal seconds of one training on `split.train`, judged on `split.val`."""
    assert split.val is not None
    speed = SPEEDS[device_type]
    length = Length.of(config, len(split.train), ALONE)
    batch, steps = length.batch, length.steps
    decoded = 0 if split.train_is_held else steps * batch + len(split.val)
    return (
        speed.start
        + (speed.step + FORWARDS_OF_A_STEP * speed.forward(work, batch)) * steps
        + speed.forward(work, batch) * len(split.val) / batch
        + speed.decode * decoded
    )
