"""The tables of segmentation and detection, from the results; `tables.py` writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measure import RESULTS, markdown, result_of

NOT_RUN = "not run: no machine time"
JUDGED = {"tasks-nuclei": "nuclei, mean IoU", "tasks-bccd": "blood cells, AP50"}
FREE = ("none", "uniform", "trivialaugment", "randaugment:1,0.5")
DETECTORS = {"fasterrcnn": "Faster R-CNN", "retinanet": "RetinaNet", "maskrcnn": "Mask R-CNN"}


def _held(file: str) -> dict[str, Any]:
    return result_of(file) if (RESULTS / f"{file}.json").exists() else {}


def judge_table() -> str:
    rows = []
    for file, title in JUDGED.items():
        by_policy = {row["policy"]: row for row in _held(file).get("table", [])}
        if not by_policy:
            rows.append((title, *[NOT_RUN] * (1 + len(FREE))))
            continue
        cells = [f"{by_policy['dada']['score']:.2f} ({by_policy['dada']['n']} searches)"]
        for name in FREE:
            row = by_policy[name]
            gain = f"{row['dada_minus']:+.2f} ({row['from']:+.2f} to {row['to']:+.2f})"
            chosen = ", chosen" if row["chosen"] else ""
            cells.append(f"{row['score']:.2f}: {gain}{chosen}")
        rows.append((title, *cells))
    return markdown(("data, score", "searched for", *FREE), rows)


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
    "targets table": targets_table,
}
BACKBONES: dict[str, Callable[[], str]] = {"backbone table": backbone_table}
