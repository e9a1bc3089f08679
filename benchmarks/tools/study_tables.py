"""The tables of docs/search-study.md, from the results; `tables.py` writes them into the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from measure import markdown, result_of, welch


def fidelity_table(data: str) -> str:
    columns = ("signal", "with truth", "lowest, highest seed", "averaged over seeds")
    return markdown(
        (*columns, "between seeds"),
        (
            (
                row["signal"],
                f"{row['with_truth']:.2f}",
                f"{row['lowest']:.2f}, {row['highest']:.2f}",
                f"{row['averaged_over_seeds']:.2f}",
                "" if row["between_seeds"] is None else f"{row['between_seeds']:.2f}",
            )
            for row in result_of(f"reward-fidelity-{data}")["correlations"]
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
        found = result_of(f"reward-fidelity-{data}")["correlations"]
        row = next(row for row in found if row["signal"] == signal)
        rows.append((title, row["with_truth"], row["between_seeds"]))
    rows.append(("mean", *(statistics.fmean(row[i] for row in rows) for i in (1, 2))))
    return markdown(
        ("", "with truth", "between seeds"), ((t, f"{a:.2f}", f"{b:.2f}") for t, a, b in rows)
    )


def effects_table() -> str:
    """What looking ahead saw of every operation on CIFAR-10, and what it did when trained alone."""
    seeds = result_of("reward-fidelity-cifar10")["seeds"]
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
    rows = sorted(result_of(f"policy-shape-{data}")["table"], key=lambda r: -r["truth_accuracy"])
    return markdown(
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
    by_data = [result_of(f"policy-shape-{data}")["correlations"] for data in ("cifar10", "digits")]
    return markdown(
        ("reading", "reduced CIFAR-10", "digits"),
        (
            (
                rows[0]["reading"],
                *(", ".join(f"{r:.2f}" for r in row["with_truth"]) for row in rows),
            )
            for rows in zip(*by_data, strict=True)
        ),
    )


def second_round_table(data: str) -> str:
    """Arms by what is true of them; those that were only looked ahead with come last."""
    rows = sorted(
        result_of(f"second-round-{data}")["table"],
        key=lambda row: (-row.get("accuracy", 0), row.get("loss", 0)),
    )
    columns = ("sharpness, probability, operations, magnitude, ranges", "looking ahead: loss")
    return markdown(
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
        for row in result_of("second-round-digits")["rules"]
    )
    return markdown(columns, rows)


def _gain(difference: float, low: float, high: float) -> str:
    return f"{difference:+.2f} ({low:+.2f} to {high:+.2f})"


def judge_table(data: str) -> str:
    rows = []
    for row in result_of(f"judge-{data}")["table"]:
        gain = _gain(row["dada_minus"], row["from"], row["to"]) if "dada_minus" in row else ""
        extremes = f"{row['lowest']:.2f}, {row['highest']:.2f}"
        rows.append((row["policy"], f"{row['accuracy']:.2f}", extremes, row["n"], gain))
    columns = ("policy", "test accuracy", "lowest, highest", "n", "`dada` minus this, 95%")
    return markdown(columns, rows)


def looks_table() -> str:
    """The searches of CIFAR-10 that were planned, and those added after a look at them."""
    accuracy = result_of("judge-cifar10")["accuracy"]

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
    return markdown(("`dada`", "test accuracy", *(f"minus {name}" for name in against)), rows)


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
        row = next(r for r in result_of(f"judge-{name}")["table"] if r["policy"] == "uniform")
        rows.append((*words, _gain(row["dada_minus"], row["from"], row["to"]), f"`judge-{name}`"))
    return markdown(("data", "version", "minus `uniform`", "file"), rows)


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
        found = result_of(f"judge-{name}")
        by_policy = {row["policy"]: row for row in found["table"]}
        both = [by_policy[f"paper, {estimator}"] for estimator in ("relax", "gumbel")]
        accuracies = (f"{row['accuracy']:.2f}" for row in both)
        searches = ", ".join(str(n) for n in dict.fromkeys(row["n"] for row in both))
        rows.append((title, searches, *accuracies, _gain(*found["relax_minus_gumbel"])))
    return markdown(("", "searches of each", "`relax`", "`gumbel`", "difference, 95%"), rows)


STUDY: dict[str, Callable[[], str]] = {
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
}
