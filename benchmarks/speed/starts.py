"""Seconds until something can be done: the command's answers that need no torch, and imports.

    python benchmarks/speed/starts.py [--out benchmarks/results/starts.json]

Every start is a new process; all take turns. Seconds are those of the wall clock and of the CPU: on
a busy machine the second say more. What `import dada` and its parts cost is counted beyond torch,
whose import alone is among the rows.
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

# As the installed `dada` starts, whose name the shell's completion knows.
COMMAND = "import sys; sys.argv[0] = 'dada'; from dada.terminal.start import main; main()"
STARTS = {
    "python alone": ["-c", "pass"],
    "dada --version": ["-c", COMMAND, "--version"],
    "dada --help": ["-c", COMMAND, "--help"],
    "dada search --help": ["-c", COMMAND, "search", "--help"],
    "completion of a command": ["-c", COMMAND],
    "import torch": ["-c", "import torch"],
    "import dada": ["-c", "import dada"],
    "import dada, and a policy loaded": ["-c", "import dada; dada.Policy.load('dada-cifar10')"],
    "import dada.search": ["-c", "from dada import search"],
    "a policy's transform": ["-c", "import dada; dada.Policy.load('dada-cifar10').transform()"],
    "import torchvision.transforms.v2": ["-c", "import torchvision.transforms.v2"],
}
COMPLETING = {
    "_DADA_COMPLETE": "complete_bash",
    "COMP_WORDS": "dada se",
    "COMP_CWORD": "1",
}
BEYOND_TORCH = ("import dada, and a policy loaded", "import dada.search")


def seconds_of(name: str) -> tuple[float, float]:
    """Of the wall clock and of the CPU."""
    variables = os.environ | (COMPLETING if name.startswith("completion") else {})
    before, wall = os.times(), time.perf_counter()
    subprocess.run(
        [sys.executable, *STARTS[name]], env=variables, check=True, stdout=subprocess.DEVNULL
    )
    after = os.times()
    cpu = after.children_user + after.children_system
    return time.perf_counter() - wall, cpu - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for name in STARTS:  # from the disk, once
        seconds_of(name)
    taken = [{name: seconds_of(name) for name in STARTS} for _ in range(arguments.turns)]
    rows = []
    for name in STARTS:
        wall, cpu = (
            statistics.median(each) for each in zip(*(t[name] for t in taken), strict=True)
        )
        row = {"start": name, "seconds": wall, "cpu_seconds": cpu, "n": arguments.turns}
        if name in BEYOND_TORCH:
            row["cpu_beyond_torch"] = statistics.median(
                turn[name][1] - turn["import torch"][1] for turn in taken
            )
        rows.append(row)
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print_table(rows, ["start", "seconds", "cpu_seconds", "cpu_beyond_torch", "n"])


if __name__ == "__main__":
    main()
