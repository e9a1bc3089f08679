"""Writes src/dada/policy_search/verify/record.json: what studies measured of policies.

    python benchmarks/tools/record.py

A row is a policy's gain over `uniform` on one data set, in points of test accuracy, with its
standard error. What a search found is called `searched`. A verification expects of a candidate
what it did there (src/dada/policy_search/verify/prior.py).
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from measure import RESULTS, SEARCH, result_of, units_of

TARGET = Path(__file__).parents[2] / "src/dada/policy_search/verify/record.json"
JUDGED = {  # results file -> data set; what ran on a CPU is the same data
    "judge-cifar10": "cifar10",
    "judge-rsscn7": "rsscn7",
    "judge-digits": "digits",
    "judge-cifar10-cpu": "cifar10",
    "judge-rsscn7-cpu": "rsscn7",
    "judge-shirts-cpu": "shirts",
    "judge-fashion-cpu": "fashion",
}
FINE_TUNED = ("fine-tuning-*.json", "fine-tuning-again-*.json")  # what was judged again, by that
POLICIES = {"dada": "searched", "trivialaugment": "trivialaugment", "randaugment": "randaugment"}


def judged(name: str, data: str) -> list[dict[str, Any]]:
    units = units_of(result_of(name)["accuracy"], SEARCH)
    return [
        _row(data, "from scratch", POLICIES[policy], units[policy], units["uniform"])
        for policy in POLICIES
        if len(units.get(policy, [])) > 1
    ]


def fine_tuned(file: Path) -> list[dict[str, Any]]:
    """Single trainings of free policies, or the judge's units."""
    units = units_of(json.loads(file.read_text())["truth"])
    known = {"none": "none", "trivialaugment": "trivialaugment", "dada": "searched"}
    known |= {name: "randaugment" for name in units if name.startswith("randaugment")}
    data = data_of(file)
    return [
        _row(data, "fine-tuning", known[name], each, units["uniform"])
        for name, each in units.items()
        if name in known and len(each) > 1
    ]


def data_of(file: Path) -> str:
    return file.stem.removeprefix("fine-tuning-").removeprefix("again-")


def _row(data: str, kind: str, policy: str, one: list[float], other: list[float]) -> dict[str, Any]:
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in (one, other)))
    gain = statistics.mean(one) - statistics.mean(other)
    about = {"data": data, "kind": kind, "policy": policy}
    return about | {"gain": round(gain, 3), "error": round(error, 3)}


def rows() -> list[dict[str, Any]]:
    found = [row for name, data in JUDGED.items() for row in judged(name, data)]
    fine_tuning = {data_of(file): file for pattern in FINE_TUNED for file in RESULTS.glob(pattern)}
    for data in sorted(fine_tuning):
        if "operations" not in data:
            found += fine_tuned(fine_tuning[data])
    return found


def text() -> str:
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows())
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    TARGET.write_text(text())
    print(TARGET.read_text())
