"""Speed of a training step on this machine, and how far it is from what the card could do.

    python benchmarks/speed/train.py [--out benchmarks/results/train.json] [--quick]

Every case runs in one process: the recorded step (a CUDA graph), the same step launched kernel by
kernel, and the recorded step on images that are only normalised, which tells what augmentation
costs. Images are random bytes held on the device: what a step takes does not depend on them.

floating-point operations  counted by torch on one forward and backward pass
bytes                      what layers that keep nothing to themselves must move: the inputs and
                           outputs of every convolution, normalisation and linear layer, once
                           forward and twice backward
ceilings                   a large bfloat16 product and a large copy, measured here

What is already in the file is not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dada import Policy, models
from dada.config import BASES, Base, TrainConfig
from dada.data import Split, TensorPart
from dada.engine import ALONE, kernels_for, resolve_device
from dada.training.loop import Job, recorded_step
from dada.training.many import train_many
from dada.training.state import TrainState

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

STEPS, REPEATS = 20, 7
LONG, VERY_LONG = 2_000, 20_000  # steps of trainings for which kernels are compiled, and tried
# Where the time goes, by words in the names of the kernels; the first that matches counts.
KINDS = {
    "convolution": ("fprop", "dgrad", "wgrad", "convolve", "conv2d", "nchwTonhwc", "nhwcTonchw"),
    "normalise, activate, add": (
        *("forward_sums", "backward_sums", "activate", "backward_input"),  # our own
        *("batch_norm", "batchnorm", "clamp", "CUDAFunctor_add", "threshold"),  # torch's
    ),
    "policy": ("pixels", "statistics", "gather", "searchsorted", "masked_fill"),
    "optimiser, clip": ("multi_tensor", "Sgd", "norm"),
    "products": ("gemm", "nvjet"),
}


@dataclass(frozen=True)
class Case:
    model: str
    batch: int
    side: int
    images: int = 8192
    policy: str = "dada-cifar10"


CASES = (
    Case("wrn40_2", 512, 32),
    Case("wrn40_2", 128, 32),
    Case("wrn28_10", 512, 32),
    Case("resnet50", 128, 224, images=1024, policy="dada-imagenet"),
)
QUICK = (Case("small", 16, 8, images=64),)


def random_split(images: int, side: int, device: torch.device, classes: int = 10) -> Split:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % classes
    part = TensorPart(pixels, labels).to(device)
    return Split(train=part, test=part, classes=tuple(map(str, range(classes))), name="random")


class Loop:
    """The loop of a training, a step at a time."""

    def __init__(
        self,
        case: Case,
        device: torch.device,
        *,
        graph: bool,
        augmented: bool,
        compiled: bool = False,
    ) -> None:
        self.split = random_split(case.images, case.side, device)
        network = models.build(case.model, 10, 3, (case.side, case.side), seed=0)
        base = BASES["cifar10"] if case.side <= 64 else Base(flip=True)
        config = TrainConfig(
            batch_size=case.batch, base=base if augmented else Base(), compile=compiled
        )
        policy = Policy.load(case.policy if augmented else "none")
        self.state = TrainState(network, self.split, policy, config, 0, device, ALONE)
        self.step = recorded_step(self.state, enabled=graph)
        self.rate = torch.tensor(0.01, device=device)
        order = torch.randperm(case.images, device=device)
        self.batches = order[: case.images // case.batch * case.batch].view(-1, case.batch)
        self.at = 0

    def __call__(self) -> Tensor:
        self.at += 1
        index_B = self.batches[self.at % len(self.batches)]
        done: Tensor = self.step(*self.split.train.batch(index_B), self.rate)
        return done


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, device: torch.device, *, steps: int = LONG, **how: bool) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    loop = Loop(case, device, **how)
    samples = []
    with loop.state.lane, kernels_for(steps):
        for _ in range(4):
            loop()
        wait(device)
        ready = time.perf_counter() - begun
        for _ in range(REPEATS):
            start = time.perf_counter()
            for _ in range(STEPS):
                loop()
            wait(device)
            samples.append((time.perf_counter() - start) / STEPS)
        profile = kernels(loop) if device.type == "cuda" and how["graph"] else None
    low, median, high = statistics.quantiles(samples, n=4)
    return {
        "milliseconds": 1e3 * median,
        "low": 1e3 * low,
        "high": 1e3 * high,
        "n": REPEATS * STEPS,
        "images_per_second": case.batch / median,
        "seconds_until_ready": ready,
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "kernels": profile,
    }


def kernels(loop: Loop, steps: int = 3) -> dict[str, Any]:
    """Milliseconds of a step by kind of kernel, and the ten longest kernels."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            loop()
        torch.cuda.synchronize()
    kinds: Counter[str] = Counter()
    rows = []
    for event in profiled.key_averages():
        spent = event.self_device_time_total / steps / 1e3
        kind = next((k for k, words in KINDS.items() if any(w in event.key for w in words)), "rest")
        kinds[kind] += spent
        rows.append((spent, event.count / steps, event.key[:120]))
    return {"kinds": dict(kinds.most_common()), "longest": sorted(rows, reverse=True)[:10]}


def several(device: torch.device) -> list[dict[str, Any]]:
    """Images per second of all trainings together, when some share the card."""
    split = random_split(4000, 32, device)
    config = TrainConfig(epochs=15, batch_size=128, base=BASES["cifar10"])
    rows = []
    for at_once in (1, 2, 3, 4, 6):
        jobs = [
            Job(
                split=split,
                model=models.build("wrn40_2", 10, seed=seed),
                policy=Policy.load("uniform"),
                config=config,
                seed=seed,
                device=device,
            )
            for seed in range(at_once)
        ]
        start = time.perf_counter()
        for _ in train_many(jobs, at_once):
            pass
        seconds = time.perf_counter() - start
        rows.append({"at_once": at_once, "images_per_second": at_once * 15 * 3968 / seconds})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def attempts(case: Case, device: torch.device) -> dict[str, float]:
    """Milliseconds of a step by other ways to the same convolutions."""
    found = {}
    found["every algorithm of cuDNN tried"] = measure(
        case, device, steps=VERY_LONG, graph=True, augmented=True
    )
    found["torch.compile"] = measure(case, device, graph=True, augmented=True, compiled=True)
    return {name: row["milliseconds"] for name, row in found.items()}


def operations_and_bytes(case: Case, device: torch.device) -> tuple[float, float]:
    network = models.build(case.model, 10, 3, (case.side, case.side), seed=0).to(device)
    images = torch.zeros(8, 3, case.side, case.side, device=device)
    moved = 0

    def count(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        nonlocal moved
        moved += 3 * 2 * (given[0].numel() + made.numel())  # three passes in two-byte numbers

    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, nn.Linear)):
            layer.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:
        network(images).sum().backward()
    return counter.get_total_flops() * case.batch / 8, moved * case.batch / 8


def ceilings(device: torch.device) -> dict[str, float]:
    """Operations and bytes per second of a large product and a large copy."""
    side = 8192 if device.type == "cuda" else 512
    left = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    right = torch.randn_like(left)
    source = torch.randint(256, (2**30 if device.type == "cuda" else 2**22,), dtype=torch.uint8)
    source = source.to(device)

    def best(call: Any) -> float:
        times = []
        for _ in range(10):
            wait(device)
            start = time.perf_counter()
            call()
            wait(device)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return {
        "operations_per_second": 2 * side**3 / best(lambda: left @ right),
        "bytes_per_second": 2 * source.numel() / best(source.clone),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="one tiny case, to see that it runs")
    arguments = parser.parse_args()
    device = resolve_device("auto")
    result: dict[str, Any] = {"machine": machine(), "ceilings": ceilings(device), "rows": []}
    if arguments.out and arguments.out.exists():
        result = json.loads(arguments.out.read_text())
    limits, rows = result["ceilings"], result["rows"]
    measured = {(row["model"], row["batch"], row["side"]) for row in rows}
    for case in QUICK if arguments.quick else CASES:
        if (case.model, case.batch, case.side) in measured:
            continue
        operations, moved = operations_and_bytes(case, device)
        floor = max(
            operations / limits["operations_per_second"], moved / limits["bytes_per_second"]
        )
        graph = measure(case, device, graph=True, augmented=True)
        plain = measure(case, device, graph=True, augmented=False)
        eager = measure(case, device, graph=False, augmented=True)
        step = graph["milliseconds"]
        rows.append(
            {
                "model": case.model,
                "batch": case.batch,
                "side": case.side,
                "images_per_second": graph["images_per_second"],
                "ms": step,
                "spread": (graph["high"] - graph["low"]) / step,
                "eager_ms": eager["milliseconds"],
                "times_eager": eager["milliseconds"] / step,
                "augmentation": step / plain["milliseconds"] - 1,
                "floor_ms": 1e3 * floor,
                "share_of_limit": 1e3 * floor / step,
                "teraflop": operations / 1e12,
                "gigabytes": moved / 1e9,
                "peak_GiB": graph["peak_GiB"],
                "graph": graph,
                "eager": eager,
                "not_augmented": plain,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if not arguments.quick and device.type == "cuda":
        for name, more in (
            ("several_at_once", lambda: several(device)),
            ("attempts_wrn28_10", lambda: attempts(CASES[2], device)),
        ):
            if name in result:
                continue
            result[name] = more()
            print(name, json.dumps(result[name]), flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    columns = "model batch side images_per_second ms spread eager_ms times_eager augmentation"
    print_table(rows, [*columns.split(), "floor_ms", "share_of_limit", "peak_GiB"])
    for row in rows:
        if row["graph"]["kernels"]:
            kinds = row["graph"]["kernels"]["kinds"].items()
            where = ", ".join(f"{kind} {spent:.2f}" for kind, spent in kinds)
            print(f"{row['model']} {row['batch']}: {where} ms")


if __name__ == "__main__":
    main()
