"""What `make demo` runs: a search on drawn fruit, a comparison with the free policies, the report.

python examples/demo.py             about a minute on two cores
python examples/demo.py --planted   the same, on data whose answer is known
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SEARCH = ("--lookahead", "14.4", "--verify-budget", "0")  # shorter than usual, and judged below
COMPARE = ("--model", "small", "--epochs", "100")
FRUIT = """\
Drawn fruit, 8 images of each of ten kinds to learn from. Lemon and lime, blue plum and yellow plum
differ in colour and hardly in shape; how bright the light is and how a fruit lies mean nothing. So
one would leave the colours alone, and change light and place. Does the search find that?
"""
PLANTED = """\
PLANTED: the same fruit, but the images to validate and to test on are negatives. So the answer is
known: a network that learns from positives has to be shown inverted images, by Invert or by
Solarize from grey level 0, which is the same. Does the search find that?
"""


def dada(*arguments: str, seed: int) -> dict[str, Any]:
    """Run a command, and return its answer; what it tells meanwhile goes to the terminal."""
    runs = arguments[0] in ("search", "compare")
    words = [*arguments, *(("--seed", str(seed)) if runs else ())]
    print(f"$ dada {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", "dada", *words, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def demo(data: str, run: Path, seed: int = 0) -> dict[str, Any]:
    """Search, compare, report: what was found, and how long it took."""
    seeds = 5 if data == "fruit" else 4  # what was planted is not a matter of a few points
    compared = run.with_name(f"{run.name}-compared")
    for folder in (run, compared):
        if folder.exists():
            shutil.rmtree(folder)
    started = time.perf_counter()
    found = dada("search", data, *SEARCH, "--out", str(run), seed=seed)
    policies = f"{run},uniform,none"
    judged = dada(
        *("compare", data, "--policies", policies, "--seeds", str(seeds), *COMPARE),
        *("--out", str(compared)),
        seed=seed,
    )
    dada("report", str(run), "--comparison", str(compared), seed=seed)
    dada("show", str(run), "--image", str(run / "policy.png"), seed=seed)
    rates = found["policy"]["op_probabilities"]
    return {
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 1),
        "verdict": judged["verdict"],
        "differences": judged["differences"],
        "means": {row["name"]: row["mean"] for row in judged["policies"]},
        "operations": sorted(rates, key=rates.__getitem__, reverse=True),
        "rates": rates,
    }


def tell(outcome: dict[str, Any], run: Path) -> None:
    names, rates = outcome["operations"], outcome["rates"]
    print("\nDone most often:  " + ", ".join(f"{name} {rates[name]:.0%}" for name in names[:5]))
    print("Done least often: " + ", ".join(f"{name} {rates[name]:.0%}" for name in names[-3:]))
    for name, mean in sorted(outcome["means"].items(), key=lambda item: -item[1]):
        print(f"  {mean:5.1f}% of the test images are right with {name}")
    print(f"\n{outcome['verdict']}\n({outcome['seconds']:.0f} s)")
    print(f"\nOpen {run / 'report.html'} in a browser: the policy in pictures and numbers.")
    print(f"{run / 'policy.png'} has originals on the left, what the policy does on the right.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--planted", action="store_true", help="data whose answer is known")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data, run = "fruit", Path("runs/demo")
    if given.planted:
        data, run = "fruit-negatives", Path("runs/demo-planted")
    print(PLANTED if given.planted else FRUIT)
    tell(demo(data, run, given.seed), run)
    if given.planted:
        return
    print("\nNext: the same where the answer is known, and images of your own, a folder a class:")
    print("  make demo-planted")
    print("  dada search FOLDER")


if __name__ == "__main__":
    main()
