"""Intervals that hold as often as they say, and words that follow from them."""

from __future__ import annotations

import re

import pytest
import torch

from dada.trials import statistics
from dada.trials.statistics import difference, differences, interval, verdict

# Student's t, two-sided 95%, from any printed table: degrees of freedom -> quantile.
PRINTED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045, 1000: 1.962}


@pytest.mark.parametrize("degrees", PRINTED)
def test_students_quantile_is_the_printed_one(degrees):
    assert statistics.student_quantile(0.975, degrees) == pytest.approx(PRINTED[degrees], abs=5e-4)


def test_an_interval_by_hand():
    low, high = interval([97.0, 98.0, 99.0])  # sd 1, t 4.303
    assert (low, high) == pytest.approx((98 - 4.3027 / 3**0.5, 98 + 4.3027 / 3**0.5), abs=1e-3)
    assert interval([97.0]) is None
    assert interval([5.0, 5.0], least=0.25) == (4.75, 5.25)


def test_differences_are_paired():
    """What a seed gives to both cancels: the scores spread by 10, the differences by 0.1."""
    scores = {"a": [81.0, 91.1, 85.9], "b": [80.0, 90.0, 85.0]}
    found = difference(scores, "a", "b")
    assert found.mean == pytest.approx(1.0) and found.seeds == 3
    assert found.interval[1] - found.interval[0] < 0.6 and found.seen


def test_equal_differences_prove_nothing_below_one_image():
    scores = {"a": [97.2, 97.4], "b": [97.0, 97.2]}
    assert difference(scores, "a", "b").seen  # by luck: no spread, so no width
    assert not difference(scores, "a", "b", least=0.3).seen


def normal_scores(generator: torch.Generator, names: list[str], seeds: int) -> dict:
    """Equal policies: a common part for each seed, and noise of their own."""
    common_S = torch.randn(seeds, generator=generator, dtype=torch.float64)
    noise_PS = torch.randn(len(names), seeds, generator=generator, dtype=torch.float64)
    return dict(zip(names, (90 + common_S + 0.5 * noise_PS).tolist(), strict=True))


def test_an_interval_covers_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    trials = 1500
    claimed = sum(
        differences(normal_scores(generator, ["p", "uniform"], 4), ["uniform"], resolution=0.0)[
            0
        ].seen
        for _ in range(trials)
    )
    assert claimed / trials == pytest.approx(0.05, abs=0.02)  # 3.5 standard errors


def test_the_best_of_many_is_not_held_to_a_plain_interval():
    """Nine equal policies. Against the best of eight, a plain interval says "worse" too often."""
    generator = torch.Generator().manual_seed(1)
    free = [f"randaugment:1,0.{i}" for i in range(1, 9)]
    trials, widened, plain = 1000, 0, 0
    for _ in range(trials):
        scores = normal_scores(generator, ["p", *free], 10)
        (found,) = [d for d in differences(scores, free, resolution=0.0) if d.policy == "p"]
        assert found.picked_from == 8
        widened += found.seen
        plain += difference(scores, "p", found.against).seen
    assert widened / trials <= 0.05 < 0.09 < plain / trials, (widened, plain)


def test_an_interval_that_ends_at_zero_sees_nothing():
    """Two seeds that agree by luck on one image of 153: the interval is one image each way."""
    scores = {
        "none": [100 * 136 / 153, 100 * 139 / 153],
        "uniform": [100 * k / 153 for k in (137, 140)],
    }
    (found,) = differences(scores, ["uniform", "none"], resolution=100 / 153)
    assert found.interval == (pytest.approx(-200 / 153), 0.0) and not found.seen


# --- who is held against whom -------------------------------------------------------------------

LOW, MIDDLE, HIGH = [90.0, 90.2, 90.1], [93.0, 93.1, 93.3], [95.0, 95.2, 95.3]


def pairs(scores: dict, free: list[str]) -> list[tuple[str, str, int]]:
    found = differences(scores, free, resolution=0.1)
    return [(d.policy, d.against, d.picked_from) for d in found]


@pytest.mark.parametrize(
    ("scores", "free", "expected"),
    [
        # uniform is best: nothing more to say
        (
            {"p": LOW, "uniform": HIGH, "none": MIDDLE},
            ["uniform", "none"],
            [("p", "uniform", 1), ("none", "uniform", 1)],
        ),
        # another free one is best: the policy in question meets it too
        (
            {"p": LOW, "uniform": MIDDLE, "none": HIGH},
            ["uniform", "none"],
            [("p", "uniform", 1), ("none", "uniform", 1), ("p", "none", 2)],
        ),
        # without uniform: everyone against the best free one
        (
            {"p": HIGH, "cutout": MIDDLE, "none": LOW},
            ["cutout", "none"],
            [("p", "cutout", 2), ("none", "cutout", 2)],
        ),
        ({"p": HIGH, "none": LOW}, ["none"], [("p", "none", 1)]),
        # nothing but free ones
        (
            {"uniform": LOW, "none": MIDDLE, "init": HIGH},
            ["uniform", "none", "init"],
            [("none", "uniform", 1), ("init", "uniform", 1), ("none", "init", 3)],
        ),
        # none free: against the first
        ({"p": LOW, "q": HIGH}, [], [("q", "p", 1)]),
    ],
)
def test_who_is_held_against_whom(scores, free, expected):
    assert pairs(scores, free) == expected


# --- words --------------------------------------------------------------------------------------


def words(scores: dict, free: list[str]) -> str:
    found = differences(scores, free, resolution=0.1)
    best = max(free, key=lambda name: statistics.mean(scores[name]), default=None)
    return verdict(found, free, best)


def test_better():
    said = words({"p": HIGH, "uniform": LOW}, ["uniform"])
    assert re.fullmatch(
        r"p is better than uniform by 5\.07 \+- 0\.\d\d points over 3 seeds\.", said
    )


def test_worse():
    said = words({"p": LOW, "uniform": HIGH}, ["uniform"])
    assert said.startswith("p is worse than uniform by 5.07 +- ")


def test_no_difference():
    said = words({"p": [90.0, 91.0, 92.0], "uniform": [91.0, 90.0, 92.5]}, ["uniform"])
    start = "No difference seen between p and uniform over 3 seeds (-0.17 +- "
    assert said.startswith(start) and said.endswith(" points).")


def test_one_seed_says_that_it_says_little():
    said = words({"p": [91.0], "uniform": [90.0], "none": [90.5]}, ["uniform", "none"])
    assert said == (
        "p scores 1.00 points more than uniform; it scores 0.50 points more than none, the best "
        "of 2 free policies. One seed gives no interval, and this may be chance: use 3 seeds or "
        "more."
    )
    assert words({"p": [90.0], "uniform": [90.0]}, ["uniform"]).startswith("p scores the same as")


def test_the_best_free_one_was_picked_and_the_words_say_so():
    said = words({"p": HIGH, "uniform": LOW, "none": MIDDLE}, ["uniform", "none"])
    assert said.startswith("p is better than uniform by 5.07 +- ")
    assert "; it is better than none, the best of 2 free policies, by 2.03 +- " in said
    assert said.endswith("points (interval widened, because it was picked).")
    same = words({"p": MIDDLE, "uniform": LOW, "none": [93.2, 92.9, 93.4]}, ["uniform", "none"])
    assert "; no difference seen between it and none, the best of 2 free policies (" in same
    assert same.endswith(" points, widened).")


def test_uniform_may_be_the_best_itself():
    said = words({"p": LOW, "uniform": HIGH, "none": MIDDLE}, ["uniform", "none"])
    assert said.endswith("over 3 seeds. uniform is the best of the 2 free policies.")


def test_several_policies_have_a_sentence_each():
    said = words({"p": HIGH, "q": LOW, "uniform": MIDDLE}, ["uniform"])
    assert re.search(r"^p is better than uniform by .*\. q is worse than uniform by ", said)


def test_free_ones_among_themselves():
    said = words({"none": LOW, "uniform": HIGH}, ["none", "uniform"])
    assert said.startswith("none is worse than uniform by 5.07 +- ")
