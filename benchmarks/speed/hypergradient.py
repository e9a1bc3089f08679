"""How exact, and how long: an image's cost by finite difference and by forward mode.

    python benchmarks/speed/hypergradient.py [--data images.npz] [--out results/hypergradient.json]

WRN-40-2, 128 images of 32 pixels, after 100 steps of training. Error: the norm of the difference
to the same method in float64, over the norm of that, for the costs of the images and for their
gradients by pixel. (By pixel the two methods differ in themselves: a finite difference sees the
kinks of ReLU between its two ends.) On a card the milliseconds are those of a recorded graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada import models
from dada.engine import Captured, channels_last, plain_kernels, resolve_device
from dada.engine.lane import Precision
from dada.policy_search.hypergradient import HYPERGRADIENTS, Cost, trainable_weights

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, timed

STEPS, BATCH, RATE = 100, 128, 0.05
PASSES = {"fp32": None, "tf32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def images_and_labels(data: Path | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Normalised images of ten classes; without `data`, noise around a picture of each class."""
    count = 32 * BATCH
    if data is not None:
        import numpy as np

        with np.load(data) as held:
            pixels = torch.from_numpy(held["images"][:count]).permute(0, 3, 1, 2).float()
            labels_N = torch.from_numpy(held["labels"][:count]).long()
        images = (pixels - pixels.mean()) / pixels.std()
    else:
        generator = torch.Generator().manual_seed(0)
        labels_N = torch.arange(count) % 10
        of_class = torch.randn(10, 3, 32, 32, generator=generator)
        images = of_class[labels_N] + 2 * torch.randn(count, 3, 32, 32, generator=generator)
    return channels_last(images.to(device), device), labels_N.to(device)


def trained(name: str, images: Tensor, labels_N: Tensor, steps: int) -> nn.Module:
    model = channels_last(models.build(name, 10, seed=0).to(images.device), images.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    for step in range(steps):
        index_B = torch.arange(step * BATCH, (step + 1) * BATCH, device=images.device) % len(images)
        optimizer.zero_grad()
        F.cross_entropy(model(images[index_B]), labels_N[index_B]).backward()
        optimizer.step()
    return model


def parts_of(cost: Cost) -> tuple[Tensor, Tensor]:
    assert cost.cost_grad_BCHW is not None
    return cost.cost_B, cost.cost_grad_BCHW


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="npz with images (NHWC uint8) and labels")
    parser.add_argument("--model", default="wrn40_2")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = resolve_device("auto")
    images, labels_N = images_and_labels(args.data, device)
    model = trained(args.model, images, labels_N, args.steps)
    chosen_B, others_B = torch.arange(BATCH), torch.arange(BATCH, 2 * BATCH)
    batch, labels_B = images[chosen_B], labels_N[chosen_B]
    weights = trainable_weights(model)
    val_loss = F.cross_entropy(model(images[others_B]), labels_N[others_B])
    val_grad = dict(
        zip(weights, torch.autograd.grad(val_loss, tuple(weights.values())), strict=True)
    )
    exact_model = models.build(args.model, 10, seed=0).to(device).double()
    exact_model.load_state_dict(model.state_dict())
    exact_weights = trainable_weights(exact_model)
    exact_grad = {name: grad.double() for name, grad in val_grad.items()}
    rows: list[dict[str, Any]] = []
    for method, hypergradient in HYPERGRADIENTS.items():
        with plain_kernels():
            exact = parts_of(
                hypergradient(
                    exact_model,
                    exact_weights,
                    exact_grad,
                    RATE,
                    batch.double(),
                    labels_B,
                    image_grad=True,
                )
            )
        for name, dtype in PASSES.items():
            if device.type == "cpu" and name == "tf32":
                continue

            def cost(images: Tensor, hypergradient=hypergradient, dtype=dtype) -> Any:  # type: ignore[no-untyped-def]
                with torch.autocast(
                    device.type, dtype, enabled=dtype is not None, cache_enabled=False
                ):
                    return parts_of(
                        hypergradient(
                            model, weights, val_grad, RATE, images, labels_B, image_grad=True
                        )
                    )

            with ExitStack() as around:
                around.enter_context(
                    Precision("tf32" if name == "tf32" else "fp32", device).products()
                )
                around.enter_context(plain_kernels())
                if device.type == "cuda":
                    around.enter_context(torch.cuda.stream(torch.cuda.Stream()))
                step = Captured(cost)
                for _ in range(3):
                    found = step(batch)
                spread = timed(lambda step=step: step(batch), cuda=device.type == "cuda", seconds=1)
            errors = [
                float((mine.double() - true).norm() / true.norm())
                for mine, true in zip(found, exact, strict=True)
            ]
            rows.append(
                {
                    "method": method,
                    "precision": name,
                    "error_of_cost": errors[0],
                    "error_by_pixel": errors[1],
                    "ms": 1e3 * spread["median"],
                    "ms_low": 1e3 * spread["low"],
                    "ms_high": 1e3 * spread["high"],
                    "n": spread["n"],
                }
            )
            print(rows[-1], flush=True)
    print_table(rows, list(rows[0]))
    if args.out:
        settings = {
            "model": args.model,
            "steps": args.steps,
            "images_are": "random" if args.data is None else "real",
        }
        content = {"machine": machine(), "settings": settings, "rows": rows}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
