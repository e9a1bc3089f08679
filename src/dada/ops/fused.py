"""The same operations on CUDA in two launches, whatever each image is to have done.

A program of the first kernel builds the table of one channel of one image (AutoContrast and
Equalize) or its mean (Contrast); for the others it returns at once. A program of the second does
one block of pixels of one image by that image's own formula. Nothing is moved that is not needed:
running every form over the whole batch with torch is far slower (benchmarks/speed/ops.py).

Operations of other forms (a user's own row) run with torch before, over all images.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from dada.ops.formulas import OTHER, formula_of
from dada.ops.geometric import motions_on
from dada.ops.spec import Op

PIXELS_PER_PROGRAM = 1024


def is_available() -> bool:
    return find_spec("triton") is not None


@cache
def _formulas_on(ops: tuple[Op, ...], device: torch.device) -> Tensor:
    return torch.tensor([formula_of(op) for op in ops], dtype=torch.int32).to(device)


def run(
    ops: tuple[Op, ...],
    levels_BCHW: Tensor,
    op_index_BK: Tensor,
    value_BK: Tensor,
    center_BK2: Tensor,
    normal: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """See `batch.run`; `normal` is applied as the last pixels are written."""
    # Triton is imported, and its kernels compiled, only when a CUDA batch comes.
    from dada.ops.fused_kernels import pixels, statistics

    b, c, h, w = levels_BCHW.shape
    device = levels_BCHW.device
    formula_O = _formulas_on(ops, device)
    motion_O5 = motions_on(tuple(op.kernel for op in ops), device, h, w)
    op_index_BK, value_BK = op_index_BK.contiguous(), value_BK.contiguous()
    center_BK2 = center_BK2.to(torch.float64).contiguous()
    table_BC256 = torch.empty(b, c, 256, dtype=torch.uint8, device=device)
    mean_B = torch.empty(b, dtype=torch.float32, device=device)
    usual_C, deviation_C = (mean_B, mean_B) if normal is None else normal
    steps = op_index_BK.shape[1]
    assert steps or normal is None, "without an operation there is no last pass"
    # Without fusing multiply and add into one rounding: Pillow makes two.
    constants = {"CHANNELS": c, "BLOCK": PIXELS_PER_PROGRAM, "enable_fp_fusion": False}
    blocks = -(-h * w // PIXELS_PER_PROGRAM)
    for k in range(steps):
        levels_BCHW = _others(ops, levels_BCHW, op_index_BK, value_BK, center_BK2, k)
        statistics[(b, c)](
            levels_BCHW, op_index_BK, formula_O, table_BC256, mean_B, k, steps, h * w, **constants
        )
        normalises = normal is not None and k == steps - 1
        result = torch.empty_like(levels_BCHW)
        if normalises:
            result = torch.empty(b, h, w, c, dtype=torch.float32, device=device).permute(0, 3, 1, 2)
        pixels[(b, blocks)](
            levels_BCHW,
            result,
            op_index_BK,
            value_BK,
            center_BK2,
            formula_O,
            motion_O5,
            table_BC256,
            mean_B,
            usual_C,
            deviation_C,
            k,
            steps,
            h,
            w,
            NORMALISE=normalises,
            **constants,
        )
        levels_BCHW = result
    return levels_BCHW


def _others(
    ops: tuple[Op, ...],
    images_BCHW: Tensor,
    op_index_BK: Tensor,
    value_BK: Tensor,
    center_BK2: Tensor,
    k: int,
) -> Tensor:
    """A user's own operations: over all rows, then chosen, since shapes must not depend on data."""
    for i, op in enumerate(ops):
        if formula_of(op) == OTHER:
            done = op.kernel(images_BCHW, value_BK[:, k], center_BK2[:, k])
            wanted = (op_index_BK[:, k] == i).view(-1, 1, 1, 1)
            images_BCHW = torch.where(wanted, done, images_BCHW).contiguous()
    return images_BCHW
