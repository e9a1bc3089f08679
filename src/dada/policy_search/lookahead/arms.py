"""Runs with arms, whatever a run is: what has ended is kept on disk, and the rest is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from dada import safe_json
from dada.config import Base, LookaheadConfig
from dada.data import Split
from dada.engine import ALONE, Ranks
from dada.policy import Policy
from dada.policy_search.lookahead.scoring import ArmLosses
from dada.runlog import RunLog
from dada.training.loop import at_once_for

ACCURACY = "balanced accuracy"  # beside the losses of the arms, in a file of them

NumberedEnds = tuple[int, dict[str, float], float | None]
"""A run's number, the loss of each of its arms, and their mean balanced accuracy; None: another
task has none"""


@dataclass(frozen=True, kw_only=True)
class ArmRuns:
    """With `run`, what has ended is written to its directory, and the same call continues there."""

    settings: LookaheadConfig
    device: torch.device
    bases: Mapping[str, Base] = field(default_factory=dict)  # of arms that have one of their own
    run: RunLog | None = None
    ranks: Ranks = ALONE

    @property
    def read_on(self) -> Split:
        """The first run's images."""
        raise NotImplementedError

    @property
    def judged_on(self) -> tuple[Split, ...]:
        """Whose validation images say whether anything was learned."""
        return (self.read_on,)

    @property
    def at_once(self) -> int:
        """Runs that share the device."""
        return at_once_for(self.device, self.read_on.image_size)

    def run_seconds(self, arms: int) -> float:
        """Of a run of so many arms: estimated from counts, so that no clock has a say."""
        raise NotImplementedError

    def affordable(self, arms: int, seconds: float) -> int:
        """How many runs of so many arms."""
        return pairs_within(seconds, self.run_seconds(arms), self.settings.most_runs)

    def left(self, arms: Collection[str], count: int, file: str) -> int:
        """How many of so many runs an earlier session did not write."""
        return max(0, count - len(self._on_disk(file, arms)))

    def with_base(self, base: Base) -> Self:
        """The same, where every image gets that besides a policy."""
        raise NotImplementedError

    def with_bases(self, bases: Mapping[str, Base]) -> Self:
        """The same, with a base of its own for every arm."""
        return replace(self, bases=bases)

    def _ends(self, arms: Mapping[str, Policy], numbers: Sequence[int]) -> Iterator[NumberedEnds]:
        """Runs of these numbers, in the order in which they end."""
        raise NotImplementedError

    def _spread_ends(
        self, arms: Mapping[str, Policy], numbers: Sequence[int]
    ) -> Iterator[NumberedEnds]:
        """The same, whole runs by each process where there are several."""
        if self.ranks.world == 1:
            return self._ends(arms, numbers)
        spread = self.ranks.spread(
            numbers, lambda mine: sorted(self._ends(arms, mine)), self.at_once
        )
        return (ends for _, ends in spread)

    def losses(
        self,
        arms: Mapping[str, Policy],
        count: int,
        *,
        file: str,
        first: int = 0,
        on_run: Callable[[int], None] | None = None,
    ) -> ArmLosses:
        """Of `count` runs, numbered from `first` on; those that end are written to `file`.

        `on_run` is told how many have ended.
        """
        numbers = range(first, first + count)
        known = self.ranks.same(self._on_disk(file, arms))
        left = [number for number in numbers if number not in known]
        done = count - len(left)
        for number, losses, accuracy in self._spread_ends(arms, left):
            known[number] = losses if accuracy is None else {**losses, ACCURACY: accuracy}
            if self.run is not None:
                ended = {str(number): known[number] for number in sorted(known)}
                self.run.save_text(file, json.dumps(ended, indent=1) + "\n")
            done += 1
            if on_run is not None:
                on_run(done)
        accuracies = [known[number].get(ACCURACY) for number in numbers]
        return ArmLosses(
            loss={name: [known[number][name] for number in numbers] for name in arms},
            balanced_accuracy=tuple(each for each in accuracies if each is not None),
        )

    def _on_disk(self, file: str, arms: Collection[str]) -> dict[int, dict[str, float]]:
        """What an earlier session of the same run wrote, of the same arms."""
        path = None if self.run is None else self.run.path / file
        if path is None or not path.exists():
            return {}
        try:
            held = safe_json.read(path)
            return {
                int(number): {n: float(loss[n]) for n in (*arms, ACCURACY) if n in loss}
                for number, loss in held.items()
                if loss.keys() >= set(arms)
            }
        except (ValueError, TypeError, AttributeError, RecursionError):
            problem = f"{path} is damaged; delete it"
            raise ValueError(f"{problem} to have this part of the search done again") from None


def pairs_within(seconds: float, each: float, most: int) -> int:
    """How many runs of `each` seconds fit. They come in pairs, one run for each half of the images:
    a half lacks images that the other has, which changes more than another network does. None
    where one run alone is too much."""
    pairs = max(1, round(seconds / (2 * each))) if each <= seconds else 0
    return min(most, 2 * pairs)
