"""Pretrained networks: which optimiser, which rate, smaller rates for earlier layers, which base?

    python benchmarks/studies/fine_tuning_settings.py DATA --weights FILE --out FILE \\
        [--arms "a;b"] [--searches N]

Each training is `dada train` with its defaults but for what its arm says. With a layer decay, what
a step changes is multiplied by decay ** (layers after it), the layers being timm's; the head keeps
the whole rate. One seed means the same head, order and random crops for every arm, so arms are
compared seed by seed. With --searches so many searches of the same images say which base they
choose.

The plans are in docs/fine-tuning-study.md. What is in the file is not run again, so a study may be
stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fine_tuning import MODEL
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

import dada
from dada.config import TrainConfig
from dada.data import Split, load, reduce
from dada.policy_search.lookahead.base_choice import BASES
from dada.report.base import chosen_base
from dada.training import state
from dada.training.optimisers import SGD, AdamW

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import earlier, joined, print_table, save, welch


@dataclass(frozen=True, kw_only=True)
class Arm:
    optimizer: str
    lr: float | None = None  # None: what `dada train` takes
    decay: float = 1.0
    base: str = "photo"

    @property
    def name(self) -> str:
        words = [self.optimizer]
        words += [] if self.lr is None else [f"rate {self.lr:g}"]
        words += [] if self.decay == 1 else [f"decay {self.decay:g}"]
        words += [] if self.base == "photo" else [f"base {self.base}"]
        return ", ".join(words)


ARMS = {
    arm.name: arm
    for arm in (
        *(Arm(optimizer=name, decay=d) for name in ("sgd", "adamw") for d in (1, 0.9, 0.75)),
        *(Arm(optimizer="sgd", lr=lr) for lr in (0.01, 0.02)),
        Arm(optimizer="adamw", lr=3e-4),
        *(Arm(optimizer="sgd", base=name) for name in BASES if name != "photo"),
    )
}


@contextmanager
def layers_decay(decay: float) -> Iterator[None]:
    """Inside, trainings have it: of what a step changed, only that part is kept."""
    usual = state.optimizer_for

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

    state.optimizer_for = made
    try:
        yield
    finally:
        state.optimizer_for = usual


def accuracy_of(arm: Arm, whole: Split, weights: Path, seed: int) -> float:
    """In percent, of one training."""
    with layers_decay(arm.decay):
        trained = dada.train(
            whole,
            "none",
            MODEL,
            weights=weights,
            base=arm.base,
            seed=seed,
            optimizer=arm.optimizer,
            lr=arm.lr,
            on_note=lambda line: None,
        )
    return round(100 * trained.scores.accuracy, 4)


def choice_of(whole: Split, weights: Path, seed: int) -> str | None:
    """The base that a search chooses; it does not look at the test images."""
    found = dada.search(
        whole, model=MODEL, weights=weights, verify=False, seed=seed, on_note=lambda line: None
    )
    return chosen_base(found.policy)


def conclude(accuracy: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """What each arm gains over the default, in points, seed by seed."""
    rows = []
    for name, these in accuracy.items():
        row: dict[str, Any] = {"arm": name, "n": len(these)}
        row["accuracy"] = sum(these.values()) / len(these)
        usual = accuracy.get("sgd", {})
        gains = [these[seed] - usual[seed] for seed in these if seed in usual]
        if name != "sgd" and len(gains) > 1:
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
    parser.add_argument("--arms", default=";".join(ARMS), help="with ; between")
    parser.add_argument("--searches", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    whole = load(args.data, image_size=args.image_size)
    if args.train:
        whole = reduce(whole, args.train, seed=0)
    assert whole.test is not None
    settings = {"image_size": args.image_size, "train": args.train}
    found: dict[str, Any] = {"settings": settings | {"fingerprint": whole.fingerprint}}
    joined(found, earlier(args))
    found["images"] = {"train": len(whole.train), "test": len(whole.test)}
    accuracy = found.setdefault("accuracy", {})
    for seed in range(args.seeds):
        for name in args.arms.split(";"):
            held = accuracy.setdefault(name, {})
            if str(seed) not in held:
                held[str(seed)] = accuracy_of(ARMS[name], whole, args.weights, seed)
                print(f"seed {seed}, {name}: {held[str(seed)]}", flush=True)
                save(found, args.out)
    chosen = found.setdefault("chosen", {})
    for seed in range(args.searches):
        if str(seed) not in chosen:
            chosen[str(seed)] = choice_of(whole, args.weights, seed)
            print(f"seed {seed}: a search chose {chosen[str(seed)]}", flush=True)
            save(found, args.out)
    found["table"] = conclude({name: each for name, each in accuracy.items() if each})
    save(found, args.out, measured=False)
    print_table(found["table"], ["arm", "accuracy", "n", "gain", "from", "to"])


if __name__ == "__main__":
    main()
