"""Where the time of a policy goes on one CPU thread at 224x224, and what was tried to lift it.

    python benchmarks/speed/ops_profile.py [--out benchmarks/results/ops-profile.json]

Microseconds per image of every operation beside Pillow's call, and images per second of the whole
policy with one idea at a time taken back.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from ops import POLICY, pictures
from torch import Tensor

import dada
from dada.ops import batch, geometric

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, timed

SIDE, BATCH, ROWS = 224, 256, 8


def operations() -> list[dict[str, Any]]:
    """One operation on eight images through `ops.apply`, and Pillow on the same eight."""
    pil = pictures(ROWS, SIDE)
    images = torch.stack([torch.from_numpy(np.array(i)).permute(2, 0, 1) for i in pil]).contiguous()
    rows = []
    for op in dada.ops.PAPER:
        value = op.low + 0.7 * (op.high - op.low)
        ours = timed(lambda op=op, value=value: dada.ops.apply(op, images, value), seconds=0.5)
        assert op.pillow is not None
        theirs = timed(
            lambda op=op, value=value: [op.pillow(i, value, (112.0, 112.0)) for i in pil],
            seconds=0.5,
        )
        rows.append(
            {
                "operation": op.name,
                "dada_us": 1e6 * ours["median"] / ROWS,
                "pillow_us": 1e6 * theirs["median"] / ROWS,
                "pillow_over_dada": theirs["median"] / ours["median"],
                "n": ours["n"],
            }
        )
    return rows


def put_bytes(images_BCHW: Tensor, rows: Tensor, done: Tensor) -> None:
    images_BCHW.index_copy_(0, rows, done)


def attempts() -> list[dict[str, Any]]:
    pil = pictures(BATCH, SIDE)
    images = torch.stack([torch.from_numpy(np.array(i)).permute(2, 0, 1) for i in pil]).contiguous()
    transform = dada.Policy.load(POLICY).transform(seed=0)
    per_image = 3 * SIDE * SIDE
    changes = {
        "as shipped": {},
        "without row windows (every warp looks up pixels)": {
            (geometric, "shift_rows"): geometric.warp
        },
        "without copying words (rows put back byte by byte)": {(batch, "_put_rows_"): put_bytes},
        "one image at a time": {(batch, "ELEMENTS_AT_ONCE"): per_image},
        "all images of an operation at once": {(batch, "ELEMENTS_AT_ONCE"): BATCH * per_image},
    }
    rows = []
    for name, replaced in changes.items():
        patches = [patch.object(where, what, new) for (where, what), new in replaced.items()]
        for one in patches:
            one.start()
        seconds = timed(lambda: transform(images))
        for one in patches:
            one.stop()
        rows.append(
            {
                "whole policy": name,
                "images_per_second": BATCH / seconds["median"],
                "spread_percent": 100 * (seconds["high"] - seconds["low"]) / seconds["median"],
                "n": seconds["n"],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    by_operation, by_attempt = operations(), attempts()
    if arguments.out:
        content = {"machine": machine(), "operations": by_operation, "attempts": by_attempt}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    print_table(by_operation, list(by_operation[0]))
    print_table(by_attempt, list(by_attempt[0]))


if __name__ == "__main__":
    main()
