"""Nominal against measured seconds of a training step, and the constants that would fit best.

    python benchmarks/speed/costs.py --device cuda [--out benchmarks/results/costs-h200.json]
    python benchmarks/speed/costs.py --device cpu --out benchmarks/results/costs-cpu-fast.json
    python benchmarks/speed/costs.py --count

A budget in seconds is turned into a number of trainings by counting (src/dada/trials/cost.py). This
says how far that is from the clock, network by network: on a card with the step recorded as a CUDA
graph, as trainings run; on a CPU as seconds of one core's own work, so that a busy machine counts
the same. The goal is a factor of 1.5 either way. At the end come constants fitted to these
measurements, to be written into `SPEEDS` by a person. With --count nothing is timed: the layers of
all networks are written into costs-layers.json, of which the table in docs/verify.md is made.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dada import Policy, models
from dada.config import Base, TrainConfig
from dada.data import Split, TensorPart
from dada.engine import ALONE, kernels_for, memory_kept, resolve_device
from dada.training.loop import recorded_step
from dada.training.state import TrainState
from dada.trials.cost import SPEEDS, Speed, Work, forward_work

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import RESULTS, machine, print_table
from step_costs import GOAL, counted, nominal

FITTED = ("operations", "grouped", "numbers", "launch", "step")


@dataclass(frozen=True)
class Case:
    model: str
    side: int
    batch: int
    channels: int = 3
    counts: bool = True  # towards the goal; the others only help the fit

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.side, self.side

    def network(self) -> nn.Module:
        return models.build(self.model, 10, self.channels, self.shape[1:], seed=0)

    def __str__(self) -> str:
        return f"{self.model} {self.side} px x {self.batch}"


CASES = {
    "cuda": (
        Case("wrn40_2", 32, 128),
        Case("torchvision:resnet18", 224, 64),
        Case("torchvision:resnet50", 224, 64),
        Case("timm:tf_efficientnet_lite0", 224, 64),
        Case("timm:mobilenetv3_large_100", 224, 64),
        Case("timm:convnext_tiny", 224, 64),
        Case("timm:vit_small_patch16_224", 224, 64),
        Case("wrn40_2", 32, 512, counts=False),
        Case("timm:tf_efficientnet_lite0", 160, 32, counts=False),
        Case("torchvision:resnet18", 128, 32, counts=False),
    ),
    "cpu": (
        Case("small", 8, 128, channels=1),
        Case("small", 12, 64),
        Case("small", 32, 128),
        Case("timm:tf_efficientnet_lite0", 96, 32),
        Case("timm:tf_efficientnet_lite0", 160, 16),
        Case("wrn16_2", 32, 32, counts=False),
    ),
}
QUICK = (Case("small", 8, 16, channels=1),)


def step_of(case: Case, device: torch.device) -> tuple[TrainState, Callable[[], Tensor], Work]:
    """The step of a training under TrivialAugment on random images that are held on the device."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2 * case.batch, *case.shape), generator=generator)
    labels = torch.arange(len(images)) % 10
    part = TensorPart(images.to(torch.uint8), labels).to(device)
    split = Split(train=part, test=part, classes=tuple(map(str, range(10))), name="random")
    network = case.network()
    work = forward_work(network, case.shape)
    config = TrainConfig(batch_size=case.batch, base=Base(flip=True))
    policy = Policy.load("trivialaugment")
    state = TrainState(network, split, policy, config, 0, device, ALONE)
    step = recorded_step(state)
    rate = torch.tensor(0.001, device=device)
    index_B = torch.arange(case.batch, device=device)
    return state, lambda: step(*part.batch(index_B), rate), work


def measure(case: Case, device: torch.device, repeats: int) -> tuple[list[float], Work]:
    """Seconds of a step, several times."""
    state, step, work = step_of(case, device)
    cuda = device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    steps = 10 if cuda else 2
    samples = []
    with memory_kept(device), state.lane, kernels_for(2_000):
        for _ in range(5):
            step()
        for _ in range(repeats):
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            for _ in range(steps):
                step()
            if cuda:
                torch.cuda.synchronize()
            samples.append((clock() - start) / steps)
    return samples, work


def count_layers() -> None:
    """A case a line."""
    lines = []
    for case in sorted({case for cases in CASES.values() for case in cases}, key=str):
        work = forward_work(case.network(), case.shape)
        lines.append(f" {json.dumps(str(case))}: {json.dumps(counted(work))}")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (RESULTS / "costs-layers.json").write_text(text)


def fitted(start: Speed, rows: list[tuple[Work, int, float]]) -> Speed:
    """Constants that bring nominal seconds closest to measured ones, by their logarithms."""
    from scipy.optimize import minimize

    def speed_at(logs: Any) -> Speed:
        return replace(start, **dict(zip(FITTED, map(math.exp, logs), strict=True)))

    begin = [math.log(max(getattr(start, name), 1e-7)) for name in FITTED]

    def miss(logs: Any) -> float:
        speed = speed_at(logs)
        far = sum(math.log(nominal(speed, work, batch) / took) ** 2 for work, batch, took in rows)
        # Few rows, five constants: what they cannot tell stays where it was.
        drift = sum((now - then) ** 2 for now, then in zip(logs, begin, strict=True))
        return far + 0.003 * drift

    found = minimize(miss, begin, method="Nelder-Mead", options={"maxiter": 8000, "maxfev": 8000})
    return speed_at(found.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one small case, to see it run")
    parser.add_argument("--count", action="store_true", help="count layers, time nothing")
    args = parser.parse_args()
    if args.count:
        count_layers()
        return
    device = resolve_device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    speed = SPEEDS[device.type]
    table, rows = [], []
    for case in QUICK if args.quick else CASES[device.type]:
        samples, work = measure(case, device, 2 if args.quick else args.repeats)
        took = statistics.median(samples)
        rows.append((work, case.batch, took))
        predicted = nominal(speed, work, case.batch)
        row = {
            "case": str(case),
            "milliseconds": 1e3 * took,
            "low": 1e3 * min(samples),
            "high": 1e3 * max(samples),
            "nominal": 1e3 * predicted,
            "ratio": predicted / took,
            "counts": case.counts,
        }
        table.append(row)
        print(f"{case}: {1e3 * took:.2f} ms, nominal {1e3 * predicted:.2f}", flush=True)
    suggested = fitted(speed, rows)
    for row, (work, batch, took) in zip(table, rows, strict=True):
        row["ratio_when_fitted"] = nominal(suggested, work, batch) / took
    columns = ("case", "milliseconds", "low", "high", "nominal", "ratio", "ratio_when_fitted")
    print_table(table, columns)
    outside = [row["case"] for row in table if row["counts"] and not 1 / GOAL < row["ratio"] < GOAL]
    print(f"outside a factor of {GOAL}: {', '.join(outside) or 'none'}")
    print("suggested:", ", ".join(f"{name}={getattr(suggested, name):.3g}" for name in FITTED))
    if args.out is not None:
        content = {
            "machine": machine(),
            "rows": table,
            "constants": asdict(speed),
            "suggested": {name: getattr(suggested, name) for name in FITTED},
        }
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
