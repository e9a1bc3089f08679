"""Where the time of a policy goes on one CPU thread at 224x224, and what was tried to lift it.

    python benchmarks/speed/ops_profile.py [--out benchmarks/results/ops-profile.json]

Microseconds per image of every operation beside Pillow's call, and images per second of the whole
policy with one idea at a time taken back: seconds of the CPU, all in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from ops import PILLOW, POLICY, pictures
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

import dada
from dada.ops import batch, pillow, planes
from dada.ops import photometric as photo

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, timed_in_turns

SIDE, BATCH, ROWS = 224, 256, 8


def operations() -> list[dict[str, Any]]:
    """One operation on eight images through `ops.apply`, and Pillow's own call on the same."""
    pil, images = some_images(ROWS)
    rows = []
    for op in dada.ops.PAPER:
        value = op.low + 0.7 * (op.high - op.low)
        ours, theirs = timed_in_turns(
            [
                partial(dada.ops.apply, op, images, value),
                partial(lambda call, value: [call(i, value) for i in pil], PILLOW[op.name], value),
            ],
            clock=time.process_time,
            rounds=40,
        )
        rows.append(
            {
                "operation": op.name,
                "dada_us": 1e6 * statistics.median(ours) / ROWS,
                "pillow_us": 1e6 * statistics.median(theirs) / ROWS,
                "pillow_over_dada": statistics.median(theirs) / statistics.median(ours),
                "n": len(ours),
            }
        )
    return rows


def some_images(count: int) -> tuple[list[Image.Image], Tensor]:
    pil = pictures(count, SIDE)
    return pil, torch.stack([pil_to_tensor(i) for i in pil]).contiguous()


def replaced(changes: dict[tuple[Any, str], Any], call: Callable[[], Any]) -> Callable[[], None]:
    def changed() -> None:
        with ExitStack() as stack:
            for (where, what), new in changes.items():
                stack.enter_context(patch.object(where, what, new))
            call()

    return changed


def attempts() -> list[dict[str, Any]]:
    _, images = some_images(BATCH)
    transform = dada.Policy.load(POLICY).transform(seed=0)
    by_kernels = {(batch, "SMALL_ON_CPU"): images.numel()}
    changes: dict[str, dict[tuple[Any, str], Any]] = {
        "as shipped": {},
        "without numpy's lines (every operation by Pillow on a colour picture)": {
            (planes, "LINES"): {},
        },
        "without adding rows (Sharpness by Pillow's filter)": {
            (planes, "LINES"): {k: v for k, v in planes.LINES.items() if k is not photo.sharpness},
            (pillow, "SMALL_PICTURE"): SIDE * SIDE,
        },
        "without large pages": {(batch, "_room_for"): torch.empty_like},
        "by operation (torch, four images at a time)": by_kernels,
        "by operation, all images at once": {
            **by_kernels,
            (batch, "ELEMENTS_AT_ONCE"): images.numel(),
        },
    }
    calls = [replaced(each, lambda: transform(images)) for each in changes.values()]
    found = timed_in_turns(calls, clock=time.process_time, rounds=15)
    rows = []
    for name, seconds in zip(changes, found, strict=True):
        low, median, high = statistics.quantiles(seconds, n=4)
        rows.append(
            {
                "whole policy": name,
                "images_per_second": BATCH / median,
                "spread_percent": 100 * (high - low) / median,
                "n": len(seconds),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = {part.__name__: part() for part in (operations, attempts)}
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n")
    for rows in content.values():
        print_table(rows, list(rows[0]))


if __name__ == "__main__":
    main()
