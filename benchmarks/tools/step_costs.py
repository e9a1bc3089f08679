"""Nominal milliseconds of a training step beside measured ones, for docs/verify.md.

The clock's are in costs-h200.json and, of two servers of one name that differ by a factor of two,
in costs-cpu-fast.json and costs-cpu-slow.json. The nominal ones are made of today's
constants (`SPEEDS`) and the layers in costs-layers.json, which `benchmarks/speed/costs.py --count`
wrote: to count them anew for every table would build all networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from measure import markdown, result_of

from dada.trials.cost import FORWARDS_OF_A_STEP, SPEEDS, Layer, Speed, Work

GOAL = 1.5  # the factor, either way
# file -> the device by its kind, and what a reader is told of it besides its name
MEASURED = {
    "costs-h200": ("cuda", ""),
    "costs-cpu-fast": ("cpu", ", a fast server"),
    "costs-cpu-slow": ("cpu", ", a slow server"),
}


def nominal(speed: Speed, work: Work, batch: int) -> float:
    """Seconds of a step."""
    return speed.step + FORWARDS_OF_A_STEP * speed.forward(work, batch)


def counted(work: Work) -> list[list[Any]]:
    """Layers as lists, equal ones once, with how many there are of each."""
    alike = Counter(work.layers)
    return [[x.operations, x.moved, x.weights, x.grouped, n] for x, n in alike.items()]


def work_of(case: str) -> Work:
    layers: list[Layer] = []
    for operations, moved, weights, grouped, count in result_of("costs-layers")[case]:
        layer = Layer(operations=operations, moved=moved, weights=weights, grouped=grouped)
        layers += [layer] * count
    return Work(layers=tuple(layers))


def steps() -> Iterator[tuple[str, str, float, float]]:
    """Device, network with its images and batch, measured and nominal milliseconds."""
    for file, (kind, which) in MEASURED.items():
        found = result_of(file)
        device = found["machine"]["gpu"] or f"one core of {found['machine']['cpu']}{which}"
        for row in found["rows"]:
            batch = int(row["case"].rpartition(" x ")[2])
            seconds = nominal(SPEEDS[kind], work_of(row["case"]), batch)
            yield device, row["case"], row["milliseconds"], 1e3 * seconds


def steps_table() -> str:
    rows, missed = [], dict[str, list[str]]()
    for device, case, took, meant in steps():
        ratio = meant / took
        rows.append((device, case, f"{took:.1f}", f"{meant:.1f}", f"{ratio:.2f}"))
        if not 1 / GOAL <= ratio <= GOAL:
            missed.setdefault(device, []).append(f"{case} ({ratio:.2f})")
    columns = ("device", "network, side x batch", "measured, ms", "nominal, ms", "ratio")
    goal = f"\nThe goal is a factor of {GOAL} either way. "
    where = [f"on {device} by {', '.join(cases)}" for device, cases in missed.items()]
    verdict = f"It is missed {'; '.join(where)}.\n" if missed else "All keep it.\n"
    return markdown(columns, rows) + goal + verdict
