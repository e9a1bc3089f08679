"""Would loss tell a verification sooner than accuracy which policy is better?

    python benchmarks/studies/verify_reading.py [DATA] [--train 200] [--seeds 16] [--out FILE]

Short trainings as a verification makes them, of the free policies, each scored on as many
validation images as it was trained on, and on all the others. *Truth* is the mean accuracy on those
others; two policies truly differ where their paired difference there is above two standard errors.
Readings are compared by what groups of four paired seeds say on the validation images: how often
the 95% interval of the difference leaves out zero, with the right sign and with the wrong one, how
often where there is no difference, and how good the policy is that they would take.
What is in the file is not trained again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import t

from dada import Policy, models
from dada.config import FROM_SCRATCH
from dada.data import Split, load, reduce, split_off_validation
from dada.engine import Precision
from dada.policy.augment import Normalise
from dada.training.loop import Job
from dada.training.many import run_job
from dada.training.scores import evaluate
from dada.trials.short import shorten

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

RANDAUGMENTS = [f"randaugment:{n},{m}" for n in (1, 2) for m in (0.3, 0.5, 0.7)]
POLICIES = ("none", "uniform", "trivialaugment", *RANDAUGMENTS)
READINGS = {"accuracy": 1, "loss": -1, "calibrated_loss": -1}  # and the sign of better
GROUP = 4  # pairs: the fewest that a verification makes
CPU = torch.device("cpu")


def halves(data: str, train: int) -> Split:
    """`train` images, as many to validate on, the rest to test."""
    whole = load(data)
    some = reduce(whole, 2 * train, 0)
    taken = {image.numpy().tobytes() for image in some.train.batch(torch.arange(2 * train))[0]}
    images = whole.train.batch(torch.arange(len(whole.train)))[0]
    rest = [i for i, image in enumerate(images) if image.numpy().tobytes() not in taken]
    split = split_off_validation(Split(**{**vars(some), "val": None, "test": None}), 0.5, 0)
    return Split(**{**vars(split), "test": whole.train.take(torch.tensor(rest))})


def one_training(split: Split, policy: str, seed: int) -> dict[str, dict[str, float]]:
    assert split.val is not None and split.test is not None
    short, config = shorten(split, FROM_SCRATCH, seed=0)
    shape = split.num_classes, split.channels, split.image_size
    network = models.build("small", *shape, seed=seed)
    loaded = Policy.load(policy)
    job = Job(split=short, model=network, policy=loaded, config=config, seed=seed, device=CPU)
    trained = run_job(job).model
    normalise, precision = Normalise(*split.mean_std()), Precision.of("fp32", CPU)
    found = {}
    for name, part in (("val", split.val), ("test", split.test)):
        scores = evaluate(trained, normalise, part, split.num_classes, precision)
        found[name] = {each: getattr(scores, each) for each in READINGS}
    return found


def told(rows: dict[str, dict[str, Any]], reading: str) -> dict[str, Any]:
    """Of all pairs of policies and groups of seeds."""
    seeds = sorted(next(iter(rows.values())), key=int)
    groups = [seeds[i : i + GROUP] for i in range(0, len(seeds) - GROUP + 1, GROUP)]
    count = {"right": 0, "wrong": 0, "of_different": 0, "claimed_of_same": 0, "of_same": 0}
    for one, other in itertools.combinations(rows, 2):
        better, differs = _difference(rows, one, other, seeds, "test", "accuracy", 2.0)
        for group in groups:
            limit = float(t.ppf(0.975, GROUP - 1))
            gain, clear = _difference(rows, one, other, group, "val", reading, limit)
            if not differs:
                count["of_same"] += 1
                count["claimed_of_same"] += clear
                continue
            count["of_different"] += 1
            count["right"] += clear and (gain > 0) == (better > 0)
            count["wrong"] += clear and (gain > 0) != (better > 0)
    return {"reading": reading, **count, "chosen": round(100 * _chosen(rows, groups, reading), 2)}


def _chosen(rows: dict[str, dict[str, Any]], groups: list[list[str]], reading: str) -> float:
    """The true accuracy of the policy that each group of seeds would take, on average."""
    truth = {
        name: mean(each["test"]["accuracy"] for each in held.values())
        for name, held in rows.items()
    }
    taken = [
        max(rows, key=lambda name: _mean(rows[name], group, "val", reading)) for group in groups
    ]
    return mean(truth[name] for name in taken)


def _mean(held: dict[str, Any], seeds: list[str], part: str, reading: str) -> float:
    return READINGS[reading] * mean(held[seed][part][reading] for seed in seeds)


def _difference(
    rows: dict[str, dict[str, Any]],
    one: str,
    other: str,
    seeds: list[str],
    part: str,
    reading: str,
    limit: float,
) -> tuple[float, bool]:
    """The mean gain of `one`, and whether it is more than so many standard errors."""
    sign = READINGS[reading]
    each = [
        sign * (rows[one][seed][part][reading] - rows[other][seed][part][reading]) for seed in seeds
    ]
    error = stdev(each) / math.sqrt(len(each))
    return mean(each), abs(mean(each)) > limit * error > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", default="digits")
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    split = halves(args.data, args.train)
    found: dict[str, Any] = {"trainings": {name: {} for name in POLICIES}}
    if args.out and args.out.exists():
        found = json.loads(args.out.read_text())
    for seed in range(args.seeds):
        for name, held in found["trainings"].items():
            if str(seed) not in held:
                held[str(seed)] = one_training(split, name, seed)
        found |= {"machine": machine(), "data": split.name, "train": args.train}
        if args.out:
            args.out.write_text(json.dumps(found) + "\n")
        print(seed, flush=True)
    every = found["trainings"].values()
    truths = [100 * mean(each["test"]["accuracy"] for each in held.values()) for held in every]
    found |= {"mean_of_all": round(mean(truths), 2), "best": round(max(truths), 2)}
    found["table"] = [told(found["trainings"], reading) for reading in READINGS]
    print_table(found["table"], list(found["table"][0]))
    if args.out:
        args.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
