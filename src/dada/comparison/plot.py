"""The picture of a comparison: a dot for every seed, the mean, and its interval."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from dada.comparison.result import Comparison
from dada.runlog.files import write
from dada.safe_text import printable


def save_plot(comparison: Comparison, path: str | os.PathLike[str]) -> Path | None:
    """Write a PNG; None where matplotlib is not installed (`pip install dada-augment[plot]`)."""
    if find_spec("matplotlib") is None:
        return None
    # A figure without pyplot: no window, no global state, no backend to choose.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sorted(comparison.policies, key=lambda row: row.mean)
    figure = Figure(figsize=(8, 1.6 + 0.45 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        if row.interval is not None:
            axes.plot(row.interval, [place, place], color="#1a5fb4", linewidth=2, zorder=2)
        axes.scatter([row.mean], [place], s=160, color="#1a5fb4", marker="|", linewidth=3, zorder=3)
        places = [place] * len(row.scores)
        axes.scatter(row.scores, places, s=26, color="#f6d32d", edgecolor="#5e5c64", zorder=4)
    lowest = min(min(row.scores) for row in rows)
    highest = max(max(row.scores) for row in rows)
    margin = max(0.5, 0.25 * (highest - lowest))
    # A wide interval of few seeds may leave the picture; the scores may not.
    ends = [end for row in rows if row.interval for end in row.interval]
    span = 2 * (highest - lowest) + margin
    low = max(min([lowest, *ends]), lowest - span, 0.0)
    high = min(max([highest, *ends]), highest + span, 100.0)
    axes.set_xlim(low - margin / 4, high + margin / 4)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_yticks(range(len(rows)), [_plain(row.name) for row in rows])
    axes.grid(axis="x", color="#e0e0e0")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    count = len(comparison.seeds)
    what = comparison.metric.replace("_", " ")
    shown = f"{count} seeds, mean and 95% interval" if count > 1 else "one seed"
    axes.set_xlabel(f"{what} (%): {shown}")
    axes.set_title(_plain(f"{comparison.data}, {comparison.model}"), loc="left", fontsize=11)
    path = Path(path)
    write(path, lambda file: figure.savefig(file, dpi=150, format="png"))
    return path


def _plain(name: str) -> str:
    """A foreign name in a picture, where matplotlib takes what is between dollars for a formula."""
    return printable(name).replace("$", r"\$")
