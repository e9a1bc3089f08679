"""What it costs to move boxes and masks with the images, on the device.

    python benchmarks/speed/targets.py [--out FILE]

512 images of 256 pixels (on a CPU 32), each with a mask of 20 objects and their boxes, under
`uniform`: the images alone, with boxes, with a mask of classes, with masks of objects. The goal on
a card is at most twice the images alone. Then a training step of a detector with and without a
policy; the goal is under 5%.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from dada import models, tasks
from dada.config import TrainConfig
from dada.data.parts import TensorPart
from dada.data.split import Split
from dada.engine import ALONE, Captured, resolve_device
from dada.policy import Policy
from dada.policy.augment import PolicyTables
from dada.policy.space import SPACES
from dada.training.loop import recorded_step
from dada.training.state import TrainState

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, timed

OBJECTS, SIDE = 20, 256


def scenes(count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noise, boxes on a grid, and the map of objects that fill them."""
    images = torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    boxes_BM5 = torch.zeros(count, OBJECTS, 5, device=device)
    map_BHW = torch.zeros(count, SIDE, SIDE, dtype=torch.uint8, device=device)
    for m in range(OBJECTS):
        x, y = 50 * (m % 5) + 3, 60 * (m // 5) + 4
        boxes_BM5[:, m] = torch.tensor([x, y, x + 40, y + 50, m % 3], device=device)
        map_BHW[:, y : y + 50, x : x + 40] = m + 1
    return images, boxes_BM5, map_BHW


def moving(count: int, device: torch.device) -> list[dict[str, Any]]:
    images, boxes_BM5, map_BHW = scenes(count, device)
    policy = Policy.load("uniform")
    space = SPACES[policy.space]
    tables = PolicyTables.of(policy, space, device)
    generator = torch.Generator(device).manual_seed(0)
    detection, segmentation = tasks.named("detection"), tasks.named("segmentation")

    def alone(images: torch.Tensor) -> torch.Tensor:
        return tables.augment(images, space, generator)

    def with_targets(images: torch.Tensor, *targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        done, moves = tables.augment_with_moves(images, space, generator)
        task = segmentation if targets[0].dim() == 3 and targets[0].shape[-1] != 5 else detection
        return done, *task.moved(targets, moves)

    rows = []
    for name, call, given in (
        ("images alone", alone, (images,)),
        ("with boxes", with_targets, (images, boxes_BM5)),
        ("with a mask of classes", with_targets, (images, map_BHW)),
        ("with boxes and masks of objects", with_targets, (images, boxes_BM5, map_BHW)),
    ):
        captured = Captured(call, generators=[generator])
        cuda = device.type == "cuda"
        seconds = timed(lambda c=captured, g=given: c(*g), cuda=cuda)
        rows.append({"what": name, "ms": 1000 * seconds["median"], "images": count})
        rows[-1]["times"] = rows[-1]["ms"] / rows[0]["ms"]
    return rows


def steps(model: str, batch: int, device: torch.device) -> list[dict[str, Any]]:
    images, boxes_BM5, _ = scenes(batch, torch.device("cpu"))
    labels_N = torch.zeros(batch, dtype=torch.int64)
    part = TensorPart(images, labels_N, targets=(boxes_BM5,))
    split = Split(train=part, val=part, classes=("a", "b", "c"), name="made", task="detection")
    split = split.to(device)
    rows: list[dict[str, Any]] = []
    for name in ("none", "uniform"):
        network = models.build(model, 3, 3, split.image_size, seed=0)
        config = TrainConfig(batch_size=batch, optimizer="adamw", lr=1e-4)
        state = TrainState(network, split, Policy.load(name), config, 0, device, ALONE)
        rate = torch.tensor(1e-4, device=device)
        step = recorded_step(state)
        given = split.train.batch(torch.arange(batch))

        def call(state: TrainState = state, given: Any = (step, *given, rate)) -> None:
            with state.lane:
                given[0](*given[1:])

        seconds = timed(call, cuda=device.type == "cuda")
        rows.append({"what": f"{model}, {name}", "ms": 1000 * seconds["median"], "images": batch})
        rows[-1]["times"] = rows[-1]["ms"] / rows[0]["ms"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", type=int, help="images; default 512, on a CPU 32")
    parser.add_argument("--models", default="detector,fasterrcnn:torchvision:resnet50")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = resolve_device(args.device)
    rows = moving(args.count or (512 if device.type == "cuda" else 32), device)
    print_table(rows, ["what", "images", "ms", "times"])
    for model in filter(None, args.models.split(",")):
        rows += steps(model, args.batch, device)
    print_table(rows, ["what", "images", "ms", "times"])
    if args.out is not None:
        args.out.write_text(json.dumps({"rows": rows, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
