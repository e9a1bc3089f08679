"""Where nothing can be learned, does a search claim something? Shuffled labels, many searches.

    python benchmarks/studies/null_check.py [DATA] [--train 200] [--searches 20] [--out FILE]

The labels of the images are shuffled, so no policy is better than another. Every search runs as a
user's would, with another seed and another shuffle, and is verified; a claim is a verdict whose
interval does not hold zero, in either direction. By chance one search in twenty makes one. What is
in the file is not run again. To share the work between processes, give each some of the searches
(`--first`, `--searches`) and a file of its own; the whole command with `--join` reads those files.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import dada
from dada.config import VerifyConfig
from dada.data import load, reduce

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import earlier, joined, print_table, save


def one_search(images: torch.Tensor, labels_N: torch.Tensor, seed: int, budget: float) -> Any:
    generator = torch.Generator().manual_seed(seed)
    shuffled_N = labels_N[torch.randperm(len(labels_N), generator=generator)]
    begun = time.perf_counter()
    verify = VerifyConfig(seconds=budget, judged_data=("digits",))
    policy = dada.search((images, shuffled_N), seed=seed, verify=verify).policy
    facts = policy.provenance["verification"]
    low, high = facts["interval"]
    ahead = policy.provenance["lookahead"]
    return {
        "seed": seed,
        "claims": not low <= 0 <= high,
        "difference": facts["difference"],
        "from": low,
        "to": high,
        "pairs": facts["seeds"],
        "largest_score": max(map(abs, ahead["score"].values())) if ahead else None,
        "verdict": facts["verdict"],
        "signal": policy.provenance["signal"]["word"],
        "chosen": facts["chosen"],
        "seconds": time.perf_counter() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", default="digits")
    parser.add_argument("--train", type=int, default=200, help="images, half of them to judge on")
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    parser.add_argument("--budget", type=float, default=60.0, help="of the verification, seconds")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    whole = reduce(replace(load(args.data), val=None), args.train, 0)
    images, labels_N = whole.train.batch(torch.arange(len(whole.train)))
    settings = {"train": args.train, "budget": args.budget, "fingerprint": whole.fingerprint}
    found: dict[str, Any] = {"settings": settings}
    searches = found["searches"] = dict[str, dict[str, Any]]()
    joined(found, earlier(args))
    for seed in range(args.first, args.first + args.searches):
        if str(seed) not in searches:
            row = searches[str(seed)] = one_search(images, labels_N, seed, args.budget)
            print(seed, row["verdict"], f"({row['seconds']:.0f} s)", flush=True)
        found["claims"] = sum(row["claims"] for row in searches.values())
        save(found, args.out)
    rows = sorted(searches.values(), key=lambda row: row["seed"])
    print_table(rows, ["seed", "claims", "difference", "from", "to", "pairs", "largest_score"])
    print(f"{found['claims']} of {len(rows)} searches claim a difference")


if __name__ == "__main__":
    main()
