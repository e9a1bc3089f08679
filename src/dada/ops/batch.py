"""Runs operations over a batch in which every image has its own.

Letters: B images, C channels, H height, W width, K operations one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dada.engine import few_threads, share, wants_plain_kernels
from dada.ops import fused, planes
from dada.ops.geometric import LARGEST_SIDE, SAFE_SIDE_INT32
from dada.ops.spec import Op
from dada.ops.table import BY_NAME
from dada.safe_text import quoted

NO_OP = -1
Task = tuple[int, list[int]]  # an operation's place in the table, and rows of the batch
# On a CPU, as many as four images of 224x224 at a time: more need temporaries that leave the cache,
# and with fewer the interpreter, which threads have to share, takes a larger part of the time.
ELEMENTS_AT_ONCE = 4 * 3 * 224 * 224
# A batch this small takes torch a few milliseconds on a card, so a short run (`kernels_for`) would
# wait longer for the compiler than it gains: 128 images of 32x32 in colour are 0.4 million.
SMALL_ON_CUDA = 2**20
# On a CPU, beyond 80x80 in colour, images are done as planes; smaller ones by kernels, which take
# fewer calls.
SMALL_ON_CPU = 3 * 80 * 80
# Batches of 28 images of 224x224 or more, or 1,366 of 32x32, are shared among as many threads as
# torch has. Smaller ones take one thread a few milliseconds, and where other programs use the cores
# a helper may begin as late as that. (Torch's own threads, which wait by spinning, took several
# times as long as one thread on such a machine.)
WORTH_SHARING = 2**22
RANGE_TOLERANCE = 1e-6  # 0.3 as float32 lies 1e-8 outside 0.3


def apply(
    name: str | Op,
    images_BCHW: Tensor,
    value_B: Tensor | Sequence[float] | float,
    *,
    sign_B: Tensor | None = None,
    center_B2: Tensor | None = None,
) -> Tensor:
    """Do one operation to every image of a batch, each with its own value.

    `images_BCHW` is uint8, or float in 0..1 (rounded to 8 bits: the meaning is Pillow's), with
    one or three channels. `value_B` is in the operation's own unit (degrees, a fraction of the
    side, a factor, ...). `sign_B` multiplies it, +1 when not given. `center_B2` is Cutout's
    centre as (x, y) in pixels, the middle of the image when not given.
    """
    op = name if isinstance(name, Op) else BY_NAME.get(name)
    if op is None:
        raise ValueError(f"unknown op {quoted(name)}; the ops are {', '.join(BY_NAME)}")
    check_images(images_BCHW)
    b, _, h, w = images_BCHW.shape
    device = images_BCHW.device
    value_B = _per_image(value_B, "value_B", b, device)
    _check_range(op, value_B)
    if sign_B is not None:
        sign_B = _per_image(sign_B, "sign_B", b, device)
        if device.type == "cpu" and not bool((sign_B.abs() == 1).all()):
            raise ValueError(f"sign_B should hold +1 or -1, got {sign_B.tolist()}")
        value_B = value_B * sign_B
        _check_range(op, value_B)
    if center_B2 is None:
        center_B2 = torch.tensor([w / 2, h / 2], dtype=torch.float64, device=device).expand(b, 2)
    elif tuple(center_B2.shape) != (b, 2):
        raise ValueError(
            f"center_B2 should have shape ({b}, 2): an (x, y) in pixels for every image, "
            f"got {tuple(center_B2.shape)}"
        )
    op_index_B1 = torch.zeros(b, 1, dtype=torch.int64, device=device)
    center_BK2 = center_B2.to(device, torch.float64).unsqueeze(1)
    return run((op,), images_BCHW, op_index_B1, value_B.unsqueeze(1), center_BK2)


def run(
    ops: tuple[Op, ...],
    images_BCHW: Tensor,
    op_index_BK: Tensor,
    value_BK: Tensor,
    center_BK2: Tensor,
    normal: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Do ops[op_index_BK[b, k]] with value_BK[b, k] to image b, for k = 0, 1, ...; -1 is none.

    Values are taken as they come: they are checked where a person or a file hands them over. With
    `normal`, a mean and a deviation for each channel, images (uint8 then) come back as the floats
    (level - mean) / deviation, which saves a network a pass over them.
    """
    levels = to_uint8(images_BCHW).contiguous()
    value_BK = value_BK.to(torch.float64)
    assert normal is None or images_BCHW.dtype == torch.uint8
    steps = op_index_BK, value_BK, center_BK2
    if levels.is_cuda and _worth_compiling(levels):
        levels = fused.run(ops, levels, *steps, normal)
        normal = None
    elif levels.device.type == "cpu":
        if torch.compiler.is_compiling():
            # Threads, numpy and Pillow: the compiler would try to make them its own.
            levels = torch.compiler.disable(_on_cpu)(ops, levels, steps)
        else:
            levels = _on_cpu(ops, levels, steps)
    else:
        for step in zip(*(each.unbind(1) for each in steps), strict=True):
            levels = _all_rows(ops, levels, *step)
    if normal is not None:
        mean_C11, deviation_C11 = (each.view(-1, 1, 1) for each in normal)
        return (levels.float() - mean_C11) / deviation_C11
    return levels if images_BCHW.dtype == torch.uint8 else levels.to(images_BCHW.dtype) / 255


def _worth_compiling(images_BCHW: Tensor) -> bool:
    if not fused.is_available() or max(images_BCHW.shape[-2:]) > SAFE_SIDE_INT32:
        return False
    return not (wants_plain_kernels() and images_BCHW.numel() <= SMALL_ON_CUDA)


def _all_rows(
    ops: tuple[Op, ...], images_BCHW: Tensor, op_index_B: Tensor, value_B: Tensor, center_B2: Tensor
) -> Tensor:
    """Every operation to all images, then choose: static shapes and no synchronisation."""
    result = images_BCHW
    for index, op in enumerate(ops):
        done = op.kernel(images_BCHW, value_B, center_B2)
        result = torch.where((op_index_B == index).view(-1, 1, 1, 1), done, result)
    return result


def _on_cpu(
    ops: tuple[Op, ...], images_BCHW: Tensor, steps: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    done_BCHW = _room_for(images_BCHW)
    large = images_BCHW[:1].numel() > SMALL_ON_CPU
    if not large or not steps[0].shape[1]:
        with few_threads(images_BCHW.device, 0):  # torch's others would spin afterwards
            done_BCHW.copy_(images_BCHW)
    for step in zip(*(each.unbind(1) for each in steps), strict=True):
        if large:
            _wanted_large(ops, images_BCHW, *step, into=done_BCHW)
            images_BCHW = done_BCHW
        else:
            _wanted_small_(ops, done_BCHW, *step)
    return done_BCHW


def _wanted_small_(
    ops: tuple[Op, ...], images_BCHW: Tensor, op_index_B: Tensor, value_B: Tensor, center_B2: Tensor
) -> None:
    """Each operation to the images that want it, in place."""

    def do(task: Task) -> None:
        index, wanted = task
        rows = torch.tensor(wanted)
        some = images_BCHW.index_select(0, rows)
        _put_rows_(images_BCHW, rows, ops[index].kernel(some, value_B[rows], center_B2[rows]))

    _share(do, [task for task in _wanted(op_index_B, images_BCHW) if task[0] != NO_OP], images_BCHW)


def _wanted_large(
    ops: tuple[Op, ...],
    images_BCHW: Tensor,
    op_index_B: Tensor,
    value_B: Tensor,
    center_B2: Tensor,
    *,
    into: Tensor,
) -> None:
    """The same by planes; `into` may be the images."""
    images, done = images_BCHW.numpy(), into.numpy()
    values, centers = value_B.tolist(), center_B2.tolist()

    def do(task: Task) -> None:
        index, rows = task
        if index == NO_OP:
            results: Iterable[planes.Planes] = (images[row] for row in rows)
        else:
            some = np.stack([images[row] for row in rows])
            of_rows = [values[row] for row in rows], [centers[row] for row in rows]
            results = planes.do(ops[index], some, *of_rows)
        for row, result_CHW in zip(rows, results, strict=True):
            done[row] = result_CHW

    # Where nothing is done to an image, it is still to be copied, once.
    copies = into is not images_BCHW
    wanted = _wanted(op_index_B, images_BCHW)
    _share(do, [task for task in wanted if copies or task[0] != NO_OP], images_BCHW)


def _share(do: Callable[[Task], None], tasks: list[Task], images_BCHW: Tensor) -> None:
    share(do, tasks, threads=None if images_BCHW.numel() >= WORTH_SHARING else 1)


def _wanted(op_index_B: Tensor, images_BCHW: Tensor) -> Iterator[Task]:
    """Every operation, and none, that some image wants, and the rows that do, some at a time."""
    by_index: dict[int, list[int]] = {}
    for row, index in enumerate(op_index_B.tolist()):  # torch.unique would wake torch's threads
        by_index.setdefault(index, []).append(row)
    rows_at_once = max(1, ELEMENTS_AT_ONCE // max(1, images_BCHW[:1].numel()))
    for index, rows in by_index.items():
        for first in range(0, len(rows), rows_at_once):
            yield index, rows[first : first + rows_at_once]


def _room_for(images_BCHW: Tensor) -> Tensor:
    """Memory from numpy, which asks for large pages: to touch a large batch for the first time
    otherwise takes half as long as all operations on it (benchmarks/speed/ops_profile.py)."""
    return torch.from_numpy(np.empty(images_BCHW.shape, np.uint8))


def _put_rows_(images_BCHW: Tensor, rows: Tensor, done: Tensor) -> None:
    """images_BCHW[rows] = done, eight bytes at a time where an image is that many: torch copies
    indexed rows element by element.
    """
    size = images_BCHW[0].numel()
    word = next(
        w for w in (torch.int64, torch.int32, torch.int16, torch.uint8) if not size % w.itemsize
    )
    target = images_BCHW.view(len(images_BCHW), size).view(word)
    target.index_copy_(0, rows, done.contiguous().view(len(rows), size).view(word))


def to_uint8(images_BCHW: Tensor) -> Tensor:
    if images_BCHW.dtype == torch.uint8:
        return images_BCHW
    return (images_BCHW.float() * 255).round_().clamp_(0, 255).to(torch.uint8)


def check_images(images_BCHW: Tensor) -> None:
    """Raise ValueError unless these are images an operation can be done to."""
    if not isinstance(images_BCHW, Tensor):
        raise ValueError(
            f"images should be a torch tensor, got {type(images_BCHW).__name__}; "
            "a PIL image goes through a policy's transform"
        )
    shape = tuple(images_BCHW.shape)
    if images_BCHW.ndim != 4 or shape[1] not in (1, 3) or 0 in shape[2:]:
        raise ValueError(
            f"images should have shape (batch, 1 or 3 channels, height, width), got {shape}"
        )
    if max(shape[2:]) > LARGEST_SIDE:
        raise ValueError(f"images may be {LARGEST_SIDE} pixels a side at most, got {shape}")
    if images_BCHW.dtype != torch.uint8 and not images_BCHW.is_floating_point():
        raise ValueError(
            f"images should be uint8, or float in 0..1, got {images_BCHW.dtype}; "
            "convert with images.to(torch.uint8)"
        )
    if images_BCHW.is_floating_point() and not images_BCHW.is_cuda and images_BCHW.numel():
        low, high = images_BCHW.aminmax()
        if not (low >= 0 and high <= 1):  # NaN fails too
            raise ValueError(
                f"float images should lie in 0..1, got {float(low):.4g}..{float(high):.4g}; "
                "augment before normalising"
            )


def _per_image(
    value: Tensor | Sequence[float] | float, name: str, batch: int, device: torch.device
) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float64, device=device)
    if tensor.ndim == 0:
        tensor = tensor.expand(batch)
    if tuple(tensor.shape) != (batch,):
        raise ValueError(
            f"{name} should hold one number for each of the {batch} images, "
            f"got shape {tuple(tensor.shape)}"
        )
    return tensor


def _check_range(op: Op, value_B: Tensor) -> None:
    """On a CPU only: looking at a value on another device would wait for that device."""
    if value_B.device.type != "cpu" or not op.has_strength:
        return
    margin = RANGE_TOLERANCE * (op.high - op.low)
    wrong = ~((value_B >= op.low - margin) & (value_B <= op.high + margin))  # NaN is wrong too
    if bool(wrong.any()):
        offender = float(value_B[wrong][0])
        raise ValueError(f"{op.name} takes a value in {op.low:g}..{op.high:g}, got {offender:g}")
