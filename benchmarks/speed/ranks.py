"""Independent trainings over the processes of torchrun, against one process that does them all.

    torchrun --standalone --nproc-per-node 2 benchmarks/speed/ranks.py [--out FILE]

The same trainings of `small` on embedded digits, first all by the first process while the others
wait, then spread over all of them (`Ranks.spread`), in turns. On one machine's CPU every process
has one thread, so the number of processes should not exceed that of idle cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import distributed

from dada import Policy
from dada.config import TrainConfig
from dada.data import load
from dada.engine import Ranks, joined
from dada.trials.runners import Setting, Trial, run_trials

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine

TRAININGS = 8


def seconds_of(setting: Setting, trials: list[Trial], ranks: Ranks) -> tuple[float, float]:
    """All by the first process, and spread over all."""

    def train(some: list[Trial]) -> list[float]:
        return [scores["accuracy"] for _, scores in run_trials(setting, some, 1)]

    distributed.barrier()
    begun = time.perf_counter()
    alone = train(trials) if ranks.rank == 0 else None
    distributed.barrier()
    between = time.perf_counter()
    spread = [accuracy for _, accuracy in ranks.spread(trials, train)]
    ended = time.perf_counter()
    assert spread == ranks.same(alone), "how trainings are spread changes no number"
    return between - begun, ended - between


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    setting = Setting(split=load("digits"), model="small", device=device)
    config = TrainConfig(epochs=3, batch_size=32)
    trials = [
        Trial(name="uniform", policy=Policy.load("uniform"), config=config, seed=seed)
        for seed in range(TRAININGS)
    ]
    with joined(device) as ranks:
        seconds_of(setting, trials[: ranks.world], ranks)  # a warm-up
        turns = [seconds_of(setting, trials, ranks) for _ in range(arguments.turns)]
        result = {
            "machine": machine(),
            "processes": ranks.world,
            "trainings": TRAININGS,
            "alone_seconds": statistics.median(alone for alone, _ in turns),
            "spread_seconds": statistics.median(spread for _, spread in turns),
            "times": statistics.median(alone / spread for alone, spread in turns),
            "times_by_turn": [alone / spread for alone, spread in turns],
        }
        if ranks.rank == 0:
            print(json.dumps(result, indent=1))
            if arguments.out:
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
