"""Do two versions of the program find the same? A dozen searches, six trainings, two comparisons.

    python benchmarks/tools/same_results.py record OUT --source PATH/TO/OLD/src
    python benchmarks/tools/same_results.py record OUT2 --source src
    python benchmarks/tools/same_results.py differ OUT OUT2

Everything goes through the command line, so that a version with other modules can be asked too.
Only one thread and one kind of machine give the same bytes: record both on the same one. What is
compared: every policy file without its provenance, the scores and weights of trainings, the numbers
of comparisons, and what looking ahead and verification wrote. Killed runs are resumed first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CLOCKS = {"seconds", "images_per_second", "versions", "time"}  # what no two runs share
SETTINGS = ["--device", "cpu", "--seed", "3"]
AHEAD = ["--lookahead", "40"]
VERIFY = ["--verify-budget", "60"]
QUICK = ["--epochs", "2", "--batch-size", "32"]


def write_data(folder: Path) -> None:
    """Grey digits, and coloured noise of two kinds that is large enough for a stand-in."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[:400] * 16).clip(0, 255).astype(np.uint8)
    np.savez(folder / "grey.npz", images=images, labels=digits.target[:400])
    noise = np.random.default_rng(0)
    labels = np.arange(160) % 2
    bright = noise.integers(0, 120, (160, 40, 40, 3)) + 100 * labels[:, None, None, None]
    np.savez(folder / "photos.npz", images=bright.astype(np.uint8), labels=labels)


SEARCHES: dict[str, list[str]] = {
    "paper-relax": ["grey.npz", "--preset", "paper", *QUICK],
    "paper-gumbel": ["grey.npz", "--preset", "paper", "--estimator", "gumbel", *QUICK],
    "paper-batch": [
        "grey.npz",
        "--preset",
        "paper",
        "--draws",
        "batch",
        "--fixed-validation",
        *QUICK,
    ],
    "steps": ["grey.npz", "--lookahead", "0", *QUICK],
    "views": ["grey.npz", "--views", "2", "--hypergradient", "forward", "--lookahead", "0", *QUICK],
    "strength": ["grey.npz", "--space", "strength", "--exclude", "Invert", *AHEAD, *QUICK],
    "ahead": ["grey.npz", *AHEAD, *QUICK],
    "ahead-verified": ["grey.npz", *AHEAD, *VERIFY, *QUICK],
    "verified": ["grey.npz", "--lookahead", "0", *VERIFY, *QUICK],
    "too-long": ["grey.npz", "--lookahead", "0.01", *QUICK],
    "stand-in": ["photos.npz", *AHEAD, *QUICK],
    "killed": ["grey.npz", *AHEAD, *VERIFY, *QUICK],
    "two-ranks": ["grey.npz", "--lookahead", "0", *QUICK],
    "two-ranks-ahead": ["grey.npz", *AHEAD, *QUICK],
}
TRAININGS: dict[str, list[str]] = {
    "plain": ["grey.npz", "--policy", "uniform", *QUICK],
    "ema": ["grey.npz", "--policy", "trivialaugment", "--ema", "0.9", *QUICK],
    "cutout": ["photos.npz", "--policy", "cutout", *QUICK],
    "published": ["grey.npz", "--policy", "dada-cifar10", "--epochs", "3", "--lr", "0.02"],
    "killed": ["grey.npz", "--policy", "randaugment:2,0.5", "--epochs", "60", "--batch-size", "16"],
    "two-ranks": ["grey.npz", "--policy", "uniform", *QUICK],
}
COMPARISONS: dict[str, list[str]] = {
    "grey": ["grey.npz", "--policies", "uniform,none", "--seeds", "2", *QUICK],
    "photos": ["photos.npz", "--policies", "cutout,trivialaugment", "--seeds", "2", *QUICK],
}
KILL_AFTER = (3.0, 7.0, 11.0)  # seconds, one after another


def run(command: str, name: str, arguments: list[str], source: Path, folder: Path) -> float:
    out = folder / f"{command}-{name}"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    line = ["-m", "dada", command, *arguments, *SETTINGS, "--out", str(out)]
    start = [sys.executable]
    if name.startswith("two-ranks"):
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    begun = time.perf_counter()
    if name == "killed":
        line.append("--resume")
        for seconds in KILL_AFTER:
            process = subprocess.Popen(
                [*start, *line], cwd=folder, env=environment, stdout=subprocess.DEVNULL
            )
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            process.wait()
    done = subprocess.run([*start, *line], cwd=folder, env=environment, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{command} {name}:\n{done.stderr.decode()[-3000:]}")
    return time.perf_counter() - begun


def record(folder: Path, source: Path, only: str) -> None:
    if folder.exists() and not only:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder)
    kinds = {"search": SEARCHES, "train": TRAININGS, "compare": COMPARISONS}
    for command, named in kinds.items():
        for name, arguments in named.items():
            if only in f"{command}-{name}":
                shutil.rmtree(folder / f"{command}-{name}", ignore_errors=True)
                seconds = run(command, name, arguments, source, folder)
                print(f"{command} {name}: {seconds:.1f} s", flush=True)


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if k not in CLOCKS}
    return [without_clocks(each) for each in value] if isinstance(value, list) else value


def results(folder: Path) -> dict[str, Any]:
    """What counts, by the name of the run and of the file."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*-*/*")):
        name = f"{path.parent.name}/{path.name}"
        if path.suffix == ".safetensors" and not path.name.startswith("checkpoint"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name in ("policy.json", "searched.json"):
            content = json.loads(path.read_text())
            provenance = content.pop("provenance")
            found[name] = content
            for key in ("lookahead", "verification"):
                found[f"{name}:{key}"] = without_clocks(provenance.get(key))
        elif path.suffix == ".json" and path.name not in ("run.json", "finished.json"):
            found[name] = without_clocks(json.loads(path.read_text()))
    return found


def differ(one: Path, other: Path) -> int:
    a, b = results(one), results(other)
    different = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]
    for name in different:
        print(f"differs: {name}{'' if name in a and name in b else ' (only in one)'}")
    same = len(a.keys() | b.keys()) - len(different)
    print(f"{same} results are the same, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--source", type=Path, required=True)
    recording.add_argument("--only", default="", help="runs whose name holds this")
    comparing = commands.add_parser("differ")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    asked = parser.parse_args()
    if asked.command == "record":
        record(asked.out.resolve(), asked.source.resolve(), asked.only)
    else:
        sys.exit(differ(asked.one, asked.other))
