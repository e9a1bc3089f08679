"""The tables of docs/paper.md: published beside measured; `tables.py` writes them into the page.

A measured cell comes from paper.json (benchmarks/studies/paper.py), or, where that has none, from
the five trainings in cifar10.json. Where trainings of the plan are left, a table says how many, of
how many hours by the images per second in train.json or paper-networks.json, and whether the data
is at hand.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from measure import RESULTS, markdown, result_of, welch
from paper_plan import PLANS, SEARCHES, Plan, arm_of, arms_of_row, search_of

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
NONE, NOT_RUN, NO_POLICY = "–", "not run", "not here"
HERE = ("DADA searched here", "`dada`", "TrivialAugment")
# The search of the paper that benchmarks/results/search.json has timed.
TIMED = ("reduced_cifar10_wrn40_2", "paper relax")


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
        return NOT_RUN
    mean = f"**{statistics.mean(errors):.2f}** (n {len(errors)}"
    ends = interval(errors)
    return mean + ("" if ends is None else f", {ends[0]:.2f} to {ends[1]:.2f}") + ")"


def both(published: object, recipe: str, arm: str | None) -> str:
    """What the paper has, and what was measured; nothing where no policy could be trained with."""
    here = NO_POLICY if arm is None else measured(errors_of(recipe, arm))
    if published is None:
        return NONE if arm is None else f"{NONE}; {here}"
    return f"{published}; {here}"


def hours(data: str, model: str) -> float | None:
    """Of one training by the recipe, on the card whose images per second were measured."""
    rows = [*result_of("train")["rows"]]
    if (RESULTS / "paper-networks.json").exists():
        rows += result_of("paper-networks")["rows"]
    speeds = [row["images_per_second"] for row in rows if row["model"] == model]
    train = recipes.named(f"{data}_{model}").train
    assert train is not None and train.epochs is not None
    return train.epochs * IMAGES[data] / max(speeds) / 3600 if speeds else None


def left(recipe: str, arm: str) -> int:
    """Trainings of the plan that are not in its results yet."""
    keys = {
        plan.key(*unit)
        for name, plan in PLANS.items()
        if plan.train == recipe and name != "harness"  # which was run before the others
        for unit in plan.units()
        if unit[0] == arm
    }
    return len(keys - found()["trainings"].keys())


def reason(recipe: str, arms: Iterable[str]) -> str:
    """What the missing trainings of a plan take: how many, of how many hours, on what data."""
    data, model = recipe.split("_", 1)
    missing, each = sum(left(recipe, arm) for arm in arms), hours(data, model)
    if missing == 0:
        return "nothing"
    length = "(speed not measured)" if each is None else f"x {each:.2g} h"
    return f"{'no data; ' if data in NOT_AT_HAND else ''}{missing} {length}"


def search_seconds(recipe: str, arm: str) -> float | None:
    """Of a search of this kind, on the mean, where it was timed: few or no others on a card."""
    took = [
        each["seconds"]
        for each in found()["searches"].values()
        if (each["recipe"], each["arm"]) == (recipe, arm)
        and "programs" not in each
        and card_of(json.loads(each["policy"]))
    ]
    if took:
        return statistics.mean(took)
    return _timed()["seconds_to_policy"] if (recipe, arm) == TIMED else None


def card_of(policy: dict[str, Any]) -> str | None:
    """That it was searched on; None for a CPU."""
    card: str | None = policy["provenance"]["versions"]["gpu"]
    return card


def _timed() -> dict[str, Any]:
    case: dict[str, Any] = result_of("search")["cases"]["paper"]
    return case


def seconds_by_steps(recipe: str) -> float:
    """Of another search with the timed one's network, whose batches are no larger: at most."""
    more = _steps_of_search(recipe) - _steps_of_search(TIMED[0])
    seconds: float = _timed()["seconds_to_policy"] + more * _timed()["ms_per_step"] / 1e3
    return seconds


def _steps_of_search(name: str) -> int:
    recipe = recipes.named(name, wants="search")
    search, images = recipe.search, recipe.reduce_to
    assert search is not None and search.epochs is not None and images is not None
    return search.epochs * (round(images * (1 - search.val_fraction)) // search.batch_size)


def error_rows(rows: list[dict[str, Any]]) -> str:
    """A table of the paper: networks down, methods across, what the missing cells would take."""
    names, elsewhere = result_of("published")["models"], result_of("published")["elsewhere"]
    methods = list(rows[0]["errors"])
    columns = ("data, network", *(METHODS[m] for m in methods), *HERE, "to run")
    lines = []
    for row in rows:
        data, recipe = row["data"], f"{row['data']}_{row['model']}"
        cells = [both(row["errors"][m], recipe, arm_of(m, data)) for m in methods]
        cells += [measured(errors_of(recipe, arm)) for arm in ("paper relax", "dada")]
        trivial, _ = elsewhere.get(recipe, {}).get("trivialaugment", (None, ""))
        cells.append(both(trivial, recipe, "trivialaugment"))
        name = f"{TITLES[data]}, {names[row['model']]}"
        lines.append((name, *cells, reason(recipe, arms_of_row(data))))
    return markdown(columns, lines)


def cost_table() -> str:
    """Table 1: hours of search as published, and seconds here."""
    published = result_of("published")["table1"]["hours"]
    methods, searches = list(published["cifar10"]), result_of("search")
    rows = []
    for data, each in published.items():
        cells = [NONE if each[m] is None else f"{each[m]:g} h" for m in methods]
        rows.append((TITLES[data], *cells, _searched_here(data)))
    card = searches["machine"]["gpu"]
    head = ("data", *(METHODS[m] for m in methods), f"DADA here, {card}")
    default = searches["cases"]["dada, looking ahead and verified"]["seconds_to_policy"]
    note = f"\nThe default search, looking ahead and verified: {default:.0f} s on CIFAR-10.\n"
    return markdown(head, rows) + note


def _searched_here(data: str) -> str:
    recipe = search_of(data)
    seconds = search_seconds(recipe, "paper relax")
    if seconds is not None:
        return f"{seconds:.1f} s"
    if data in NOT_AT_HAND:
        return f"{NOT_RUN}: no data; its steps are not timed"
    return f"{NOT_RUN}: {seconds_by_steps(recipe):.0f} s at most, by the steps of CIFAR-10"


def cost_errors_table() -> str:
    """Table 1, right half: Wide-ResNet-28-10, ImageNet ResNet-50."""
    published = result_of("published")["table1"]["errors"]
    methods = list(published["cifar10"])
    rows = []
    for data, each in published.items():
        recipe = f"{data}_{'resnet50' if data == 'imagenet' else 'wrn28_10'}"
        arms = {method: arm_of(method, data) for method in methods}
        cells = [both(each[m], recipe, arms[m]) for m in methods]
        rows.append((TITLES[data], *cells, reason(recipe, filter(None, arms.values()))))
    return markdown(("data", *(METHODS[m] for m in methods), "to run"), rows)


def cifar_table() -> str:
    return error_rows(result_of("published")["table2"])


def svhn_table() -> str:
    return error_rows(result_of("published")["table3"])


def top_1_and_5(recipe: str, arm: str) -> str:
    rows = found()["trainings"].values()
    top5 = [r["top5_error"] for r in rows if (r["recipe"], r["arm"]) == (recipe, arm)]
    top1 = measured(errors_of(recipe, arm))
    return f"{top1} / {statistics.mean(top5):.2f}" if top5 else top1


def imagenet_table() -> str:
    row = result_of("published")["table4"]
    data, recipe = row["data"], f"{row['data']}_{row['model']}"
    cells = []
    for method, (top1, top5) in row["top1_top5"].items():
        arm = arm_of(method, data)
        here = NO_POLICY if arm is None else top_1_and_5(recipe, arm)
        cells.append(f"{top1} / {top5}; {here}")
    cells += [top_1_and_5(recipe, arm) for arm in ("paper relax", "dada")]
    trivial, _ = result_of("published")["elsewhere"][recipe]["trivialaugment"]
    cells.append(f"{trivial}; {top_1_and_5(recipe, 'trivialaugment')}")
    head = ("top-1 / top-5", *(METHODS[m] for m in row["top1_top5"]), *HERE, "to run")
    return markdown(head, [("ResNet-50", *cells, reason(recipe, arms_of_row(data)))])


def coco_table() -> str:
    """No line of it was run: each needs a backbone of its own first."""
    columns = ("AP", "AP50", "AP75", "AP small", "AP medium", "AP large", "mask AP")
    backbones = {"baseline": "none", "dada": "dada-imagenet"}
    rows = []
    for row in result_of("published")["table5"]:
        for method, arm in backbones.items():
            published = [NONE if each is None else each for each in row[method]]
            needed = f"{reason('imagenet_resnet50', [arm])} (backbone); detector not timed"
            rows.append((f"{row['detector']}, {METHODS[method]}", *published, NOT_RUN, needed))
    return markdown(("detector, policy of its backbone", *columns, "here", "to run"), rows)


def full_table() -> str:
    names = result_of("published")["models"]
    arms = {"reduced": "paper relax", "full": "paper full"}
    rows = []
    for row in result_of("published")["table6"]:
        recipe = f"cifar10_{row['model']}"
        cells = [both(row[part], recipe, arm) for part, arm in arms.items()]
        rows.append((names[row["model"]], *cells, reason(recipe, arms.values())))
    return markdown(("network", "searched on 4,000", "searched on all", "to run"), rows)


def _searches_left(plan: Plan, arm: str, count: int) -> str:
    keys = {plan.search_key(arm, seed) for seed in range(count)} if arm in SEARCHES else set()
    missing = len(keys - found()["searches"].keys())
    if missing == 0:
        return ""
    seconds = search_seconds(plan.searched_by(arm), arm)
    long = ", not timed" if seconds is None else f" of {seconds:.0f} s"
    return f"; {missing} search{'es' if missing > 1 else ''}{long}"


def _arm_rows(table: str) -> list[tuple[object, ...]]:
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
            needed = reason(plan.train, [arm]) + _searches_left(plan, arm, count)
            rows.append((f"`{arm}`", count, shown, measured(errors), gain, needed))
    return rows


def arms_table(table: str) -> str:
    columns = ("arm", "n planned", "published", "measured", "error minus that of `dada`, 95%")
    return markdown((*columns, "to run"), _arm_rows(table))


def found_table() -> str:
    """What ships under a name of its own."""
    from found_policies import found_policies

    rows: list[tuple[object, ...]] = []
    for name, policy in found_policies(result_of("paper")).items():
        facts = policy["provenance"]
        trained = "; ".join(f"{e['error']:.2f} (`{e['recipe']}`)" for e in facts["trainings"])
        images = facts["data"]["train"] + facts["data"]["val"]
        where = f" ({n} programs on the card)" if (n := facts.get("programs")) else ""
        if not card_of(policy):
            where = " (on a CPU, beside others)"
        seconds = f"{facts['seconds']:,.0f}{where}"
        searched = f"`{facts['recipe']}`, dada {facts['versions']['dada']}"
        rows.append((f"`{name}`", searched, f"{images:,}", seconds, trained or NONE))
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
