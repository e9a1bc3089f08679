"""What the ends of trainings say: scores of operations, and which policy to take.

Letters: O operations, P policies, R runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dada.policy_search.evidence import LARGEST_SCORE, SCALE_IN_ERRORS, beyond_noise, bounded
from dada.policy_search.measuring import Measured

PRIOR_DEGREES = 4.0  # how many runs the typical error of all arms counts for


@dataclass(frozen=True, kw_only=True)
class ArmLosses:
    """The validation loss at the end of each arm, run by run."""

    loss: dict[str, list[float]]
    # Balanced accuracy of each run's best arm; none in files of earlier versions.
    balanced_accuracy: tuple[float, ...] = ()

    @property
    def runs(self) -> int:
        return len(next(iter(self.loss.values())))

    def and_also(self, more: ArmLosses) -> ArmLosses:
        """With further runs of the same arms."""
        return ArmLosses(
            loss={name: [*each, *more.loss[name]] for name, each in self.loss.items()},
            balanced_accuracy=(*self.balanced_accuracy, *more.balanced_accuracy),
        )

    @property
    def loss_RA(self) -> Tensor:
        """Runs x arms."""
        return torch.tensor(list(self.loss.values()), dtype=torch.float64).T


def score_operations(losses: ArmLosses, measured: Measured) -> dict[str, float]:
    """The score of every operation, by name.

    Where looking ahead cannot tell, an operation that the steps saw do harm is believed to; of
    what helps, single steps know too little.
    """
    harm_O = None if measured.goodness_O is None else measured.goodness_O.clamp(max=0)
    score_O = scores_of(losses, harm_O).tolist()
    return {op.name: round(s, 6) for op, s in zip(measured.space.ops, score_O, strict=True)}


def scores_of(losses: ArmLosses, prior_O: Tensor | None = None) -> Tensor:
    """How much better each operation is than the others, in units of a typical difference.

    Nothing counts for more than odds of 20. What noise could explain is shrunk: all scores by one
    factor (as James and Stein's, but 1 - 2 noise / signal), which is zero when they are no larger
    than noise would make them, unless an operation stands out by itself. To one that does not,
    `prior_O` is added.
    """
    loss_RO = losses.loss_RA
    gain_RO = loss_RO.quantile(0.5, dim=1, keepdim=True) - loss_RO
    gain_O = gain_RO.mean(0)
    error_O = standard_errors(gain_RO - gain_O)
    gain_O = gain_O - gain_O.quantile(0.5)
    error = error_O.quantile(0.5)
    scale = torch.maximum(gain_O.abs().quantile(0.5), SCALE_IN_ERRORS * error).clamp(min=1e-12)
    score_O = bounded(gain_O / scale)
    noise = (error / scale).square()
    shared = (1 - 2 * noise / score_O.square().mean().clamp(min=1e-12)).clamp(min=0)
    sure_O = beyond_noise(gain_O, error_O)
    score_O = torch.maximum(shared, sure_O) * score_O
    if prior_O is not None:
        score_O = score_O + (1 - sure_O) * prior_O
    return score_O.clamp(-LARGEST_SCORE, LARGEST_SCORE)


def standard_errors(noise_RO: Tensor) -> Tensor:
    """Of the means of few differences each: every column's own, drawn to the typical one."""
    degrees = max(1, len(noise_RO) - 1)
    variance_O = noise_RO.square().sum(0) / degrees
    # The median of few squares lies below their mean (Wilson and Hilferty).
    typical = variance_O.quantile(0.5) / (1 - 2 / (9 * degrees)) ** 3
    moderated_O = (PRIOR_DEGREES * typical + degrees * variance_O) / (PRIOR_DEGREES + degrees)
    return (moderated_O / len(noise_RO)).sqrt()


def choose_policy(names: Iterable[str], losses: ArmLosses) -> tuple[str, dict[str, Any]]:
    """Which of them is taken, and what was seen; the first is left only for a clear gain."""
    assert list(names) == list(losses.loss)
    loss_RP = losses.loss_RA
    mean = dict(zip(names, loss_RP.mean(0).tolist(), strict=True))
    return list(names)[clearly_lowest(loss_RP)], {
        "policy_runs": losses.runs,
        "policy_loss": {name: round(each, 6) for name, each in mean.items()},
    }


def clearly_lowest(loss_RP: Tensor) -> int:
    """Which policy's loss is the lowest of those that beat the first by more than the standard
    error; the first, where none does."""
    gain_RP = loss_RP[:, :1] - loss_RP
    gain_P = gain_RP.mean(0)
    clear_P = gain_P[1:] > standard_errors((gain_RP - gain_P)[:, 1:])
    return int((gain_P[1:] * clear_P).argmax()) + 1 if bool(clear_P.any()) else 0
