"""Convolutions of stacks of networks, and how their work is cut up for a card.

Letters: G networks, B images, H height, W width, C channels, N weights of a network, S splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tiles:
    """How a convolution is cut up: rows and depth of a tile, warps, and loads under way."""

    rows: int = 128
    depth: int = 32
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class WeightTiles:
    """The same for the gradient of weights; `programs` for each multiprocessor set the splits."""

    pixels: int = 64
    c_in: int = 64
    c_out: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 2


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution of a stack, whose weights begin at `at` in a network's row."""

    c_in: int
    c_out: int
    kernel: int
    stride: int
    side_in: int
    at: int = 0

    @property
    def side(self) -> int:
        return -(-self.side_in // self.stride)

    @property
    def size(self) -> int:
        return self.c_out * self.kernel**2 * self.c_in


def forward_tiles(of: Convolution) -> Tiles:
    """The fastest of those tried on an H200 (benchmarks/speed/stack_layers.py)."""
    depth = min(of.c_in, 64)
    if of.c_out == 128:
        return Tiles(128, depth, 4, 3)
    return Tiles(256, depth, 8 if of.c_out <= 32 else 4, 3)


def backward_tiles(of: Convolution) -> Tiles:
    return Tiles(128, min(of.c_out, 64), 4, 3)


def weight_tiles(of: Convolution) -> WeightTiles:
    if of.c_in == 32 and of.stride == 1:
        return WeightTiles(128, 32, min(of.c_out, 64), 4, 3, 2)
    return WeightTiles(64, min(of.c_in, 64), min(of.c_out, 64), 4, 3, 3)


@cache
def _processors(device: torch.device) -> int:
    if device.type == "cpu":  # Triton's interpreter
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def convolve(
    of: Convolution,
    x_GBHWC: Tensor,
    weights_GN: Tensor,
    *,
    tiles: Tiles,
    back: bool = False,
    more: Tensor | None = None,
    moments: bool = False,
    mask: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, partial sums): see `stacked_kernels.convolve`. `mask` is
    the input and `saved` of the BatchNorm whose ReLU y goes back through."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from dada.models import stacked_kernels

    g, b = x_GBHWC.shape[:2]
    c_in, c_out, side = (of.c_out, of.c_in, of.side_in) if back else (of.c_in, of.c_out, of.side)
    y_GBHWC = x_GBHWC.new_empty(g, b, side, side, c_out)
    spread = of.stride if back else 1
    images, lines = _lines(tiles.rows, side // spread)
    count = -(-b // images) * (side // spread // lines) * spread**2
    sums = 1 if moments else 0 if mask is None else 2
    partials = torch.empty(
        (g, 2, c_out, count) if sums else (1,), dtype=torch.float32, device=x_GBHWC.device
    )
    masked_by, saved_out = (y_GBHWC, partials) if mask is None else mask
    weight_GOK = weights_GN[:, of.at : of.at + of.size].unflatten(1, (of.c_out, -1))
    box = [images, lines, 1, side // spread, tiles.depth]
    stacked_kernels.convolve[(count, g)](
        TensorDescriptor.from_tensor(_by_stride(x_GBHWC, 1 if back else of.stride), box),
        TensorDescriptor.from_tensor(
            weight_GOK, [1, tiles.depth, c_out] if back else [1, c_out, tiles.depth]
        ),
        y_GBHWC if more is None else more,
        y_GBHWC,
        masked_by,
        saved_out,
        partials,
        b,
        C_IN=c_in,
        C_OUT=c_out,
        SIDE=side // spread,
        KERNEL=of.kernel,
        STRIDE=of.stride,
        BACK=back,
        MORE=more is not None,
        SUMS=sums,
        PRECISION=_precision(x_GBHWC),
        IMAGES=images,
        LINES=lines,
        BLOCK_K=tiles.depth,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )
    return y_GBHWC, partials


def _lines(pixels: int, side: int) -> tuple[int, int]:
    """(images, lines of each) of a tile of so many pixels."""
    images = max(1, pixels // side**2)
    return images, pixels // (images * side)


def _by_stride(x_GBHWC: Tensor, stride: int) -> Tensor:
    """A view of (G B, H / s, s, W / s, s C)."""
    g, b, h, w, c = x_GBHWC.shape
    return x_GBHWC.view(g * b, h // stride, stride, w // stride, stride * c)


def convolve_weights(
    of: Convolution, x_GBHWC: Tensor, grad_y: Tensor, grad_GN: Tensor, *, tiles: WeightTiles
) -> None:
    """The gradient of the weights, written to their place in grad_GN."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from dada.models import stacked_kernels

    g, b = x_GBHWC.shape[:2]
    rows, pixels = b * of.side**2, tiles.pixels
    while rows % pixels:  # a tile that went on into the next network's images would spread its nan
        pixels //= 2
    images, lines = _lines(pixels, of.side)
    beside = of.c_in // tiles.c_in * (of.c_out // tiles.c_out)
    splits = tiles.programs * _processors(x_GBHWC.device) // (of.kernel * beside * g)
    steps = -(-rows // pixels // max(1, splits))
    splits = -(-rows // pixels // steps)
    partials = torch.empty(splits, g, of.size, dtype=torch.float32, device=x_GBHWC.device)
    box = [images, lines, 1, of.side, tiles.c_in]
    stacked_kernels.convolve_weights[(splits * g, of.kernel, beside)](
        TensorDescriptor.from_tensor(_by_stride(x_GBHWC, of.stride), box),
        TensorDescriptor.from_tensor(grad_y.flatten(1, 3), [1, pixels, tiles.c_out]),
        partials,
        b,
        splits,
        steps,
        C_IN=of.c_in,
        C_OUT=of.c_out,
        SIDE=of.side,
        KERNEL=of.kernel,
        STRIDE=of.stride,
        PRECISION=_precision(x_GBHWC),
        IMAGES=images,
        LINES=lines,
        BLOCK_C=tiles.c_in,
        BLOCK_N=tiles.c_out,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )
    merge_weights(of, partials, grad_GN)


def merge_weights(of: Convolution, partials_SGN: Tensor, grad_GN: Tensor) -> None:
    from dada.models import stacked_kernels

    splits, g, _ = partials_SGN.shape
    block = 64
    stacked_kernels.merge_weights[(-(-of.size // block), g)](
        partials_SGN,
        grad_GN[:, of.at :],
        splits,
        of.size,
        grad_GN.stride(0),
        BLOCK_S=32,
        BLOCK=block,
        num_warps=4,
    )
