"""BatchNorm + ReLU (and the residual sum before it), fused against torch's own kernels.

    python benchmarks/speed/batchnorm.py [--quick] [--out benchmarks/results/batchnorm.json]

Three tables, each with both ways measured in the same run, inside CUDA graphs:
the layers of two networks alone, forward and backward, and how near they come to the memory's
speed; the error of each way against float64; a whole training step of the networks.

A graph of a layer goes through as many tensors as fill the cache several times, so that nothing is
found there which a real network would not find. `floor` is the time that the bytes of the fused
passes take at the measured speed of a copy; `share` is floor / fused.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from dada import models
from dada.engine import plain_kernels
from dada.models.batchnorm import BatchNormReLU

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, timed

# network: (channels, side, normalisations with a sum before them, and without)
LAYERS = {
    "wrn40_2": [(32, 32, 6, 6), (64, 16, 6, 6), (128, 8, 6, 6)],
    "wrn28_10": [(160, 32, 4, 4), (320, 16, 4, 4), (640, 8, 4, 4)],
}
BATCHES = (128, 512)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
WORKING_SET = 400e6  # bytes; the cache of an H200 holds 50e6
WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "fused": nullcontext,
    "plain": plain_kernels,
}


def graph_of(call: Callable[[], Any], way: str) -> torch.cuda.CUDAGraph:
    with WAYS[way]():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    return graph


def copy_bytes_per_second() -> float:
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    spent = timed(lambda: target.copy_(source), cuda=True, seconds=0.5)["median"]
    return 2 * source.nbytes / spent


def tensors(shape: tuple[int, ...], dtype: torch.dtype, count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    made = [torch.randn(shape, device="cuda", generator=generator) for _ in range(count)]
    return [x.to(dtype).contiguous(memory_format=torch.channels_last) for x in made]


def layer_row(
    shape: tuple[int, int, int, int], dtype: torch.dtype, add: bool, speed: float, seconds: float
) -> dict[str, float]:
    """Microseconds of forward and backward of one layer; with `add`, of the sum before it too."""
    x, more, grad_y, grad_sum = tensors(shape, dtype, 4, 0)
    sets = max(2, round(WORKING_SET / (x.nbytes * (6 if add else 4))))
    held = [tuple(t.clone() for t in (x, more, grad_y, grad_sum)) for _ in range(sets)]
    layer = BatchNormReLU(shape[1]).cuda()

    def call() -> None:
        for x, more, grad_y, grad_sum in held:
            x.requires_grad_()
            asked = [x, layer.weight, layer.bias]
            if add:
                y, total = layer.add(x, more)
                torch.autograd.grad([y, total], asked, [grad_y, grad_sum])
            else:
                torch.autograd.grad(layer(x), asked, grad_y)

    # forward: x, more, sum | sum, y, or x | x, y; backward: x, dy | x, dy, dx, and the skip path's
    floor = x.nbytes * (11 if add else 8) / speed
    row = {"floor_us": floor * 1e6}
    for way in WAYS:
        graph = graph_of(call, way)
        row[f"{way}_us"] = timed(graph.replay, cuda=True, seconds=seconds)["median"] / sets * 1e6
    return row | {
        "times": row["plain_us"] / row["fused_us"],
        "share": floor * 1e6 / row["fused_us"],
    }


def error_row(shape: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, float]:
    """The largest relative error of each way, of the output and of the gradient of the input.

    The gradient is compared where float64 agrees on the sign of what ReLU is given.
    """
    x, more, grad_y, grad_sum = tensors(shape, dtype, 4, 1)
    row: dict[str, float] = {}
    for way, context in WAYS.items():
        layer, exact = BatchNormReLU(shape[1]).cuda(), nn.BatchNorm2d(shape[1]).cuda().double()
        given = x.detach().clone().requires_grad_()
        with context():
            y, total = layer.add(given, more)
            grads = torch.autograd.grad(
                [y, total], [given, layer.weight, layer.bias], [grad_y, grad_sum]
            )
        right_x = total.detach().double().requires_grad_()
        normal = exact(right_x)
        g = torch.where(y > 0, grad_y, 0.0).double()
        right = torch.autograd.grad(normal, [right_x, exact.weight, exact.bias], g)
        pairs = {
            "y": (y, relu(normal)),
            "grad_x": (grads[0], right[0] + grad_sum),
            "grad_weight": (grads[1], right[1]),
            "grad_bias": (grads[2], right[2]),
            "running_var": (layer.running_var, exact.running_var),
        }
        for name, (got, wanted) in pairs.items():
            row[f"{name} {way}"] = ((got.double() - wanted).norm() / wanted.norm()).item()
    return row


def step_row(name: str, batch: int, dtype: torch.dtype, seconds: float) -> dict[str, float]:
    """Milliseconds of a training step, and seconds until the first one is done."""
    row: dict[str, float] = {}
    images = tensors((batch, 3, 32, 32), torch.float32, 1, 2)[0]
    labels = torch.randint(10, (batch,), device="cuda")
    for way, context in WAYS.items():
        model = models.build(name, 10, seed=0).cuda().to(memory_format=torch.channels_last)
        optimiser = torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
        )

        def step(model: nn.Module = model, optimiser: torch.optim.SGD = optimiser) -> None:
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32, cache_enabled=False):
                loss = cross_entropy(model(images).float(), labels)
            loss.backward()
            optimiser.step()

        with context():
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            row[f"{way}_first_s"] = time.perf_counter() - start
        graph = graph_of(step, way)
        row[f"{way}_ms"] = timed(graph.replay, cuda=True, seconds=seconds)["median"] * 1e3
    return row | {"times": row["plain_ms"] / row["fused_ms"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="bfloat16 only, shorter timings")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("batchnorm.py compares CUDA kernels; torch sees no CUDA GPU")
    torch.backends.cudnn.benchmark = True
    seconds = 0.2 if options.quick else 0.5
    dtypes = ["bfloat16"] if options.quick else list(DTYPES)
    speed = copy_bytes_per_second()
    print(f"copy: {speed / 1e12:.2f} TB/s")

    errors, layers, steps = [], [], []
    for dtype in dtypes:
        for stages in LAYERS.values():
            for channels, side, _, _ in stages:
                shape = (128, channels, side, side)
                errors.append(
                    {"shape": str(shape), "dtype": dtype, **error_row(shape, DTYPES[dtype])}
                )
    print_table(errors, list(errors[0]))

    for dtype in dtypes:
        for network, stages in LAYERS.items():
            for batch in BATCHES:
                sums = {"fused_us": 0.0, "plain_us": 0.0, "floor_us": 0.0}
                about = {"network": network, "batch": batch, "dtype": dtype}
                for channels, side, with_sum, without in stages:
                    shape = (batch, channels, side, side)
                    for add, count in ((True, with_sum), (False, without)):
                        row = layer_row(shape, DTYPES[dtype], add, speed, seconds)
                        layers.append({**about, "channels": channels, "add": add, **row})
                        for name in sums:
                            sums[name] += count * row[name]
                layers.append(
                    {
                        **about,
                        "channels": "all",
                        "add": "",
                        **sums,
                        "times": sums["plain_us"] / sums["fused_us"],
                        "share": sums["floor_us"] / sums["fused_us"],
                    }
                )
    columns = ["network", "batch", "dtype", "channels", "add"]
    print_table(layers, [*columns, "plain_us", "fused_us", "floor_us", "times", "share"])

    for dtype in dtypes:
        for network in LAYERS:
            for batch in BATCHES:
                row = step_row(network, batch, DTYPES[dtype], seconds)
                steps.append({"network": network, "batch": batch, "dtype": dtype, **row})
    print_table(steps, list(steps[0]))
    if options.out:
        found = {
            "machine": machine(),
            "copy_bytes_per_second": speed,
            "errors": errors,
            "layers": layers,
            "steps": steps,
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
