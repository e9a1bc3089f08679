"""What is on disk of every training that has ended: a file each, written whole or not at all.

So a comparison that was killed has lost no more than the trainings in progress, and the processes
of `torchrun` can each write their own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dada import safe_json
from dada.runlog import write_text
from dada.safe_text import LONGEST_MESSAGE, printable
from dada.tasks import Task
from dada.trials.runners import Trial, TrialScores

FOLDER = "trainings"
FAILED = "failed"  # in the place of scores: why there are none
SECONDS_BETWEEN_LOOKS = 0.2
REQUIRED = {"policy", "seed", "images", "class_error_C", "seconds"}  # and the task's metrics


class Records:
    """The trainings of one run directory."""

    def __init__(self, run: Path, names: Sequence[str], task: Task) -> None:
        self.required = REQUIRED | set(task.metrics)
        self.folder, self.names = run / FOLDER, list(names)
        if self.folder.is_symlink():
            raise ValueError(f"{self.folder} is a link, nothing is written through it; remove it")
        self.folder.mkdir(parents=True, exist_ok=True)

    def file(self, trial: Trial) -> Path:
        # Numbered, because two names may look alike once they are fit for a file.
        number = self.names.index(trial.name)
        fit = re.sub(r"[^A-Za-z0-9.-]+", "-", trial.name).strip("-.")[-60:]
        return self.folder / f"{number:02d}-{fit}-seed{trial.seed}.json"

    def write(self, trial: Trial, scores: TrialScores) -> None:
        """Or why there are none, for those who wait for them."""
        content = {"policy": trial.name, "seed": trial.seed, **scores}
        write_text(self.file(trial), json.dumps(content, allow_nan=False) + "\n")

    def read(self, trial: Trial) -> TrialScores | None:
        """The scores of this trial, or why it failed, or None when it has not ended."""
        file = self.file(trial)
        if not file.exists():
            return None
        try:
            content: Any = safe_json.read(file)
        except ValueError:
            content = None
        if isinstance(content, Mapping) and isinstance(content.get(FAILED), str):
            return dict(content)
        if not isinstance(content, Mapping) or not content.keys() >= self.required:
            raise ValueError(f"{file} is damaged; delete it to have this training done again")
        return dict(content)

    def of_before(self, trial: Trial) -> TrialScores | None:
        """The scores of an earlier session; a training that failed is forgotten, and done again."""
        known = self.read(trial)
        if known is not None and FAILED in known:
            self.file(trial).unlink()
            return None
        return known

    def wait_for(self, trials: Sequence[Trial]) -> dict[Trial, TrialScores]:
        """All scores, once the other processes have written theirs.

        Looking at the disk has no time-out, where a collective call has, and whoever fails is seen
        by `torchrun`, which then ends everyone.
        """
        found: dict[Trial, TrialScores] = {}
        while len(found) < len(trials):
            for trial in trials:
                if trial not in found and (scores := self.read(trial)) is not None:
                    found[trial] = scores
            if len(found) < len(trials):
                time.sleep(SECONDS_BETWEEN_LOOKS)
        return found


def in_one_line(error: Exception) -> str:
    return printable(error, LONGEST_MESSAGE // 2)
