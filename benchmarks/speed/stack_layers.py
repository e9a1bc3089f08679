"""Convolutions of stacked networks under several ways to cut the work up, beside cuDNN's.

    python benchmarks/speed/stack_layers.py [--out benchmarks/results/stack-layers.json] [--quick]

Every kind of convolution of WRN-40-2: forward, back to its input, and to its weights, in bfloat16,
each checked against float64. cuDNN's does less: ours add the residual, take BatchNorm's sums and
apply ReLU's mask. What is fastest here is what `dada.models.stacked_convolutions` uses. Kernels are
compiled by several processes before they are timed.

Letters: G networks, B images.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine

from dada.models.stacked_convolutions import (
    Convolution,
    Tiles,
    WeightTiles,
    convolve,
    convolve_weights,
)

Cut = Tiles | WeightTiles
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
SIZES = ((1, 128), (1, 512), (16, 128))
LAYERS = {
    "16>32": Convolution(16, 32, 3, 1, 32),
    "32>32": Convolution(32, 32, 3, 1, 32),
    "32>64/2": Convolution(32, 64, 3, 2, 32),
    "64>64": Convolution(64, 64, 3, 1, 16),
    "64>128/2": Convolution(64, 128, 3, 2, 16),
    "128>128": Convolution(128, 128, 3, 1, 8),
}
KINDS = ("forward", "back", "weights")
WRONG = 1e-2  # relative; bfloat16 rounds to 2e-3


def cuts(kind: str, of: Convolution) -> list[Cut]:
    if kind == "weights":
        return [cut for cut in _weight_cuts(of)]
    depth = of.c_in if kind == "forward" else of.c_out
    width = of.c_out if kind == "forward" else of.c_in
    deep = min(depth, 64)
    if width <= 64:
        found = [Tiles(128, deep, 4, 3), Tiles(256, deep, 8, 3), Tiles(128, deep, 4, 2)]
        if width == 64:
            found += [Tiles(256, deep, 4, 3)]
    else:
        found = [Tiles(128, deep, 4, 3), Tiles(64, deep, 4, 3), Tiles(256, deep, 8, 3)]
        found += [Tiles(128, deep, 8, 3)]
    return list(found)


def _weight_cuts(of: Convolution) -> Iterable[WeightTiles]:
    c, n = min(of.c_in, 64), min(of.c_out, 64)
    yield WeightTiles(64, c, n, 4, 3, 3)
    yield WeightTiles(64, c, n, 4, 3, 4)
    yield WeightTiles(64, c, n, 4, 4, 2)
    if c <= 32:
        yield WeightTiles(128, c, n, 4, 2, 3)
        yield WeightTiles(128, c, n, 4, 3, 2)
    if of.c_out > 64:
        yield WeightTiles(64, c, 128, 8, 3, 1)
        yield WeightTiles(64, c, 128, 8, 3, 2)


def short(cut: Cut) -> str:
    return "/".join(str(number) for number in asdict(cut).values())


class Layer:
    """Inputs of one convolution of a stack, and what it computes, ours and cuDNN's."""

    def __init__(self, of: Convolution, g: int, b: int, dtype: torch.dtype = DTYPE) -> None:
        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, device=DEVICE).to(dtype)

        self.of = of
        self.x = noise(g, b, of.side_in, of.side_in, of.c_in)
        self.grad = noise(g, b, of.side, of.side, of.c_out)
        self.weights_GN = noise(g, of.size) / (of.c_in * of.kernel**2) ** 0.5
        self.saved = torch.rand(g, 4, of.c_in, device=DEVICE) + 0.5
        self.saved[:, 1:3] -= 1
        self.grad_GN = torch.full((g, of.size), torch.nan, device=DEVICE)

    def ours(self, kind: str, cut: Any) -> tuple[Tensor, ...]:
        if kind == "forward":
            return convolve(self.of, self.x, self.weights_GN, tiles=cut, moments=True)
        if kind == "back":
            return convolve(
                self.of, self.grad, self.weights_GN, tiles=cut, back=True, mask=(self.x, self.saved)
            )
        convolve_weights(self.of, self.x, self.grad, self.grad_GN, tiles=cut)
        return (self.grad_GN,)

    def right(self, kind: str) -> tuple[Tensor, ...]:
        """The same in float64, from sums to sums over all pixels."""
        of = self.of
        x = self.x.double()
        scale, shift, mean = (self.saved[:, i, None, None, None].double() for i in range(3))
        z = x * scale + shift
        grads, ys = [], []
        for g in range(len(x)):
            weight = self.weights_GN[g].double().view(of.c_out, of.kernel, of.kernel, of.c_in)
            weight = weight.permute(0, 3, 1, 2).requires_grad_()
            a = x[g].permute(0, 3, 1, 2).requires_grad_()
            y = conv2d(a, weight, None, of.stride, of.kernel // 2)
            grad = self.grad[g].double().permute(0, 3, 1, 2)
            grads.append(torch.autograd.grad(y, [a, weight], grad))
            ys.append(y.detach())
        if kind == "forward":
            y = torch.stack(ys).permute(0, 1, 3, 4, 2)
            return y, torch.stack([y.mean((1, 2, 3)), y.var((1, 2, 3), correction=0)], 1)
        if kind == "back":
            grad = torch.stack([each[0] for each in grads]).permute(0, 1, 3, 4, 2)
            grad = torch.where(z > 0, grad, 0)
            crossed = (grad * (x - mean)).sum((1, 2, 3))
            return grad, torch.stack([grad.sum((1, 2, 3)), crossed], 1)
        weight = torch.stack([each[1].permute(0, 2, 3, 1).flatten() for each in grads])
        return (weight,)

    def check(self, kind: str, cut: Any, right: tuple[Tensor, ...]) -> float:
        """The largest relative error of what one launch gives; what is not written is nan."""
        got = [t.double() for t in self.ours(kind, cut)]
        if kind == "forward":
            mean, m2 = got[1].unbind(1)
            rows = got[0][0, ..., 0].numel()
            first = torch.arange(0, rows, cut.rows, device=mean.device)
            share = (rows - first).clamp(max=cut.rows) / rows
            whole = (mean * share).sum(-1)
            square = m2.sum(-1) / rows + ((mean - whole[..., None]).square() * share).sum(-1)
            got[1] = torch.stack([whole, square], 1)
        elif kind == "back":
            got[1] = got[1].sum(-1)
        return max(((a - b).norm() / b.norm()).item() for a, b in zip(got, right, strict=True))

    def cudnn(self, kind: str) -> Callable[[], object]:
        of = self.of
        x = self.x.flatten(0, 1).permute(0, 3, 1, 2)
        grad = self.grad.flatten(0, 1).permute(0, 3, 1, 2)
        weight = self.weights_GN[0].view(of.c_out, of.kernel, of.kernel, of.c_in)
        weight = weight.permute(0, 3, 1, 2)
        pad = of.kernel // 2
        if kind == "forward":
            return lambda: conv2d(x, weight, None, of.stride, pad)
        wanted = [kind == "back", kind != "back", False]
        stride, pads, one, none = [of.stride] * 2, [pad] * 2, [1, 1], [0, 0]
        return lambda: torch.ops.aten.convolution_backward(
            grad, x, weight, None, stride, pads, one, False, none, 1, wanted
        )


def milliseconds(call: Callable[[], object], repeats: int = 10) -> float:
    """The median of five replays of a graph of many calls."""
    call()
    if DEVICE == "cpu":
        return float("nan")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    graph.replay()
    samples = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / repeats)
    return statistics.median(samples)


def compile_layer(kind: str, of: Convolution, cut: Cut) -> str:
    """Runs it once; what is wrong with it, if something is."""
    try:
        Layer(of, 1, 16).ours(kind, cut)
    except Exception as error:
        return f"{kind}, {of}, {cut}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def measure(name: str, of: Convolution, kind: str, quick: bool) -> Iterable[dict[str, Any]]:
    small = Layer(of, 2, 2 if quick else 8)
    right = small.right(kind)
    errors = {}
    for cut in cuts(kind, of)[: 1 if quick else None]:
        try:
            errors[cut] = small.check(kind, cut, right)
        except Exception as error:  # more memory than a multiprocessor has
            print(f"failed: {name} {kind} {short(cut)}: {str(error)[:150]}")
    assert all(wrong < WRONG for wrong in errors.values()), errors
    for g, b in ((1, 2),) if quick else SIZES:
        layer = Layer(of, g, b)
        ours = {
            short(cut): 1e3 * milliseconds(lambda cut=cut: layer.ours(kind, cut))  # noqa: B023
            for cut in errors
        }
        yield {
            "layer": name,
            "kind": kind,
            "networks": g,
            "batch": b,
            "cudnn_us": 1e3 * milliseconds(layer.cudnn(kind)),
            "ours_us": dict(sorted(ours.items(), key=lambda pair: pair[1])),
            "largest_error": max(errors.values()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    quick, layers = arguments.quick, dict(LAYERS)
    if quick:
        layers = {"16>32": replace(LAYERS["16>32"], side_in=4)}
    else:
        calls = [(k, of, cut) for of in layers.values() for k in KINDS for cut in cuts(k, of)]
        workers = min(14, (os.cpu_count() or 2) - 1)
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            begun = time.perf_counter()
            print(*filter(None, pool.starmap(compile_layer, calls, chunksize=1)), sep="\n")
            print(f"{len(calls)} compiled in {time.perf_counter() - begun:.0f} s")
    print("us a launch: cuDNN alone | ours, with sums: the fastest four")
    rows = []
    for name, of in layers.items():
        for kind in KINDS:
            for row in measure(name, of, kind, quick):
                rows.append(row)
                best = "; ".join(f"{us:.1f} {cut}" for cut, us in [*row["ours_us"].items()][:4])
                where = f"{name:>8} {kind:7} {row['networks']:2}x{row['batch']:<4}"
                print(f"{where} {row['cudnn_us']:6.1f} | {best}", flush=True)
    if arguments.out:
        content = {"machine": machine(), "rows": rows}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
