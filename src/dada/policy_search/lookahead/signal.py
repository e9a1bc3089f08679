"""How sure a search is: whether what it saw of the operations is more than chance.

Three things are asked of the trainings that looked ahead, and one word comes of them:

    learned    do their networks know more of the validation images than guessing would?
    chance     how likely are differences between arms as large as these, if there were none?
               (the F test of arms x runs)
    agreement  Spearman's correlation between what independent halves of the runs say

Letters: R runs, A arms, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dada.data import Split
from dada.policy import Policy
from dada.policy_search.lookahead.scoring import ArmLosses

# Chosen on searches other than those that docs/search-study.md reports.
CLEAR_CHANCE, WEAK_CHANCE = 0.001, 0.05
# At each of two looks, the second at all runs: chance alone passes one of them hardly more often
# than a single look at WEAK_CHANCE (Pocock 1977).
WEAK_CHANCE_OF_TWO = 0.0294
CLEAR_AGREEMENT = 0.5
# Standard errors of a guesser's balanced accuracy; the best of fifteen guessers has nearly two.
ABOVE_GUESSING = 4.0


@dataclass(frozen=True, kw_only=True)
class Signal:
    """`word` is "clear", "weak" or "none"."""

    word: str
    chance: float
    agreement: float  # -1..1
    learned: bool

    def facts(self, policy: Policy, uniform: Policy) -> dict[str, Any]:
        """For a policy file; `policy` was made of what was seen."""
        known = asdict(self) | {"distance": distance(policy, uniform)}
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in known.items()
        }


def signal_of(losses: ArmLosses, judged_on: Sequence[Split], looks: int = 1) -> Signal:
    """What `losses`, of every operation alone, are worth.

    `looks`: how often they are looked at, where no signal is a reason to make more of them.
    """
    learned = has_learned(losses, judged_on)
    chance, agreement = chance_of(losses), agreement_of(losses)
    if not learned or chance > (WEAK_CHANCE if looks == 1 else WEAK_CHANCE_OF_TWO):
        word = "none"
    elif chance <= CLEAR_CHANCE and agreement >= CLEAR_AGREEMENT:
        word = "clear"
    else:
        word = "weak"
    return Signal(word=word, chance=chance, agreement=agreement, learned=learned)


def has_learned(losses: ArmLosses, judged_on: Sequence[Split]) -> bool:
    """Whether the best arms know more than guessing would; yes, where nobody measured it.

    The best, not all: where validation images are unlike the others, one operation may make the
    difference between knowing and guessing.
    """
    if not losses.balanced_accuracy:
        return True
    classes = judged_on[0].num_classes
    labels_N = torch.cat([split.val.labels_N for split in judged_on if split.val is not None])
    count_C = torch.bincount(labels_N, minlength=classes).clamp(min=1)
    guessed = 1 / classes
    error = math.sqrt(float((guessed * (1 - guessed) / count_C).sum())) / classes
    accuracy = sum(losses.balanced_accuracy) / len(losses.balanced_accuracy)
    return accuracy > guessed + ABOVE_GUESSING * error


def chance_of(losses: ArmLosses) -> float:
    """The p-value of "all arms are the same": F = mean square of arms / of what is left.

    Two-way analysis of variance without interaction: a run's own level is taken out.
    """
    from scipy.stats import f

    loss_RA = losses.loss_RA
    runs, arms = loss_RA.shape
    if runs < 2 or arms < 2:
        return 1.0
    centred_RA = loss_RA - loss_RA.mean(1, keepdim=True)
    effect_A = centred_RA.mean(0)
    between = runs * float(effect_A.square().sum()) / (arms - 1)
    within = float((centred_RA - effect_A).square().sum()) / ((arms - 1) * (runs - 1))
    if within == 0:
        return 1.0 if between == 0 else 0.0
    return float(f.sf(between / within, arms - 1, (arms - 1) * (runs - 1)))


def agreement_of(losses: ArmLosses) -> float:
    """Between runs of even and of odd number, which are trained on different images."""
    from scipy.stats import spearmanr

    loss_RA = losses.loss_RA
    if len(loss_RA) < 2:
        return 0.0
    one_A, other_A = loss_RA[::2].mean(0), loss_RA[1::2].mean(0)
    if float(one_A.std()) == 0 or float(other_A.std()) == 0:
        return 0.0
    return float(spearmanr(one_A.numpy(), other_A.numpy()).statistic)


def distance(policy: Policy, uniform: Policy) -> float:
    """How much of the operations differs, 0..1: half the sum of differences between their shares
    of all that is done."""
    shares = [_shares(each) for each in (policy, uniform)]
    if not shares[0]:
        return 1.0  # nothing is done
    names = set().union(*shares)
    return sum(abs(shares[0].get(n, 0.0) - shares[1].get(n, 0.0)) for n in names) / 2


def _shares(policy: Policy) -> dict[str, float]:
    rates: Mapping[str, float] = policy.op_probabilities()
    total = math.fsum(rates.values())
    return {name: rate / total for name, rate in rates.items()} if total else {}
