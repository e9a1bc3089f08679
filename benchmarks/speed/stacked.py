"""Many small trainings as one: networks stacked along their channels, against streams.

    python benchmarks/speed/stacked.py [--out benchmarks/results/stacked.json] [--compile] [--quick]

Images per second of all networks together, WRN-40-2 at batches of 128, 32x32, bfloat16,
channels-last: forward, loss, backward and a step of SGD on random pixels, recorded as CUDA graphs.

one             one network; with larger batches, what a card does when there is enough of it
streams         a graph for each of several networks, on streams of their own: as trainings run now
grouped         the channels of G networks beside each other: convolutions in G groups, one
                BatchNorm, one batched product at the end, one optimiser
block-diagonal  the same with dense convolutions whose other blocks are zero: G times the products,
                in a shape that tensor cores like better

Rows already in the file are not measured again; `--seconds` ends it early, naming what is left out.
`--compile` adds torch.compile, which takes up to a minute a row. What a stacked network computes is
what the separate ones do (tests/test_benchmarks.py, float32 on a CPU).

Letters: B images, G networks, C channels, H height, W width.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy

from dada import models
from dada.engine import resolve_device

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

SIDE, CLASSES = 32, 10
STEPS, REPEATS = 20, 5


class BlockDiagonal(nn.Module):
    """G convolutions as a dense one; only the blocks on the diagonal are weights."""

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        self.groups, self.stride, self.padding = len(layers), layers[0].stride, layers[0].padding

    def forward(self, x_BCHW: Tensor) -> Tensor:
        weight_GOIHW = self.weight.unflatten(0, (self.groups, -1))
        g, out, into, h, w = weight_GOIHW.shape
        dense = weight_GOIHW.new_zeros(g, out, g, into, h, w)
        dense.diagonal(dim1=0, dim2=2).copy_(weight_GOIHW.permute(1, 2, 3, 4, 0))
        return conv2d(x_BCHW, dense.view(g * out, g * into, h, w), None, self.stride, self.padding)


class Heads(nn.Module):
    """G linear layers, each on its own channels: (B, G C) to (B, G, classes)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight_GCO = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias_G1O = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x_BC: Tensor) -> Tensor:
        x_GBC = x_BC.view(len(x_BC), len(self.weight_GCO), -1).transpose(0, 1)
        return torch.baddbmm(self.bias_G1O.to(x_BC.dtype), x_GBC, self.weight_GCO).transpose(0, 1)


def stack(networks: Sequence[nn.Module], *, dense: bool = False) -> nn.Module:
    """One network that does what these do, of convolutions, BatchNorm and a linear end."""
    together = copy.deepcopy(networks[0])
    for name, layer in networks[0].named_modules():
        same: Sequence[Any] = [network.get_submodule(name) for network in networks]
        made: nn.Module | None = None
        if isinstance(layer, nn.Conv2d):
            assert layer.groups == 1 and layer.bias is None
            made = BlockDiagonal(same) if dense else _grouped(same)
        elif isinstance(layer, nn.BatchNorm2d):
            made = type(layer)(len(same) * layer.num_features, layer.eps, layer.momentum or 0.1)
            for kind in ("weight", "bias", "running_mean", "running_var"):
                held = torch.cat([getattr(each, kind).detach() for each in same])
                getattr(made, kind).data.copy_(held)
        elif isinstance(layer, nn.Linear):
            made = Heads(same)
        if made is not None:
            parent, _, own = name.rpartition(".")
            setattr(together.get_submodule(parent), own, made)
    return together


def _grouped(layers: Sequence[nn.Conv2d]) -> nn.Conv2d:
    g, one = len(layers), layers[0]
    settings: dict[str, Any] = {"stride": one.stride, "padding": one.padding, "bias": False}
    size: Any = one.kernel_size
    made = nn.Conv2d(g * one.in_channels, g * one.out_channels, size, groups=g, **settings)
    made.weight.data.copy_(torch.cat([layer.weight.detach() for layer in layers]))
    return made


class Step:
    """A step of training on images that stay where they are; on CUDA recorded as a graph."""

    def __init__(
        self, network: nn.Module, groups: int, batch: int, device: torch.device, *, record: bool
    ) -> None:
        self.network = network.to(device).train()
        on_card = device.type == "cuda"
        if on_card:
            self.network.to(memory_format=torch.channels_last)
        shape = (batch, 3 * groups, SIDE, SIDE)
        self.images_BCHW = torch.randn(shape, device=device)
        if on_card:
            self.images_BCHW = self.images_BCHW.contiguous(memory_format=torch.channels_last)
        self.labels_BG = torch.randint(CLASSES, (batch, groups), device=device)
        self.optimiser = torch.optim.SGD(
            self.network.parameters(), 0.01, 0.9, weight_decay=5e-4, nesterov=True, fused=on_card
        )
        self.device = device
        self.stream = torch.cuda.Stream() if on_card else None
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                for _ in range(3):
                    self.eager()
            self.stream.synchronize()
            if record:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self.eager()

    def eager(self) -> None:
        on_card = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, on_card, cache_enabled=False):
            logits = self.network(self.images_BCHW).float()
        # The mean over images, summed over networks: each has the gradient it has alone.
        self.optimiser.zero_grad()
        flat = logits.reshape(-1, CLASSES)
        (cross_entropy(flat, self.labels_BG.flatten(), reduction="sum") / len(logits)).backward()
        self.optimiser.step()

    def __call__(self) -> None:
        if self.stream is None:
            return self.eager()
        with torch.cuda.stream(self.stream):
            self.eager() if self.graph is None else self.graph.replay()
        return None


@dataclass(frozen=True)
class Row:
    """`streams` stacks of `groups` networks."""

    way: str
    groups: int = 1
    streams: int = 1
    batch: int = 128
    graph: bool = True
    compiled: bool = False

    @property
    def name(self) -> str:
        parts = [self.way, f"{self.groups} x {self.streams}, batch {self.batch}"]
        parts += ["no graph"] * (not self.graph) + ["compiled"] * self.compiled
        return ", ".join(parts)


ROWS = (
    *(Row("one", batch=batch) for batch in (128, 512, 2048)),
    *(Row("streams", streams=s) for s in (3, 6, 16)),
    *(Row("grouped", groups=g) for g in (2, 4, 8, 16)),
    *(Row("block-diagonal", groups=g) for g in (2, 4)),
    *(Row("grouped", groups=g, streams=16 // g) for g in (2, 4)),
    *(Row("block-diagonal", groups=g, streams=16 // g) for g in (2, 4)),
    Row("grouped", groups=16, graph=False),
)
COMPILED = (
    Row("one", batch=128, compiled=True),
    *(Row("grouped", groups=g, compiled=True) for g in (4, 16)),
    Row("block-diagonal", groups=4, compiled=True),
)
QUICK = (Row("one", batch=8), Row("grouped", groups=2, batch=8), Row("streams", streams=2, batch=8))


def build(row: Row, device: torch.device, model: str = "wrn40_2") -> list[Step]:
    steps = []
    for s in range(row.streams):
        seeds = range(s * row.groups, (s + 1) * row.groups)
        networks = [models.build(model, CLASSES, seed=seed) for seed in seeds]
        network = networks[0]
        if row.way in ("grouped", "block-diagonal"):
            network = stack(networks, dense=row.way == "block-diagonal")
        if row.compiled:
            network.compile()
        steps.append(Step(network, row.groups, row.batch, device, record=row.graph))
    return steps


def measure(row: Row, device: torch.device, model: str = "wrn40_2") -> dict[str, Any]:
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    begun = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    steps = build(row, device, model)
    for step in steps:
        step()
    wait()
    ready = time.perf_counter() - begun
    samples = []
    count = STEPS if device.type == "cuda" else 1
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(count):
            for step in steps:
                step()
        wait()
        samples.append((time.perf_counter() - start) / count)
    low, median, high = statistics.quantiles(samples, n=4)
    found = {
        "row": row.name,
        "networks": row.groups * row.streams,
        "images_per_second": row.groups * row.streams * row.batch / median,
        "ms": 1e3 * median,
        "spread_percent": 100 * (high - low) / median,
        "ready_s": ready,
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }
    if device.type == "cuda" and row.graph and row.streams == 1:
        from train import kernels

        found["kernels"] = kernels(steps[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--compile", action="store_true", help="the rows with torch.compile instead"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny network, to see that it runs")
    parser.add_argument("--seconds", type=float, default=240, help="begin no row after these")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True  # grouped convolutions are guessed badly
    torch.set_float32_matmul_precision("high")
    device = resolve_device("auto")
    found: list[dict[str, Any]] = []
    if arguments.out and arguments.out.exists():
        found = json.loads(arguments.out.read_text())["rows"]
    known = {each["row"] for each in found}
    begun = time.perf_counter()
    rows = QUICK if arguments.quick else COMPILED if arguments.compile else ROWS
    for row in rows:
        if row.name in known:
            continue
        if time.perf_counter() - begun > arguments.seconds:
            print(f"left out: {row.name}", flush=True)
            continue
        try:
            measured = measure(row, device, "wrn10_1" if arguments.quick else "wrn40_2")
        except RuntimeError as error:  # no algorithm for it, or no memory
            print(f"failed: {row.name}: {str(error).splitlines()[0]}", flush=True)
            continue
        found.append(measured)
        shown = {k: v for k, v in measured.items() if k != "kernels"}
        print(json.dumps(shown), measured.get("kernels", {}).get("kinds", ""), flush=True)
        if arguments.out:
            content = {"machine": machine(), "rows": found}
            arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    columns = ["row", "networks", "images_per_second", "ms", "spread_percent", "ready_s"]
    print_table(found, [*columns, "peak_GiB"])


if __name__ == "__main__":
    main()
