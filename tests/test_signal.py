"""How sure a search is: of planted differences, of noise, and of networks that learned nothing."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch

from dada import Policy
from dada.data import Split, TensorPart
from dada.policy_search.lookahead.scoring import ArmLosses
from dada.policy_search.lookahead.signal import (
    agreement_of,
    chance_of,
    distance,
    has_learned,
    signal_of,
)

UNIFORM = Policy.load("uniform")
ARMS = 15


def losses(effect: float, *, runs: int = 4, seed: int = 0, accuracy: float = 0.9) -> ArmLosses:
    """Every arm's effect is drawn from a normal of that deviation; the noise has one of 1."""
    noise = torch.Generator().manual_seed(seed)
    true_A = effect * torch.randn(ARMS, generator=noise)
    level_R1 = 5 * torch.randn(runs, 1, generator=noise)
    loss_RA = true_A + level_R1 + torch.randn(runs, ARMS, generator=noise)
    return ArmLosses(
        loss={str(arm): loss_RA[:, arm].tolist() for arm in range(ARMS)},
        balanced_accuracy=(accuracy,) * runs,
    )


def a_split(count: int = 100, classes: int = 10) -> Split:
    part = TensorPart(torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.arange(count) % classes)
    return Split(train=part, val=part, classes=tuple(map(str, range(classes))), name="x")


def word(seen: ArmLosses) -> str:
    return signal_of(seen, [a_split()]).word


def test_large_differences_are_clear_and_noise_is_none():
    assert [word(losses(4.0, seed=seed)) for seed in range(20)] == ["clear"] * 20
    words = [word(losses(0.0, seed=seed)) for seed in range(200)]
    assert words.count("none") >= 180 and "clear" not in words  # 5% are weak by chance


def test_differences_of_the_size_of_the_noise_are_said_to_be_weak_at_times():
    words = [word(losses(1.0, seed=seed)) for seed in range(50)]
    assert set(words) >= {"clear", "weak"}


def test_the_p_value_is_uniform_where_nothing_differs():
    chances = [chance_of(losses(0.0, seed=seed)) for seed in range(400)]
    assert statistics.mean(chances) == pytest.approx(0.5, abs=0.06)
    assert statistics.mean(p < 0.05 for p in chances) == pytest.approx(0.05, abs=0.03)


def test_chance_passes_two_looks_hardly_oftener_than_one():
    def seen(seed: int) -> bool:
        whole = losses(0.0, runs=4, seed=seed)
        half = ArmLosses(
            loss={name: each[:2] for name, each in whole.loss.items()},
            balanced_accuracy=whole.balanced_accuracy[:2],
        )
        return any(signal_of(each, [a_split()], looks=2).word != "none" for each in (half, whole))

    assert 0.03 < statistics.mean(seen(seed) for seed in range(1000)) < 0.065


def test_halves_of_the_runs_agree_where_arms_differ():
    assert statistics.mean(agreement_of(losses(4.0, seed=s)) for s in range(20)) > 0.9
    assert abs(statistics.mean(agreement_of(losses(0.0, seed=s)) for s in range(50))) < 0.15
    constant = ArmLosses(loss={"a": [1.0, 2.0], "b": [1.0, 2.0]})
    assert agreement_of(constant) == 0 and chance_of(constant) == 1


def test_networks_that_guess_have_no_signal_however_much_arms_differ():
    """With shuffled labels strong operations lower the loss, by making a network unsure."""
    assert word(losses(4.0, accuracy=0.12)) == "none"
    assert not has_learned(losses(4.0, accuracy=0.21), [a_split()])
    assert has_learned(losses(4.0, accuracy=0.23), [a_split()])
    assert has_learned(losses(4.0, accuracy=0.21), [a_split(count=1000)])
    assert has_learned(
        replace(losses(4.0), balanced_accuracy=()), [a_split()]
    )  # an earlier version's


def test_one_run_says_nothing():
    assert word(losses(4.0, runs=1)) == "none"


def test_the_distance_from_uniform_is_a_share():
    alone = Policy.from_rows([[("Rotate", 0.3, 0.5)]])
    assert distance(UNIFORM, UNIFORM) == 0
    assert distance(alone, UNIFORM) == pytest.approx(14 / 15)
    assert distance(Policy.load("none"), UNIFORM) == 1
