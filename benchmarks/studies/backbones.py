"""Detectors on a backbone that was trained with a policy, and on one that was not: table 5.

    python benchmarks/studies/backbones.py --classes caltech101/ --out FILE \
        --detectors fasterrcnn=bccd@144,192 retinanet=bccd@144,192 maskrcnn=pennfudan@192

Arms and counts are fixed here, before any number was seen. A classifier is trained without a policy
and with one that was searched for on its data, crop and flip in both, then detectors on each as
backbone, without a policy: box AP of both. Of the first detector `--seeds` (5) of each arm, with
the interval of the paired differences; of the others one.

What is in the file is not run again, so a study may be stopped; its table is of the pairs that are
there. `--at-once` processes share a card; results do not depend on it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks import Study, size_of

import dada
from dada import Policy
from dada.config import NAMED_BASES
from dada.trials.statistics import interval

BASE = NAMED_BASES["photo"]  # of classifiers: crop and flip, as the paper's stock networks have it
ARMS = ("none", "found")


def table5(args: argparse.Namespace, study: Study) -> None:
    """For each arm and seed a classifier, and detectors on it."""
    found = study.found
    held = found.setdefault("ap", {})
    if "policy" not in found:
        more = {} if args.lookahead is None else {"lookahead": args.lookahead}
        result = dada.search(
            args.classes,
            model=args.backbone,
            image_size=args.class_size,
            base=BASE,  # as the trainings have it
            verify=False,
            device=args.device,
            **more,
        )
        found["policy"] = json.dumps(json.loads(result.policy.to_json()))
        study.save()
    policies = dict(
        zip(ARMS, (Policy.load("none"), Policy.from_json(found["policy"])), strict=True)
    )
    wanted: dict[tuple[str, int], list[str]] = {}
    for number, each in enumerate(args.detectors):
        for seed in range(1 if number else args.seeds):
            for arm in ARMS:
                if str(seed) not in held.setdefault(f"{each.partition('=')[0]} {arm}", {}):
                    wanted.setdefault((arm, seed), []).append(each)
    # A detector's steps wait for the host: processes of their own fill the card. Both arms of a
    # seed before those of the next, so that a study that is stopped has pairs.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.at_once, mp_context=spawn) as pool:
        made = {
            pool.submit(_detectors, args, arm, policies[arm], seed, wanted[arm, seed]): (arm, seed)
            for arm, seed in sorted(wanted, key=lambda each: each[1])
        }
        for ended in as_completed(made):
            arm, seed = made[ended]
            for name, scores in ended.result().items():
                held[f"{name} {arm}"][str(seed)] = scores
                print(f"{name} {arm}, seed {seed}: AP {100 * scores['ap']:.2f}", flush=True)
            found["table"] = table_of(held)
            study.save()
    print(found["table"])


def table_of(held: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row for each detector of which both arms have a seed."""
    rows = {}
    for name in dict.fromkeys(key.partition(" ")[0] for key in held):
        none, found = (held.get(f"{name} {arm}", {}) for arm in ARMS)
        seeds = [seed for seed in none if seed in found]
        if not seeds:
            continue
        both = [[100 * each[seed]["ap"] for seed in seeds] for each in (none, found)]
        difference = [b - a for a, b in zip(*both, strict=True)]
        rows[name] = {
            "none": statistics.mean(both[0]),
            "found": statistics.mean(both[1]),
            "difference": statistics.mean(difference),
            "interval": interval(difference),
            "seeds": len(seeds),
        }
    return rows


def _detectors(
    args: argparse.Namespace, arm: str, policy: Policy, seed: int, wanted: list[str]
) -> dict[str, Any]:
    """The scores of detectors ("name=data@size") on a backbone trained under the policy."""
    begun = time.perf_counter()
    folder, shared = args.runs / f"{arm}-{seed}", {"seed": seed, "device": args.device}
    classifier = dada.train(
        args.classes,
        policy,
        args.backbone,
        out=folder,
        resume=True,
        epochs=args.class_epochs,
        image_size=args.class_size,
        base=BASE,
        **shared,
    )
    scores = {}
    for each in wanted:
        name, _, rest = each.partition("=")
        data, _, size = rest.rpartition("@")
        trained = dada.train(
            data,
            "none",
            name,
            backbone=folder,
            task="detection",
            epochs=args.epochs,
            image_size=size_of(size),
            **shared,
        )
        seconds = round(time.perf_counter() - begun, 1)
        more = {"accuracy": classifier.scores.accuracy, "seconds": seconds}
        scores[name] = asdict(trained.scores) | more
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", required=True, help="data to train the backbone on")
    parser.add_argument("--detectors", nargs="+", required=True, help="NAME=DATA@SIZE")
    parser.add_argument("--backbone", default="torchvision:resnet50")
    parser.add_argument("--seeds", type=int, default=5, help="of the first detector")
    parser.add_argument("--class-size", type=size_of, default=96)
    parser.add_argument("--class-epochs", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lookahead", type=float, help="seconds; default: as the search has it")
    parser.add_argument("--runs", type=Path, default=Path("runs/table5"), help="of the classifiers")
    parser.add_argument("--at-once", type=int, default=1, help="processes that share a card")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table5(args, Study.begin(args))


if __name__ == "__main__":
    main()
