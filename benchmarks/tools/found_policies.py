"""Writes src/dada/policy/found.json: policies that searches of this project found, by name.

    python benchmarks/tools/found_policies.py

They are the searches of docs/paper.md, from benchmarks/results/paper.json. Of every kind of search
on every data set the one with seed 0 ships, whatever its error was: the best of several would be
chosen by the test images. Its provenance is the search's own, and says which training on the whole
data set was made with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measure import result_of
from paper_plan import PLANS, SEARCHES

TARGET = Path(__file__).parents[2] / "src/dada/policy/found.json"
SHIPPED_SEED = 0


def found_policies(results: dict[str, Any]) -> dict[str, Any]:
    """Name -> the content of a policy file, of what has been searched so far."""
    shipped = {}
    for held in results["searches"].values():
        if held["seed"] == SHIPPED_SEED and held["arm"] in SEARCHES:
            policy = json.loads(held["policy"])
            data = policy["provenance"]["data"]["name"]
            name = f"found-{data}-{held['arm'].replace(' ', '-')}"
            shipped[name] = policy | {
                "provenance": policy["provenance"]
                | {
                    "name": name,
                    "recipe": held["recipe"],
                    **{each: held[each] for each in ("seconds", "programs") if each in held},
                    "trainings": _trainings(results, held),
                }
            }
    return dict(sorted(shipped.items()))


def _trainings(results: dict[str, Any], search: dict[str, Any]) -> list[dict[str, Any]]:
    """Those on the whole data set under this very policy: recipe, epochs, test error in percent."""
    reduced = search["recipe"].replace("full_", "reduced_")  # plans name that one
    recipes = {plan.train for plan in PLANS.values() if plan.search == reduced}
    return [
        {"recipe": each["recipe"], "epochs": each["epochs"], "error": round(each["error"], 2)}
        for each in results["trainings"].values()
        if each["recipe"] in recipes
        and (each["arm"], each["seed"]) == (search["arm"], search["seed"])
    ]


def text_of(results: dict[str, Any]) -> str:
    """A policy a line, so that a change is seen as one."""
    lines = [
        f" {json.dumps(name)}: {json.dumps(policy)}"
        for name, policy in found_policies(results).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(text_of(result_of("paper")))
    print(f"wrote {TARGET.name}: {', '.join(json.loads(TARGET.read_text()))}")
