"""Pretrained networks: do smaller rates for earlier layers pay in fine-tuning?

    python benchmarks/studies/layer_decay.py DATA --weights FILE --out FILE

Each training is `dada train` with its defaults, but that a layer's changes are multiplied by
decay ** (layers after it), the layers being timm's. The head keeps the whole rate. One seed means
the same head, order and random crops for every decay, so they are compared seed by seed.

The plan is in docs/photographs.md. What is in the file is not run again, so a study may be stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fine_tuning import MODEL
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

import dada
from dada.config import TrainConfig
from dada.data import load, reduce
from dada.training import state
from dada.training.optimisers import SGD, AdamW

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, welch

DECAYS = (1.0, 0.9, 0.75)
OPTIMIZERS = ("sgd", "adamw")


@contextmanager
def layers_decay(decay: float) -> Iterator[None]:
    """Inside, trainings have it: of what a step changed, only that part is kept."""
    usual = state._optimizer

    def made(network: nn.Module, config: TrainConfig) -> SGD | AdamW:
        groups = param_groups_layer_decay(network, layer_decay=decay)
        share = {id(weight): group["lr_scale"] for group in groups for weight in group["params"]}
        optimizer = usual(network, config)
        whole_step = optimizer.step

        @torch.no_grad()
        def step(lr: Tensor) -> None:
            before = [weight.clone() for weight in optimizer.weights]
            whole_step(lr)
            for weight, old in zip(optimizer.weights, before, strict=True):
                weight.copy_(old.lerp(weight, share[id(weight)]))

        optimizer.step = step  # type: ignore[method-assign]
        return optimizer

    state._optimizer = made
    try:
        yield
    finally:
        state._optimizer = usual


def conclude(accuracy: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """What each decay gains over none with the same optimizer, in points, seed by seed."""
    rows = []
    for optimizer, decay in itertools.product(OPTIMIZERS, DECAYS):
        usual, these = (accuracy.get(f"{optimizer} {d}", {}) for d in (DECAYS[0], decay))
        row: dict[str, Any] = {"optimizer": optimizer, "decay": decay, "n": len(these)}
        if these:
            row["accuracy"] = sum(these.values()) / len(these)
        gains = [these[seed] - usual[seed] for seed in these if seed in usual]
        if decay != DECAYS[0] and len(gains) > 1:
            row |= dict(zip(("gain", "from", "to"), welch(gains, []), strict=True))
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--train", type=int, help="so many of the training images, drawn; else all")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found: dict[str, Any] = {"accuracy": {}}
    if args.out.exists():
        found |= json.loads(args.out.read_text())
    whole = load(args.data, image_size=args.image_size)
    if args.train:
        whole = reduce(whole, args.train, seed=0)
    assert whole.test is not None
    found["images"] = {"train": len(whole.train), "test": len(whole.test)}
    found["settings"] = {k: v for k, v in vars(args).items() if k not in ("data", "weights", "out")}
    for seed, optimizer, decay in itertools.product(range(args.seeds), OPTIMIZERS, DECAYS):
        held = found["accuracy"].setdefault(f"{optimizer} {decay}", {})
        if str(seed) in held:
            continue
        with layers_decay(decay):
            trained = dada.train(
                whole,
                "none",
                MODEL,
                weights=args.weights,
                base="photo",
                seed=seed,
                optimizer=optimizer,
                on_note=lambda line: None,
            )
        held[str(seed)] = round(100 * trained.scores.accuracy, 4)
        print(f"seed {seed}, {optimizer}, decay {decay}: {held[str(seed)]}", flush=True)
        found["table"] = conclude(found["accuracy"])
        args.out.write_text(json.dumps(found | {"machine": machine()}, indent=1) + "\n")
    columns = ["optimizer", "decay", "accuracy", "n", "gain", "from", "to"]
    print_table(conclude(found["accuracy"]), columns)


if __name__ == "__main__":
    main()
