"""The tables of docs/paper.md: published beside measured; `tables.py` writes them into the page.

A measured cell comes from paper.json (benchmarks/studies/paper.py), or, where that has none, from
the five trainings in cifar10.json. A cell that was not run says why: no data, or the hours that one
training takes by the images per second in train.json or paper-networks.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from measure import RESULTS, markdown, result_of, welch

from dada import recipes
from dada.trials.statistics import interval

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "imagenet": "ImageNet"}
METHODS = {
    "baseline": "none",
    "cutout": "Cutout",
    "autoaugment": "AA",
    "pba": "PBA",
    "fastaa": "Fast AA",
    "ohl": "OHL AA",
    "dada": "DADA",
}
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 604_388, "imagenet": 1_281_167}
# Data sets whose files were not to be had where the tables were made.
NOT_AT_HAND = {"svhn", "imagenet"}
NONE = "–"


def found() -> dict[str, Any]:
    file = RESULTS / "paper.json"
    if not file.exists():
        return {"trainings": {}, "searches": {}}
    held: dict[str, Any] = json.loads(file.read_text())
    return held


def errors_of(recipe: str, arm: str) -> list[float]:
    """Of every training there is, by the study or before it."""
    rows = found()["trainings"].values()
    mine = [row["error"] for row in rows if (row["recipe"], row["arm"]) == (recipe, arm)]
    earlier = result_of("cifar10")
    if mine or recipe != earlier["recipe"]:
        return mine
    return [row["error"] for row in earlier["trainings"].values() if row["policy"] == arm]


def measured(errors: list[float]) -> str:
    """Mean, n, and the 95% interval of the mean."""
    if not errors:
        return NONE
    mean = f"**{statistics.mean(errors):.2f}** (n {len(errors)}"
    ends = interval(errors)
    return mean + ("" if ends is None else f", {ends[0]:.2f} to {ends[1]:.2f}") + ")"


def both(published: object, errors: list[float]) -> str:
    return f"{NONE if published is None else published}; {measured(errors)}"


def arm_of(method: str, data: str) -> str | None:
    """The policy by whose training a column of the paper is repeated."""
    cifar = data.replace("100", "10")  # AA and Fast AA have one policy for both
    arms = {"baseline": "none", "cutout": "cutout", "dada": f"dada-{data}"}
    arms |= {"fastaa": f"fastaa-{cifar}", "autoaugment": f"autoaugment:{cifar}"}
    return arms.get(method)


def hours(data: str, model: str) -> float | None:
    """Of one training by the recipe, on the card whose images per second were measured."""
    rows = [*result_of("train")["rows"]]
    if (RESULTS / "paper-networks.json").exists():
        rows += result_of("paper-networks")["rows"]
    speeds = [row["images_per_second"] for row in rows if row["model"] == model]
    train = recipes.named(f"{data}_{model}").train
    assert train is not None and train.epochs is not None
    return train.epochs * IMAGES[data] / max(speeds) / 3600 if speeds else None


def reason(data: str, model: str) -> str:
    needed = hours(data, model)
    long = "its speed is not measured" if needed is None else f"{needed:.2g} h a training"
    return f"no data; {long}" if data in NOT_AT_HAND else long


def error_rows(rows: list[dict[str, Any]]) -> str:
    """A table of the paper: networks down, methods across, what a missing cell would take."""
    names = result_of("published")["models"]
    methods = list(rows[0]["errors"])
    columns = ("data, network", *(METHODS[m] for m in methods), "DADA searched here", "to run")
    lines = []
    for row in rows:
        recipe = f"{row['data']}_{row['model']}"
        cells = []
        for method in methods:
            arm = arm_of(method, row["data"])
            cells.append(both(row["errors"][method], errors_of(recipe, arm) if arm else []))
        searched = measured(errors_of(recipe, "paper relax"))
        name = f"{TITLES[row['data']]}, {names[row['model']]}"
        lines.append((name, *cells, searched, reason(row["data"], row["model"])))
    return markdown(columns, lines)


def cost_table() -> str:
    """Table 1: hours of search as published, and seconds here."""
    published = result_of("published")["table1"]
    methods = list(published["hours"]["cifar10"])
    cases = result_of("search")["cases"]
    card = result_of("search")["machine"]["gpu"]
    here = {"imagenet": "not run: no data", "svhn": "not run: no data"}
    here["cifar10"] = f"{cases['paper']['seconds_to_policy']:.1f} s"
    took: dict[str, list[float]] = {}
    for search in found()["searches"].values():
        if search["arm"] == "paper relax":
            took.setdefault(search["recipe"].split("_")[1], []).append(search["seconds"])
    here |= {data: f"{statistics.mean(each):.1f} s" for data, each in took.items()}
    rows = []
    for data, each in published["hours"].items():
        cells = [NONE if each[m] is None else f"{each[m]:g} h" for m in methods]
        rows.append((TITLES[data], *cells, here.get(data, "not run yet")))
    head = ("data", *(METHODS[m] for m in methods), f"DADA here, {card}")
    default = cases["dada, looking ahead and verified"]["seconds_to_policy"]
    note = f"\nThe default search, looking ahead and verified: {default:.0f} s on CIFAR-10.\n"
    return markdown(head, rows) + note


def cost_errors_table() -> str:
    """Table 1, right half: Wide-ResNet-28-10, ImageNet ResNet-50."""
    published = result_of("published")["table1"]["errors"]
    methods = list(published["cifar10"])
    rows = []
    for data, each in published.items():
        model = "resnet50" if data == "imagenet" else "wrn28_10"
        arms = {method: arm_of(method, data) for method in methods}
        got = {m: errors_of(f"{data}_{model}", a) if a else [] for m, a in arms.items()}
        cells = [both(each[m], got[m]) for m in methods]
        rows.append((TITLES[data], *cells, reason(data, model)))
    return markdown(("data", *(METHODS[m] for m in methods), "to run"), rows)


def cifar_table() -> str:
    return error_rows(result_of("published")["table2"])


def svhn_table() -> str:
    return error_rows(result_of("published")["table3"])


def imagenet_table() -> str:
    row = result_of("published")["table4"]
    cells = [f"{top1} / {top5}; {NONE}" for top1, top5 in row["top1_top5"].values()]
    head = ("top-1 / top-5", *(METHODS[m] for m in row["top1_top5"]), "to run")
    return markdown(head, [("ResNet-50", *cells, reason(row["data"], row["model"]))])


def coco_table() -> str:
    rows = []
    for row in result_of("published")["table5"]:
        box, mask = row["box_ap"], row["mask_ap"]
        cell = NONE if mask is None else f"{mask['baseline']} / {mask['dada']}; {NONE}"
        rows.append(
            (row["detector"], f"{box['baseline']} / {box['dada']}; {NONE}", cell, "no data")
        )
    return markdown(("detector", "box AP, stock / DADA", "mask AP, stock / DADA", "to run"), rows)


def full_table() -> str:
    names = result_of("published")["models"]
    rows = []
    for row in result_of("published")["table6"]:
        recipe = f"cifar10_{row['model']}"
        arms = (("reduced", "paper relax"), ("full", "paper full"))
        cells = [both(row[part], errors_of(recipe, arm)) for part, arm in arms]
        rows.append((names[row["model"]], *cells, reason("cifar10", row["model"])))
    return markdown(("network", "searched on 4,000", "searched on all", "to run"), rows)


def _arm_rows(table: str) -> list[tuple[object, ...]]:
    from paper_plan import PLANS

    plan, published = PLANS[table], result_of("published")
    data, model = plan.train.split("_", 1)
    (ours,) = (r for r in published["table2"] if (r["data"], r["model"]) == (data, model))
    said = {arm_of(m, data): error for m, error in ours["errors"].items()}
    said |= {arm: error for arm, (error, _) in published["elsewhere"].get(plan.train, {}).items()}
    searched = errors_of(plan.train, "dada")
    rows: list[tuple[object, ...]] = []
    for arms, count in plan.stages:
        for arm in arms:
            errors = errors_of(plan.train, arm)
            gain = NONE
            if arm != "dada" and len(searched) > 1 and len(errors) > 1:
                less, low, high = welch(errors, searched)
                gain = f"{less:+.2f} ({low:+.2f} to {high:+.2f})"
            published_error = said.get(arm)
            shown = NONE if published_error is None else published_error
            rows.append((f"`{arm}`", count, shown, measured(errors), gain))
    return rows


def arms_table(table: str) -> str:
    columns = ("arm", "n planned", "published", "measured", "error minus that of `dada`, 95%")
    return markdown(columns, _arm_rows(table))


def found_table() -> str:
    """What ships under a name of its own."""
    from found_policies import found_policies

    rows: list[tuple[object, ...]] = []
    for name, policy in found_policies(result_of("paper")).items():
        facts = policy["provenance"]
        trained = "; ".join(f"{e['error']:.2f} (`{e['recipe']}`)" for e in facts["trainings"])
        images = facts["data"]["train"] + facts["data"]["val"]
        seconds = f"{facts['seconds']:.0f}"
        rows.append((f"`{name}`", f"`{facts['recipe']}`", f"{images:,}", seconds, trained or NONE))
    columns = ("name", "searched with", "images", "seconds", "test error of one full training, %")
    return markdown(columns, rows)


PAPER: dict[str, Callable[[], str]] = {
    "cost table": cost_table,
    "cost errors table": cost_errors_table,
    "cifar table": cifar_table,
    "cifar10 arms table": lambda: arms_table("cifar10"),
    "wrn28_10 arms table": lambda: arms_table("wrn28_10"),
    "cifar100 arms table": lambda: arms_table("cifar100"),
    "svhn table": svhn_table,
    "imagenet table": imagenet_table,
    "coco table": coco_table,
    "full search table": full_table,
}
