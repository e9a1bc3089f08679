"""A default search as it was judged first, and in half of the time: one row each."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from measure import RESULTS, markdown, result_of
from scipy.stats import spearmanr

from dada.trials.statistics import interval

BEFORE, AFTER = "judge-cifar10", "judge-cifar10-faster"


def searches_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in found["searches"].items() if name.startswith("dada ")}


def fidelity(found: dict[str, Any]) -> tuple[float, float]:
    """The first round's rank correlation with the truth, and between searches, both on average."""
    truth = result_of("reward-fidelity-cifar10")["seeds"]["0"]["truth"]
    seen = []
    for search in searches_of(found).values():
        runs = search["lookahead"].values()
        names = [name for name in next(iter(runs)) if name in truth]  # a run keeps an accuracy, too
        seen.append([-statistics.mean(run[name] for run in runs) for name in names])
    known = [truth[name] for name in names]
    with_truth = statistics.mean(spearmanr(each, known).statistic for each in seen)
    pairs = itertools.combinations(seen, 2)
    return with_truth, statistics.mean(spearmanr(*pair).statistic for pair in pairs)


def accuracies(found: dict[str, Any], seeds_of: dict[str, Any]) -> dict[str, float]:
    """The mean of every search's trainings, of those seeds that both files have."""
    return {
        name: statistics.mean(each[seed] for seed in seeds_of["accuracy"][name])
        for name, each in found["accuracy"].items()
        if name.startswith("dada search ") and name in seeds_of["accuracy"]
    }


def faster_table() -> str:
    if not (RESULTS / f"{AFTER}.json").exists():
        return "Not run yet.\n"
    before, after = result_of(BEFORE), result_of(AFTER)
    rows = []
    for title, found in (("before", before), ("now", after)):
        with_truth, between = fidelity(found)
        mine = accuracies(found, after).values()
        row = [title, len(mine), f"{statistics.mean(mine):.2f}"]
        rows.append([*row, f"{with_truth:.2f}", f"{between:.2f}", ""])
    old, new = (accuracies(found, after) for found in (before, after))
    each = [new[name] - old[name] for name in new]
    ends = interval(each)
    assert ends is not None
    rows[-1][-1] = f"{statistics.mean(each):+.2f} ({ends[0]:+.2f} to {ends[1]:+.2f})"
    columns = ("search", "n", "test accuracy", "first round with truth")
    return markdown((*columns, "between searches", "now minus before, 95%"), rows)
