"""BatchNorm followed by ReLU as one layer, with the addition of a residual branch before it.

On CUDA, training on channels-last batches runs in two launches forward and two back, and moves

    forward   x | x, y                 with a residual   x, residual, sum | sum, y
    backward  x, grad | x, grad, grad  with a skip path  one more gradient in the last pass

11 tensors in all with both. Torch's own layers move 19 in about ten launches: the sum, ReLU and its
gradient, and the sum of two gradients are passes of their own. Everywhere else (another layout or
device, evaluation, float64, forward mode) it is torch's own layers, bit for bit.

Legend: B images, C channels, H height, W width, P programs.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dada.engine import wants_plain_kernels

TILE_ELEMENTS = 2048  # with 4 warps 16 for each thread: two (float32: four) loads of 16 bytes
NUM_WARPS = 4
# Summing programs for each multiprocessor, and registers of their threads: 4 x 128 threads fit, so
# there is one wave and no tail; more would only leave more partial results to merge.
SUMMING_PROGRAMS, REGISTERS = 4, 128
# Of the other programs, from which point on one takes more than one tile, and how many at most.
OTHER_PROGRAMS, MOST_TILES = 16, 4
WIDE_FROM = 256  # channels; narrow networks have only narrow tiles
HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


class BatchNormReLU(nn.BatchNorm2d):
    """relu(BatchNorm(x)); parameters, buffers and checkpoints are those of nn.BatchNorm2d."""

    _arrivals: Tensor | None = None  # the kernels' counters: zero between two launches

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self._can_fuse(x_BCHW):
            y_BCHW: Tensor = _FusedBatchNormReLU.apply(*self._arguments(x_BCHW, None))[0]
            return y_BCHW
        return functional.relu(super().forward(x_BCHW), inplace=True)

    def add(self, x_BCHW: Tensor, residual_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """(relu(BatchNorm(s)), s) with s = x + residual."""
        alike = all(
            getattr(x_BCHW, of) == getattr(residual_BCHW, of) for of in ("shape", "dtype", "device")
        )
        if alike and _suits_kernels(residual_BCHW) and self._can_fuse(x_BCHW):
            y_BCHW, sum_BCHW = _FusedBatchNormReLU.apply(*self._arguments(x_BCHW, residual_BCHW))
            return y_BCHW, sum_BCHW
        sum_BCHW = x_BCHW + residual_BCHW
        return self(sum_BCHW), sum_BCHW

    def _can_fuse(self, x_BCHW: Tensor) -> bool:
        device = x_BCHW.device
        own = (self.weight, self.bias, self.running_mean, self.running_var)
        return (
            self.training
            and _suits_kernels(x_BCHW)
            and not wants_plain_kernels()
            and not torch.compiler.is_compiling()
            and self.momentum is not None
            and all(t is not None and t.dtype == torch.float32 for t in own)
            and all(t is not None and t.device == device for t in self._buffers.values())
            and x_BCHW.shape[1] == self.num_features
            and x_BCHW.numel() > self.num_features  # of one value there is no variance
            and _can_launch_on(device)
        )

    def _arguments(self, x_BCHW: Tensor, residual_BCHW: Tensor | None) -> tuple[Any, ...]:
        buffers = (self.running_mean, self.running_var, self.num_batches_tracked)
        settings = (*buffers, self.momentum, self.eps, self._counters(x_BCHW.device))
        return x_BCHW, residual_BCHW, self.weight, self.bias, *settings

    def _counters(self, device: torch.device) -> Tensor:
        """One for each block of channels; like the running statistics, for one stream at a time."""
        held = self._arrivals
        if held is not None and held.device == device:
            return held
        made = torch.zeros(_tile(self.num_features)[2], dtype=torch.int32, device=device)
        # What a capture allocates is not zero until the graph runs, so it is not kept.
        if not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            self._arrivals = made
        return made


def _can_launch_on(device: torch.device) -> bool:
    """Triton launches on the current card only."""
    on_current = device.type == "cuda" and device.index == torch.cuda.current_device()
    return on_current and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return find_spec("triton") is not None


@cache
def _processors(device: torch.device) -> int:
    if device.type == "cpu":  # Triton's interpreter
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _suits_kernels(x_BCHW: Tensor) -> bool:
    return (
        x_BCHW.dim() == 4
        and x_BCHW.dtype in HALF_AND_SINGLE
        and x_BCHW.is_contiguous(memory_format=torch.channels_last)
    )


def _tile(channels: int) -> tuple[int, int, int]:
    """(rows of a tile, channels of a tile, tiles beside each other).

    A width is a set of kernels to compile, which takes as long as a hundred steps of a small
    network, so that one has one. 64 channels of bfloat16 are a line of the cache, 32 half a line,
    which is what memory delivers at a time.
    """
    wide = 64 if channels % 64 == 0 and channels >= WIDE_FROM else 32
    return TILE_ELEMENTS // wide, wide, -(-channels // wide)


def _constants(channels: int) -> dict[str, Any]:
    """What a kernel is compiled for. Fused multiply-add everywhere: ReLU's mask is computed
    again in the backward pass, and must be the same."""
    rows, width, _ = _tile(channels)
    return {"BLOCK_R": rows, "BLOCK_C": width, "num_warps": NUM_WARPS, "enable_fp_fusion": True}


def _summing_grid(rows: int, channels: int, step: int, device: torch.device) -> tuple[int, int]:
    """(programs for each block of channels, all programs) of a pass that sums `step` rows a time"""
    blocks = _tile(channels)[2]
    programs = max(1, SUMMING_PROGRAMS * _processors(device) // blocks)
    programs = min(programs, -(-rows // step))
    return programs, programs * blocks


def _other_grid(rows: int, channels: int, device: torch.device) -> tuple[int, int]:
    """(tiles of each program, all programs) of a pass without sums."""
    block_rows, _, blocks = _tile(channels)
    tiles = -(-rows // block_rows)
    each = tiles * blocks // (OTHER_PROGRAMS * _processors(device))
    each = min(max(each, 1), MOST_TILES)
    return each, -(-tiles // each) * blocks


def _rows(x_BCHW: Tensor) -> int:
    return x_BCHW.numel() // x_BCHW.shape[1]


class _FusedBatchNormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BCHW: Tensor,
        residual_BCHW: Tensor | None,
        weight_C: Tensor,
        bias_C: Tensor,
        running_mean_C: Tensor,
        running_var_C: Tensor,
        batches: Tensor,
        momentum: float,
        epsilon: float,
        arrivals: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        # Triton is imported, and its kernels compiled, only when a CUDA batch comes.
        from dada.models.batchnorm_kernels import activate, forward_sums

        device, channels, rows = x_BCHW.device, x_BCHW.shape[1], _rows(x_BCHW)
        block_rows = _tile(channels)[0]
        constants = _constants(channels)
        # `forward_sums` reads two tiles at a time.
        programs, grid = _summing_grid(rows, channels, 2 * block_rows, device)
        partials_2PC = torch.empty(2, programs, channels, dtype=torch.float32, device=device)
        saved_4C = torch.empty(4, channels, dtype=torch.float32, device=device)
        sum_BCHW = None if residual_BCHW is None else _empty_like(x_BCHW)
        forward_sums[(grid,)](
            x_BCHW,
            x_BCHW if residual_BCHW is None else residual_BCHW,
            x_BCHW if sum_BCHW is None else sum_BCHW,
            partials_2PC,
            arrivals,
            weight_C,
            bias_C,
            running_mean_C,
            running_var_C,
            batches,
            saved_4C,
            rows,
            channels,
            momentum,
            epsilon,
            HAS_RESIDUAL=residual_BCHW is not None,
            maxnreg=REGISTERS,
            **constants,
        )
        given_BCHW = x_BCHW if sum_BCHW is None else sum_BCHW
        y_BCHW = _empty_like(x_BCHW)
        each, grid = _other_grid(rows, channels, device)
        activate[(grid,)](given_BCHW, y_BCHW, saved_4C, rows, channels, each, **constants)
        ctx.save_for_backward(given_BCHW, saved_4C)
        ctx.arrivals = arrivals
        ctx.set_materialize_grads(False)
        return y_BCHW, sum_BCHW

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_y_BCHW: Tensor | None, grad_sum_BCHW: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from dada.models.batchnorm_kernels import backward_input, backward_sums

        none = (None,) * 6
        if grad_y_BCHW is None:  # only the sum was used
            return grad_sum_BCHW, grad_sum_BCHW, None, None, *none
        x_BCHW, saved_4C = ctx.saved_tensors
        device, channels, rows = x_BCHW.device, x_BCHW.shape[1], _rows(x_BCHW)
        block_rows = _tile(channels)[0]
        constants = _constants(channels)
        grad_y_BCHW = grad_y_BCHW.contiguous(memory_format=torch.channels_last)
        programs, grid = _summing_grid(rows, channels, block_rows, device)
        partials_2PC = torch.empty(2, programs, channels, dtype=torch.float32, device=device)
        sums_4C = torch.empty_like(saved_4C)
        backward_sums[(grid,)](
            x_BCHW,
            grad_y_BCHW,
            partials_2PC,
            ctx.arrivals,
            saved_4C,
            sums_4C,
            rows,
            channels,
            maxnreg=REGISTERS,
            **constants,
        )
        needs_x, needs_residual, needs_weight, needs_bias = ctx.needs_input_grad[:4]
        grad_x_BCHW = None
        if needs_x or needs_residual:
            grad_x_BCHW = _empty_like(x_BCHW)
            more_BCHW = grad_y_BCHW
            if grad_sum_BCHW is not None:
                more_BCHW = grad_sum_BCHW.contiguous(memory_format=torch.channels_last)
            each, grid = _other_grid(rows, channels, device)
            backward_input[(grid,)](
                x_BCHW,
                grad_y_BCHW,
                more_BCHW,
                grad_x_BCHW,
                saved_4C,
                sums_4C,
                rows,
                channels,
                each,
                HAS_GRAD_TOTAL=grad_sum_BCHW is not None,
                **constants,
            )
        return (
            grad_x_BCHW if needs_x else None,
            grad_x_BCHW if needs_residual else None,
            sums_4C[0] if needs_weight else None,
            sums_4C[1] if needs_bias else None,
            *none,
        )


def _empty_like(x_BCHW: Tensor) -> Tensor:
    return torch.empty_like(x_BCHW, memory_format=torch.channels_last)
