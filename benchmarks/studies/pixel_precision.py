"""What rounding does to the gradients of the policy where they are read from pixels.

    python benchmarks/studies/pixel_precision.py [--data images.npz] [--out FILE]

The cost's gradient by pixel is a difference of two nearly equal gradients, so products that are
rounded (TF32 on a card, bfloat16) leave much rounding in it. What reaches the policy is measured
here: for the same network, validation gradient and draws, the gradients of alpha, beta and m by
preset `paper` (relax, straight-through magnitudes) and by gumbel, against the same passes in
float64. Relative error and cosine of one step's gradient, median and range over `--steps` batches,
and of the mean over all of them, which is what Adam follows. Under a minute on an H200.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dada.config import BASES, search_config
from dada.data import Split, TensorPart
from dada.engine import Precision, plain_kernels, resolve_device
from dada.models import build, without_noise
from dada.policy.augment import augment_stages
from dada.policy_search.estimators import Gradients
from dada.policy_search.hypergradient import finite_difference_cost, trainable_weights
from dada.policy_search.pixel_effects import Branches, pixel_effects
from dada.policy_search.state import SearchState

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

BATCH, RATE, TRAINED = 128, 0.1, 100
ESTIMATORS = ("relax", "gumbel")
PRECISIONS = ("fp32", "tf32", "bf16")
PARTS = ("subpolicy_logits_N", "apply_prob_NK", "magnitude_NK")


def images_and_labels(data: Path | None) -> tuple[Tensor, Tensor]:
    """Pictures of ten classes; without `data`, smooth ones with noise on them."""
    if data is not None:
        import numpy as np

        with np.load(data) as held:
            train = "train_" if "train_images" in held else ""
            pixels = torch.from_numpy(held[f"{train}images"][: 32 * BATCH])
            labels_N = torch.from_numpy(held[f"{train}labels"][: 32 * BATCH]).long()
        return pixels.permute(0, 3, 1, 2).contiguous(), labels_N
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(32 * BATCH) % 10
    coarse = torch.randn(10, 3, 4, 4, generator=generator)
    own = torch.randn(len(labels_N), 3, 8, 8, generator=generator)
    smooth = [F.interpolate(each, (32, 32), mode="bilinear") for each in (coarse, own)]
    levels = 120 + 35 * smooth[0][labels_N] + 45 * smooth[1]
    return levels.clamp(0, 255).to(torch.uint8), labels_N


def prepared(estimator: str, model: str, split: Split, device: torch.device) -> SearchState:
    config = search_config("paper", estimator=estimator, base=BASES["cifar10"], precision="fp32")
    network = build(model, split.num_classes, split.channels, split.image_size, seed=0)
    state = SearchState(network, split, config, 0, device)
    with torch.no_grad():  # off its start, where nine of the fifteen operations do nothing
        noise = torch.Generator(device).manual_seed(1)
        state.learned.magnitude_NK.uniform_(0.3, 0.9, generator=noise)
    train, optimizer = split.train, torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)
    for step in range(TRAINED):
        images, labels = train.batch(torch.arange(step * BATCH, (step + 1) * BATCH) % len(train))
        optimizer.zero_grad()
        F.cross_entropy(network(state.seen(images)), labels).backward()
        optimizer.step()
    return state


def gradients_by_precision(state: SearchState, step: int, part: TensorPart) -> dict[str, Gradients]:
    """One batch, one draw, one validation gradient; only the passes of the cost differ."""
    model, index_B = state.model, torch.arange(step * BATCH, (step + 1) * BATCH) % len(part)
    images, labels = part.batch(index_B)
    others, their_labels = part.batch((index_B + len(part) // 2) % len(part))
    draw = state.estimator.sample(state.sampling, BATCH, generator=state.noise)
    stages = augment_stages(images, state.space, draw, state.sampling.magnitude_NK)
    views = state.seen(stages[-1])
    weights = trainable_weights(model)
    loss = F.cross_entropy(model(state.seen(others)), their_labels)
    grads = torch.autograd.grad(loss, tuple(weights.values()))
    twin = copy.deepcopy(model).double()
    found = {}
    for name in ("fp64", *(p for p in PRECISIONS if p != "tf32" or state.device.type == "cuda")):
        exact = name == "fp64"
        network = twin if exact else model
        named = zip(weights, grads, strict=True)
        val_grad = {key: grad.double() if exact else grad for key, grad in named}
        precision = Precision("fp32" if exact else name, state.device)
        with ExitStack() as around:
            for each in (precision.products(), precision.passes(), without_noise(network)):
                around.enter_context(each)
            around.enter_context(plain_kernels())
            cost = finite_difference_cost(
                network,
                trainable_weights(network),
                val_grad,
                RATE,
                views.double() if exact else views,
                labels,
                image_grad=True,
            )
        assert cost.cost_grad_BCHW is not None
        branches = Branches.of(draw, lambda rows: rows)
        pixels = cost.cost_grad_BCHW.to(torch.float64 if exact else torch.float32)
        effects = pixel_effects(state, draw, branches, pixels, stages, views)
        # RELAX moves its scale with every call: each precision asks a copy.
        estimator = copy.deepcopy(state.estimator)
        asked = {key: effect.float() for key, effect in effects.items()}
        found[name] = estimator.gradients(draw, state.sampling, cost.cost_B.float(), **asked)
    return found


def error_and_cosine(mine: Tensor, true: Tensor) -> tuple[float, float]:
    mine, true = mine.flatten().double(), true.flatten().double()
    error = float((mine - true).norm() / true.norm().clamp_min(1e-30))
    return error, float(F.cosine_similarity(mine, true, dim=0))


def rows_of(estimator: str, steps: list[dict[str, Gradients]]) -> list[dict[str, Any]]:
    rows = []
    for name in [each for each in steps[0] if each != "fp64"]:
        for part in PARTS:
            pairs = [(getattr(step[name], part), getattr(step["fp64"], part)) for step in steps]
            each = [error_and_cosine(mine, true) for mine, true in pairs]
            errors, cosines = ([pair[i] for pair in each] for i in (0, 1))
            of_mean = error_and_cosine(
                *(torch.stack([pair[i] for pair in pairs]).mean(dim=0) for i in (0, 1))
            )
            row = {"estimator": estimator, "precision": name, "gradient": part}
            row |= {"error": statistics.median(errors), "error_high": max(errors)}
            row |= {"cosine": statistics.median(cosines), "cosine_low": min(cosines)}
            rows.append(row | {"error_of_mean": of_mean[0], "cosine_of_mean": of_mean[1]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="npz with images (NHWC uint8) and labels")
    parser.add_argument("--model", default="wrn40_2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = resolve_device("auto")
    part = TensorPart(*images_and_labels(args.data))
    split = Split(train=part, classes=tuple("abcdefghij"), name="images").to(device)
    assert isinstance(split.train, TensorPart)
    rows: list[dict[str, Any]] = []
    for estimator in ESTIMATORS:
        state = prepared(estimator, args.model, split, device)
        steps = [gradients_by_precision(state, step, split.train) for step in range(args.steps)]
        rows += rows_of(estimator, steps)
    print_table(rows, list(rows[0]))
    if args.out:
        settings = {"model": args.model, "steps": args.steps, "batch": BATCH, "trained": TRAINED}
        settings["images_are"] = "random" if args.data is None else "real"
        content = {"machine": machine(), "settings": settings, "rows": rows}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
