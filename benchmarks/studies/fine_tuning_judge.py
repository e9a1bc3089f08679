"""The judge for pretrained networks: does a search help those who fine-tune on photographs?

    python benchmarks/studies/fine_tuning_judge.py DATA --weights FILE --out FILE

Every policy fine-tunes on all training images and is tested on the test images, which no search
looks at. Searches are the unit: the mean of each one's trainings.

    dada     what `--searches` default searches found, before verification, `--trainings` of each
    rival    the free policy that validation chooses among none, uniform, TrivialAugment and six
             RandAugments, in the seconds that the search of the same number took; trainings on half
             of the images, judged on the other half (unless --without-rivals)
    none, uniform, trivialaugment
             as many trainings as all searches have together

The plans are in docs/fine-tuning-study.md. What is in the file is not run again, so a study may be
stopped. To share the work between processes, give each some of it (`--only 0 1`, `--only none`) and
a file of its own; the whole command with `--join` reads those files and runs what is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fine_tuning import MODEL, Study, options
from rivals import FREE, rival_of

import dada
from dada import Policy
from dada.data import load, reduce

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import print_table, units_of, welch


def search(study: Study, args: argparse.Namespace, seed: int) -> Policy:
    held = study.found.setdefault("searches", {})
    if str(seed) not in held:
        train = study.whole.train
        begun, ended = time.perf_counter(), list[float]()
        result = dada.search(
            train.batch(torch.arange(len(train))),
            model=MODEL,
            weights=args.weights,
            base=args.base,
            seed=seed,
            verify=False,
            on_note=lambda line: None,
            on_lookahead=lambda done, total: ended.append(time.perf_counter() - begun),
        )
        held[str(seed)] = {
            "seconds": round(time.perf_counter() - begun, 1),
            "runs_ended_after": [round(each, 1) for each in ended],
            "policy": json.dumps(json.loads(result.policy.to_json())),
        }
        facts = result.policy.provenance
        print(f"search {seed}: {held[str(seed)]['seconds']} s, runs {ended}", flush=True)
        print(facts["signal"], facts["lookahead"].get("shape"), flush=True)
        study.save()
    return Policy.from_json(held[str(seed)]["policy"])


def rival(study: Study, seed: int) -> str:
    held = study.found.setdefault("rivals", {})
    if str(seed) not in held:
        held[str(seed)] = rival_of(
            seed,
            study.found["searches"][str(seed)]["seconds"],
            study.whole,
            study.job,
            study.at_once,
        )
        study.save()
    return str(held[str(seed)]["chosen"])


def conclude(found: dict[str, Any]) -> None:
    units = units_of(found["truth"])
    found["table"] = []
    for name, mine in units.items():
        row = {"policy": name, "accuracy": statistics.mean(mine), "n": len(mine)}
        row |= {"lowest": min(mine), "highest": max(mine)}
        if name != "dada" and min(len(mine), len(units.get("dada", []))) > 1:
            row |= dict(zip(("dada_minus", "from", "to"), welch(units["dada"], mine), strict=True))
        found["table"].append(row)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--searches", type=int, default=4)
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="seeds of searches, free policies; else all")
    parser.add_argument("--train", type=int, help="so many of the training images, drawn; else all")
    parser.add_argument("--without-rivals", action="store_true")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    args = parser.parse_args()
    whole = load(args.data, image_size=args.image_size)
    if args.train:
        whole = reduce(whole, args.train, seed=0)
    study = Study.begin(args, whole, {}, apart=("searches", "trainings"))
    wanted = args.only or [*map(str, range(args.searches)), *FREE]
    for seed in range(args.searches):
        if str(seed) not in wanted:
            continue
        of_one = {f"dada of {seed}": search(study, args, seed)}
        if not args.without_rivals:
            of_one[f"rival of {seed}"] = Policy.load(rival(study, seed))
        seeds = range(1000 * seed, 1000 * seed + args.trainings)
        study_of = replace(study, arms=of_one)
        study_of.truth(seeds)
    free = replace(study, arms={name: Policy.load(name) for name in FREE if name in wanted})
    free.truth(range(args.searches * args.trainings))
    conclude(study.found)
    study.save(measured=False)
    columns = ["policy", "accuracy", "lowest", "highest", "n", "dada_minus", "from", "to"]
    print_table(study.found["table"], columns)


if __name__ == "__main__":
    main()
