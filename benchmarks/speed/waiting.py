"""How long threads that wait for each other should spin, with other programs on the cores.

    python benchmarks/speed/waiting.py [--out benchmarks/results/waiting.json]

Torch divides each operation on a CPU among threads (OpenMP), and those that have done their part
spin until the others have. Where a program of another session (a terminal, a container, a service)
has a core, Linux may give two threads of one program the other: one spins while the other waits for
the core. The command lets them spin less (src/dada/terminal/start.py).

Every way of waiting is a new process; all take turns. `busy` programs never wait.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from dada import models
from dada.terminal.start import SPINS

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import earlier, joined, print_table, save

WAYS: dict[str, dict[str, str]] = {
    "as torch does": {},
    "as the command does": {"GOMP_SPINCOUNT": SPINS},
    "1,000 spins": {"GOMP_SPINCOUNT": "1000"},
    "no spins": {"GOMP_SPINCOUNT": "0"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
CASES = ("16 images of 64 pixels through EfficientNet-Lite0", "a step of `small`, 64 images of 32")
BUSY = [sys.executable, "-c", "while True: pass"]


def milliseconds(case: str, seconds: float) -> list[float]:
    """Of every repetition that this process makes in so many seconds."""
    torch.manual_seed(0)
    if case == CASES[0]:
        network = models.build("timm:tf_efficientnet_lite0", 10, 3, (64, 64), seed=0).eval()
        images = torch.randn(16, 3, 64, 64)

        def call() -> None:
            with torch.no_grad():
                network(images)
    else:
        network = models.build("small", 10, seed=0)
        images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))

        def call() -> None:
            F.cross_entropy(network(images), labels).backward()

    call()
    samples: list[float] = []
    begun = time.perf_counter()
    while len(samples) < 5 or time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        call()
        samples.append(1000 * (time.perf_counter() - before))
    return samples


def of_process(way: str, case: str, seconds: float) -> float:
    """Its median."""
    mine = {name: v for name, v in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--case", case, "--seconds", str(seconds)]
    said = subprocess.run(command, env=mine | WAYS[way], capture_output=True, text=True, check=True)
    return statistics.median(json.loads(said.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a process, at least")
    parser.add_argument("--case", choices=CASES, help="this process alone")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(milliseconds(args.case, args.seconds)))
        return
    cores = os.cpu_count() or 1
    found: dict[str, Any] = {"settings": {"cores": cores, "rounds": args.rounds}}
    joined(found, earlier(args))
    taken = found.setdefault("ms", {})
    for busy in (0, max(1, cores // 2)):
        others = [subprocess.Popen(BUSY, start_new_session=True) for _ in range(busy)]
        try:
            for turn in range(args.rounds):
                for case in CASES:
                    for way in WAYS:
                        held = taken.setdefault(f"{busy} busy", {}).setdefault(case, {})
                        if len(held.setdefault(way, [])) <= turn:
                            held[way].append(round(of_process(way, case, args.seconds), 2))
                            save(found, args.out)
        finally:
            for other in others:
                other.kill()
    rows = [
        {"busy": busy, "case": case, "way": way, "ms": statistics.median(ms)}
        | {"lowest": min(ms), "highest": max(ms)}
        for busy, cases in taken.items()
        for case, ways in cases.items()
        for way, ms in ways.items()
    ]
    print_table(rows, ["busy", "case", "way", "ms", "lowest", "highest"])


if __name__ == "__main__":
    main()
