"""Where the weights of a wide residual network lie in a row of numbers, and its layers' sizes.

Letters: G networks, N weights of a network, R running statistics of a network, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dada.models.stacked_convolutions import Convolution

LEAST_CHANNELS = 16  # what a product of tensor cores takes; the images' channels are filled up
ALIGNMENT = 16  # elements: every weight begins where wide loads may


@dataclass(frozen=True)
class Norm:
    """BatchNorm over c channels: weight and bias behind each other in a network's row."""

    channels: int
    at: int = 0
    running_at: int = 0
    momentum: float = 0.1
    epsilon: float = 1e-5


@dataclass(frozen=True)
class Block:
    norm1: Norm
    conv1: Convolution
    norm2: Norm
    conv2: Convolution
    shortcut: Convolution | None


class Plan:
    """Of wide residual networks like this one (models/wideresnet.py), for images of this side."""

    def __init__(self, network: Any, side: int) -> None:
        self.length, self.running_length = 0, 0
        self.places: list[tuple[str, int, tuple[int, ...]]] = []
        self.running_places: list[tuple[str, int, int]] = []
        self.image_channels = network.stem.in_channels
        self.stem = self._conv("stem", network.stem, side)
        self.blocks: list[Block] = []
        for number, block in enumerate(network.blocks):
            name = f"blocks.{number}."
            norm1 = self._norm(name + "norm1", block.norm1)
            conv1 = self._conv(name + "conv1", block.conv1, side)
            norm2 = self._norm(name + "norm2", block.norm2)
            conv2 = self._conv(name + "conv2", block.conv2, conv1.side)
            shortcut = block.shortcut
            beside = None if shortcut is None else self._conv(name + "shortcut", shortcut, side)
            self.blocks.append(Block(norm1, conv1, norm2, conv2, beside))
            side = conv1.side
        self.norm = self._norm("norm", network.norm)
        self.head = network.head.in_features, network.head.out_features
        self.head_at = self._place("head.weight", (*reversed(self.head),))
        self.bias_at = self._place("head.bias", (self.head[1],))

    def _place(self, name: str, shape: tuple[int, ...]) -> int:
        at = self.length
        self.places.append((name, at, shape))
        self.length += -(-torch.Size(shape).numel() // ALIGNMENT) * ALIGNMENT
        return at

    def _conv(self, name: str, layer: nn.Conv2d, side: int) -> Convolution:
        kernel, stride = layer.kernel_size[0], layer.stride[0]
        c_in = max(layer.in_channels, LEAST_CHANNELS)
        at = self._place(name + ".weight", (layer.out_channels, kernel, kernel, c_in))
        return Convolution(c_in, layer.out_channels, kernel, stride, side, at)

    def _norm(self, name: str, layer: nn.BatchNorm2d) -> Norm:
        channels = layer.num_features
        at = self._place(name + ".weight", (channels,))
        self._place(name + ".bias", (channels,))
        running_at = self.running_length
        self.running_places += [
            (name + ".running_mean", running_at, channels),
            (name + ".running_var", running_at + channels, channels),
        ]
        self.running_length += 2 * channels
        return Norm(channels, at, running_at, layer.momentum or 0.1, layer.eps)

    def rows_of(self, g: int, matrix_GN: Tensor) -> dict[str, Tensor]:
        """Views of network g's row of a matrix, in the names and shapes of its weights."""
        views = {}
        for name, at, shape in self.places:
            view = matrix_GN[g, at : at + torch.Size(shape).numel()].view(shape)
            if len(shape) == 4:
                view = view.permute(0, 3, 1, 2)
            views[name] = view[:, : self.image_channels] if name == "stem.weight" else view
        return views

    def joined(self, weights: Sequence[Tensor]) -> Tensor:
        """A network's weights, in the order of places, as a row; zeros fill the gaps."""
        parts = []
        for (_, _, shape), weight in zip(self.places, weights, strict=True):
            if weight.dim() == 4:
                weight = weight.permute(0, 2, 3, 1)
                if weight.shape[-1] < shape[-1]:
                    weight = pad(weight, (0, shape[-1] - weight.shape[-1]))
            parts.append(weight.reshape(-1))
            if gap := -weight.numel() % ALIGNMENT:
                parts.append(weight.new_zeros(gap))
        return torch.cat(parts)

    def running_rows_of(self, g: int, matrix_GR: Tensor) -> dict[str, Tensor]:
        return {name: matrix_GR[g, at : at + size] for name, at, size in self.running_places}

    def head_of(self, matrix_GN: Tensor) -> tuple[Tensor, Tensor]:
        """The linear layer's (G, classes, C) weights and (G, classes) biases, as views."""
        channels, classes = self.head
        weight = matrix_GN[:, self.head_at : self.head_at + classes * channels]
        bias = matrix_GN[:, self.bias_at : self.bias_at + classes]
        return weight.unflatten(1, (classes, channels)), bias

    def bytes_of(self, batch: int) -> int:
        """Of one network, in a step of training: about what is kept for the way back, and there."""
        ends = ((block.conv1, block.conv2) for block in self.blocks)
        blocks = [
            2 * first.c_in * first.side_in**2 + 6 * second.c_out * second.side**2
            for first, second in ends
        ]
        return 2 * batch * sum(blocks) + 5 * 4 * self.length


def suits(network: Any, image_size: Sequence[int]) -> bool:
    """Whether the kernels are made for a wide residual network: for powers of two that fill tiles
    and registers."""
    height, width = image_size
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    return (
        height == width
        and height in (16, 32, 64)
        and all(layer.out_channels in (16, 32, 64, 128) for layer in layers)
        and network.stem.in_channels <= LEAST_CHANNELS
        and all(weight.requires_grad for weight in network.parameters())
        and all(layer.momentum is not None and layer.track_running_stats for layer in norms)
    )


@cache
def card_suits(device: torch.device) -> bool:
    """The kernels read by the copy engine, which came with compute capability 9."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:
        return False
    return find_spec("triton") is not None and bool(find_spec("triton.tools.tensor_descriptor"))
