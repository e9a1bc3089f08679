"""Writes tables into README.md and docs/ from the results: no number there is typed by hand.

python benchmarks/tables.py [--check]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from judge import welch

ROOT = Path(__file__).parent.parent
GROWTH = {"images": "images", "side": "pixels a side", "ops": "operations", "views": "views"}


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head, *body = ("| " + " | ".join(map(str, line)) + " |" for line in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *body]) + "\n"


def ops_table() -> str:
    lines = [
        "| | 32x32 | 224x224 | of the fastest peer, 32 / 224 |",
        "|---|---|---|---|",
    ]
    for name in ("ops-cpu", "ops-gpu"):
        result = _result(name)
        machine = result["machine"]
        where = machine["gpu"] if name == "ops-gpu" else f"{machine['cpu']}, one thread"
        lines.append(f"| **{where}** | | | |")
        by_name: dict[str, dict[int, dict[str, Any]]] = {}
        for row in result["rows"]:
            by_name.setdefault(row["contender"], {})[row["side"]] = row
        for contender, sides in by_name.items():
            speeds = " | ".join(f"{sides[side]['images_per_second']:,.0f}" for side in (32, 224))
            times = " / ".join(_times(sides[side]["times_fastest_peer"]) for side in (32, 224))
            lines.append(f"| {contender} | {speeds} | {times} |")
    return "\n".join(lines) + "\n"


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
    return found


def train_table() -> str:
    columns = (
        "network, batch, side",
        "images/s",
        "ms a step",
        "times eager",
        "augmentation",
        "of limit",
    )
    return _markdown(
        columns,
        (
            (
                f"{row['model']}, {row['batch']}, {row['side']}",
                f"{row['images_per_second']:,.0f}",
                f"{row['ms']:.2f}",
                f"{row['times_eager']:.1f}x",
                f"{row['augmentation']:.1%}",
                f"{row['share_of_limit']:.0%}",
            )
            for row in _result("train")["rows"]
        ),
    )


def search_table() -> str:
    columns = ("search", "images", "batch", "epochs", "seconds to the policy", "with report")
    return _markdown(
        (*columns, "ms a step", "peak GiB"),
        (
            (
                name,
                f"{row['images']:,}",
                row.get("batch_size", 128),
                row.get("epochs", ""),
                f"{row['seconds_to_policy']:.1f}" if "seconds_to_policy" in row else "",
                f"{row['seconds']:.1f}",
                f"{row['ms_per_step']:.1f}",
                f"{row['peak_GiB']:.2f}",
            )
            for name, row in _result("search")["cases"].items()
            if "peak_GiB" in row and name.split()[0] not in GROWTH
        ),
    )


def hypergradient_table() -> str:
    return _markdown(
        ("way", "precision", "error of a cost", "by pixel", "ms"),
        (
            (
                row["method"].replace("_", " "),
                row["precision"],
                f"{row['error_of_cost']:.2g}",
                f"{row['error_by_pixel']:.2g}",
                f"{row['ms']:.1f}",
            )
            for row in _result("hypergradient")["rows"]
        ),
    )


def growth_table() -> str:
    """Milliseconds of a step by what grows; the first of every kind is as in the other kinds."""
    lines = ["| what grows | ms a step |", "|---|---|"]
    by_kind: dict[str, list[str]] = {kind: [] for kind in GROWTH}
    for name, row in _result("search")["cases"].items():
        kind, _, size = name.partition(" ")
        if kind in GROWTH and size.isdigit():
            by_kind[kind].append(f"{int(size):,}: {row['ms_per_step']:.0f}")
    lines += [f"| {GROWTH[kind]} | {', '.join(cells)} |" for kind, cells in by_kind.items()]
    return "\n".join(lines) + "\n"


def cifar10_table() -> str:
    return _markdown(
        ("policy", "error", "published", "epochs", "seconds"),
        (
            (
                row["policy"],
                f"{row['error']:.2f}",
                row["published"],
                row["epochs"],
                f"{row['seconds']:.0f}",
            )
            for row in _result("cifar10")["trainings"].values()
        ),
    )


def fidelity_table(data: str) -> str:
    columns = ("signal", "with truth", "lowest, highest seed", "averaged over seeds")
    return _markdown(
        (*columns, "between seeds"),
        (
            (
                row["signal"],
                f"{row['with_truth']:.2f}",
                f"{row['lowest']:.2f}, {row['highest']:.2f}",
                f"{row['averaged_over_seeds']:.2f}",
                "" if row["between_seeds"] is None else f"{row['between_seeds']:.2f}",
            )
            for row in _result(f"reward-fidelity-{data}")["correlations"]
        ),
    )


def default_fidelity_table() -> str:
    """At the number of runs that a search makes by default."""
    signals = {
        ("reduced CIFAR-10, 2 runs", "cifar10"): "look ahead, loss, 2 runs",
        ("RSSCN7, 2 runs", "rsscn7"): "look ahead, loss, 2 runs",
        ("digits, 4 runs", "digits"): "look ahead, loss",
    }
    rows = []
    for (title, data), signal in signals.items():
        found = _result(f"reward-fidelity-{data}")["correlations"]
        row = next(row for row in found if row["signal"] == signal)
        rows.append((title, row["with_truth"], row["between_seeds"]))
    rows.append(("mean", *(statistics.fmean(row[i] for row in rows) for i in (1, 2))))
    return _markdown(
        ("", "with truth", "between seeds"), ((t, f"{a:.2f}", f"{b:.2f}") for t, a, b in rows)
    )


def effects_table() -> str:
    """What looking ahead saw of every operation on CIFAR-10, and what it did when trained alone."""
    seeds = _result("reward-fidelity-cifar10")["seeds"]
    loss = {seed: found["look ahead, loss"] for seed, found in seeds.items()}
    mean = {name: sum(each[name] for each in loss.values()) / len(loss) for name in loss["0"]}
    middle = {seed: statistics.median(each.values()) for seed, each in loss.items()}
    lines = ["| operation | look ahead, by seed | alone, test accuracy |", "|---|---|---|"]
    for name in sorted(mean, key=lambda name: -mean[name]):
        seen = ", ".join(f"{each[name] - middle[seed]:+.3f}" for seed, each in loss.items())
        lines.append(f"| {name} | {seen} | {seeds['0']['truth'][name]:+.2f} |")
    return "\n".join(lines) + "\n"


def shape_table(data: str) -> str:
    columns = ("sharpness, probability, strength", "test accuracy", "minus `uniform`, by search")
    rows = sorted(_result(f"policy-shape-{data}")["table"], key=lambda r: -r["truth_accuracy"])
    return _markdown(
        (*columns, "looking ahead: loss"),
        (
            (
                ", ".join(row["policy"].split()),
                f"{row['truth_accuracy']:.2f}",
                ", ".join(f"{gain:+.2f}" for gain in row["minus_uniform"]),
                "" if row["ahead_loss"] is None else f"{row['ahead_loss']:.3f}",
            )
            for row in rows
        ),
    )


def choosing_table() -> str:
    """How well each reading ranks whole policies, search by search."""
    lines = ["| reading | reduced CIFAR-10 | digits |", "|---|---|---|"]
    by_data = [_result(f"policy-shape-{data}")["correlations"] for data in ("cifar10", "digits")]
    for rows in zip(*by_data, strict=True):
        cells = (", ".join(f"{one:.2f}" for one in row["with_truth"]) for row in rows)
        lines.append(f"| {rows[0]['reading']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def second_round_table(data: str) -> str:
    """Arms by what is true of them; those that were only looked ahead with come last."""
    rows = sorted(
        _result(f"second-round-{data}")["table"],
        key=lambda row: (-row.get("accuracy", 0), row.get("loss", 0)),
    )
    columns = ("sharpness, probability, operations, magnitude, ranges", "looking ahead: loss")
    return _markdown(
        (*columns, "test accuracy", "searches, trainings"),
        (
            (
                ", ".join(row["arm"].split()) if " " in row["arm"] else f"`{row['arm']}`",
                f"{row['loss']:.3f}" if "loss" in row else "",
                f"{row['accuracy']:.2f}" if "accuracy" in row else "",
                f"{row['searches']}, {row['trainings']}",
            )
            for row in rows
        ),
    )


def rules_table() -> str:
    """What a rule of choosing between shapes would have given."""
    columns = ("taken", "of", "the broadest", "minus `uniform`")
    rows = (
        (
            row["rule"],
            row["among"],
            f"{row['broadest']} of {row['n']}",
            f"{row['minus_uniform']:+.2f}",
        )
        for row in _result("second-round-digits")["rules"]
    )
    return _markdown(columns, rows)


def _gain(difference: float, low: float, high: float) -> str:
    return f"{difference:+.2f} ({low:+.2f} to {high:+.2f})"


def judge_table(data: str) -> str:
    lines = [
        "| policy | test accuracy | lowest, highest | n | `dada` minus this, 95% |",
        "|---|---|---|---|---|",
    ]
    for row in _result(f"judge-{data}")["table"]:
        gain = _gain(row["dada_minus"], row["from"], row["to"]) if "dada_minus" in row else ""
        lines.append(
            f"| {row['policy']} | {row['accuracy']:.2f} "
            f"| {row['lowest']:.2f}, {row['highest']:.2f} | {row['n']} | {gain} |"
        )
    return "\n".join(lines) + "\n"


def looks_table() -> str:
    """The searches of CIFAR-10 that were planned, and those added after a look at them."""
    accuracy = _result("judge-cifar10")["accuracy"]

    def means(name: str, searches: range, trainings: int | None = None) -> list[float]:
        each = (list(accuracy[f"{name} search {s}"].values()) for s in searches)
        return [statistics.mean(values[:trainings]) for values in each]

    against = ("uniform", "randaugment", "paper, gumbel")
    rows = []
    for title, searches, trainings in (
        ("planned: four searches, three trainings", range(4), 3),
        ("added: four others", range(4, 8), None),
        ("all", range(8), None),
    ):
        mine = means("dada", searches, trainings)
        free = [list(accuracy[name].values()) for name in against[:2]]
        others = [*free, means(against[2], searches)]
        gains = (_gain(*welch(mine, other)) for other in others)
        rows.append((title, f"{statistics.mean(mine):.2f}", *gains))
    return _markdown(("`dada`", "test accuracy", *(f"minus {name}" for name in against)), rows)


def versions_table() -> str:
    """What the judge said of earlier searches, by the file that holds it."""
    now = "single and wide shapes, the broadest left for a clear gain"
    nearly = f"{now}; combined wide ones, too; two runs"
    versions = {
        "digits-1b5129e": (
            "digits, one sample",
            "eight shapes; trainings tripled after a first look",
        ),
        "digits-one-sample": ("digits, the same", "scores of few runs shrunk more"),
        "digits-seven-shapes": ("digits, twelve samples", "four runs, other shapes"),
        "digits-six-shapes": ("digits, twelve others", "no shape both sharp and always at work"),
        "digits": ("digits, the same twelve", now),
        "cifar10-1b5129e": ("CIFAR-10", "eight shapes"),
        "cifar10-301da75": ("CIFAR-10", nearly),
        "cifar10": ("CIFAR-10", f"{now}; eight searches"),
        "rsscn7-ba8e53b": ("RSSCN7", "four runs, other shapes; three searches"),
        "rsscn7-301da75": ("RSSCN7", nearly),
        "rsscn7": ("RSSCN7", now),
    }
    rows = []
    for name, words in versions.items():
        row = next(r for r in _result(f"judge-{name}")["table"] if r["policy"] == "uniform")
        rows.append((*words, _gain(row["dada_minus"], row["from"], row["to"]), f"`judge-{name}`"))
    return _markdown(("data", "version", "minus `uniform`", "file"), rows)


def estimators_table() -> str:
    """The paper's own question: its preset with either estimator, trained."""
    titles = {
        "cifar10": "reduced CIFAR-10",
        "rsscn7": "RSSCN7",
        "digits-one-sample": "digits, one sample",
        "digits-seven-shapes": "digits, twelve samples",
        "digits-six-shapes": "digits, twelve others",
    }
    rows = []
    for name, title in titles.items():
        found = _result(f"judge-{name}")
        by_policy = {row["policy"]: row for row in found["table"]}
        both = [by_policy[f"paper, {estimator}"] for estimator in ("relax", "gumbel")]
        accuracies = (f"{row['accuracy']:.2f}" for row in both)
        searches = ", ".join(str(n) for n in dict.fromkeys(row["n"] for row in both))
        rows.append((title, searches, *accuracies, _gain(*found["relax_minus_gumbel"])))
    return _markdown(("", "searches of each", "`relax`", "`gumbel`", "difference, 95%"), rows)


# Page -> name of the table -> what makes it. In a page: <!-- NAME --> ... <!-- end -->
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"ops table": ops_table},
    "docs/results.md": {
        "train table": train_table,
        "search table": search_table,
        "growth table": growth_table,
        "hypergradient table": hypergradient_table,
        "cifar10 table": cifar10_table,
    },
    "docs/search-study.md": {
        "digits table": lambda: fidelity_table("digits"),
        "cifar10 table": lambda: fidelity_table("cifar10"),
        "rsscn7 table": lambda: fidelity_table("rsscn7"),
        "default table": default_fidelity_table,
        "effects table": effects_table,
        "cifar10 shapes": lambda: shape_table("cifar10"),
        "digits shapes": lambda: shape_table("digits"),
        "choosing table": choosing_table,
        "cifar10 second round": lambda: second_round_table("cifar10"),
        "rsscn7 second round": lambda: second_round_table("rsscn7"),
        "digits second round": lambda: second_round_table("digits"),
        "long second round": lambda: second_round_table("cifar10-200-epochs"),
        "rules table": rules_table,
        "looks table": looks_table,
        "rsscn7 stand-in": lambda: second_round_table("rsscn7-cpu"),
        "cifar10 stand-in": lambda: second_round_table("cifar10-cpu"),
        "rsscn7 cpu judge": lambda: judge_table("rsscn7-cpu"),
        "cifar10 cpu judge": lambda: judge_table("cifar10-cpu"),
        "cifar10 judge": lambda: judge_table("cifar10"),
        "rsscn7 judge": lambda: judge_table("rsscn7"),
        "digits judge": lambda: judge_table("digits"),
        "estimators table": estimators_table,
        "versions table": versions_table,
    },
}


def fresh(text: str, tables: dict[str, Callable[[], str]]) -> str:
    for name, table in tables.items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, rest = text.split(start)
        text = before + start + table() + end + rest.split(end, 1)[1]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when a page is stale")
    arguments = parser.parse_args()
    for page, tables in TABLES.items():
        text = (ROOT / page).read_text()
        made = fresh(text, tables)
        if arguments.check and made != text:
            sys.exit(f"{page}: run python benchmarks/tables.py")
        (ROOT / page).write_text(made)


if __name__ == "__main__":
    main()
