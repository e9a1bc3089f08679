"""Do searches of the same data with other seeds agree, and do they say how sure they are?

    python benchmarks/studies/agreement.py DATA [--model NAME] [--weights FILE] [--seeds 3] \\
        [--image-size 224] [--device cpu] [--out FILE]

Every search runs as a user's would. Written down are its word (clear, weak or none), the scores of
its operations, what its verification said, if there was one, and its seconds: of the clock, and of
the processor on all cores together, which a busy machine does not change. Two searches agree by
Spearman's correlation of their scores. What is in the file is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from scipy.stats import spearmanr

import dada

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table


def one_search(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    given = {"model": args.model, "weights": args.weights, "device": args.device, "seed": seed}
    facts = dada.search(args.data, image_size=args.image_size, **given).policy.provenance
    ahead, verified = facts["lookahead"], facts["verification"] or {}
    return {
        "seed": seed,
        "signal": facts["signal"]["word"],
        "halves_agree": facts["signal"]["agreement"],
        "chance": facts["signal"]["chance"],
        "read_from": "features" if ahead.get("features") else ahead.get("stand_in", "trainings"),
        "runs": ahead["runs"],
        "policy_runs": ahead.get("policy_runs", 0),
        "shape": ahead.get("shape"),
        "base": facts.get("base"),
        "image_size": facts["data"]["image_size"],
        "score": ahead["score"],
        "images": facts["data"]["train"] + facts["data"]["val"],
        "verdict": verified.get("verdict"),
        "trainings": verified.get("trainings", 0),
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def agreement(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Between every two searches, and their mean."""
    pairs = {}
    for one, other in itertools.combinations(rows, 2):
        names = [name for name in one["score"] if name in other["score"]]
        scores = [[row["score"][name] for name in names] for row in (one, other)]
        pairs[f"{one['seed']} and {other['seed']}"] = round(float(spearmanr(*scores).statistic), 3)
    return {"pairs": pairs, "mean": round(mean(pairs.values()), 3) if pairs else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--model")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"rows": []}
    if args.out and args.out.exists():
        found = json.loads(args.out.read_text())
    for seed in range(len(found["rows"]), args.seeds):
        found["rows"].append(one_search(args, seed))
        found |= {"machine": machine() | {"threads": torch.get_num_threads()}}
        found |= {"data": Path(args.data).name, "model": args.model}
        found |= {"agreement": agreement(found["rows"])}
        print({k: v for k, v in found["rows"][-1].items() if k != "score"}, flush=True)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    columns = ["seed", "signal", "halves_agree", "runs", "policy_runs", "seconds", "cpu_seconds"]
    print_table(found["rows"], columns)
    print(found["agreement"])


if __name__ == "__main__":
    main()
