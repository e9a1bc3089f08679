"""What a person reads when a search, a training or a comparison has ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dada import Comparison, Policy, Result, Trained, tasks
from dada.report.base import base_sentence
from dada.report.repeat import compare_commands
from dada.report.signal import signal_sentence
from dada.runlog import read_toml
from dada.safe_text import shell_word
from dada.terminal.policy_table import bar, policy_content, print_policy

SHOWN = 10  # sub-policies in the closing table of a search
WORST = 5  # classes in a training's


def _say(line: str, console: Console, style: str | None = None) -> None:
    # Lines are left to the terminal to break: a command that is copied should be whole.
    console.print(line, highlight=False, markup=False, style=style, soft_wrap=True)


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column == "mean" else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _print_files(out: Path | None, files: dict[str, str], console: Console) -> None:
    """Those of a run directory that are there, and what they hold."""
    for name, what in files.items():
        if out is not None and (out / name).exists():
            _say(f"  {out / name}  {what}", console)


def print_result(result: Result, console: Console) -> None:
    """The policy as a table, the files, and what to type next."""
    policy = result.policy
    print_policy(policy, console, SHOWN)
    verification = policy.provenance.get("verification")
    if "lookahead" in policy.provenance:
        _say(_looked_ahead(policy), console)
        if "for_images" in (seen := policy.provenance["lookahead"] or {}):
            training = f"{seen['for_epochs']} epochs on {seen['for_images']:,} images"
            tried = "nothing was tried in longer ones than usual"
            if (times := seen["times_as_long"]) > 1:
                tried = f"policies were tried in ones {times} times as long as usual"
            _say(f"For a training of {training}: {tried}.", console)
    if (signal := signal_sentence(policy)) is not None:
        _say(signal, console)
    if (base := base_sentence(policy)) is not None:
        _say(base, console)
    said = "Not yet compared with the free policies: dada verify or dada compare does that."
    if verification is not None:
        said = _verified(policy)
    _say(f"found in {result.seconds:.0f} s. {said}", console)
    if result.out is None:
        return
    files = {
        "report.html": "a page to look at",
        "policy.json": "the policy",
        "log.jsonl": "what was measured after every epoch",
        "config.toml": "the settings",
    }
    _print_files(result.out, files, console)
    picture = result.out / "policy.png"
    config = read_toml(result.out / "config.toml")
    commands = [f"dada show {shell_word(result.out)} --image {shell_word(picture)}"]
    if verification is None:
        commands += compare_commands(config, result.out)
    for i, command in enumerate(commands):
        _say(f"{'       ' if i else 'next:  '}{command}", console)


def _verified(policy: Policy) -> str:
    verification = policy.provenance["verification"]
    verdict = str(verification["verdict"])
    measured = verification["interval"] is not None
    return f"Verified: {verdict}" if measured else f"{verdict[:1].upper()}{verdict[1:]}"


def print_verified(result: Result, console: Console) -> None:
    """What a verification found of a search that had ended before."""
    _say(f"{_verified(result.policy)}.", console)
    if result.out is not None:
        files = {"report.html": "a page to look at", "policy.json": "the policy to use"}
        _print_files(result.out, files, console)


def _looked_ahead(policy: Policy) -> str:
    seen = policy.provenance["lookahead"]
    if seen is None:
        return "Looking ahead was left out: too long here. --lookahead SECONDS allows it."
    words = f"Looking ahead scored the operations in {seen['runs']} runs"
    if (small := seen.get("stand_in")) is not None:
        height, width = small["image_size"]
        words += f" (of {small['model']}, with images shrunk to {width}x{height}, to save time)"
    if seen.get("features"):
        words += " (of heads on the features of the pretrained network)"
    if "policy_runs" not in seen:
        return f"{words}."
    return (
        f"{words} and, of {len(seen['policy_loss'])} policies, took in "
        f"{seen['policy_runs']} more: {seen['shape']}."
    )


def result_content(result: Result) -> dict[str, Any]:
    """For programs: what a search found, and how sure it is."""
    about = result.policy.provenance
    known = {name: about.get(name) for name in ("signal", "base", "verification", "lookahead")}
    policy = {"policy": policy_content(result.policy)}
    return {"out": result.out, "seconds": round(result.seconds, 2), **known, **policy}


def trained_content(trained: Trained) -> dict[str, Any]:
    """For programs: the scores of a training."""
    speed = {"seconds": trained.seconds, "images_per_second": trained.images_per_second}
    return {"out": trained.out, "classes": trained.classes, **asdict(trained.scores), **speed}


def comparison_content(comparison: Comparison) -> dict[str, Any]:
    """For programs: comparison.json, and where it lies."""
    return {"out": comparison.out, **json.loads(comparison.to_json())}


def print_trained(trained: Trained, console: Console) -> None:
    """How good the network is, where it errs most, and the files."""
    scores = trained.scores
    title = f"on {scores.images:,} images it had not seen"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    task = tasks.named(trained.task)
    for name, number in task.words(scores).items():
        table.add_row(name, number)
    console.print(table)
    console.print(_confused(trained) if task.name == "classification" else _by_class(trained))
    speed = f"{trained.images_per_second:,.0f} images/s"
    _say(f"trained in {trained.seconds:.0f} s, {speed}", console)
    files = {
        "model.safetensors": "the weights",
        "model.json": "the network, its classes and its input",
        "scores.json": "these numbers and the confusion matrix"
        if task.name == "classification"
        else "these numbers",
        "log.jsonl": "the loss after every epoch",
    }
    _print_files(trained.out, files, console)


def _by_class(trained: Trained) -> Table:
    """The score of the classes that are hardest."""
    found = zip(
        tasks.named(trained.task).class_scores(trained.scores), trained.classes, strict=True
    )
    known = sorted((score, name) for score, name in found if score is not None)
    rows = ((escape(name), bar(score, 16), f"{score:.1%}") for score, name in known[:WORST])
    return _table("classes that are hardest", ("class", "", "score"), rows)


def _confused(trained: Trained) -> Table:
    """The classes with the most errors, and what they were taken for."""
    scores = trained.scores
    errors = zip(scores.class_error_C, trained.classes, scores.confusion_CC, strict=True)
    known = ((error, name, row) for error, name, row in errors if error is not None)
    worst = sorted(known, key=lambda found: -found[0])[:WORST]
    rows = []
    for error, name, row in worst:
        others = [0 if other == name else n for other, n in zip(trained.classes, row, strict=True)]
        mistaken = trained.classes[others.index(max(others))] if max(others) else "-"
        about = f"{error:.1%}", str(sum(row)), escape(mistaken)
        rows.append((escape(name), bar(error, 16), *about))
    columns = ("class", "", "error", "images", "taken for")
    return _table("classes with the most errors", columns, rows)


def print_comparison(comparison: Comparison, console: Console, out: Path | None = None) -> None:
    """The scores, the differences, the verdict, and the files."""
    console.print(_scores(comparison))
    if comparison.differences:
        console.print(_differences(comparison))
    _say(comparison.verdict, console, style="bold")
    files = {
        "comparison.json": "all numbers",
        "comparison.png": "the picture",
        "trainings": "one file for each training",
    }
    _print_files(out, files, console)


def _scores(comparison: Comparison) -> Table:
    rows = sorted(comparison.policies, key=lambda row: -row.mean)
    low, high = min(row.mean for row in rows), max(row.mean for row in rows)
    # From a little below the worst, or a difference of a point would not show.
    floor = max(0.0, low - max(1.0, 0.5 * (high - low)))
    what = comparison.metric.replace("_", " ")
    count = len(comparison.seeds)
    table = Table(
        title=f"{what} in %, {count} seed{'s' if count > 1 else ''}, "
        f"{comparison.images:,} images (bars from {floor:.1f})",
        title_justify="left",
    )
    table.add_column("policy", overflow="fold")
    table.add_column("mean", justify="right")
    table.add_column("95% interval", justify="center")
    table.add_column("", no_wrap=True)
    table.add_column("by seed")
    for row in rows:
        table.add_row(
            escape(row.name),
            f"{row.mean:.2f}",
            _interval(row.interval),
            bar((row.mean - floor) / max(1e-9, high - floor)),
            " ".join(f"{score:.2f}" for score in row.scores),
        )
    return table


def _interval(ends: tuple[float, float] | None, sign: str = "") -> str:
    return "-" if ends is None else f"{ends[0]:{sign}.2f} to {ends[1]:{sign}.2f}"


def _differences(comparison: Comparison) -> Table:
    rows = []
    for found in comparison.differences:
        word = "no difference seen"
        if found.interval is None:
            word = "one seed: no interval"
        elif found.seen:
            word = "better" if found.mean > 0 else "worse"
        widened = f" (picked from {found.picked_from})" if found.picked_from > 1 else ""
        names = escape(found.policy), escape(found.against) + widened
        rows.append((*names, f"{found.mean:+.2f}", _interval(found.interval, "+"), word))
    columns = ("policy", "against", "mean", "95% interval", "")
    return _table("differences in points, seed by seed", columns, rows)
