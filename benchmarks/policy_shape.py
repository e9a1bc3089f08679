"""From effects to a policy: how sharp, how often, how strong? Trained on all images, tested.

    python benchmarks/policy_shape.py FIDELITY.json DATA [--trainings 2] [--out results/....json]

FIDELITY is what `reward_fidelity.py` wrote for the same data: its raw look-ahead of every seed is
one search. From each, policies of several shapes are made and trained on the images of that seed.
The free policies are trained on the same images with the same seeds. This chooses the shape that
is shipped, so it is no judge of it: `judge.py` is, on searches that had no part in this.

shape  sharp S    sub-policies weighted by exp(S (z_a + z_b)), z the effects in their deviations
       often      operations fire with probability 0.8 in place of 0.5
       banded     an operation keeps the half of its strengths that looks better
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, print_table
from reward_fidelity import NAMES, SPACE, Bench

from dada import Policy, models
from dada.config import BASES, Base
from dada.data import load, reduce
from dada.engine import resolve_device
from dada.policy import PolicyOp, SubPolicy

FREE = ("uniform", "init", "trivialaugment", "none")
HALVES = {"weak": (0.0, 0.5), "strong": (0.5, 1.0)}


def shapes(raw: dict[str, dict[str, list[float]]]) -> dict[str, Policy]:
    loss = {name: float(np.mean(by_run)) for name, by_run in raw["loss"].items()}
    effects = np.array([loss[name] for name in NAMES])
    z = dict(zip(NAMES, (effects - effects.mean()) / effects.std(), strict=True))
    found = {f"sharp {sharp:g}": weighted(z, sharp) for sharp in (0.5, 1.0, 2.0)}
    found["sharp 1, often"] = weighted(z, 1.0, probability=0.8)
    with_strength = [op.name for op in SPACE.ops if op.has_strength]
    if all(f"{name} weak" in loss for name in with_strength):
        better = {n: max(HALVES, key=lambda half, n=n: loss[f"{n} {half}"]) for n in with_strength}
        banded = {name: HALVES[half] for name, half in better.items()}
        found["sharp 1, banded"] = weighted(z, 1.0, strengths=banded)
    return found


def weighted(
    z: dict[str, float],
    sharp: float,
    *,
    probability: float = 0.5,
    strengths: dict[str, tuple[float, float]] | None = None,
) -> Policy:
    pairs = list(itertools.combinations(NAMES, 2))
    weights = [math.exp(sharp * (z[a] + z[b])) for a, b in pairs]
    rows = []
    for pair, weight in zip(pairs, weights, strict=True):
        steps = [PolicyOp(name, probability, (strengths or {}).get(name, (0, 1))) for name in pair]
        rows.append(SubPolicy(weight / sum(weights), tuple(steps)))
    return Policy(tuple(rows), "strength" if strengths else SPACE.name, "weighted", {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fidelity", type=Path)
    parser.add_argument("data")
    parser.add_argument("--trainings", type=int, default=2)
    parser.add_argument("--searches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--at-once", type=int, default=None)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    known = json.loads(args.fidelity.read_text())
    asked = known["settings"]
    device = resolve_device("auto")
    source = load(args.data, image_size=asked["image_size"])
    assert source.test is not None
    model = asked["model"] or models.default_model(device.type, source.image_size)
    base = BASES[asked["base"]] if asked.get("base") else Base()
    at_once = args.at_once or (4 if device.type == "cuda" else 1)
    bench = Bench(model, base, device, at_once, asked.get("batch_size", 64))
    results: dict[str, dict[str, list[float]]] = {}
    if args.out and args.out.exists():
        results = json.loads(args.out.read_text())["accuracy"]
    for search in list(known["seeds"])[: args.searches]:
        raw = known["seeds"][search].get("look ahead, raw")
        if raw is None or search in results:
            continue
        whole = reduce(replace(source, val=None), asked["train"], int(search))
        policies = shapes(raw) | {name: Policy.load(name) for name in FREE}
        found: dict[str, list[float]] = {name: [] for name in policies}
        for training in range(args.trainings):
            seed = 500 + 10 * int(search) + training
            scores = bench.scores(whole, source.test, list(policies.values()), seed, args.epochs)
            for name, score in zip(policies, scores, strict=True):
                found[name].append(100 * score.accuracy)
        results[search] = found
        print(search, {k: round(statistics.mean(v), 2) for k, v in found.items()}, flush=True)
        if args.out:
            settings = {"epochs": args.epochs, "trainings": args.trainings, **asked}
            content = {"machine": machine(), "settings": settings, "accuracy": results}
            args.out.write_text(json.dumps(content, indent=1) + "\n")
    print_table(table(results), ["policy", "accuracy", "minus_uniform", "lowest", "highest", "n"])


def table(results: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Searches are the unit: the mean of each one's trainings, against uniform on the same."""
    rows = []
    for name in dict.fromkeys(name for found in results.values() for name in found):
        tried = [found for found in results.values() if name in found]
        means = [statistics.mean(found[name]) for found in tried]
        gains = [m - statistics.mean(f["uniform"]) for m, f in zip(means, tried, strict=True)]
        rows.append(
            {
                "policy": name,
                "accuracy": statistics.mean(means),
                "minus_uniform": statistics.mean(gains),
                "lowest": min(gains),
                "highest": max(gains),
                "n": len(means),
            }
        )
    return rows


if __name__ == "__main__":
    main()
