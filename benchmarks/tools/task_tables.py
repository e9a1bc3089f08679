"""The tables of segmentation and detection, from the results; `tables.py` writes them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from measure import RESULTS, markdown, result_of

NOT_RUN = "not run: no machine time"
JUDGED = {
    "tasks-nuclei": "nuclei, mean IoU",
    "tasks-bccd": "blood cells, AP50",
    "tasks-pedestrians-cpu": "pedestrians on a CPU, AP50",
}
# The same with a second round for the stand-in.
AGAIN = "tasks-pedestrians-cpu-second-round"
FREE = ("none", "uniform", "trivialaugment", "randaugment:1,0.5")
MIRRORED, ALONE = ", mirrored", "base alone"
DETECTORS = {"fasterrcnn": "Faster R-CNN", "retinanet": "RetinaNet", "maskrcnn": "Mask R-CNN"}


def _held(file: str) -> dict[str, Any]:
    return result_of(file) if (RESULTS / f"{file}.json").exists() else {}


def judge_table() -> str:
    """A row for each arm, a column for each data set."""
    columns = [_judged(file) for file in JUDGED]
    names = ("dada", *FREE, *(name + MIRRORED for name in FREE), ALONE)
    rows = [(name, *(column.get(name, NOT_RUN) for column in columns)) for name in names]
    return markdown(("policy", *JUDGED.values()), rows)


def _judged(file: str) -> dict[str, str]:
    cells = {}
    for row in _held(file).get("table", []):
        cell = f"{row['score']:.2f}"
        if row["policy"] == "dada":
            cell += f" ({row['n']} searches)"
        if "from" in row:
            cell += f": {row['dada_minus']:+.2f} ({row['from']:+.2f} to {row['to']:+.2f})"
        cells[row["policy"]] = cell + (", chosen" if row.get("chosen") else "")
    return cells


def second_round_table() -> str:
    """Search by search, before and with a second round."""
    before, now = _held("tasks-pedestrians-cpu"), _held(AGAIN)
    if not now.get("table"):
        return markdown(("search", "before", "with a second round"), [(NOT_RUN, "", "")])
    rows: list[tuple[object, ...]] = []
    for search, held in now["searches"].items():
        arm = f"dada search {search}"
        scores = [
            statistics.mean(each["ap50"] for each in found["score"][arm].values())
            for found in (before, now)
        ]
        shape = json.loads(held["policy"])["provenance"]["lookahead"]["shape"]
        rows.append((search, *(f"{100 * score:.2f}" for score in scores), shape))
    means = (found["table"][0]["score"] for found in (before, now))
    rows.append(("**mean**", *(f"{mean:.2f}" for mean in means), ""))
    return markdown(("search", "before", "with a second round", "shape that it takes"), rows)


def searches_table() -> str:
    """What the searches chose to do to every image, and which shape of policy."""
    rows = []
    for file, title in JUDGED.items():
        for search, held in _held(file).get("searches", {}).items():
            facts = json.loads(held["policy"])["provenance"]
            base = (facts.get("base") or {}).get("chosen", "not asked")
            shape, signal = facts["lookahead"]["shape"], facts["signal"]["word"]
            rows.append((title, search, base, shape, signal, f"{held['seconds']:.0f}"))
    columns = ("data, score", "search", "base", "shape of the policy", "signal", "seconds")
    return markdown(columns, rows or [(NOT_RUN, *[""] * 5)])


def backbone_table() -> str:
    rows = []
    found = _held("tasks-table5").get("table", {})
    for name, title in DETECTORS.items():
        row = found.get(name)
        if row is None:
            rows.append((title, *[NOT_RUN] * 4))
            continue
        ends = row["interval"]
        interval = "one seed" if ends is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}"
        gain = f"{row['difference']:+.2f} ({interval})"
        rows.append((title, f"{row['none']:.2f}", f"{row['found']:.2f}", gain, row["seeds"]))
    columns = ("detector", "box AP, without a policy", "with the one found", "difference", "seeds")
    return markdown(columns, rows)


def targets_table() -> str:
    rows = [
        (row["what"], row["images"], f"{row['ms']:.2f}", f"{row['times']:.2f}x")
        for row in _held("targets-h200").get("rows", [])
    ]
    return markdown(("what", "images", "ms", "times"), rows or [(NOT_RUN, "", "", "")])


DETECTION: dict[str, Callable[[], str]] = {
    "judge table": judge_table,
    "searches table": searches_table,
    "second round table": second_round_table,
    "targets table": targets_table,
}
BACKBONES: dict[str, Callable[[], str]] = {"backbone table": backbone_table}
