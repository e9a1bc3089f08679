"""Draws how a step of the search grows, from benchmarks/results/search.json.

python benchmarks/tools/growth.py [--out docs/images/growth.svg]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

ROOT = Path(__file__).parents[2]
PANELS = {
    "images": ("images of the data set", "seconds_per_epoch", "seconds an epoch"),
    "side": ("pixels a side", "ms_per_step", "ms a step"),
    "ops": ("sub-policies", "ms_per_step", "ms a step"),
    "views": ("views of every image", "ms_per_step", "ms a step"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/growth.svg")
    arguments = parser.parse_args()
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dada"  # the same drawing is the same file
    from matplotlib import pyplot

    cases = json.loads((ROOT / "benchmarks/results/search.json").read_text())["cases"]
    figure, places = pyplot.subplots(1, len(PANELS), figsize=(11, 2.8), layout="constrained")
    for place, (kind, (label, column, unit)) in zip(places, PANELS.items(), strict=True):
        points = [
            (int(name.split()[1]), row[column])
            for name, row in cases.items()
            if name.split()[0] == kind
        ]
        x = [size * (size - 1) // 2 if kind == "ops" else size for size, _ in points]
        place.plot(x, [y for _, y in points], "o-", color="#2457c5")
        place.set(xlabel=label, ylabel=unit, ylim=(0, None), xlim=(0, None))
        place.spines[["top", "right"]].set_visible(False)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
