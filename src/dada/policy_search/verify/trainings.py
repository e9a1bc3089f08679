"""The trainings of a verification: run as those of a comparison are, and kept as those are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from dada.config import TrainConfig
from dada.data import Split
from dada.engine import ALONE, Ranks
from dada.policy import Policy
from dada.runlog import RunLog
from dada.training.loop import at_once_for
from dada.trials.records import FOLDER as TRAININGS
from dada.trials.records import Records
from dada.trials.runners import Setting, Trial, TrialScores, run_trials

FOLDER = "verification"  # of the run directory
BUILT_AHEAD = 32  # networks for one card; each keeps its weights there until all have ended
BYTES_OF_HALVES = 2**30  # that are divided anew may be in memory at a time, and on a card

OnTraining = Callable[[str, float, int, int], None]
"""(name of the candidate, score in percent, trainings done, trainings in all)"""


def trainings_on_disk(run: RunLog) -> int:
    return len([*(run.path / FOLDER / TRAININGS).glob("*.json")])


@dataclass(frozen=True, kw_only=True)
class Built(Setting):
    """A setting whose networks come from a function, and some of whose seeds have own images."""

    build: Callable[[int], nn.Module]
    model: str | nn.Module = ""
    split_of: Mapping[int, Split] = field(default_factory=dict)  # by seed

    def network(self, seed: int) -> nn.Module:
        return self.build(seed)

    def split_for(self, trial: Trial) -> Split:
        return self.split_of.get(trial.seed, self.split)

    @property
    def decoded_bytes(self) -> int:
        return sum(split.decoded_bytes for split in (self.split, *self.split_of.values()))


class Trainings:
    """Call it with names and seeds: it trains what is not on disk yet, and gives all scores.

    `measure` is the same, with images that `halves` draws for every seed, if it is given.
    """

    def __init__(
        self,
        *,
        split: Split,
        build: Callable[[int], nn.Module],
        settled: Mapping[str, tuple[Policy, TrainConfig]],
        device: torch.device,
        at_once: int | None,
        total: int,
        run: RunLog | None,
        on_training: OnTraining | None,
        halves: Callable[[int], Split] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        assert split.test is None, "trainings are judged on the test images where there are some"
        self.setting = Built(split=split, build=build, device=device)
        self.metric = self.setting.task.decides
        if self.metric == "accuracy" and split.unbalanced:
            self.metric = "balanced_accuracy"  # accuracy is mostly about the largest class there
        self.halves, self.ranks = halves, ranks
        self.settled, self.total, self.on_training = settled, total, on_training
        # On a CPU one: these are short, and a process takes seconds to start.
        batches = [config.batch_size for _, config in settled.values()]
        few = {"batch": max(batches)} if self.setting.task.moves and batches else {}
        self.at_once = at_once or at_once_for(device, split.image_size, **few)
        self.records = (
            None if run is None else Records(run.path / FOLDER, list(settled), self.setting.task)
        )
        self.done = 0
        self.seconds_before = 0.0  # of trainings that an earlier session made

    def __call__(self, names: Sequence[str], seeds: Sequence[int]) -> dict[str, list[float]]:
        # Seed by seed, so that those who stop early have the same seeds of everyone.
        trials = [self._trial(name, seed) for seed in seeds for name in names]
        found: dict[Trial, float] = {}
        on_disk = self.ranks.same([self._on_disk(trial) for trial in trials])
        for trial, kept in zip(trials, on_disk, strict=True):
            if kept is not None:
                self.seconds_before += kept["seconds"]
                self._note(found, trial, kept)
        while left := [trial for trial in trials if trial not in found]:
            ahead = left[:BUILT_AHEAD] if self.setting.device.type == "cuda" else left
            try:
                for trial, scores in self._spread(ahead):
                    if self.records is not None:
                        self.records.write(trial, {**scores, "asked": self._asked(trial)})
                    self._note(found, trial, scores)
            except torch.cuda.OutOfMemoryError:
                if self.at_once == 1:
                    raise
                self.at_once //= 2  # fewer share the card; those in progress begin again
        return {name: [found[self._trial(name, seed)] for seed in seeds] for name in names}

    def _spread(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, TrialScores]]:
        """Every trial's scores; where there are several processes, each trains a share."""
        if self.ranks.world == 1:
            return run_trials(self.setting, trials, self.at_once)

        def share(mine: Sequence[Trial]) -> list[TrialScores]:
            scores = dict(run_trials(self.setting, mine, self.at_once))
            return [scores[trial] for trial in mine]

        return self.ranks.spread(trials, share, self.at_once)

    def measure(self, names: Sequence[str], seeds: Sequence[int]) -> dict[str, list[float]]:
        if self.halves is None:
            return self(names, seeds)
        found: dict[str, list[float]] = {name: [] for name in names}
        shared = self.setting
        # Halves in memory at a time: one for each training, or as many as are small.
        room = BYTES_OF_HALVES // max(1, shared.decoded_bytes)
        few = max(self.at_once * self.ranks.world, min(BUILT_AHEAD // len(names), room))
        for first in range(0, len(seeds), few):
            some = seeds[first : first + few]
            self.setting = replace(shared, split_of={seed: self.halves(seed) for seed in some})
            for name, scores in self(names, some).items():
                found[name] += scores
        self.setting = shared
        return found

    def _trial(self, name: str, seed: int) -> Trial:
        policy, config = self.settled[name]
        return Trial(name=name, policy=policy, config=config, seed=seed)

    def _note(self, found: dict[Trial, float], trial: Trial, scores: dict[str, Any]) -> None:
        found[trial] = 100 * scores[self.metric]
        self.done += 1
        if self.on_training is not None:
            self.on_training(trial.name, found[trial], self.done, self.total)

    def _on_disk(self, trial: Trial) -> dict[str, Any] | None:
        """What an earlier session wrote, if it was asked the very same."""
        kept = None if self.records is None else self.records.read(trial)
        return kept if kept is not None and kept.get("asked") == self._asked(trial) else None

    def _asked(self, trial: Trial) -> str:
        """A fingerprint of policy, settings and images."""
        policy = replace(trial.policy, provenance={}).to_json()
        asked = [policy, asdict(trial.config), self.setting.split_for(trial).fingerprint]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
