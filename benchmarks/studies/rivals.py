"""The rival of a search: the one free policy that validation chooses in the seconds it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from dada import Policy
from dada.training.loop import Job
from dada.training.many import train_many

RANDAUGMENTS = tuple(f"randaugment:{n},{m}" for n in (1, 2) for m in (0.3, 0.5, 0.7))
FREE = ("none", "uniform", "trivialaugment")
RIVALS = (*FREE, *RANDAUGMENTS)


def rival_of(
    search: int, allowed: float, job: Callable[[Policy, int], Job], at_once: int
) -> dict[str, Any]:
    """Rounds of all free policies, one training each, as long as the search of that number took.

    `job(policy, seed)` is a training on half of the images, judged on the other half.
    """
    begun, scores = time.perf_counter(), dict[str, list[float]]()
    rounds, took = 0, 0.0
    while not rounds or took * (rounds + 1) / rounds <= allowed:
        seed = 10_000 * (search + 1) + rounds
        jobs = {name: job(Policy.load(name), seed) for name in RIVALS}
        names = {id(one): name for name, one in jobs.items()}
        for one, result in train_many(list(jobs.values()), at_once):
            scores.setdefault(names[id(one)], []).append(result.scores.accuracy)
        rounds += 1
        took = time.perf_counter() - begun
    chosen = max(RIVALS, key=lambda name: statistics.mean(scores[name]))
    print(f"rival {search}: {chosen}, {rounds} rounds in {took:.1f} s", flush=True)
    return {"chosen": chosen, "seconds": round(took, 1), "scores": scores}
