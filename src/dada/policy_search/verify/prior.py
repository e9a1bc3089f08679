"""What is known of a candidate before it is trained here, and what is expected of it afterwards.

`record.json` has what studies measured of policies against `uniform`, on data sets with test images
(benchmarks/tools/record.py writes it). A candidate is expected to do here what it did there, give
or take how much that differs between data sets: a normal with that mean and deviation. Differences
seen here move it:

    expected = (m / s^2 + n d / v) / (1 / s^2 + n / v)

with m and s of the record, d the mean of the n differences seen, v their variance. The highest of
several such numbers needs no correction for having been picked.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

LEAST_SETS = 3  # fewer say little of how much data sets differ
LEAST_DEVIATION = 0.5  # points between data sets, however alike those of the record are


class Prior(NamedTuple):
    """Of the difference to `uniform`, in points."""

    mean: float
    deviation: float


NOTHING_KNOWN = Prior(0.0, 3.0)


def prior_of(name: str, *, pretrained: bool, without: Collection[str] = ()) -> Prior:
    """For a candidate by name; a judged data set is left out of its own record by `without`."""
    kind = "fine-tuning" if pretrained else "from scratch"
    rows = [
        row
        for row in _record()
        if row["kind"] == kind and row["data"] not in without and _same(row["policy"], name)
    ]
    if not rows:
        return NOTHING_KNOWN
    gains = [row["gain"] for row in rows]
    between = statistics.variance(gains) if len(gains) >= LEAST_SETS else NOTHING_KNOWN.deviation**2
    within = statistics.mean(row["error"] ** 2 for row in rows)
    return Prior(statistics.mean(gains), math.sqrt(max(between, LEAST_DEVIATION**2) + within))


def _same(known: str, name: str) -> bool:
    """The record's `randaugment` is the best of several; "x without Invert" is an x."""
    return name.partition(" ")[0].partition(":")[0] == known.partition(":")[0]


@cache
def _record() -> list[dict[str, Any]]:
    text = files("dada.policy_search.verify").joinpath("record.json").read_text("utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def expected(
    gains: Mapping[str, Sequence[float]], prior: Mapping[str, Prior], least_deviation: float
) -> dict[str, float]:
    """The mean of every candidate's difference to uniform, given what was seen of it."""
    squares = [
        (gain - statistics.fmean(each)) ** 2
        for each in gains.values()
        if len(each) > 1
        for gain in each
    ]
    degrees = sum(len(each) - 1 for each in gains.values() if len(each) > 1)
    variance = max(least_deviation**2, math.fsum(squares) / degrees if degrees else 0.0, 1e-12)
    found = {}
    for name, each in gains.items():
        mean, deviation = prior.get(name, NOTHING_KNOWN)
        weight, seen = deviation**-2, math.fsum(each) / variance
        found[name] = (weight * mean + seen) / (weight + len(each) / variance)
    return found
