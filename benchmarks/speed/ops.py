"""Images per second of a whole policy, every image with its own draw, beside the peers.

    python benchmarks/speed/ops.py [--gpu] [--out benchmarks/results/ops-cpu.json]
    python benchmarks/speed/ops.py --threads [--out benchmarks/results/ops-threads.json]

Every contender starts from images in its own natural form (PIL, uint8 or float tensors already
on the device) and ends in the same form, so no conversion is charged to anybody; the one exception
is named: who has tensors and writes a loop around Pillow makes pictures of them and tensors again.
All contenders take turns, and what is compared are ratios within a turn. A CPU has one thread, and
its seconds are those that this process, and the workers of a DataLoader, had it: they do not depend
on what else the machine does. A contender that is not installed is left out by name.

With `--threads`, only a batch on 1, 2, 4 and 8 threads, as many as there are cores, beside the loop
on one, by the wall clock: for a machine that has nothing else to do. Beside it is written how many
cores the process had (its seconds of CPU in a second), and the CPU's time. Under a minute.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

import dada
import dada.policy.transform as dada_transform
from dada.ops import fused

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, timed_in_turns

POLICY = "dada-cifar10"
SIZES = {32: 512, 224: 256}  # image side: images in a batch on a CPU
GPU_BATCH = 512

TURNS = 25
THREADS, THREAD_TURNS = (1, 2, 4, 8), 30
THREAD_SIZES = {32: 4096, 224: 256}  # fewer small images are not shared among threads
WORKERS, ROUNDS = 2, 4  # of a DataLoader; epochs through the images, as one
BY_HAND = "Pillow one by one, same policy"

Contender = tuple[str, Callable[[], Any], int]  # name, what to time, images done by one call


def pictures(count: int, side: int) -> list[Image.Image]:
    """Pictures with smooth areas and detail; pure noise would flatter nobody's histogram."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[0:side, 0:side] / side
    result = []
    for _ in range(count):
        wave = generator.uniform(1, 12, (3, 2)) @ np.stack([x, y]).reshape(2, -1)
        noise = generator.normal(0, 12, (3, side * side))
        planes = 127 + 90 * np.sin(wave + generator.uniform(0, 6, (3, 1))) + noise
        array = np.clip(planes, 0, 255).astype(np.uint8).reshape(3, side, side)
        result.append(Image.fromarray(np.ascontiguousarray(array.transpose(1, 2, 0))))
    return result


def cut_out(image: Image.Image, value: float) -> Image.Image:
    side, center = value * image.width, random.random() * image.width
    x0, y0 = int(max(0, center - side / 2)), int(max(0, random.random() * image.height))
    image = image.copy()
    ImageDraw.Draw(image).rectangle((x0, y0, x0 + side, y0 + side), (125, 123, 114))
    return image


AFFINE = Image.Transform.AFFINE
PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "ShearX": lambda image, v: image.transform(image.size, AFFINE, (1, v, 0, 0, 1, 0)),
    "ShearY": lambda image, v: image.transform(image.size, AFFINE, (1, 0, 0, v, 1, 0)),
    "TranslateX": lambda image, v: image.transform(
        image.size, AFFINE, (1, 0, v * image.width, 0, 1, 0)
    ),
    "TranslateY": lambda image, v: image.transform(
        image.size, AFFINE, (1, 0, 0, 0, 1, v * image.height)
    ),
    "Rotate": lambda image, v: image.rotate(v),
    "AutoContrast": lambda image, v: ImageOps.autocontrast(image),
    "Invert": lambda image, v: ImageOps.invert(image),
    "Equalize": lambda image, v: ImageOps.equalize(image),
    "Solarize": lambda image, v: ImageOps.solarize(image, v),
    "Posterize": lambda image, v: ImageOps.posterize(image, int(v)),
    "Contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "Color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "Brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "Sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "Cutout": cut_out,
}


def pillow_policy(policy: dada.Policy) -> Callable[[Image.Image], Image.Image]:
    """The policy as a short script around Pillow, the way people write it by hand."""
    space = dada.SearchSpace.named(policy.space)
    ranges = {op.name: (op.low, op.high, op.signed) for op in space.ops}
    rows = [
        [(PILLOW[s.op], s.probability, s.magnitude_range[0], *ranges[s.op]) for s in subpolicy.ops]
        for subpolicy in policy.subpolicies
    ]

    def augment(image: Image.Image) -> Image.Image:
        for call, probability, magnitude, low, high, signed in random.choice(rows):
            if random.random() < probability:
                value = low + magnitude * (high - low)
                image = call(image, -value if signed and random.random() < 0.5 else value)
        return image

    return augment


def torchvision_peers(images_u8: torch.Tensor, pil: list[Image.Image]) -> list[Contender]:
    from torchvision.transforms import v2

    peer = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    some = images_u8[:64]
    tensors = (
        "torchvision v2 AutoAugment, tensors one by one",
        lambda: [peer(i) for i in some],
        64,
    )
    if not pil:
        return [tensors]
    return [tensors, ("torchvision v2 AutoAugment, PIL", lambda: [peer(i) for i in pil], len(pil))]


def kornia_peers(images_u8: torch.Tensor) -> list[Contender]:
    from kornia.augmentation.auto import AutoAugment

    peer = AutoAugment("cifar10")
    some = images_u8[:32].float() / 255
    one_by_one = [image.unsqueeze(0) for image in some]
    return [("Kornia AutoAugment, one by one", lambda: [peer(i) for i in one_by_one], 32)]


def timm_peers(pil: list[Image.Image]) -> list[Contender]:
    from timm.data.auto_augment import auto_augment_transform

    peer = auto_augment_transform("original", {"translate_const": 10, "img_mean": (0, 0, 0)})
    return [("timm AutoAugment, PIL", lambda: [peer(i) for i in pil], len(pil))]


def albumentations_peers(pil: list[Image.Image]) -> list[Contender]:
    """No learned policy there: two of its own versions of the operations at half probability."""
    import albumentations as A

    steps = [
        A.Affine(shear={"x": 5}, p=1), A.Affine(translate_percent={"x": 0.1}, p=1),
        A.Rotate(10, p=1), A.AutoContrast(p=1), A.InvertImg(p=1), A.Equalize(p=1),
        A.Solarize(p=1), A.Posterize(p=1), A.ColorJitter(p=1), A.Sharpen(p=1),
    ]  # fmt: skip
    peer = A.SomeOf(steps, n=2, p=0.5, replace=False)
    arrays = [np.asarray(image) for image in pil]
    return [("Albumentations, own ops", lambda: [peer(image=a) for a in arrays], len(arrays))]


def optional(make: Callable[..., list[Contender]], *arguments: Any) -> list[Contender]:
    try:
        return make(*arguments)
    except ImportError as error:
        print(f"left out: {make.__name__.removesuffix('_peers')} ({error})")
        return []


class Augmented(Dataset[torch.Tensor]):
    """What the workers of a DataLoader do: an image, augmented, as a tensor."""

    def __init__(self, images: Sequence[Any], augment: Callable[[Any], Any]) -> None:
        self.images, self.augment = images, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        done = self.augment(self.images[index])
        return done if isinstance(done, torch.Tensor) else pil_to_tensor(done)


def epoch_with_workers(
    images: Sequence[Any], augment: Callable[[Any], Any]
) -> Callable[[], list[Any]]:
    """An epoch of batches of 64, and the start of the workers."""
    batches = DataLoader(Augmented(images, augment), batch_size=64, num_workers=WORKERS)
    return lambda: list(batches)


def cpu_seconds_of_all() -> float:
    """Of this process, and of its workers that have ended."""
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + workers.ru_utime + workers.ru_stime


def cpu_contenders(side: int, batch: int) -> tuple[list[Contender], list[Contender]]:
    """Those in this process, and those in workers."""
    policy = dada.Policy.load(POLICY)
    pil = pictures(batch, side)
    images = torch.stack([pil_to_tensor(i) for i in pil]).contiguous()
    tensors = list(images)
    transform, by_hand = policy.transform(seed=0), pillow_policy(policy)

    def by_hand_and_back(image: torch.Tensor) -> torch.Tensor:
        return pil_to_tensor(by_hand(to_pil_image(image)))

    in_workers = [
        ("dada, PIL", pil, transform),
        (BY_HAND, pil, by_hand),
        ("dada, uint8 tensors", tensors, transform),
        (f"{BY_HAND}, tensors", tensors, by_hand_and_back),
    ]
    one_thread: list[Contender] = [
        ("dada, batch", lambda: transform(images), batch),
        ("dada, PIL one by one", lambda: [transform(i) for i in pil], batch),
        (BY_HAND, lambda: [by_hand(i) for i in pil], batch),
        ("dada, uint8 tensors one by one", lambda: [transform(i) for i in tensors], batch),
        (f"{BY_HAND}, tensors", lambda: [by_hand_and_back(i) for i in tensors], batch),
        *optional(torchvision_peers, images, pil),
        *optional(timm_peers, pil),
        *optional(kornia_peers, images),
        *optional(albumentations_peers, pil),
    ]
    return one_thread, [
        (f"{WORKERS} workers: {name}", epoch_with_workers(ROUNDS * held, does), ROUNDS * batch)
        for name, held, does in in_workers
    ]


def gpu_contenders(side: int) -> list[Contender]:
    generator = torch.Generator().manual_seed(0)
    shape = (GPU_BATCH, 3, side, side)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).cuda()
    policy = dada.Policy.load(POLICY)
    transform, launched, torch_only = (policy.transform() for _ in range(3))
    launched(images)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launched(images)

    def without_graph() -> torch.Tensor:
        with patch.object(dada_transform, "CALLS_BEFORE_GRAPH", math.inf):
            return launched(images)

    def without_triton() -> torch.Tensor:
        with patch.object(fused, "is_available", lambda: False):
            return torch_only(images)

    return [
        ("dada, captured in the caller's CUDA graph", graph.replay, GPU_BATCH),
        ("dada, plain calls", lambda: transform(images), GPU_BATCH),
        ("dada, without a graph", without_graph, GPU_BATCH),
        ("dada, without Triton", without_triton, GPU_BATCH),
        *optional(torchvision_peers, images, []),
        *optional(kornia_peers, images),
    ]


def peer_of(name: str) -> str:
    """What a contender on a CPU is compared with: the loop by hand on the same kind of images."""
    way, _, what = name.rpartition(": ")
    on_tensors = "dada, uint8 tensors" in what or what == f"{BY_HAND}, tensors"
    return f"{way}: " * bool(way) + BY_HAND + ", tensors" * on_tensors


def measure(
    contenders: list[Contender], side: int, device: str, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    calls = [call for _, call, _ in contenders]
    seconds = timed_in_turns(calls, clock=clock, cuda=device == "cuda", rounds=TURNS)
    per_image = {
        name: [s / images for s in taken]
        for (name, _, images), taken in zip(contenders, seconds, strict=True)
    }
    rows = []
    for name, _, images in contenders:
        low, median, high = statistics.quantiles(per_image[name], n=4)
        row: dict[str, Any] = {
            "contender": name,
            "device": device,
            "side": side,
            "images_per_call": images,
            "images_per_second": 1 / median,
            "spread_percent": 100 * (high - low) / median,
            "n": TURNS,
        }
        if device == "cpu":
            peer = peer_of(name)
            pairs = zip(per_image[peer], per_image[name], strict=True)
            ends = statistics.quantiles([theirs / mine for theirs, mine in pairs], n=4)
            row |= {"peer": peer, "times_low": ends[0], "times": ends[1], "times_high": ends[2]}
        rows.append(row)
        print(f"{side:4d} {name}: {row['images_per_second']:,.0f} images/s", flush=True)
    return rows


def measure_threads(side: int, batch: int, cores: int) -> list[dict[str, Any]]:
    policy = dada.Policy.load(POLICY)
    pil = pictures(batch, side)
    images = torch.stack([pil_to_tensor(i) for i in pil]).contiguous()
    transform, by_hand = policy.transform(seed=0), pillow_policy(policy)
    counts = [count for count in THREADS if count <= cores]
    cpu_seconds: dict[int, list[float]] = {count: [] for count in counts}

    def on(count: int) -> None:
        torch.set_num_threads(count)
        before = time.process_time()
        transform(images)
        cpu_seconds[count].append(time.process_time() - before)
        torch.set_num_threads(1)

    calls: list[Callable[[], Any]] = [partial(on, count) for count in counts]
    *ours, hand = timed_in_turns([*calls, lambda: [by_hand(i) for i in pil]], rounds=THREAD_TURNS)
    rows = []
    for count, seconds in zip(counts, ours, strict=True):
        row: dict[str, Any] = {"side": side, "images_per_call": batch, "threads": count}
        row |= {"images_per_second": batch / statistics.median(seconds), "n": len(seconds)}
        for name, peer in (("times_one_thread", ours[0]), ("times_by_hand", hand)):
            ratios = [theirs / mine for theirs, mine in zip(peer, seconds, strict=True)]
            low, row[name], high = statistics.quantiles(ratios, n=4)
            row |= {f"{name}_low": low, f"{name}_high": high}
        of_cpu = statistics.median(cpu_seconds[count])
        row["cores_used"] = of_cpu / statistics.median(seconds)
        row["cpu_times_one_thread"] = of_cpu / statistics.median(cpu_seconds[1])
        rows.append(row)
    return rows


def main_threads(out: Path | None) -> None:
    torch.set_num_threads(1)
    random.seed(0)
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    rows = [
        row for side, batch in THREAD_SIZES.items() for row in measure_threads(side, batch, cores)
    ]
    result = {"policy": POLICY, "cores": cores, "load_before": load, "machine": machine()}
    if out:
        out.write_text(json.dumps(result | {"rows": rows}, indent=1) + "\n")
    columns = ["times_one_thread_low", "times_one_thread", "times_one_thread_high"]
    columns = ["side", "threads", "images_per_second", *columns, "times_by_hand", "cores_used"]
    print_table(rows, [*columns, "cpu_times_one_thread", "n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="measure the GPU instead of the CPU")
    parser.add_argument("--threads", action="store_true", help="only a batch on several threads")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        main_threads(arguments.out)
        return
    torch.set_num_threads(1)
    random.seed(0)
    device = "cuda" if arguments.gpu else "cpu"
    rows: list[dict[str, Any]] = []
    for side, batch in SIZES.items():
        if arguments.gpu:
            rows += measure(gpu_contenders(side), side, device, time.perf_counter)
        else:
            here, in_workers = cpu_contenders(side, batch)
            rows += measure(here, side, device, time.process_time)
            rows += measure(in_workers, side, device, cpu_seconds_of_all)
    for row in rows if arguments.gpu else ():
        peers = [
            r["images_per_second"]
            for r in rows
            if r["side"] == row["side"] and "dada" not in r["contender"]
        ]
        row["times_fastest_peer"] = row["images_per_second"] / max(peers)
    result = {"policy": POLICY, "threads": 1, "machine": machine(), "rows": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    columns = ["side", "contender", "images_per_second", "spread_percent", "n"]
    print_table(rows, [*columns, "times_fastest_peer" if arguments.gpu else "times"])


if __name__ == "__main__":
    main()
