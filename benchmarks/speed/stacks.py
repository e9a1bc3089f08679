"""Networks as one stack, and one network by the same kernels, against today's layers and streams.

    python benchmarks/speed/stacks.py [--out benchmarks/results/stacks.json] [--seconds 150]

WRN-40-2 on 32x32 images, bfloat16, every step a CUDA graph.

gradients  errors against float64, beside those of torch's layers in bfloat16
steps      forward, loss, backward and SGD on random pixels: stacks of G networks; one network, and
           several on streams (benchmarks/speed/stacked.py), by cuDNN and by the kernels of a stack
training   the loop of a training under a policy
ends       looking ahead: three trainings whose ends go on under 16 policies each

Letters: G networks, B images.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table
from stacked import CLASSES, REPEATS, SIDE, STEPS, Row
from stacked import measure as measure_streams
from train import Case, kernels, random_split
from train import measure as measure_training

from dada import Policy, models
from dada.config import BASES, TrainConfig
from dada.engine import resolve_device, whole_networks
from dada.engine.kernels import STEPS_WORTH_COMPILING, STEPS_WORTH_WHOLE_NETWORKS
from dada.models import stacked
from dada.models.stacked import StackedWideResNet
from dada.policy_search.lookahead import runs

MODEL = "wrn40_2"
STACKS = ((1, 128), (1, 512), (1, 2048), (4, 128), (8, 128), (16, 128))
TODAY = (
    *(Row("one", batch=batch) for batch in (128, 512, 2048)),
    *(Row("streams", streams=streams) for streams in (3, 6, 16)),
)


class StackStep:
    """A training step of a stack, recorded."""

    def __init__(self, stack: StackedWideResNet, groups: int, batch: int) -> None:
        self.stack = stack.cuda()
        self.images_GBCHW = torch.randn(groups, batch, 3, SIDE, SIDE, device="cuda")
        self.labels_GB = torch.randint(CLASSES, (groups, batch), device="cuda")
        self.optimiser = torch.optim.SGD(
            stack.parameters(), 0.01, 0.9, weight_decay=5e-4, nesterov=True, fused=True
        )
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.eager()
        self.stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.eager()

    def eager(self) -> None:
        self.optimiser.zero_grad()
        logits = self.stack(self.images_GBCHW).float().flatten(0, 1)
        loss = cross_entropy(logits, self.labels_GB.flatten(), reduction="sum")
        (loss / self.labels_GB.shape[1]).backward()
        self.optimiser.step()

    def __call__(self) -> None:
        with torch.cuda.stream(self.stream):
            self.graph.replay()


def gradients(batch: int = 64) -> dict[str, float]:
    """||wrong|| / ||right|| over all weights of a network."""
    networks = [models.build(MODEL, CLASSES, seed=seed).cuda() for seed in range(2)]
    images = torch.randn(2, batch, 3, SIDE, SIDE, device="cuda")
    labels = torch.randint(CLASSES, (2, batch), device="cuda")
    stack = StackedWideResNet(networks, SIDE)
    loss = cross_entropy(stack(images).float().flatten(0, 1), labels.flatten(), reduction="sum")
    (loss / batch).backward()
    assert stack.weights_GN.grad is not None
    exact = copy.deepcopy(networks[1]).double()
    cross_entropy(exact(images[1].double()), labels[1]).backward()
    layers = networks[1].to(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        logits = layers(images[1].contiguous(memory_format=torch.channels_last))
    cross_entropy(logits.float(), labels[1]).backward()
    found = {
        "stack": stack.plan.rows_of(1, stack.weights_GN.grad),
        "layers": {name: weight.grad for name, weight in layers.named_parameters()},
    }
    right = {name: weight.grad for name, weight in exact.named_parameters()}
    return {
        way: (_norm({n: g.double() - right[n] for n, g in got.items()}) / _norm(right)).item()
        for way, got in found.items()
    }


def _norm(tensors: dict[str, Any]) -> Tensor:
    return torch.stack([tensor.norm() for tensor in tensors.values()]).norm()


def steps() -> list[dict[str, Any]]:
    found = []
    networks: list[nn.Module] = [models.build(MODEL, CLASSES, seed=seed) for seed in range(16)]
    for groups, batch in STACKS:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        step = StackStep(StackedWideResNet(networks[:groups], SIDE), groups, batch)
        ready, samples = time.perf_counter() - begun, []
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            samples.append((time.perf_counter() - start) / STEPS)
        low, median, high = statistics.quantiles(samples, n=4)
        found.append(
            {
                "row": f"stack, {groups} x 1, batch {batch}",
                "networks": groups,
                "images_per_second": groups * batch / median,
                "ms": 1e3 * median,
                "spread_percent": 100 * (high - low) / median,
                "ready_s": ready,
                "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
            }
        )
        if (groups, batch) == STACKS[-1]:  # where the time goes, one kernel after another
            stacked.WEIGHTS_APART = False
            alone = StackStep(StackedWideResNet(networks[:groups], SIDE), groups, batch)
            found[-1]["kernels"] = kernels(alone)
            stacked.WEIGHTS_APART = True
    for row in TODAY:
        for whole in (False, True):
            with whole_networks() if whole else nullcontext():
                measured = measure_streams(row, torch.device("cuda"))
            measured.pop("kernels", None)
            measured["row"] += ", kernels of a stack" * whole
            found.append(measured)
    return found


def training() -> list[dict[str, Any]]:
    found = []
    for batch in (128, 512):
        for ways, count in (
            ("layers", STEPS_WORTH_COMPILING),
            ("kernels of a stack", STEPS_WORTH_WHOLE_NETWORKS),
        ):
            case = Case(MODEL, batch, SIDE)
            device = torch.device("cuda")
            measured = measure_training(case, device, steps=count, graph=True, augmented=True)
            measured.pop("kernels", None)
            found.append({"row": f"training, batch {batch}, {ways}", **measured})
    return found


def ends(count: int = 3, arms: int = 16) -> list[dict[str, Any]]:
    device = resolve_device("auto")
    split = random_split(2048, SIDE, device)
    split = replace(split, val=split.train, test=None)
    policy = Policy.load("dada-cifar10")
    config = TrainConfig(epochs=8, batch_size=128, base=BASES["cifar10"])

    def branched(seed: int, config: TrainConfig = config) -> runs.BranchedRun:
        network = models.build(MODEL, CLASSES, seed=seed)
        job = runs.Job(
            split=split, model=network, policy=policy, config=config, seed=seed, device=device
        )
        names = map(str, range(arms))
        return runs.BranchedRun(job=job, arms=dict.fromkeys(names, policy), repeated=0.5)

    found, usual = [], runs.stack_size
    for name, at_once in (
        ("streams", 3),
        ("streams, kernels of a stack", 3),
        ("stacks", 1),
        ("stacks", 3),
    ):
        # As in a search that is long enough.
        said = STEPS_WORTH_WHOLE_NETWORKS if name == "stacks" else 0
        runs.stack_size = lambda slot, n, _, said=said: usual(slot, n, said)
        with nullcontext() if name == "streams" else whole_networks():
            list(runs.run_branches([branched(0, replace(config, epochs=2))]))  # compiles
            todo = [branched(seed) for seed in range(count)]
            start = time.perf_counter()
            list(runs.run_branches(todo, at_once))
        took = time.perf_counter() - start
        images = sum(run.steps for run in todo) * config.batch_size
        row = f"ends, {name}, {at_once} runs at once"
        found.append({"row": row, "seconds": took, "images_per_second": images / took})
    runs.stack_size = usual
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=150, help="begin no section after these")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    begun = time.perf_counter()
    content: dict[str, Any] = {"machine": machine(), "gradients": gradients()}
    print(json.dumps(content["gradients"]))
    for section in (steps, training, ends):
        if time.perf_counter() - begun > arguments.seconds:
            print(f"left out: {section.__name__}")
            continue
        try:
            content[section.__name__] = section()
        except Exception:  # what the others found is worth keeping
            traceback.print_exc()
            continue
        print_table(content[section.__name__], ["row", "images_per_second", "ms", "seconds"])
        if arguments.out:
            arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
