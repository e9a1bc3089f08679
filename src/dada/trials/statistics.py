"""What a handful of seeds can say: means, Student's intervals, paired differences, and words.

Numbers are in percent, differences in points.

The scores of policy a and policy b with one seed come from the same initial weights and the same
order of images, so their difference is taken seed by seed, d_s = a_s - b_s, and the interval is

    mean(d) +- t(1 - alpha/2, n - 1) * sd(d) / sqrt(n)

The best of F free policies was picked by looking at the same scores, so a plain interval against
it would be too narrow. With alpha / F in place of alpha all F intervals hold together
(Bonferroni), hence the one that was picked does too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`policy` minus `against`, in points, over the seeds both were trained with."""

    policy: str
    against: str
    mean: float
    interval: Interval | None  # None with one seed
    seeds: int
    picked_from: int = 1  # free policies of which `against` was the best

    @property
    def seen(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def student_quantile(probability: float, degrees: int) -> float:
    from scipy.stats import t

    return float(t.ppf(probability, degrees))


def interval(
    values: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    least: float = 0.0,
    deviates: float = 0.0,
) -> Interval | None:
    """Student's interval of the mean, None for one value; never narrower than `least` each way.

    Values are taken to deviate by no less than `deviates`, though a few may agree by luck.
    """
    count = len(values)
    if count < 2:
        return None
    middle = mean(values)
    deviation = math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (count - 1))
    quantile = student_quantile(0.5 + confidence / 2, count - 1)
    half = max(least, quantile * max(deviation, deviates) / math.sqrt(count))
    # An end that is zero is zero: 1e-16 beside it would be a difference "seen".
    return round(middle - half, 9), round(middle + half, 9)


DISAGREEMENT = 0.1  # share of images on which two trainings usually differ; from 0.02 to 0.3


def smallest_visible(images: int, seeds: int) -> float | None:
    """The difference in points below which an interval will hardly leave out zero.

    Two trainings that differ on a share q of n images have scores that differ by chance with a
    deviation of sqrt(q / n); the interval of a mean over the seeds is as wide as above.
    """
    if seeds < 2:
        return None
    quantile = student_quantile(0.5 + CONFIDENCE / 2, seeds - 1)
    return 100 * max(1 / images, quantile * math.sqrt(DISAGREEMENT / images / seeds))


def difference(
    scores: Mapping[str, Sequence[float]],
    policy: str,
    against: str,
    *,
    least: float = 0.0,
    picked_from: int = 1,
) -> Difference:
    """The paired difference of two policies; both lists go by the same seeds."""
    by_seed = [a - b for a, b in zip(scores[policy], scores[against], strict=True)]
    confidence = 1 - (1 - CONFIDENCE) / picked_from
    return Difference(
        policy=policy,
        against=against,
        mean=mean(by_seed),
        interval=interval(by_seed, confidence=confidence, least=least),
        seeds=len(by_seed),
        picked_from=picked_from,
    )


def differences(
    scores: Mapping[str, Sequence[float]], free: Sequence[str], *, resolution: float
) -> list[Difference]:
    """Everyone against `uniform`, and the policies that are not free against the best free one.

    Where `uniform` is missing, or nothing but free policies take part, everyone is held against
    the best free one; where none is free, against the first. `resolution` is what one image of
    those judged is worth: with few seeds three equal differences are a matter of luck, and no
    interval is taken to be narrower than one image each way.
    """
    names = list(scores)
    found = []
    if "uniform" in scores:
        found = [
            difference(scores, name, "uniform", least=resolution)
            for name in names
            if name != "uniform"
        ]
    if not free:
        return [difference(scores, name, names[0], least=resolution) for name in names[1:]]
    best = max(free, key=lambda name: mean(scores[name]))
    if best == "uniform":
        return found
    others = [name for name in names if name not in free]
    if not others or "uniform" not in scores:
        others = [name for name in names if name not in (best, "uniform")]
    return found + [
        difference(scores, name, best, least=resolution, picked_from=len(free)) for name in others
    ]


def verdict(found: Sequence[Difference], free: Sequence[str], best_free: str | None) -> str:
    """The answer in plain words, one clause for each policy that was in question."""
    subjects = [d.policy for d in found if d.policy not in free] or [d.policy for d in found]
    clauses = []
    for policy in dict.fromkeys(subjects):
        about = [d for d in found if d.policy == policy]
        clauses.append("; ".join(_clause(d, named=i == 0) for i, d in enumerate(about)))
    sentence = ". ".join(clauses)
    several = len(free) > 1 and any(policy not in free for policy in subjects)
    if best_free == "uniform" and several:
        sentence += f". uniform is the best of the {len(free)} free policies"
    if found and found[0].seeds == 1:
        sentence += ". One seed gives no interval, and this may be chance: use 3 seeds or more"
    return sentence + "."


def _clause(found: Difference, *, named: bool) -> str:
    policy, against = found.policy if named else "it", found.against
    picked = found.picked_from > 1
    if picked:
        against += f", the best of {found.picked_from} free policies"
    if found.interval is None:
        if found.mean == 0:
            return f"{policy} scores the same as {against}"
        what = "more" if found.mean > 0 else "less"
        return f"{policy} scores {abs(found.mean):.2f} points {what} than {against}"
    over = f" over {found.seeds} seeds" if named and found.seeds > 1 else ""
    half = (found.interval[1] - found.interval[0]) / 2
    if not found.seen:
        no, widened = "No" if named else "no", ", widened" if picked else ""
        between = f"{no} difference seen between {policy} and {against}{over}"
        return f"{between} ({found.mean:+.2f} +- {half:.2f} points{widened})"
    word = "better" if found.mean > 0 else "worse"
    by = f"{',' if picked else ''} by {abs(found.mean):.2f} +- {half:.2f} points"
    widened = " (interval widened, because it was picked)" if picked else ""
    return f"{policy} is {word} than {against}{by}{over}{widened}"
