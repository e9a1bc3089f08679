"""Photographs on a disk: how many a second are decoded, and how many a card takes.

    python benchmarks/speed/decode.py [FOLDER] [--images 2000] [--repeats 3] [--out FILE]

Images that do not fit into memory are decoded whenever they are needed, by threads. This reads
files as a training does (JPEG, 500 x 375 pixels as ImageNet's mostly are, made here unless a FOLDER
with a folder for each class is given; shrunk to 224) with one thread, two, four and so on. Beside
it stand the images a second that the networks of costs-h200.json train on an H200, and which of
the two is the bound. On a card one epoch from the disk is trained as well.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

import dada
from dada.data import Split, batches, load, parts

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, result_of

WIDTH, HEIGHT, SIDE, BATCH = 500, 375, 224, 64
DISTINCT = 50  # pictures; the files differ by a comment, so that none is a copy of another
WHOLE = 50_000


def write_photographs(folder: Path, count: int) -> None:
    """Clouds of several sizes with a little grain: files of about the size of a photograph's."""
    noise = np.random.default_rng(0)
    encoded = []
    for _ in range(DISTINCT):
        picture = np.zeros((HEIGHT, WIDTH, 3))
        for cells, strength in ((4, 60), (16, 40), (64, 25), (250, 15)):
            cloud = noise.uniform(-1, 1, (cells, cells, 3)) * 127 + 128
            large = Image.fromarray(cloud.astype(np.uint8)).resize((WIDTH, HEIGHT), Image.BICUBIC)
            picture += strength * (np.asarray(large) / 127.5 - 1)
        stream = io.BytesIO()
        pixels = (picture + 128).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(stream, "JPEG", quality=90)
        encoded.append(stream.getvalue())
    for number in range(count):
        target = folder / f"class{number % 10}" / f"{number}.jpg"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(encoded[number % DISTINCT] + str(number).encode())


def decoding(split: Split, threads: int, repeats: int) -> dict[str, Any]:
    """Every file once, as an epoch reads them; wall and processor time of the median repeat."""
    order = torch.randperm(len(split.train), generator=torch.Generator().manual_seed(0))
    seen = []
    with ThreadPoolExecutor(threads) as pool:
        usual, parts.pool = parts.pool, lambda: pool
        try:
            for _ in range(repeats):
                wall, cpu = time.perf_counter(), time.process_time()
                for _images in batches(split.train, order.split(BATCH)):
                    pass
                seen.append((time.perf_counter() - wall, time.process_time() - cpu))
        finally:
            parts.pool = usual
    rates = [len(order) / wall for wall, _ in seen]
    return {
        "threads": threads,
        "images_per_second": round(median(rates), 1),
        "low": round(min(rates), 1),
        "high": round(max(rates), 1),
        "cpu_ms_an_image": round(1000 * median(cpu for _, cpu in seen) / len(order), 2),
        f"seconds_for_{WHOLE}": round(WHOLE / median(rates), 1),
    }


def card_rates() -> dict[str, float]:
    """Images a second that training takes at this size, as costs.py measured it."""
    rows = result_of("costs-h200")["rows"]
    wanted = f" {SIDE} px x {BATCH}"
    return {
        row["case"].removesuffix(wanted): round(1000 * BATCH / row["milliseconds"])
        for row in rows
        if row["case"].endswith(wanted)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        if args.folder is None:
            write_photographs(folder, args.images)
        files = [file for file in folder.rglob("*") if file.is_file()]
        split = load(folder, image_size=SIDE, in_memory=False)
        counts = [2**i for i in range(10) if 2**i <= 2 * cores]
        rows = [decoding(split, threads, args.repeats) for threads in counts]
        found: dict[str, Any] = {
            "machine": machine() | {"cores": cores, "load": round(os.getloadavg()[0], 1)},
            "files": {
                "count": len(files),
                "kilobytes": round(median(file.stat().st_size for file in files) / 1000, 1),
                "made_here": args.folder is None,
            },
            "rows": rows,
        }
        best = max(rows, key=lambda row: row["images_per_second"])
        found["card"] = [
            {
                "network": name,
                "images_per_second": rate,
                "bound": "decoding" if rate > best["images_per_second"] else "the card",
            }
            for name, rate in card_rates().items()
        ]
        if torch.cuda.is_available():
            how: dict[str, Any] = {"epochs": 2, "batch_size": BATCH, "device": "cuda"}
            model = "torchvision:resnet18"
            trained = dada.train(split, "uniform", model, base="none", **how)
            last = trained.history[-1]["seconds"]
            found["trained_from_disk"] = {
                "network": model,
                "images_per_second": round(len(split.train) / last),
            }
    print_table(rows, list(rows[0]))
    print_table(found["card"], ["network", "images_per_second", "bound"])
    print(found.get("trained_from_disk", ""))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
