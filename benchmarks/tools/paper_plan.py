"""What is run for docs/paper.md, fixed before the first number; `studies/paper.py` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One table: the recipe that trains, the one whose part of the data is searched on, the arms.

    A stage is arms and how many seeds of each; its order is seed by seed.
    """

    train: str
    search: str
    stages: tuple[tuple[tuple[str, ...], int], ...]

    def units(self) -> Iterator[tuple[str, int]]:
        for stage in self.units_of_stages():
            yield from stage

    def units_of_stages(self) -> list[list[tuple[str, int]]]:
        return [
            [(arm, seed) for seed in range(count) for arm in arms] for arms, count in self.stages
        ]


# What is searched for, by the name of the arm; every other arm is a policy by name.
SEARCHES: dict[str, dict[str, Any]] = {
    "dada": {"preset": "dada"},
    "dada-for-200": {"preset": "dada", "for_epochs": 200, "for_images": 50_000},
    "paper relax": {"estimator": "relax"},
    "paper gumbel": {"estimator": "gumbel"},
    "paper full": {"estimator": "relax"},
}
FIRST = ("dada", "uniform", "trivialaugment")
PLANS = {
    "cifar10": Plan(
        train="cifar10_wrn40_2",
        search="reduced_cifar10_wrn40_2",
        stages=(
            (FIRST, 5),
            (("paper relax", "paper gumbel", "dada-cifar10"), 3),
            (("fastaa-cifar10", "randaugment"), 1),
            (("dada-for-200",), 3),
        ),
    ),
    "cifar100": Plan(
        train="cifar100_wrn40_2",
        search="reduced_cifar100_wrn40_2",
        stages=((FIRST, 3), (("dada-cifar100", "cutout"), 1)),
    ),
    "full-search": Plan(
        train="cifar10_wrn40_2",
        search="reduced_cifar10_wrn40_2",
        stages=((("paper full", "paper relax"), 2),),
    ),
    "wrn28_10": Plan(
        train="cifar10_wrn28_10",
        search="reduced_cifar10_wrn40_2",
        stages=((("trivialaugment", "dada-cifar10", "dada"), 1),),
    ),
    # The five that were run before there was this plan (benchmarks/results/cifar10.json).
    "harness": Plan(
        train="cifar10_wrn40_2",
        search="reduced_cifar10_wrn40_2",
        stages=((("none", "cutout", "autoaugment:cifar10", "trivialaugment", "dada-cifar10"), 1),),
    ),
}
