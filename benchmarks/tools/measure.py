"""What every benchmark needs: time with a spread, and a word on the machine it was taken on."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from dada.runlog import versions

RESULTS = Path(__file__).parents[1] / "results"
SEARCH = " search "  # between a contender of the judge and its number


def timed(
    call: Callable[[], Any], *, cuda: bool = False, seconds: float = 3.0, least: int = 7
) -> dict[str, float]:
    """Median and quartiles of the wall-clock seconds of one call, after a warm-up."""
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    for _ in range(2):
        call()
    wait()
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < least or (time.perf_counter() - start < seconds and len(samples) < 500):
        before = time.perf_counter()
        call()
        wait()
        samples.append(time.perf_counter() - before)
    low, median, high = statistics.quantiles(samples, n=4)
    return {"median": median, "low": low, "high": high, "n": len(samples)}


def timed_in_turns(
    calls: Sequence[Callable[[], Any]],
    *,
    clock: Callable[[], float] = time.perf_counter,
    cuda: bool = False,
    rounds: int = 25,
) -> list[list[float]]:
    """Seconds of every call in every round, after a warm-up.

    All take their turn in each round, so what else the machine does falls on all of them, and
    the ratio of two calls within a round means something on a busy machine too.
    """
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(-2, rounds):
        for call, seconds in zip(calls, samples, strict=True):
            before = clock()
            call()
            wait()
            if turn >= 0:
                seconds.append(clock() - before)
    return samples


def machine() -> dict[str, Any]:
    """Software and hardware, and the commit: of the checkout, or DADA_COMMIT where it is a copy."""
    found: dict[str, Any] = dict(versions())
    asked = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parent)
    commit = os.environ.get("DADA_COMMIT") or said.stdout.strip()
    if commit:
        found["commit"] = commit
    for name in ("timm", "kornia", "albumentations", "triton"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            continue
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def welch(one: list[float], other: list[float]) -> tuple[float, ...]:
    """By how much `one` is higher on average, and Welch's 95% interval of that."""
    return stratified_welch([(one, other)])


def stratified_welch(strata: Sequence[tuple[list[float], list[float]]]) -> tuple[float, ...]:
    """The mean over strata (data sets, say) of how much the first is higher, and its interval.

    Where the second is empty, the first are differences already, pair by pair.
    """
    from scipy.stats import t as student

    groups = [each for pair in strata for each in pair if each]
    parts = [statistics.variance(each) / len(each) / len(strata) ** 2 for each in groups]
    half = 0.0
    if any(parts):
        degrees = sum(parts) ** 2 / sum(
            part**2 / (len(each) - 1) for part, each in zip(parts, groups, strict=True)
        )
        half = float(student.ppf(0.975, degrees)) * sum(parts) ** 0.5
    difference = statistics.mean(
        statistics.mean(one) - (statistics.mean(other) if other else 0.0) for one, other in strata
    )
    return difference, difference - half, difference + half


def units_of(
    accuracy: dict[str, dict[str, float]], between: str = " of "
) -> dict[str, list[float]]:
    """What is compared, contender by contender: of "dada of 0", and so on, the mean counts as one;
    of free policies, every training. `between` stands between a contender and its number."""
    units: dict[str, list[float]] = {}
    for name, by_seed in accuracy.items():
        contender, _, unit = name.partition(between)
        if by_seed and not name.startswith("choosing "):
            each = list(by_seed.values())
            units.setdefault(contender, []).extend([statistics.mean(each)] if unit else each)
    return units


def earlier(args: argparse.Namespace) -> list[Path]:
    """The file of a study, if it was begun, and those of other processes."""
    own = [args.out] if args.out and args.out.exists() else []
    return [*own, *getattr(args, "join", [])]


def joined(
    found: dict[str, Any], parts: Iterable[Path], *, apart: Collection[str] = ()
) -> dict[str, Any]:
    """`found` with what is in files of the same study, where it has none.

    Their settings have to be the same, but for those named `apart`, in which processes that share a
    study differ; one that a file does not have was added to the study since.
    """
    settings = json.loads(json.dumps(found["settings"]))
    for part in parts:
        other = json.loads(part.read_text())
        if not (theirs := other.pop("settings", None)):
            raise SystemExit(f"{part}: there are no settings in it, so it is no file of this study")
        for name in theirs.keys() - apart:
            if theirs[name] != settings.get(name):
                words = f"{name} was {theirs[name]!r}, and is {settings.get(name)!r} here"
                raise SystemExit(f"{part}: {words}; other settings want a file of their own")
        machines = found.setdefault("machines", [])
        there = other.pop("machine", None)
        machines += [m for m in other.pop("machines", [there]) if m and m not in machines]
        _fill(found, other)
    return found


def _fill(found: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, dict):
            _fill(found.setdefault(name, {}), value)
        else:
            found.setdefault(name, value)


def save(found: dict[str, Any], out: Path | None, *, measured: bool = True) -> None:
    """With the machine, and with all of them where others had a part in it; this one only where
    it has `measured` something. Written whole or not at all, for a study may be stopped at any
    moment."""
    if out is None:
        return
    machines = found.get("machines", [])
    if measured or not machines:
        here = machine()
        machines = found["machines"] = [*(each for each in machines if each != here), here]
    content = found | {"machine": machines[-1]}
    if len(machines) == 1:
        del content["machines"]
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(beside, out)


def print_table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return str(value)

    table = [list(columns), *([cell(row.get(c, "")) for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    print("machine:", ", ".join(f"{k} {v}" for k, v in machine().items() if v))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head, *body = ("| " + " | ".join(map(str, line)) + " |" for line in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *body]) + "\n"


def result_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found
