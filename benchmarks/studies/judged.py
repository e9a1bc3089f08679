"""What a judge's searches and trainings say: of several files, and as a table."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from dada.trials.statistics import interval

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import SEARCH, stratified_welch, units_of, welch

VERIFIED = ", verified"  # after the name of a preset


def compared(found: dict[str, Any], one: list[float], other: list[float]) -> tuple[float, ...]:
    """By how much `one` is better, and the 95% interval of that."""
    if not found["settings"].get("samples"):
        return welch(one, other)
    each = [a - b for a, b in zip(one, other, strict=True)]
    low, high = interval(each) or (-math.inf, math.inf)
    return statistics.mean(each), low, high


def conclude(found: dict[str, Any]) -> None:
    """A row for every contender, by how much `dada` is better, and the paper's own question."""
    units = units_of(found["accuracy"], SEARCH)
    found["table"] = []
    for name, mine in units.items():
        row = {"policy": name, "accuracy": statistics.mean(mine), "lowest": min(mine)}
        row |= {"highest": max(mine), "n": len(mine)}
        if name != "dada" and len(mine) > 1 and len(units.get("dada", [])) > 1:
            difference = compared(found, units["dada"], mine)
            row |= dict(zip(("dada_minus", "from", "to"), difference, strict=True))
        found["table"].append(row)
    relax, gumbel = (units.get(f"paper, {estimator}", []) for estimator in ("relax", "gumbel"))
    if len(relax) > 1 and len(gumbel) > 1:
        found["relax_minus_gumbel"] = compared(found, relax, gumbel)
    searched = [each for name, each in found["searches"].items() if name.startswith("dada ")]
    signals = (json.loads(each["policy"])["provenance"].get("signal") for each in searched)
    found["signals"] = Counter(signal["word"] for signal in signals if signal)
    verified = units.get("dada" + VERIFIED, [])
    if len(verified) > 1:
        returned = [each for each in searched if "verified" in each]
        found["verified"] = {"chosen": Counter(map(_chosen, returned))}
        by_search = [a - b for a, b in zip(verified, units["dada"], strict=True)]
        found["verified"]["minus_found"] = stratified_welch([(by_search, [])])
        if len(units.get("uniform", [])) > 1:
            found["verified"]["minus_uniform"] = compared(found, verified, units["uniform"])


def _chosen(search: dict[str, Any]) -> str:
    """The name of what its verification returned."""
    return str(json.loads(search["verified"])["provenance"]["verification"]["chosen"])
