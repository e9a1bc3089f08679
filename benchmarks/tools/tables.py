"""Writes tables and numbers into README.md and docs/ from the results: none is typed by hand.

    python benchmarks/tools/tables.py [--check]

A table stands between <!-- NAME --> and <!-- end -->, a number in the text as
`numbers_in_text.py` says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from choice_table import CHOICE
from estimator_tables import ESTIMATORS
from measure import RESULTS, markdown, result_of
from numbers_in_text import with_numbers
from paper_tables import PAPER, found_table
from photo_tables import FINE_TUNING, PHOTOGRAPHS
from reliability_table import RELIABILITY
from search_tables import durations_table
from step_costs import steps_table
from study_tables import LOG, STUDY, verified_table
from task_tables import BACKBONES, DETECTION

from dada.policy.space import SearchSpace
from dada.policy_search.free_policies import free_policies
from dada.policy_search.verify.plan import LEAST_TRAININGS, plan_for
from dada.trials.cost import SPEEDS

ROOT = Path(__file__).parents[2]
MOST_TRAININGS = 64  # that the table of a verification goes up to
GROWTH = {"images": "images", "side": "pixels a side", "ops": "operations", "views": "views"}


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def ops_table() -> str:
    lines = ["| | 32x32 | 224x224 | ratio, 32 / 224 |", "|---|---|---|---|"]
    on_cpu, on_gpu = result_of("ops-cpu"), result_of("ops-gpu")
    cpu, gpu = on_cpu["machine"]["cpu"], on_gpu["machine"]["gpu"]
    in_workers = [row for row in on_cpu["rows"] if ": " in row["contender"]]
    here = [row for row in on_cpu["rows"] if row not in in_workers]
    for where, compared, ratio, rows in (
        (f"{cpu}, one thread", "to Pillow by hand", "times", here),
        (f"{cpu}, a second of their time", "to Pillow by hand", "times", in_workers),
        (gpu, "to the fastest peer", "times_fastest_peer", on_gpu["rows"]),
    ):
        lines.append(f"| **{where}** | | | {compared} |")
        by_name: dict[str, dict[int, dict[str, Any]]] = {}
        for row in rows:
            by_name.setdefault(row["contender"], {})[row["side"]] = row
        for contender, sides in by_name.items():
            speeds = " | ".join(f"{sides[side]['images_per_second']:,.0f}" for side in (32, 224))
            ratios = " / ".join(_times(sides[side][ratio]) for side in (32, 224))
            lines.append(f"| {contender} | {speeds} | {ratios} |")
    return "\n".join(lines) + "\n"


def short_ops_table() -> str:
    """Of the table of operations.md: one line for each place a policy runs in, with its peer."""
    by_hand = "a loop around Pillow"
    chosen = (
        ("ops-cpu", "one CPU thread, batches", "dada, batch", "times", by_hand),
        ("ops-cpu", "one CPU thread, PIL images", "dada, PIL one by one", "times", by_hand),
        ("ops-cpu", "2 workers, PIL images", "2 workers: dada, PIL", "times", by_hand),
        ("ops-gpu", "GPU, batches", "dada, plain calls", "times_fastest_peer", "the fastest peer"),
    )
    rows = []
    for name, where, contender, ratio, peer in chosen:
        result = result_of(name)
        sides = {row["side"]: row for row in result["rows"] if row["contender"] == contender}
        machine = result["machine"]["gpu" if name == "ops-gpu" else "cpu"]
        cells = (
            f"{sides[side]['images_per_second']:,.0f} ({_times(sides[side][ratio])})"
            for side in (32, 224)
        )
        rows.append((f"{where} ({machine})", *cells, peer))
    return markdown(("images a second (times the peer)", "32x32", "224x224", "peer"), rows)


def threads_table() -> str:
    """A batch on several threads, for as many as the machine of the file has cores."""
    result = result_of("ops-threads")
    where = f"{result['machine']['cpu']}, {result['cores']} cores"
    ratios = ("times one thread", "times Pillow's loop")
    return markdown(
        (where, "threads", "images/s", *ratios, "n", "cores it had", "CPU's time"),
        (
            (
                f"{row['images_per_call']:,} of {row['side']}x{row['side']}",
                row["threads"],
                f"{row['images_per_second']:,.0f}",
                f"{row['times_one_thread']:.2f}x"
                f" ({row['times_one_thread_low']:.2f} to {row['times_one_thread_high']:.2f})",
                f"{row['times_by_hand']:.2g}x",
                row["n"],
                f"{row['cores_used']:.1f}",
                f"{row['cpu_times_one_thread']:.2f}x",
            )
            for row in result["rows"]
        ),
    )


def train_table() -> str:
    columns = (
        "network, batch, side",
        "images/s",
        "ms a step",
        "times eager",
        "augmentation",
        "of limit",
    )
    return markdown(
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
            for row in result_of("train")["rows"]
        ),
    )


def stacks_table() -> str:
    """Images/s of networks as one stack, beside one at a time or the best number of streams."""
    speed = {row["row"]: row["images_per_second"] for row in result_of("stacks")["steps"]}
    rows = [
        (f"one network, batch {batch}", speed[f"one, 1 x 1, batch {batch}"], 1, batch)
        for batch in (128, 512, 2048)
    ]
    streams = max(speed[row] for row in speed if row.startswith("streams"))
    rows += [(f"{groups} networks, batch 128", streams, groups, 128) for groups in (4, 8, 16)]
    return markdown(
        ("WRN-40-2", "layers; several on streams", "one stack", "times"),
        (
            (name, f"{layers:,.0f}", f"{stack:,.0f}", f"{stack / layers:.2f}x")
            for name, layers, groups, batch in rows
            for stack in [speed[f"stack, {groups} x 1, batch {batch}"]]
        ),
    )


def search_table() -> str:
    columns = ("search", "images", "batch", "epochs", "seconds to the policy", "with report")
    return markdown(
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
            for name, row in result_of("search")["cases"].items()
            if "peak_GiB" in row and name.split()[0] not in GROWTH
        ),
    )


def phases_table() -> str:
    """The seconds of the whole default by phase."""
    rows = []
    for name, row in result_of("search")["cases"].items():
        if len(row.get("ended", {})) == 3:
            ends = row["ended"].values()
            spent = (end - begun for begun, end in zip((0.0, *ends), ends, strict=False))
            rows.append((name, *(f"{each:.1f}" for each in spent), f"{row['seconds']:.1f}"))
    return markdown(("search", "measuring", "looking ahead", "verifying", "with report"), rows)


def hypergradient_table() -> str:
    return markdown(
        ("way", "precision", "error of a cost", "by pixel", "ms"),
        (
            (
                row["method"].replace("_", " "),
                row["precision"],
                f"{row['error_of_cost']:.2g}",
                f"{row['error_by_pixel']:.2g}",
                f"{row['ms']:.1f}",
            )
            for row in result_of("hypergradient")["rows"]
        ),
    )


def growth_table() -> str:
    """Milliseconds of a step by what grows; the first of every kind is as in the other kinds."""
    lines = ["| what grows | ms a step |", "|---|---|"]
    by_kind: dict[str, list[str]] = {kind: [] for kind in GROWTH}
    for name, row in result_of("search")["cases"].items():
        kind, _, size = name.partition(" ")
        if kind in GROWTH and size.isdigit():
            by_kind[kind].append(f"{int(size):,}: {row['ms_per_step']:.0f}")
    lines += [f"| {GROWTH[kind]} | {', '.join(cells)} |" for kind, cells in by_kind.items()]
    return "\n".join(lines) + "\n"


def whole_growth_table() -> str:
    result = result_of("growth-cpu")
    return markdown(
        ("classes", "images", "seconds", "measuring", "looking ahead"),
        (
            (
                f"{row['classes']:,}",
                f"{row['images']:,}",
                *(f"{row[part]:.0f}" for part in ("cpu_seconds", "measure", "look ahead")),
            )
            for kind in ("classes", "images")
            for row in result[kind]
        ),
    )


def cifar10_table() -> str:
    return markdown(
        ("policy", "error", "published", "epochs", "seconds"),
        (
            (
                row["policy"],
                f"{row['error']:.2f}",
                row["published"],
                row["epochs"],
                f"{row['seconds']:.0f}",
            )
            for row in result_of("cifar10")["trainings"].values()
        ),
    )


def reading_table() -> str:
    """What four paired seeds say of policies by accuracy, and by loss."""
    names = {"calibrated_loss": "loss at the best temperature"}
    rows: list[tuple[object, ...]] = []
    for file in sorted(RESULTS.glob("verify-reading-*.json")):
        found = result_of(file.stem)
        rows += [
            (
                f"{found['train']} images of {found['data']}",
                names.get(row["reading"], row["reading"]),
                f"{row['right']} and {row['wrong']} of {row['of_different']}",
                f"{row['claimed_of_same']} of {row['of_same']}",
                f"{row['chosen']:.1f} (all: {found['mean_of_all']:.1f})",
            )
            for row in found["table"]
        ]
    told = ("told rightly and wrongly, of true differences", "claimed where there is none")
    return markdown(("trained on", "reading", *told, "accuracy of what it takes, %"), rows)


def speeds_table() -> str:
    """The nominal machines by which budgets are counted, as the code has them."""
    columns = ("operations", "depthwise", "numbers moved", "a layer begins in", "a step, besides")
    rows = []
    for device, speed in SPEEDS.items():
        rows.append(
            (
                device,
                f"{speed.operations:.3g} a second",
                f"{speed.grouped:.3g} a second",
                f"{speed.numbers:.3g} a second",
                f"{1e6 * speed.launch:.2g} us",
                f"{1e3 * speed.step:.2g} ms",
                f"{speed.start:g} s",
            )
        )
    return markdown(("nominal machine", *columns, "a training, besides"), rows)


def trainings_table() -> str:
    """What a number of trainings allows a verification, as the code shares them out."""
    candidates = 1 + len(free_policies(SearchSpace.named("paper")))  # and the one that was found
    rows = []
    counts = range(LEAST_TRAININGS, MOST_TRAININGS + 1)
    for (size, seeds), same in groupby(counts, lambda n: _shared_out(n, candidates)):
        trainings = list(same)
        pairs = dict.fromkeys(plan_for(n, candidates).pairs for n in (trainings[0], trainings[-1]))
        rows.append(
            (
                " to ".join(map(str, dict.fromkeys((trainings[0], trainings[-1])))),
                "all" if size == candidates else size,
                seeds if size > 2 else "no round",
                " to ".join(map(str, pairs)),
            )
        )
    columns = ("trainings", "candidates, `uniform` among them", "seeds of the first round")
    return markdown((*columns, "fresh pairs"), rows)


def _shared_out(trainings: int, candidates: int) -> tuple[int, int]:
    plan = plan_for(trainings, candidates)
    assert plan is not None
    return plan.candidates, plan.first_seeds


# Page -> name of the table -> what makes it.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"short ops table": short_ops_table},
    "docs/results.md": {
        "train table": train_table,
        "stacks table": stacks_table,
        "search table": search_table,
        "phases table": phases_table,
        "growth table": growth_table,
        "whole growth table": whole_growth_table,
        "hypergradient table": hypergradient_table,
        "cifar10 table": cifar10_table,
    },
    "docs/detection.md": DETECTION,
    "docs/operations.md": {"ops table": ops_table, "threads table": threads_table},
    "docs/estimators.md": ESTIMATORS,
    "docs/paper.md": PAPER | BACKBONES,
    "docs/policy-format.md": {"found policies table": found_table},
    "docs/photographs.md": PHOTOGRAPHS,
    "docs/fine-tuning-study.md": FINE_TUNING,
    "docs/reliability.md": RELIABILITY,
    "docs/search.md": {"durations table": durations_table},
    "docs/search-study.md": STUDY,
    "docs/search-study-log.md": LOG,
    "docs/verify.md": {
        "speeds table": speeds_table,
        "steps table": steps_table,
        "trainings table": trainings_table,
        "reading table": reading_table,
        "verified table": verified_table,
    },
    "docs/which-policy.md": CHOICE,
}


def fresh(text: str, tables: dict[str, Callable[[], str]]) -> str:
    for name, table in tables.items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, rest = text.split(start)
        text = before + start + table() + end + rest.split(end, 1)[1]
    return with_numbers(text)


def stale(root: Path) -> dict[Path, str]:
    """The pages that do not say what the results say, and what they should say."""
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    made = {p: fresh(p.read_text(), TABLES.get(p.relative_to(root).as_posix(), {})) for p in pages}
    return {page: text for page, text in made.items() if text != page.read_text()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when a page is stale")
    arguments = parser.parse_args()
    for page, text in stale(ROOT).items():
        if arguments.check:
            sys.exit(f"{page.name}: run python benchmarks/tools/tables.py")
        page.write_text(text)


if __name__ == "__main__":
    main()
