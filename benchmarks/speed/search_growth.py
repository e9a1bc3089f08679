"""How the seconds of a whole search grow with the number of classes and of images.

    python benchmarks/speed/search_growth.py [--out benchmarks/results/growth-cpu.json]

The default, with all of its phases, from data in memory to the report on disk, on one CPU thread:
the network `small` on random images of 8x8. Seconds are those of the CPU. `exponent` is the slope
in logarithms from one case to the next: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import dada

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

SIDE = 8
CLASSES = [(10, 4000), (30, 4000), (100, 4000), (300, 4000), (1000, 4000)]
IMAGES = [(10, 500), (10, 2000), (10, 8000), (10, 50_000)]


def cpu_seconds() -> float:
    """Of this process and of those it started, as far as they have ended."""
    return sum(os.times()[:4])


def search(classes: int, images: int, **settings: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % classes
    ended: dict[str, float] = {}

    def note(phase: str) -> Any:
        return lambda *told: ended.update({phase: cpu_seconds()})

    with tempfile.TemporaryDirectory() as folder:
        begun = cpu_seconds()
        dada.search(
            (pixels, labels),
            model="small",
            out=Path(folder) / "run",
            device="cpu",
            on_epoch=note("measure"),
            on_lookahead=note("look ahead"),
            **settings,
        )
        total = cpu_seconds() - begun
    row: dict[str, Any] = {"classes": classes, "images": images, "cpu_seconds": total}
    last = begun
    for phase, at in ended.items():
        row[phase], last = at - last, at
    return row | {"the rest": begun + total - last}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    search(10, 200, epochs=1, lookahead=0)  # imports and first calls
    curves: dict[str, list[dict[str, Any]]] = {}
    for kind, cases in (("classes", CLASSES), ("images", IMAGES)):
        rows: list[dict[str, Any]] = []
        for case in cases:
            rows.append(search(*case))
            print(json.dumps(rows[-1]), flush=True)
        for before, row in pairwise(rows):
            times = row["cpu_seconds"] / before["cpu_seconds"]
            row["exponent"] = math.log(times) / math.log(row[kind] / before[kind])
        curves[kind] = rows
    if arguments.out:
        content = {"machine": machine(), **curves}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    columns = ["classes", "images", "cpu_seconds", "measure", "look ahead", "the rest"]
    for rows in curves.values():
        print_table(rows, [*columns, "exponent"])


if __name__ == "__main__":
    main()
