"""The rounds, the fresh pairs at the end, and what they allow to be said.

The best of several candidates over the seeds that chose it is flattered by them. So what is
reported comes from seeds that had no part in choosing: with s such a seed,

    d_s = score_s(best candidate) - score_s(uniform),    mean(d) +- t(0.975, n - 1) sd(d) / sqrt(n)

and "better" is said only where that interval lies above zero. A handful of differences may agree
by luck, so sd(d) counts for no less than what judging N images leaves to chance. Then, when no
candidate is better than another, "better" is said in less than 2.5% of all verifications, however
many candidates there were.

What is returned is another matter: the best guess, by all that is known (prior.py), whether or not
it could be shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dada.policy_search.verify.plan import Plan, kept_of
from dada.policy_search.verify.prior import Prior, expected
from dada.trials.short import seed_of
from dada.trials.statistics import CONFIDENCE, Interval, interval, mean

AGAINST = "uniform"
DECIMALS = 4  # a ten-thousandth of a point is finer than any validation set

Trainer = Callable[[Sequence[str], Sequence[int]], dict[str, list[float]]]
"""(names, seeds) -> the scores of each name in percent, by seed"""


@dataclass(frozen=True, kw_only=True)
class Round:
    """Who was trained with which seeds, and who went on."""

    trainings: int
    seeds: list[int]
    scores: dict[str, list[float]]
    kept: list[str]
    fresh: bool  # these seeds measure and do not choose


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the rounds and the fresh pairs came to."""

    chosen: str  # the best guess
    measured: str  # the one that the fresh pairs compare with uniform
    difference: float
    interval: Interval
    verdict: str
    rounds: list[Round]
    candidates: list[dict[str, Any]]


def decide(
    names: Sequence[str],
    plan: Plan,
    train: Trainer,
    *,
    measure: Trainer | None = None,
    prior: Mapping[str, Prior] = MappingProxyType({}),
    confidence: float = CONFIDENCE,
    seed: int,
    images: int,
) -> Outcome:
    """Choose the best of `names` in rounds, then measure it against uniform on fresh seeds.

    `measure` is how those are trained, if not as all others. `prior` is what is known of candidates
    beforehand. So many `images` judge; no interval is narrower than one of them each way.
    """
    assert AGAINST in names and len(names) == plan.candidates
    scores: dict[str, list[float]] = {name: [] for name in names}
    rounds: list[Round] = []
    left, used = list(names), 0
    # 1. Halve: the scores of all rounds count, and those in a round have had the same seeds.
    for size, new in plan.rounds:
        assert len(left) == size
        seeds = [seed_of(seed, "choosing", used + i) for i in range(new)]
        used += new
        seen = train(left, seeds)
        for name in left:
            scores[name] += seen[name]
        guess = expected(_gains(scores), prior, _by_chance_of(scores, images))
        others = [name for name in left if name != AGAINST]
        best = sorted(others, key=lambda name: -guess[name])  # ties: the order given
        left = [*best[: kept_of(size) - 1], AGAINST]
        rounds.append(_round(seeds, seen, left, fresh=False))
    best_of_all, _ = left
    # 2. Measure: pairs of fresh seeds, of the one that was chosen and of uniform.
    seeds = [seed_of(seed, "measuring", i) for i in range(plan.pairs)]
    seen = (measure or train)(left, seeds)
    by_seed = [a - b for a, b in zip(seen[best_of_all], seen[AGAINST], strict=True)]
    by_chance = _deviation_by_chance(seen[best_of_all], seen[AGAINST], images)
    ends = interval(by_seed, confidence=confidence, least=100 / images, deviates=by_chance)
    assert ends is not None
    # 3. Return the best guess of all that was seen. Say what the fresh pairs show, and no more.
    gains = _gains(scores)
    gains[best_of_all] = [*gains[best_of_all], *by_seed]
    guess = {AGAINST: 0.0, **expected(gains, prior, by_chance)}
    chosen = max(guess, key=lambda name: guess[name])
    rounds.append(_round(seeds, seen, [chosen], fresh=True))
    shown = scores if plan.rounds else seen
    return Outcome(
        chosen=chosen,
        measured=best_of_all,
        difference=round(mean(by_seed), DECIMALS),
        interval=(round(ends[0], DECIMALS), round(ends[1], DECIMALS)),
        verdict=_verdict(best_of_all, chosen, mean(by_seed), ends, len(by_seed)),
        rounds=rounds,
        candidates=[
            {
                "name": name,
                "mean": round(mean(each), DECIMALS),
                "scores": _rounded(each),
                "expected": round(guess[name], DECIMALS),
            }
            for name, each in shown.items()
        ],
    )


def _gains(scores: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Every candidate's differences to uniform, over the seeds that it has had."""
    return {
        name: [a - b for a, b in zip(each, scores[AGAINST], strict=False)]
        for name, each in scores.items()
        if name != AGAINST
    }


def _by_chance_of(scores: Mapping[str, Sequence[float]], images: int) -> float:
    first = min(map(len, scores.values()))
    return max(
        _deviation_by_chance(each[:first], scores[AGAINST][:first], images)
        for each in scores.values()
    )


def _deviation_by_chance(one: Sequence[float], other: Sequence[float], images: int) -> float:
    """How much the difference of two scores in percent varies, if only by which images judge.

    Of two networks that are right about shares a and b of all images, independently of each other,
    one alone is right about a (1 - b) + b (1 - a). Most are right about the same images, so this is
    rather too much.
    """
    shares = [(a / 100, b / 100) for a, b in zip(one, other, strict=True)]
    return 100 * math.sqrt(mean([a * (1 - b) + b * (1 - a) for a, b in shares]) / images)


def _verdict(name: str, chosen: str, difference: float, ends: Interval, seeds: int) -> str:
    half = (ends[1] - ends[0]) / 2
    over = f"points over {seeds} fresh seeds"
    guess = f"{chosen} is returned as the best guess"
    if ends[0] > 0:
        better = f"{name} is better than uniform by {difference:.2f} +- {half:.2f} {over}"
        return better if chosen == name else f"{better}; {guess}"
    if ends[1] < 0:
        worse = f"{name} is worse than uniform by {-difference:.2f} +- {half:.2f} {over}"
        return f"{worse}; {guess}"
    measured = f"{name}: {difference:+.2f} +- {half:.2f} {over}"
    return f"no difference from uniform was seen ({measured}); {guess}"


def _round(
    seeds: list[int], scores: dict[str, list[float]], kept: list[str], *, fresh: bool
) -> Round:
    return Round(
        trainings=len(seeds) * len(scores),
        seeds=seeds,
        scores={name: _rounded(each) for name, each in scores.items()},
        kept=list(kept),
        fresh=fresh,
    )


def _rounded(scores: Sequence[float]) -> list[float]:
    return [round(score, DECIMALS) for score in scores]
