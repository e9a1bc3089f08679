"""The tables of the search study and its log, from the results; `tables.py` writes them."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from faster_table import faster_table
from measure import RESULTS, SEARCH, markdown, result_of, stratified_welch, units_of, welch
from scipy.stats import spearmanr
from search_tables import look_again_table, words_table

SECONDS = ("seconds", "verifying")  # of a search in the judge
JUDGED_ON_A_CPU = {
    "fashion": "fashion",
    "shirts": "shirts, 9 to 1",
    "cifar10": "CIFAR-10",
    "rsscn7": "RSSCN7",
}


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
    """At the number of runs, and with the images, that a search takes by default."""
    signals = {
        ("reduced CIFAR-10, WRN-40-2", "cifar10"): ("2 runs", "look ahead, loss, 2 runs"),
        ("200 digits, `small`", "digits"): ("4 runs", "look ahead, loss"),
        ("RSSCN7 at 64 pixels, `small`, on a CPU", "rsscn7"): (
            "a stand-in, 4 runs (a search makes 6)",
            "look ahead, loss, stand-in",
        ),
    }
    rows = []
    for (title, data), (runs, signal) in signals.items():
        found = result_of(f"reward-fidelity-{data}")["correlations"]
        row = next(row for row in found if row["signal"] == signal)
        extremes = f"{row['lowest']:.2f}, {row['highest']:.2f}"
        cells = f"{row['with_truth']:.2f}", extremes, f"{row['between_seeds']:.2f}"
        rows.append((title, runs, *cells))
    columns = ("", "looks ahead", "with truth", "lowest, highest seed", "between seeds")
    return markdown(columns, rows)


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


def choosing_table() -> str:
    """How well each reading ranks whole policies, search by search."""
    by_data = [entry["correlations"] for entry in result_of("history")["shapes"]]
    return markdown(
        ("reading", *(entry["data"] for entry in result_of("history")["shapes"])),
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


CPU_ARMS = {
    "uniform": "`uniform`",
    "trivialaugment": "TrivialAugment",
    "1 1 2 any strength": "broadest",
    "1 0.5 2 any strength": "usual",
    "1 1 1 0.5 strength": "mild",
    "1 0.5 2 any strength|1 1 1 0.5 strength": "usual and mild",
    "1 1 2 any strength|1 1 1 0.5 strength": "broadest and mild",
    "1 1 1 any wide": "wide",
    "found": "as the default now takes it",
}


def cpu_shapes_table() -> str:
    """Test accuracy of every shape on the tuning sets, and of how many trainings."""
    rows = []
    for name, searches in result_of("cpu-shapes")["sets"].items():
        cells = []
        for arm in CPU_ARMS:
            each = [a for s in searches.values() for a in s["accuracy"].get(arm, {}).values()]
            cells.append(f"{statistics.mean(each):.1f} ({len(each)})" if each else "")
        if any(cells):
            rows.append((name, len(searches), *cells))
    return markdown(("tuning set", "searches", *CPU_ARMS.values()), rows)


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


def history_table() -> str:
    """What the judge said of earlier versions of the default."""
    rows = []
    for entry in result_of("history")["judged"]:
        by_policy = {row["policy"]: row for row in entry["rows"]}
        gains = (_gain(*by_policy[name]["dada_minus"]) for name in ("uniform", "trivialaugment"))
        n, commit = by_policy["dada"]["n"], entry["commit"].partition(";")[0]
        rows.append((entry["data"], entry["what"], n, *gains, f"`{commit}`"))
    columns = ("data", "version", "searches", "minus `uniform`", "minus TrivialAugment", "commit")
    return markdown(columns, rows)


def estimators_table() -> str:
    """The paper's own question: its preset with either estimator, trained."""
    titles = {"cifar10": "reduced CIFAR-10", "rsscn7": "RSSCN7", "digits": "200 digits"}
    found = {title: result_of(f"judge-{name}") for name, title in titles.items()}
    now = [(title, each["table"], each["relax_minus_gumbel"]) for title, each in found.items()]
    before = [
        (entry["data"], entry["rows"], entry["relax_minus_gumbel"])
        for entry in result_of("history")["judged"]
        if entry["data"] in ("200 digits, one sample", "200 digits, twelve samples")
    ]
    rows = []
    for title, table, difference in (*now, *before):
        by_policy = {row["policy"]: row for row in table}
        both = [by_policy[f"paper, {estimator}"] for estimator in ("relax", "gumbel")]
        accuracies = (f"{row['accuracy']:.2f}" for row in both)
        searches = ", ".join(str(n) for n in dict.fromkeys(row["n"] for row in both))
        rows.append((title, searches, *accuracies, _gain(*difference)))
    return markdown(("", "searches of each", "`relax`", "`gumbel`", "difference, 95%"), rows)


def verdicts_table() -> str:
    """By how much what a search found was better, on all data that were judged."""
    titles = {
        "cifar10": "CIFAR-10",
        "rsscn7": "RSSCN7, 64 pixels",
        "digits": "digits",
    }
    against = ("uniform", "trivialaugment", "randaugment", "paper, relax")
    rows = []
    for name, title in titles.items():
        found = result_of(f"judge-{name}")
        by_policy = {row["policy"]: row for row in found["table"]}
        settings = found["settings"]
        what = f"{settings['train']:,} images, {settings['model']}, {settings['epochs']} epochs"
        gains = []
        for other in against:
            row = by_policy.get(other)
            gains.append(_gain(row["dada_minus"], row["from"], row["to"]) if row else "not judged")
        rows.append((title, what, by_policy["dada"]["n"], *gains))
    columns = ("data", "trained on", "searches", "minus `uniform`", "minus TrivialAugment")
    return markdown((*columns, "minus the best RandAugment", "minus the paper's preset"), rows)


def verified_table() -> str:
    """What verifications returned, beside what their searches found; sets that were reached."""
    titles = {"cifar10": "CIFAR-10", "rsscn7": "RSSCN7, 64 pixels", "digits": "digits"}
    rows, strata = [], []
    for name, title in titles.items():
        if not (RESULTS / f"judge-verified-{name}.json").exists():
            rows.append((title, *["not reached"] * 8))
            continue
        found = result_of(f"judge-verified-{name}")
        units, seen = units_of(found["accuracy"], SEARCH), found["verified"]
        mine = units["dada, verified"]
        strata.append([a - b for a, b in zip(mine, units["dada"], strict=True)])
        words = (str(found["signals"].get(word, 0)) for word in ("clear", "weak", "none"))
        each = [search for search in found["searches"].values() if "verified" in search]
        seconds = (statistics.median(search[key] for search in each) for key in SECONDS)
        accuracies = (f"{statistics.mean(units[n]):.2f}" for n in ("dada", "dada, verified"))
        rows.append(
            (
                title,
                ", ".join(words),
                "{:.0f}, {:.0f}".format(*seconds),
                ", ".join(f"{what}: {count}" for what, count in sorted(seen["chosen"].items())),
                *accuracies,
                f"{statistics.mean(units['uniform']):.2f}",
                _gain(*seen["minus_found"]),
                _gain(*seen["minus_uniform"]),
            )
        )
    if len(strata) == len(titles):
        gain = _gain(*stratified_welch([(each, []) for each in strata]))
        rows.append(("**mean of the three**", *[""] * 6, gain, ""))
    said = ("signals: clear, weak, none", "seconds, of them verifying", "what is returned")
    accuracy = ("found", "returned", "`uniform`")
    return markdown(
        ("data", *said, *accuracy, "returned minus found", "returned minus `uniform`"), rows
    )


def units_on_a_cpu() -> dict[str, dict[str, list[float]]]:
    return {
        title: units_of(result_of(f"judge-{name}-cpu")["accuracy"], SEARCH)
        for name, title in JUDGED_ON_A_CPU.items()
    }


def gain_on_a_cpu(policy: str) -> str:
    """The mean over the data sets, and its interval."""
    units = units_on_a_cpu().values()
    return _gain(*stratified_welch([(each["dada"], each[policy]) for each in units]))


def cpu_judge_table() -> str:
    """What a search on a CPU found against free policies, set by set and on average."""
    against, rows = ("uniform", "trivialaugment"), []
    for title, each in units_on_a_cpu().items():
        accuracies = (f"{statistics.mean(each[name]):.2f}" for name in ("dada", *against))
        gains = (_gain(*welch(each["dada"], each[other])) for other in against)
        rows.append((title, *accuracies, *gains))
    rows.append(("**mean of the four**", "", "", "", *map(gain_on_a_cpu, against)))
    columns = ("data", "`dada`", "`uniform`", "TrivialAugment", "minus `uniform`")
    return markdown((*columns, "minus TrivialAugment"), rows)


def lengths_table() -> str:
    """How well shorter second rounds, and the trend of two, know the order of shapes in longer."""
    titles = {"cifar10": "CIFAR-10, 16 pixels", "rsscn7": "RSSCN7, 16 pixels", "digits": "digits"}
    rows = []
    for name, title in titles.items():
        searches = result_of("lengths")["data"][name].values()
        seen: dict[str, list[float]] = {}
        for each in searches:
            by_length = {
                times: [statistics.mean(runs) for runs in found["loss"].values()]
                for times, found in each.items()
            }
            one, two, truth = (by_length[times] for times in "128")
            by_length["followed"] = [a + 3 * (b - a) for a, b in zip(one, two, strict=True)]
            for reading in ("1", "2", "3", "4", "followed"):
                agreement = spearmanr(by_length[reading], truth).statistic
                seen.setdefault(reading, []).append(agreement)
        means = (f"{statistics.mean(each):.2f}" for each in seen.values())
        rows.append((title, len(searches), *means))
    lengths = ("usual", "two times", "three times", "four times", "usual and two, followed")
    return markdown(("data", "searches", *lengths), rows)


def for_epochs_table() -> str:
    """Searches that were told how long a training is, against their rivals, length by length."""
    against = ("rival", "uniform", "trivialaugment")
    rows = []
    for epochs in (80, 200):
        name, cells = f"judge-for-{epochs}-epochs", ["not run yet"] * (1 + len(against))
        if (RESULTS / f"{name}.json").exists():
            found = result_of(name)
            units = units_of(found["accuracy"], SEARCH)
            cells = [f"{statistics.mean(units['dada']):.2f} (n {len(units['dada'])})"]
            for other in against:
                enough = len(units.get(other, [])) > 1
                gain = _gain(*welch(units["dada"], units[other])) if enough else "not run yet"
                cells.append(gain)
            cells[1] += ": " + ", ".join(each["chosen"] for each in found["rivals"].values())
        rows.append((epochs, *cells))
    columns = ("epochs", "`dada`, told the epochs", "minus its rival", "minus `uniform`")
    return markdown((*columns, "minus TrivialAugment"), rows)


STUDY: dict[str, Callable[[], str]] = {
    "for-epochs table": for_epochs_table,
    "default table": default_fidelity_table,
    "verdicts table": verdicts_table,
    "cpu judge": cpu_judge_table,
}
LOG: dict[str, Callable[[], str]] = {
    "cifar10 table": lambda: fidelity_table("cifar10"),
    "effects table": effects_table,
    "digits table": lambda: fidelity_table("digits"),
    "rsscn7 table": lambda: fidelity_table("rsscn7"),
    "choosing table": choosing_table,
    "cifar10 second round": lambda: second_round_table("cifar10"),
    "rsscn7 second round": lambda: second_round_table("rsscn7"),
    "digits second round": lambda: second_round_table("digits"),
    "long second round": lambda: second_round_table("cifar10-200-epochs"),
    "lengths table": lengths_table,
    "rules table": rules_table,
    "rsscn7 stand-in": lambda: second_round_table("rsscn7-cpu"),
    "cifar10 stand-in": lambda: second_round_table("cifar10-cpu"),
    "cpu shapes": cpu_shapes_table,
    "cifar10 judge": lambda: judge_table("cifar10"),
    "rsscn7 judge": lambda: judge_table("rsscn7"),
    "digits judge": lambda: judge_table("digits"),
    "looks table": looks_table,
    "look again": look_again_table,
    "words table": words_table,
    "faster table": faster_table,
    "estimators table": estimators_table,
    "history table": history_table,
}
