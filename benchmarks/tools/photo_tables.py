"""The tables of docs/photographs.md and docs/fine-tuning-study.md, from the results."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from measure import RESULTS, markdown, result_of, stratified_welch, units_of
from search_tables import counted, word_of

from dada.policy_search.lookahead.base_choice import BASES

TRAININGS = {
    "repeated 0.5": "short fine-tunings, their second half repeated",
    "repeated 1.0": "short fine-tunings, whole",
    "features": "heads on features",
}
READINGS = {
    "loss": "plain loss",
    "calibrated_loss": "loss at the best temperature",
    "accuracy": "accuracy",
}
JUDGED = {"cub60": "CUB-60", "rsscn7": "RSSCN7", "caltech101": "Caltech-101"}
FIDELITY = {"rsscn7": "RSSCN7", "caltech50": "Caltech, 50 classes"}
TUNED = {
    "caltech101": "Caltech-101, 600 images",
    "ants-and-bees": "ants and bees",
    "rsscn7": "RSSCN7, 300 images",
}
SETTINGS = {
    "sgd": "SGD, 0.005, the default",
    "sgd, rate 0.01": "SGD, 0.01",
    "sgd, rate 0.02": "SGD, 0.02",
    "adamw": "AdamW, 0.0001",
    "adamw, rate 0.0003": "AdamW, 0.0003",
}
FEWEST_SEEDS = 3  # with an interval: that of two seeds says next to nothing
CONTENDERS = ("dada", "rival", "none", "uniform", "trivialaugment")


def pilot_table(file: str) -> str:
    rows = [
        (
            TRAININGS[row["training"]],
            READINGS[row["reading"]],
            f"{row['one run']:.2f}",
            f"{row['all runs']:.2f}",
        )
        for row in result_of(file)["table"]
    ]
    columns = ("what is read", "reading", "rank correlation with truth, one run", "all runs")
    return markdown(columns, rows)


def truth_table() -> str:
    truth = result_of("fine-tuning-birds")["truth"]
    mean = {name: statistics.mean(each.values()) for name, each in truth.items()}
    rows = [
        (name, f"{mean[name]:.1f}", len(truth[name]))
        for name in sorted(mean, key=lambda n: -mean[n])
    ]
    return markdown(("policy", "test accuracy", "trainings"), rows)


def settings_gain(sets: str, arm: str) -> str:
    """Points over the default settings of fine-tuning, seed by seed; the mean over those sets."""
    return settings_between(sets, arm, "sgd")


def settings_between(sets: str, arm: str, usual: str) -> str:
    return gain_of_settings(sets.split(","), arm, usual)


def layer_decay_gain(optimizer: str, decay: str) -> str:
    return gain_of_settings(["ants-and-bees", "rsscn7"], f"{optimizer}, decay {decay}", optimizer)


def gain_of_settings(sets: Sequence[str], arm: str, usual: str) -> str:
    found = [result_of(f"settings-of-fine-tuning-{data}")["accuracy"] for data in sets]
    return gain_by_seed([(accuracy[arm], accuracy[usual]) for accuracy in found])


def gain_by_seed(sets: Sequence[tuple[dict[str, float], dict[str, float]]]) -> str:
    """Of the first over the second, where both have a seed; the mean over the data sets."""
    strata: list[tuple[list[float], list[float]]] = [
        ([one[seed] - other[seed] for seed in one if seed in other], []) for one, other in sets
    ]
    gain, low, high = stratified_welch(strata)
    return f"{gain:+.2f} ({low:+.2f} to {high:+.2f})" if low < high else f"{gain:+.2f}"


def settings_table() -> str:
    """Each arm without a layer decay: accuracy, and how far it is ahead of the default."""
    found = [result_of(f"settings-of-fine-tuning-{data}")["accuracy"] for data in TUNED]
    rows = []
    for arm, words in SETTINGS.items():
        cells: list[str] = []
        for data, accuracy in zip(TUNED, found, strict=True):
            of_seeds = accuracy.get(arm, {})
            cell = f"{statistics.mean(of_seeds.values()):.1f}" if of_seeds else "not run"
            if of_seeds and len(of_seeds) < FEWEST_SEEDS:
                cell += f" (n {len(of_seeds)})"
            elif of_seeds and arm != "sgd":
                cell += f": {settings_gain(data, arm)}"
            cells.append(cell)
        n = min(len(accuracy.get(arm, {})) for accuracy in found)
        everywhere = arm != "sgd" and n >= FEWEST_SEEDS
        mean = settings_gain(",".join(TUNED), arm) if everywhere else ""
        rows.append((words, *cells, mean))
    return markdown(("", *TUNED.values(), "mean gain"), rows)


def accuracy_of_bases(data: str) -> dict[str, dict[str, float]]:
    """Of every base by seed, for the seeds that all have; and of what that seed's search chose."""
    found = result_of(f"settings-of-fine-tuning-{data}")
    arms = {base: "sgd" if base == "photo" else f"sgd, base {base}" for base in BASES}
    accuracy = {base: found["accuracy"].get(arm, {}) for base, arm in arms.items()}
    seeds = sorted(set.intersection(*(set(each) for each in accuracy.values())))
    by_seed = {base: {seed: each[seed] for seed in seeds} for base, each in accuracy.items()}
    return by_seed | {"chosen": {s: accuracy[found["chosen"][s] or "none"][s] for s in seeds}}


def gain_of_base(base: str, against: str) -> str:
    found = [accuracy_of_bases(data) for data in TUNED]
    return gain_by_seed([(accuracy[base], accuracy[against]) for accuracy in found])


def bases_table() -> str:
    rows = []
    for base in (*BASES, "chosen"):
        of_sets = [statistics.mean(accuracy_of_bases(data)[base].values()) for data in TUNED]
        gain = "" if base == "none" else gain_of_base(base, "none")
        name = "what searches chose" if base == "chosen" else f"`{base}`"
        rows.append((name, *(f"{each:.1f}" for each in of_sets), gain))
    return markdown(("", *TUNED.values(), "minus `none`, mean"), rows)


def choices_of_base(data: str) -> str:
    """How many of the searches chose which."""
    chosen = Counter(result_of(f"settings-of-fine-tuning-{data}")["chosen"].values())
    return ", ".join(f"`{name}` {count}" for name, count in chosen.most_common())


def loss_under_base(data: str, base: str) -> str:
    """Of heads on features, the mean of all searches that asked."""
    rows = result_of(f"agreement-{data}")["rows"]
    return f"{statistics.mean(row['base']['loss'][base] for row in rows):.2f}"


def judge_table(judge: str = "again") -> str:
    sets = JUDGED | ({"ants-and-bees": "ants and bees"} if judge == "again" else {})
    rivals = CONTENDERS[1:]
    rows = [(title, *judged_cells(judged_by(judge, data), rivals)) for data, title in sets.items()]
    gains = [interval_over(name, judge) for name in rivals]
    rows.insert(len(JUDGED), ("**mean of the three**", "", *gains))
    return markdown(("data", *judged_columns(rivals)), rows)


def mirror_table() -> str:
    """What policies add to a mirror."""
    rivals = CONTENDERS[2:]
    rows = [judged_cells(result_of("mirror-cub60"), rivals)]
    return markdown(judged_columns(rivals), rows)


def judged_columns(rivals: Sequence[str]) -> list[str]:
    return ["found by searches", *(f"{name}: `dada` minus it" for name in rivals)]


def judged_cells(result: dict[str, Any], rivals: Sequence[str]) -> list[str]:
    by_policy = {row["policy"]: row for row in result["table"]}
    cells = [f"{by_policy['dada']['accuracy']:.1f} ({by_policy['dada']['n']} searches)"]
    for name in rivals:
        row = by_policy[name]
        gain = f"{row['dada_minus']:+.2f} ({row['from']:+.2f} to {row['to']:+.2f})"
        cells.append(f"{row['accuracy']:.1f}: {gain}")
    return cells


def judged_by(judge: str, data: str) -> dict[str, Any]:
    """The first judge, or the one `again`, of the search as it is now."""
    return result_of({"first": "fine-tuning-", "again": "fine-tuning-again-"}[judge] + data)


def mean_gain_over(policy: str, judge: str = "again") -> tuple[float, ...]:
    """Over the three data sets, and its interval."""
    units = [units_of(judged_by(judge, data)["truth"]) for data in JUDGED]
    return stratified_welch([(each["dada"], each[policy]) for each in units])


def seconds_of_searches() -> str:
    """Median, of searches that were not the first of their program and had the card alone."""
    searches = list(judged_by("first", "rsscn7")["searches"].values())[1:]
    return f"{statistics.median(each['seconds'] for each in searches):.0f}"


def least_gain_over(policy: str, judge: str = "again") -> str:
    """The lower end of the interval."""
    return f"{mean_gain_over(policy, judge)[1]:.2f}"


def interval_over(policy: str, judge: str = "again") -> str:
    mean, low, high = mean_gain_over(policy, judge)
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def repeated_trainings() -> str:
    """Of CUB-60 and Caltech-101: free policies' trainings that gave the first judge's accuracy."""
    same = total = 0
    for data in ("cub60", "caltech101"):
        first, again = (judged_by(judge, data)["truth"] for judge in ("first", "again"))
        for name in ("none", "uniform", "trivialaugment"):
            same += sum(again[name][seed] == first[name][seed] for seed in again[name])
            total += len(again[name])
    return f"{same} of {total}"


def agreement_table() -> str:
    """Three searches of ants and bees on a CPU, with one thread and with two."""
    rows = [
        (
            row["seed"],
            found["machine"]["threads"],
            f"*{row['signal']}*",
            f"{row['chance']:.3f}",
            f"{row['halves_agree']:.2f}",
            f"{row['runs']} and {row['policy_runs']}",
            f"{row['seconds']:.0f}",
            f"{row['cpu_seconds']:.0f}",
        )
        for file in sorted(RESULTS.glob("agreement-ants-and-bees*.json"))
        for found in [result_of(file.stem)]
        for row in found["rows"]
    ]
    how_sure = ("signal", "chance", "its halves agree by")
    cost = ("runs of each round", "seconds", "of processor time")
    return markdown(("seed", "threads", *how_sure, *cost), rows)


def default_table() -> str:
    """The whole default on photographs, alone on a card."""
    if not (RESULTS / "agreement-photographs-h200.json").exists():
        return "Not reached.\n"
    rows = [
        (
            f"{row['images']:,}",
            " x ".join(map(str, row["image_size"])),
            f"{row['seconds']:.0f}",
            f"*{row['signal']}*",
            row["trainings"],
            row["verdict"],
        )
        for row in result_of("agreement-photographs-h200")["rows"]
    ]
    said = ("signal", "trainings of the verification", "which says")
    return markdown(("photographs", "pixels", "seconds", *said), rows)


def fidelity_table() -> str:
    """What looking ahead knows of single operations in fine-tuning, on sets that were reached."""
    readings = {"truth": "accuracy", "truth_loss": "loss at the best temperature"}
    rows: list[tuple[object, ...]] = []
    for name, title in FIDELITY.items():
        if not (RESULTS / f"fidelity-fine-tuning-{name}.json").exists():
            rows.append((title, *["not reached"] * 6))
            continue
        found = result_of(f"fidelity-fine-tuning-{name}")
        rows += [
            (
                title,
                readings[row["truth"]],
                row["seeds"],
                f"{row['halves of truth']:.2f}",
                f"{row['with truth']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})",
                f"{row['averaged']:.2f}",
                f"{row['between searches']:.2f}",
            )
            for row in found["table"]
        ]
    truth = ("truth by", "seeds", "its halves agree by")
    searches = ("a search with truth (lowest to highest)", "all together", "between searches")
    return markdown(("data", *truth, *searches), rows)


def readers_table() -> str:
    """Heads beside short fine-tunings: what each knows of operations, and how sure it says so."""
    readers = {"fidelity-fine-tuning": "heads on features", "fidelity-short": "short fine-tunings"}
    rows = []
    for file, reader in readers.items():
        for name, title in FIDELITY.items():
            found = result_of(f"{file}-{name}")
            row = next(each for each in found["table"] if each["truth"] == "truth")
            searches = found["searches"].values()
            said = counted(word_of(each["loss_of_runs"], looks=1) for each in searches)
            numbers = (f"{row[key]:z.2f}" for key in ("with truth", "averaged", "between searches"))
            rows.append((reader, title, *numbers, said))
        both = (result_of(f"{file}-{name}")["table"][0]["averaged"] for name in FIDELITY)
        rows.append((f"**{reader}, mean**", "", "", f"**{statistics.mean(both):.2f}**", "", ""))
    columns = ("a search with truth", "the four averaged", "between searches", "searches say")
    return markdown(("what is read", "data", *columns), rows)


def fidelity_operations_table() -> str:
    """The truth of every operation, and which place the searches together give it."""
    columns = []
    for name in FIDELITY:
        found = result_of(f"fidelity-fine-tuning-{name}")
        read = [each["loss"] for each in found["searches"].values()]
        by_searches = sorted(read[0], key=lambda op: statistics.mean(each[op] for each in read))
        column = {}
        for op, of_seeds in found["truth"].items():
            scores = list(of_seeds.values())
            error = statistics.stdev(scores) / len(scores) ** 0.5
            place = 1 + by_searches.index(op)
            column[op] = f"{statistics.mean(scores):.2f} +- {error:.2f}; {place}"
        columns.append(column)
    first = columns[0]
    rows = [
        (op, *(column[op] for column in columns)) for op in sorted(first, key=first.__getitem__)
    ]
    titles = (f"{title}: accuracy and its standard error; place" for title in FIDELITY.values())
    return markdown(("operation", *titles), rows)


def decode_table() -> str:
    rows: list[tuple[object, ...]] = []
    for file in sorted(RESULTS.glob("decode-*.json")):
        found = result_of(file.stem)
        where = f"{found['machine']['cpu']}, {found['machine']['cores']} cores"
        rows += [
            (
                where,
                row["threads"],
                f"{row['images_per_second']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})",
                f"{row['cpu_ms_an_image']:.1f}",
                f"{found['machine']['load']:.1f}",
            )
            for row in found["rows"]
        ]
    seen = ("images/s (lowest to highest)", "processor time an image, ms", "others at work (load)")
    return markdown(("machine", "threads", *seen), rows)


def card_table() -> str:
    newest = result_of(max(RESULTS.glob("decode-*.json")).stem)
    rows = [
        (f"`{row['network']}`", f"{row['images_per_second']:,}", row["bound"])
        for row in newest["card"]
    ]
    return markdown(("network, 224 pixels, batches of 64", "images/s on an H200", "bound"), rows)


PHOTOGRAPHS: dict[str, Callable[[], str]] = {
    "agreement table": agreement_table,
    "whole default table": default_table,
    "decode table": decode_table,
    "card table": card_table,
}
FINE_TUNING: dict[str, Callable[[], str]] = {
    "settings table": settings_table,
    "bases table": bases_table,
    "fine-tuning truth": truth_table,
    "fine-tuning table": lambda: pilot_table("fine-tuning-birds"),
    "fine-tuning operations table": lambda: pilot_table("fine-tuning-birds-operations"),
    "fidelity table": fidelity_table,
    "fidelity operations table": fidelity_operations_table,
    "readers table": readers_table,
    "fine-tuning judge table": lambda: judge_table("first"),
    "fine-tuning judge again table": judge_table,
    "mirror table": mirror_table,
}
