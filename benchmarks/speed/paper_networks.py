"""The paper's networks that no table here has trained: images per second, and a finite loss.

    python benchmarks/speed/paper_networks.py [--data DATA] --out benchmarks/results/FILE.json

Two epochs by the recipe of each on 8,192 images under the published policy, by the loop that `dada
train` runs. The second is timed: in the first kernels are compiled and the step is recorded. The
loss of both must be finite. Without DATA images are random bytes. `docs/paper.md` makes hours of
this (FILE is paper-networks). What is already in the file is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table
from train import LONG, random_split

from dada import Policy, models, recipes
from dada.data import Split, load, reduce
from dada.engine import resolve_device
from dada.training.epochs import exhaust
from dada.training.loop import Job, Slot, training_of

RECIPES = (
    "cifar10_shakeshake26_2x32d",
    "cifar10_shakeshake26_2x96d",
    "cifar10_shakeshake26_2x112d",
    "cifar10_pyramidnet272_shakedrop",
)
IMAGES, QUICK_IMAGES = 8192, 64


def measure(name: str, split: Split, device: torch.device, *, quick: bool) -> dict[str, Any]:
    recipe = recipes.named(name, wants="train")
    assert recipe.train is not None
    config, begun = replace(recipe.train, epochs=2), time.perf_counter()
    if quick:
        config = replace(config, batch_size=16)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    job = Job(
        split=split,
        model=models.build(recipe.model, split.num_classes, 3, split.image_size, seed=0),
        policy=Policy.load("dada-cifar10"),
        config=config,
        seed=0,
        device=device,
    )
    first, second = exhaust(training_of(job, Slot(job), LONG)).history
    length = job.length
    return {
        "model": recipe.model,
        "batch": length.batch,
        "images": len(split.train),
        "images_per_second": length.steps_per_epoch * length.batch / second["seconds"],
        "losses": [first["loss"], second["loss"]],
        "first_epoch_seconds": first["seconds"],
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="images of CIFAR-10")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=90, help="begin no network after these")
    parser.add_argument("--quick", action="store_true", help="the smallest, a few images")
    args = parser.parse_args()
    device = resolve_device("auto")
    found: dict[str, Any] = {"rows": []}
    if args.out and args.out.exists():
        found = json.loads(args.out.read_text())
    images = QUICK_IMAGES if args.quick else IMAGES
    split = random_split(images, 32, device)
    if args.data:
        split = replace(reduce(replace(load(args.data), val=None), images), test=None)
        split = replace(split, val=split.train)  # a training is judged on something
    measured, begun = {row["model"] for row in found["rows"]}, time.perf_counter()
    for name in RECIPES[:1] if args.quick else RECIPES:
        if recipes.named(name).model in measured:
            continue
        if time.perf_counter() - begun > args.seconds:
            print(f"left out: {name}")
            continue
        found["rows"].append(measure(name, split, device, quick=args.quick))
        print(json.dumps(found["rows"][-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(found | {"machine": machine()}, indent=1) + "\n")
    columns = ["model", "batch", "images_per_second", "losses", "peak_GiB", "seconds"]
    print_table(found["rows"], columns)


if __name__ == "__main__":
    main()
