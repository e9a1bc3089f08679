"""The rival of a search: the one free policy that validation chooses in the seconds it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dada import Policy
from dada.data import Part, Split, split_off_validation
from dada.training.loop import Job
from dada.training.many import train_many

RANDAUGMENTS = tuple(f"randaugment:{n},{m}" for n in (1, 2) for m in (0.3, 0.5, 0.7))
FREE = ("none", "uniform", "trivialaugment")
RIVALS = (*FREE, *RANDAUGMENTS)


def rival_of(
    search: int,
    allowed: float,
    whole: Split,
    job: Callable[[Split, Policy, int, Part], Job],
    at_once: int,
) -> dict[str, Any]:
    """Rounds of all free policies, one training each, as long as the search of that number took.

    `job(split, policy, seed, judge)` is a training: on half of `whole`, judged on the other half.
    """
    halves = split_off_validation(replace(whole, test=None), 0.5, search)
    assert halves.val is not None
    judge = halves.val
    begun, scores = time.perf_counter(), dict[str, list[float]]()
    rounds, took = 0, 0.0
    while not rounds or took * (rounds + 1) / rounds <= allowed:
        seed = 10_000 * (search + 1) + rounds
        jobs = {name: job(halves, Policy.load(name), seed, judge) for name in RIVALS}
        names = {id(one): name for name, one in jobs.items()}
        for one, result in train_many(list(jobs.values()), at_once):
            scores.setdefault(names[id(one)], []).append(result.scores.accuracy)
        rounds += 1
        took = time.perf_counter() - begun
    chosen = max(RIVALS, key=lambda name: statistics.mean(scores[name]))
    print(f"rival {search}: {chosen}, {rounds} rounds in {took:.1f} s", flush=True)
    return {"chosen": chosen, "seconds": round(took, 1), "scores": scores}
