"""Whether, and how strongly, to mirror, turn and cut every image, where the user does not say.

A flip makes other letters of letters, a photograph has an up and a slide of cells has none, and a
small part of a scan may not show what the scan is of: only the data knows. So after the operations
the same is asked of `BASES`: the end of a training is repeated under each, with the usual policy
(of a pretrained network: heads on features). The operations have shown how much such ends differ by
chance. Nothing is done to the images unless that is clearly better. But where a pretrained network
is tuned to colour images, they are mirrored unless something else is clearly better: heads on
features did not see what that gains (docs/fine-tuning-study.md). So are masks and boxes, as
trainers of detectors do. Grey images may be letters or scans: a mirror doubled the loss of digits.

There are five arms: where four runs had fifteen operations each, a sixth would no longer be asked
in the share of their time that this may take. Where time is shorter the last are left out. For
masks and boxes a turn with a mild cut takes the place of the strong cut of `photo`, which leaves
little of many boxes: a choice, which no judge has measured.

Letters: R runs, A arms, P bases but the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dada.config import NAMED_BASES, Base
from dada.policy import Policy
from dada.policy_search.lookahead.arms import ArmRuns
from dada.policy_search.lookahead.scoring import ArmLosses

# What is asked first stands first; what the others have to be clearly better than, before all.
BASES = ("none", "flip", "turn", "photo-mild", "photo")
BASES_OF_PHOTOGRAPHS = ("flip", "none", "turn", "photo-mild", "photo")
BASES_OF_PLACES = ("flip", "none", "turn", "photo-mild", "turn-mild")  # targets move with pixels
MOST_RUNS = 4
CONFIDENCE = 0.99  # of the gain, one-sided
FILE = "lookahead-base.json"  # in a run directory


def bases_for(*, moves: bool, pretrained: bool, channels: int) -> tuple[str, ...]:
    """In the order in which they are asked; `moves`: of a task whose targets move with pixels."""
    if moves:
        return BASES_OF_PLACES
    return BASES_OF_PHOTOGRAPHS if pretrained and channels == 3 else BASES


@dataclass(frozen=True, kw_only=True)
class BaseChoice:
    """What every image gets, by its name in `NAMED_BASES`, and what was seen of all of them."""

    name: str
    losses: ArmLosses

    @property
    def base(self) -> Base:
        return NAMED_BASES[self.name]

    def facts(self) -> dict[str, Any]:
        """For a policy file."""
        mean = dict(zip(self.losses.loss, self.losses.loss_RA.mean(0).tolist(), strict=True))
        return {
            "chosen": self.name,
            "runs": self.losses.runs,
            "loss": {name: round(loss, 6) for name, loss in mean.items()},
        }


@dataclass(frozen=True, kw_only=True)
class BaseQuestion:
    """Which bases are tried, in how many runs; in none where that would take too long."""

    runs: ArmRuns
    bases: tuple[str, ...] = BASES
    count: int = 0

    @classmethod
    def of(
        cls, runs: ArmRuns, seconds: float, *, small: bool, all_bases: tuple[str, ...] = BASES
    ) -> BaseQuestion:
        """No more runs than these seconds have room for.

        `small` images that stand in for larger ones know what a mirrored or turned one is, not how
        much of an image has to be seen.
        """
        asked = [name for name in all_bases if not small or NAMED_BASES[name].scale == 1]
        for arms in range(len(asked), 1, -1):
            # With fourteen operations it is the time of a pair with two bases, but for rounding.
            pairs = int(seconds / (2 * runs.run_seconds(arms)) + 1e-6)
            if pairs:
                bases = tuple(asked[:arms])
                return cls(runs=runs, bases=bases, count=min(2 * pairs, MOST_RUNS))
        return cls(runs=runs)

    def answer(
        self,
        policy: Policy,
        operations: ArmLosses,
        *,
        first: int,
        on_run: Callable[[int], None] | None = None,
    ) -> BaseChoice:
        """By runs from number `first` on; `operations` are those that the same runs scored."""
        own = {name: NAMED_BASES[name] for name in self.bases}
        losses = self.runs.with_bases(own).losses(
            dict.fromkeys(self.bases, policy), self.count, file=FILE, first=first, on_run=on_run
        )
        return BaseChoice(name=clear_base(losses, operations), losses=losses)


def clear_base(losses: ArmLosses, operations: ArmLosses) -> str:
    """The base with the lowest loss of those that are clearly better than the first, else that.

    gain > t * sqrt(2 s^2 / R), where s^2 is what is left of both tables once a level for each run
    and each arm is taken out.
    """
    from scipy.stats import t

    left = [_left_of(each) for each in (losses, operations)]
    squares, degrees = (sum(each) for each in zip(*left, strict=True))
    if degrees == 0:
        return next(iter(losses.loss))
    error = math.sqrt(2 * squares / degrees / losses.runs)
    loss_A = losses.loss_RA.mean(0)
    gain_P = loss_A[0] - loss_A[1:]
    best = int(gain_P.argmax())
    clear = float(gain_P[best]) > float(t.ppf(CONFIDENCE, degrees)) * error
    return list(losses.loss)[1 + best if clear else 0]


def _left_of(losses: ArmLosses) -> tuple[float, int]:
    """The sum of squares of a two-way table without its means, and its degrees of freedom."""
    loss_RA = losses.loss_RA
    centred_RA = loss_RA - loss_RA.mean(1, keepdim=True)
    squares = float((centred_RA - centred_RA.mean(0)).square().sum())
    return squares, (loss_RA.shape[0] - 1) * (loss_RA.shape[1] - 1)
