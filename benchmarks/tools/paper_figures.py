"""Draws the paper's two figures with what was measured here, from the results.

    python benchmarks/tools/paper_figures.py [--out docs/images]

On white in both colour schemes: a page may be dark while the reader's system is not.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import matplotlib
from measure import result_of
from paper_plan import PLANS, search_of
from paper_tables import METHODS, TITLES, errors_of, search_seconds

from dada.trials.statistics import interval

ROOT = Path(__file__).parents[2]
PUBLISHED, HERE = "#8a8a8a", "#2457c5"
STYLE = {
    "svg.hashsalt": "dada",  # the same drawing is the same file
    "svg.fonttype": "none",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def search_hours(recipe: str, arm: str) -> float | None:
    """Mean hours of this project's searches of a kind."""
    seconds = search_seconds(recipe, arm)
    return None if seconds is None else seconds / 3600


def published_points(place: Any, data: str, errors: dict[str, float | None]) -> None:
    hours = result_of("published")["table1"]["hours"][data]
    for method, error in errors.items():
        if error is not None and hours.get(method) is not None:
            place.plot(hours[method], error, "o", color=PUBLISHED)
            beside(place, METHODS[method], hours[method], error, "#444444")
    place.margins(0.15, 0.25)
    place.set(xscale="log", xlabel="GPU hours of search", ylabel="test error, %")


def beside(place: Any, text: str, x: float, y: float, color: str) -> None:
    place.annotate(text, (x, y), xytext=(5, 4), textcoords="offset points", color=color)


def measured_point(place: Any, x: float, errors: list[float], name: str) -> None:
    ends = interval(errors)
    mean = statistics.mean(errors)
    if ends is not None:
        place.plot([x, x], ends, color=HERE, linewidth=1.5)
    place.plot(x, mean, "o", color=HERE)
    beside(place, f"{name}, n {len(errors)}", x, mean, HERE)


def missing(place: Any, text: str) -> None:
    place.set_title(f"{place.get_title()}\n{text}")


def figure_1(pyplot: Any) -> Any:
    """Error of Wide-ResNet-28-10 by hours of search."""
    figure, places = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    published = result_of("published")["table1"]["errors"]
    for place, data in zip(places, ("cifar10", "svhn"), strict=True):
        published_points(place, data, published[data])
        place.set_title(f"{TITLES[data]}, Wide-ResNet-28-10")
        hours, errors = search_hours(search_of(data), "dada"), errors_of(f"{data}_wrn28_10", "dada")
        if errors and hours is not None:
            measured_point(place, hours, errors, "dada here")
        else:
            missing(place, "here: not run")
    return figure


def figure_4(pyplot: Any) -> Any:
    """RELAX against Gumbel-Softmax, and error of Wide-ResNet-40-2 by hours of search."""
    figure, places = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    arms = {"paper relax": "RELAX", "paper gumbel": "Gumbel-Softmax", "dada": "dada"}
    place = places[0]
    drawn = 0
    for x, (arm, name) in enumerate(arms.items()):
        errors = errors_of("cifar10_wrn40_2", arm)
        if errors:
            measured_point(place, x, errors, name)
            drawn += 1
    place.set(title="CIFAR-10, Wide-ResNet-40-2", ylabel="test error, %", xlim=(-0.5, 3))
    place.margins(y=0.25)
    place.set_xticks(range(len(arms)), list(arms.values()))
    if drawn == 0:
        missing(place, "here: not run (the paper prints no numbers)")
    place = places[1]
    rows = result_of("published")["table2"]
    (row,) = (r for r in rows if (r["data"], r["model"]) == ("cifar10", "wrn40_2"))
    published_points(place, "cifar10", row["errors"])
    place.set_title("CIFAR-10, Wide-ResNet-40-2")
    drawn = 0
    for arm in ("dada", "paper relax", "paper full"):
        hours = search_hours(PLANS["cifar10"].searched_by(arm), arm)
        errors = errors_of("cifar10_wrn40_2", arm)
        if errors and hours is not None:
            measured_point(place, hours, errors, arm)
            drawn += 1
    if drawn == 0:
        missing(place, "here: not run")
    return figure


FIGURES = {"paper-figure-1.svg": figure_1, "paper-figure-4.svg": figure_4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    arguments = parser.parse_args()
    matplotlib.use("svg")
    matplotlib.rcParams.update(STYLE)
    from matplotlib import pyplot

    for name, draw in FIGURES.items():
        draw(pyplot).savefig(arguments.out / name, metadata={"Date": None})


if __name__ == "__main__":
    main()
