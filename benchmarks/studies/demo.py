"""The demo on three seeds: what it finds, what it says of it, and how long it takes.

    python benchmarks/studies/demo.py [--seeds 3]        some minutes on two cores

Runs examples/demo.py as it is, on drawn fruit and on the planted negatives, and writes
benchmarks/results/demo.json. The planted answer is found when an operation that inverts is the one
that is done most often.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import RESULTS, machine, print_table

EXAMPLE = Path(__file__).parents[2] / "examples" / "demo.py"
INVERTS = ("Invert", "Solarize")


def shortened(outcome: dict[str, Any], planted: bool) -> dict[str, Any]:
    first = outcome["differences"][0]
    kept = {name: outcome[name] for name in ("seed", "seconds", "means", "verdict")}
    kept["means"] = {Path(name).name: mean for name, mean in kept["means"].items()}
    kept["verdict"] = kept["verdict"].replace(first["policy"], Path(first["policy"]).name)
    kept |= {"gain_over_uniform": first["mean"], "interval": first["interval"]}
    kept["rates"] = {name: round(outcome["rates"][name], 4) for name in outcome["operations"]}
    if planted:
        kept["found"] = outcome["operations"][0] in INVERTS
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "demo.json")
    given = parser.parse_args()
    demo = runpy.run_path(str(EXAMPLE))["demo"]
    # Others may have used the machine meanwhile: the processor's seconds do not count theirs.
    results: dict[str, Any] = {"machine": machine(), "load": round(os.getloadavg()[0], 1)}
    for name, data in (("fruit", "fruit"), ("planted", "fruit-negatives")):
        results[name] = []
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as scratch:
                before = os.times()
                outcome = shortened(demo(data, Path(scratch) / "demo", seed), name == "planted")
            after = os.times()
            spent = after.children_user - before.children_user
            results[name].append(outcome | {"cpu_seconds": round(spent, 1)})
    given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    columns = ("data", "seed", "seconds", "cpu_seconds", "most_often", "verdict")
    rows = [
        {**run, "data": name, "most_often": next(iter(run["rates"]))}
        for name in ("fruit", "planted")
        for run in results[name]
    ]
    print_table(rows, columns)


if __name__ == "__main__":
    main()
