"""How a number of trainings is spent: rounds that choose, then fresh pairs that measure.

Successive halving: all candidates are trained with a few seeds, the better half with as many more,
and so on. `uniform` stays in every round, because what is wanted in the end is the difference to
it; so when two are left, uniform and one other, there is nothing more to choose.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_SEEDS = 2  # in the first round
LEAST_PAIRS = 4  # an interval from three differences is of no use
LEAST_TRAININGS = 2 * LEAST_PAIRS
MEASURING = 1 / 3  # of all trainings are fresh, or more


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`candidates` count `uniform`; with two of them there is no round."""

    candidates: int
    first_seeds: int
    pairs: int

    @property
    def rounds(self) -> list[tuple[int, int]]:
        """How many take part, and with how many new seeds: doubled, counting earlier ones."""
        found, size, seeds = [], self.candidates, self.first_seeds
        while size > 2:
            found.append((size, seeds))
            seeds = sum(new for _, new in found)
            size = kept_of(size)
        return found

    @property
    def trainings(self) -> int:
        return sum(size * seeds for size, seeds in self.rounds) + 2 * self.pairs


def kept_of(size: int) -> int:
    """How many of a round go on: half, and never fewer than uniform and one other."""
    return max(2, -(-size // 2))


def plan_for(trainings: int, candidates: int) -> Plan | None:
    """The plan for that many trainings and candidates; None when they allow no comparison.

    First come the fresh pairs, a third of the trainings. The rest chooses: where it has not room
    for all candidates, fewer take part. What cannot be shared out is fresh as well.
    """
    pairs = max(LEAST_PAIRS, int(trainings * MEASURING) // 2)
    for size in range(candidates, 1, -1):
        choosing = Plan(candidates=size, first_seeds=1, pairs=0).trainings  # with one seed
        seeds = (trainings - 2 * pairs) // choosing if choosing else LEAST_SEEDS
        if seeds >= LEAST_SEEDS and 2 * pairs <= trainings:
            fresh = (trainings - choosing * seeds) // 2
            return Plan(candidates=size, first_seeds=seeds, pairs=fresh)
    return None
