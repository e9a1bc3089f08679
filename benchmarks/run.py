"""`make bench`: the benchmarks that this machine can run, one after another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def main() -> None:
    runs = [["speed/ops.py", "--out", str(RESULTS / "ops-cpu.json")]]
    if torch.cuda.is_available():
        runs.append(["speed/ops.py", "--gpu", "--out", str(RESULTS / "ops-gpu.json")])
    runs.append(["studies/estimators.py", "--out", str(RESULTS / "estimators.json")])
    for script, *arguments in runs:
        print(f"== benchmarks/{script} {' '.join(arguments)}", flush=True)
        subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)


if __name__ == "__main__":
    main()
