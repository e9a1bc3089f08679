"""Images per second of a whole policy, every image with its own draw, beside the peers.

    python benchmarks/speed/ops.py [--gpu] [--out benchmarks/results/ops-cpu.json]

Every contender starts from images in its own natural form (PIL, uint8 or float tensors already
on the device) and ends in the same form, so no conversion is charged to anybody. A CPU has one
thread. A contender that is not installed is left out by name.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

import dada
import dada.policy.transform as dada_transform
from dada.ops import fused

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, timed

POLICY = "dada-cifar10"
SIZES = {32: 512, 224: 256}  # image side: images in a batch on a CPU
GPU_BATCH = 512

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


def pillow_policy(policy: dada.Policy) -> Callable[[Image.Image], Image.Image]:
    """The policy as a short script around Pillow, the way people write it by hand."""
    space = dada.SearchSpace.named(policy.space)
    ranges = {op.name: (op.low, op.high, op.signed) for op in space.ops}
    affine = Image.Transform.AFFINE

    def cutout(image: Image.Image, value: float) -> Image.Image:
        side, center = value * image.width, random.random() * image.width
        x0, y0 = int(max(0, center - side / 2)), int(max(0, random.random() * image.height))
        image = image.copy()
        ImageDraw.Draw(image).rectangle((x0, y0, x0 + side, y0 + side), (125, 123, 114))
        return image

    calls: dict[str, Callable[[Image.Image, float], Image.Image]] = {
        "ShearX": lambda image, v: image.transform(image.size, affine, (1, v, 0, 0, 1, 0)),
        "ShearY": lambda image, v: image.transform(image.size, affine, (1, 0, 0, v, 1, 0)),
        "TranslateX": lambda image, v: image.transform(
            image.size, affine, (1, 0, v * image.width, 0, 1, 0)
        ),
        "TranslateY": lambda image, v: image.transform(
            image.size, affine, (1, 0, 0, 0, 1, v * image.height)
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
        "Cutout": cutout,
    }
    rows = [
        [(calls[s.op], s.probability, s.magnitude_range[0], *ranges[s.op]) for s in subpolicy.ops]
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


def cpu_contenders(side: int, batch: int) -> list[Contender]:
    policy = dada.Policy.load(POLICY)
    pil = pictures(batch, side)
    images = torch.stack([torch.from_numpy(np.array(i)).permute(2, 0, 1) for i in pil]).contiguous()
    transform, by_hand = policy.transform(seed=0), pillow_policy(policy)
    return [
        ("dada, batch", lambda: transform(images), batch),
        ("dada, PIL one by one", lambda: [transform(i) for i in pil], batch),
        ("Pillow one by one, same policy", lambda: [by_hand(i) for i in pil], batch),
        *optional(torchvision_peers, images, pil),
        *optional(timm_peers, pil),
        *optional(kornia_peers, images),
        *optional(albumentations_peers, pil),
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


def measure(contenders: list[Contender], side: int, device: str) -> list[dict[str, Any]]:
    rows = []
    for name, call, images in contenders:
        seconds = timed(call, cuda=device == "cuda")
        rows.append(
            {
                "contender": name,
                "device": device,
                "side": side,
                "images_per_call": images,
                "images_per_second": images / seconds["median"],
                "spread_percent": 100 * (seconds["high"] - seconds["low"]) / seconds["median"],
                "n": seconds["n"],
            }
        )
        print(f"{side:4d} {name}: {rows[-1]['images_per_second']:,.0f} images/s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="measure the GPU instead of the CPU")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    device = "cuda" if arguments.gpu else "cpu"
    rows: list[dict[str, Any]] = []
    for side, batch in SIZES.items():
        contenders = gpu_contenders(side) if arguments.gpu else cpu_contenders(side, batch)
        rows += measure(contenders, side, device)
    fastest = {
        side: max(
            r["images_per_second"]
            for r in rows
            if r["side"] == side and "dada" not in r["contender"]
        )
        for side in SIZES
    }
    for row in rows:
        row["times_fastest_peer"] = row["images_per_second"] / fastest[row["side"]]
    result = {"policy": POLICY, "threads": 1, "machine": machine(), "rows": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print_table(
        rows,
        ["side", "contender", "images_per_second", "spread_percent", "n", "times_fastest_peer"],
    )


if __name__ == "__main__":
    main()
