"""From effects to a policy: how sharp, how often, how strong? And does looking ahead know?

    python benchmarks/policy_shape.py FIDELITY.json DATA [--shapes "1 0.5 any;..."] [--out ....json]

FIDELITY is what `reward_fidelity.py` wrote for the same data: its raw look-ahead of every seed is
one search. From each, policies of several shapes are made, named by three words:

sharpness     sub-policies are weighted by exp(S (z_a + z_b)), z the effects in their deviations
probability   with which operations fire
strength      any, weak (the lower half of each operation's strengths), or strong (the upper)

Three readings of every policy, each an accuracy in percent and a loss:

truth         trained from scratch on all images of that seed, on the test images
half          trained from scratch on one half, on the other; every second time exchanged
ahead         the second half of a training under `uniform`, repeated with the policy, likewise;
              this is the second round of a search (dada.shapes)

Spearman's rank correlation with the truth of the same search says whether a reading can choose. The
truth is looked up on the same test images that `judge.py` uses, so what was learned here, to have a
second round and which shapes to try in it, has seen them; no search has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, print_table
from reward_fidelity import NAMES, Bench
from scipy.stats import spearmanr

from dada import Policy, models
from dada.config import BASES, Base, TrainConfig
from dada.data import Split, load, reduce, split_off_validation
from dada.engine import resolve_device
from dada.policy import PolicyOp, SubPolicy
from dada.policy.space import SPACES
from dada.policy_search.lookahead.runs import Run, look_ahead, schedule
from dada.training.loop import Job
from dada.training.scores import Scores

SHAPES = (
    "0 0.5 weak;0 1 any;0 1 weak;1 0.5 any;1 1 any;2 0.5 any;2 1 any;2 0.5 weak;2 1 weak;"
    "2 0.5 strong;2 1 strong"
)
STRENGTHS = {"any": (0.0, 1.0), "weak": (0.0, 0.5), "strong": (0.5, 1.0)}
READINGS = ("truth", "half", "ahead")
AT_ONE_MAGNITUDE = ("init",)  # of another space than the shapes, so not looked ahead with


def shaped(z: dict[str, float], shape: str, operations: int = 2, space: str = "strength") -> Policy:
    """The policy of a shape; instead of one of the words, its strength may be a number."""
    sharpness, probability, word = shape.split()
    strength = STRENGTHS.get(word) or float(word)
    rows = list(itertools.combinations((op.name for op in SPACES[space].ops), operations))
    weights = [math.exp(float(sharpness) * sum(z[name] for name in row)) for row in rows]
    subpolicies = (
        SubPolicy(
            weight / sum(weights),
            tuple(PolicyOp(name, float(probability), strength) for name in row),
        )
        for row, weight in zip(rows, weights, strict=True)
    )
    return Policy(tuple(subpolicies), space, "weighted", {})


def policies_of(losses: dict[str, list[float]], shapes: list[str]) -> dict[str, Policy]:
    """`losses` are minus the validation loss of every operation alone, run by run."""
    effects = np.array([np.mean(losses[name]) for name in NAMES])
    z = dict(zip(NAMES, (effects - effects.mean()) / effects.std(), strict=True))
    found = {shape: shaped(z, shape) for shape in shapes}
    # In the space of the shapes this is `uniform` as everywhere: directions are drawn at random.
    found["uniform"] = shaped(z, "0 0.5 any")
    return found | {name: Policy.load(name) for name in AT_ONE_MAGNITUDE}


def read(scores: Scores) -> list[float]:
    return [100 * scores.accuracy, scores.loss]


def measure(
    bench: Bench,
    source: Split,
    search: int,
    policies: dict[str, Policy],
    args: argparse.Namespace,
    found: dict[str, dict[str, list[list[float]]]],
) -> Iterator[None]:
    """Fills `found`, and stops after every reading to let it be written."""
    assert source.test is not None
    whole = reduce(replace(source, val=None), args.train, search)
    split = split_off_validation(whole, 0.5, search)

    def note(reading: str, scores: dict[str, Scores]) -> None:
        for name, each in scores.items():
            found[name][reading].append(read(each))

    def trained(part: Split, judge: Any, seed: int) -> dict[str, Scores]:
        scores = bench.scores(part, judge, list(policies.values()), seed, args.epochs)
        return dict(zip(policies, scores, strict=True))

    for i in range(len(found["uniform"]["truth"]), args.trainings):
        note("truth", trained(whole, source.test, 700 + 10 * search + i))
        yield
    for i in range(len(found["uniform"]["half"]), args.halves):
        half = exchanged(split) if i % 2 else split
        note("half", trained(half, half.val, 800 + 10 * search + i))
        yield
    if args.runs and not found["uniform"]["ahead"]:
        short, config = schedule(split, TrainConfig(base=bench.base), search, bench.device)
        arms = {name: p for name, p in policies.items() if name not in AT_ONE_MAGNITUDE}
        runs = [
            Run(
                job=Job(
                    split=exchanged(short) if i % 2 else short,
                    model=bench.network(short, 900 + 10 * search + i),
                    policy=policies["uniform"],
                    config=config,
                    seed=900 + 10 * search + i,
                    device=bench.device,
                ),
                arms=arms,
            )
            for i in range(args.runs)
        ]
        for _, scores in look_ahead(runs, bench.at_once):
            note("ahead", scores)
        yield


def exchanged(split: Split) -> Split:
    assert split.val is not None
    return replace(split, train=split.val, val=split.train)


def table(searches: dict[str, Any]) -> list[dict[str, Any]]:
    """Means over all searches, and the test accuracy minus that under uniform, search by search."""

    def mean(found: dict[str, Any], name: str, reading: str, column: int) -> float | None:
        seen = [one[column] for one in found[name][reading]]
        return float(np.mean(seen)) if seen else None

    rows = []
    for name in next(iter(searches.values())):
        row: dict[str, Any] = {"policy": name}
        for reading in READINGS:
            for column, what in enumerate(("accuracy", "loss")):
                each = [mean(found, name, reading, column) for found in searches.values()]
                known = [one for one in each if one is not None]
                row[f"{reading}_{what}"] = float(np.mean(known)) if known else None
        row["minus_uniform"] = [
            mean(found, name, "truth", 0) - mean(found, "uniform", "truth", 0)  # type: ignore[operator]
            for found in searches.values()
        ]
        rows.append(row)
    return rows


def correlations(searches: dict[str, Any]) -> list[dict[str, Any]]:
    """Of every reading with the truth of the same search, whose policies no other search has."""

    def means(found: dict[str, Any], reading: str, column: int, sign: int = 1) -> list[float]:
        names = [name for name in found if name not in AT_ONE_MAGNITUDE]
        return [sign * float(np.mean([one[column] for one in found[n][reading]])) for n in names]

    rows = []
    for reading in READINGS[1:]:
        for column, (what, sign) in enumerate((("accuracy", 1), ("loss", -1))):
            each = [
                float(
                    spearmanr(
                        means(found, "truth", 0), means(found, reading, column, sign)
                    ).statistic
                )
                for found in searches.values()
                if found["uniform"][reading]
            ]
            if each:
                rows.append({"reading": f"{reading}, {what}", "with_truth": each})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fidelity", type=Path)
    parser.add_argument("data")
    parser.add_argument("--shapes", default=SHAPES, help="with semicolons between")
    parser.add_argument("--trainings", type=int, default=3, help="on all images")
    parser.add_argument("--halves", type=int, default=4, help="trainings on one half")
    parser.add_argument("--runs", type=int, default=4, help="of looking ahead")
    parser.add_argument("--searches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--at-once", type=int, default=None)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    known = json.loads(args.fidelity.read_text())
    asked = known["settings"]
    args.train = asked["train"]
    device = resolve_device("auto")
    source = load(args.data, image_size=asked["image_size"])
    model = asked["model"] or models.default_model(device.type, source.image_size)
    base = BASES[asked["base"]] if asked.get("base") else Base()
    at_once = args.at_once or (4 if device.type == "cuda" else 1)
    bench = Bench(model, base, device, at_once, asked.get("batch_size", 64))
    searches: dict[str, Any] = {}
    if args.out and args.out.exists():
        searches = json.loads(args.out.read_text())["searches"]
    names = ("train", "epochs", "trainings", "halves", "runs", "shapes")
    settings = {name: getattr(args, name) for name in names} | {"model": model}
    for search in list(known["seeds"])[: args.searches]:
        raw = known["seeds"][search]["look ahead, raw"]["loss"]
        policies = policies_of(raw, args.shapes.split(";"))
        nothing = {name: {reading: [] for reading in READINGS} for name in policies}
        found = searches.setdefault(search, nothing)
        for _ in measure(bench, source, int(search), policies, args, found):
            print(search, {r: len(found["uniform"][r]) for r in READINGS}, flush=True)
            if args.out:
                content = {
                    "machine": machine(),
                    "settings": settings,
                    "table": table(searches),
                    "correlations": correlations(searches),
                    "searches": searches,
                }
                args.out.write_text(json.dumps(content, indent=1) + "\n")
    print_table(
        table(searches), ["policy", *(f"{r}_{w}" for r in READINGS for w in ("accuracy", "loss"))]
    )
    print_table(correlations(searches), ["reading", "with_truth"])


if __name__ == "__main__":
    main()
