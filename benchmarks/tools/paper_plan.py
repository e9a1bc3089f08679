"""What is run for docs/paper.md, fixed before the first number; `studies/paper.py` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dada import recipes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One table: the recipe that trains, the one whose part of the data is searched on, the arms.

    A stage is arms and how many seeds of each; its order is seed by seed.
    """

    train: str
    search: str
    stages: tuple[tuple[tuple[str, ...], int], ...]

    def units(self) -> Iterator[tuple[str, int]]:
        for arms, count in self.stages:
            yield from ((arm, seed) for seed in range(count) for arm in arms)

    def key(self, arm: str, seed: int) -> str:
        """What the file of results calls one training: the same in every plan that has it."""
        return f"{self.train}: {arm}, seed {seed}"

    def searched_by(self, arm: str) -> str:
        """The recipe of an arm's search."""
        return self.search.replace("reduced", "full") if arm == "paper full" else self.search

    def search_key(self, arm: str, seed: int) -> str:
        return f"{self.searched_by(arm)}: {arm}, seed {seed}"


# What is searched for, by the name of the arm; every other arm is a policy by name.
SEARCHES: dict[str, dict[str, Any]] = {
    "dada": {"preset": "dada"},
    "dada-for-200": {"preset": "dada", "for_epochs": 200, "for_images": 50_000},
    "paper relax": {"estimator": "relax"},
    "paper gumbel": {"estimator": "gumbel"},
    "paper full": {"estimator": "relax"},
}
FIRST = ("dada", "uniform", "trivialaugment")
OURS = ("paper relax", "dada", "trivialaugment")  # beside the columns of the paper
# One row of the paper's tables 2 to 4 each.
ROWS = (
    "cifar10_shakeshake26_2x32d",
    "cifar10_shakeshake26_2x96d",
    "cifar10_shakeshake26_2x112d",
    "cifar10_pyramidnet272_shakedrop",
    "cifar100_wrn28_10",
    "cifar100_shakeshake26_2x96d",
    "cifar100_pyramidnet272_shakedrop",
    "svhn_wrn28_10",
    "svhn_shakeshake26_2x96d",
    "imagenet_resnet50",
)


def arm_of(method: str, data: str) -> str | None:
    """The policy by whose training a column of the paper is repeated."""
    cifar = data.replace("100", "10")  # AA and Fast AA have one policy for both
    arms = {"baseline": "none", "cutout": "cutout", "dada": f"dada-{data}"}
    arms |= {"fastaa": f"fastaa-{cifar}", "autoaugment": f"autoaugment:{cifar}"}
    return arms.get(method)


def arms_of_row(data: str) -> tuple[str, ...]:
    """Of the paper's columns those that can be repeated, and ours."""
    methods = ["baseline", "cutout", "autoaugment", "fastaa", "dada"]
    if data == "imagenet":
        methods.remove("cutout")  # the paper has none
    return (*(arm for method in methods if (arm := arm_of(method, data))), *OURS)


def search_of(data: str) -> str:
    """The paper's search on a part of a data set."""
    (name,) = (name for name in recipes.RECIPES if name.startswith(f"reduced_{data}_"))
    return name


def _row(train: str) -> Plan:
    data = train.split("_")[0]
    return Plan(train=train, search=search_of(data), stages=((arms_of_row(data), 1),))


def _others(data: str, *arms: str) -> tuple[str, ...]:
    return tuple(arm for arm in arms_of_row(data) if arm not in arms)


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
        stages=(
            (FIRST, 3),
            (("dada-cifar100", "cutout"), 1),
            ((*_others("cifar100", *FIRST, "dada-cifar100", "cutout"), "paper gumbel"), 1),
        ),
    ),
    "full-search": Plan(
        train="cifar10_wrn40_2",
        search="reduced_cifar10_wrn40_2",
        stages=((("paper full", "paper relax"), 2),),
    ),
    "wrn28_10": Plan(
        train="cifar10_wrn28_10",
        search="reduced_cifar10_wrn40_2",
        stages=(
            (("trivialaugment", "dada-cifar10", "dada"), 1),
            (_others("cifar10", "trivialaugment", "dada-cifar10", "dada"), 1),
        ),
    ),
    "full-search-wrn28_10": Plan(
        train="cifar10_wrn28_10",
        search="reduced_cifar10_wrn40_2",
        stages=((("paper full", "paper relax"), 1),),
    ),
    # The five that were run before there was this plan (benchmarks/results/cifar10.json).
    "harness": Plan(
        train="cifar10_wrn40_2",
        search="reduced_cifar10_wrn40_2",
        stages=((("none", "cutout", "autoaugment:cifar10", "trivialaugment", "dada-cifar10"), 1),),
    ),
    **{train: _row(train) for train in ROWS},
}
