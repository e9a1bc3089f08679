"""Where the answer is known, does a search say that it is sure? One search of every planted case.

    python benchmarks/studies/planted_check.py [--seed 100] [--out FILE]

The counterpart of null_check.py. The cases are those of tests/test_planted.py, the seed is none
that the thresholds of the signal were chosen on. Every search runs as a user's would; written down
are its word, and whether the planted answer is in the policy. What is in the file is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from measure import machine, print_table
from tests.test_planted import CASES, check, searched, side_of


def one_search(name: str, seed: int) -> dict[str, Any]:
    begun = time.process_time()
    policy = searched(CASES[name], seed, side_of(name))
    seconds = time.process_time() - begun
    try:
        check(CASES[name], policy)
        found = True
    except AssertionError:
        found = False
    signal = policy.provenance["signal"]
    return {
        "case": name,
        "seed": seed,
        "signal": signal["word"],
        "chance": signal["chance"],
        "agreement": signal["agreement"],
        "found": found,
        "cpu_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if args.out and args.out.exists():
        rows = json.loads(args.out.read_text())["rows"]
    for name in list(CASES)[len(rows) :]:
        rows.append(one_search(name, args.seed))
        print(rows[-1], flush=True)
        if args.out:
            clear = sum(row["signal"] == "clear" for row in rows)
            found = sum(row["found"] for row in rows)
            content = {"machine": machine(), "clear": clear, "found": found, "rows": rows}
            args.out.write_text(json.dumps(content, indent=1) + "\n")
    print_table(rows, ["case", "signal", "chance", "agreement", "found", "cpu_seconds"])


if __name__ == "__main__":
    main()
