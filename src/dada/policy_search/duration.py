"""How long a search will take, or what is left of one, counted before it begins.

Budgets are counted in seconds of a nominal machine (trials/cost.py), and so is this: by one core of
a CPU, or one card, that has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead import LookaheadPlan
from dada.policy_search.verify.plan import LEAST_TRAININGS
from dada.policy_search.verify.trainings import trainings_on_disk
from dada.training.epochs import Length
from dada.training.loop import at_once_for
from dada.trials.cost import SPEEDS, forward_work, training_seconds
from dada.trials.short import shorten

OnPlan = Callable[[dict[str, float]], None]
"""(seconds of each phase that there is, by its name)"""

# Forward passes that a step of the first phase takes as long as: two gradients, and the losses at
# two places, in a precision of their own. Measured on reduced CIFAR-10 (benchmarks/speed/search.py)
# and, of `small`, on a core of a CPU, where the first steps of `dada` only train.
FORWARDS = {"cpu": {"dada": 9, "paper": 12}, "cuda": {"dada": 17, "paper": 30}}
# What trainings that share a card take, of the seconds that they would take one after the other: in
# stacks 0.4 (benchmarks/results/search.json), on streams 0.9.
SHARED = 0.6


def expected_seconds(job: SearchJob, plan: LookaheadPlan | None) -> dict[str, float]:
    """Of every phase, without what an earlier session of the same run has on disk."""
    seconds = {
        "measuring": _measuring(job),
        "looking ahead": 0.0 if plan is None else plan.seconds_left * _share(job),
        "verifying": _verifying(job) * _share(job),
    }
    return {phase: each for phase, each in seconds.items() if each > 0}


def _share(job: SearchJob) -> float:
    return SHARED if at_once_for(job.device, job.split.image_size) > 1 else 1.0


def _measuring(job: SearchJob) -> float:
    if not job.measures:
        return 0.0
    split, config, speed = job.split, job.config, SPEEDS[job.device.type]
    length = Length.of(config, len(split.train), job.ranks)
    epochs = length.epochs - (job.run.log_lines if job.run is not None else 0)
    if epochs <= 0:
        return 0.0
    work = forward_work(job.network, (split.channels, *split.image_size))
    forwards = FORWARDS[job.device.type][config.preset]
    step = speed.step + forwards * speed.forward(work, length.batch)
    return speed.start + epochs * length.steps_per_epoch * step


def _verifying(job: SearchJob) -> float:
    if not job.verify.seconds:
        return 0.0
    training = replace(job.training, base=job.config.base)
    split, config = shorten(job.split, training, job.verify.training, seed=job.seed)
    work = forward_work(job.network, (split.channels, *split.image_size))
    each = training_seconds(split, config, work, job.device.type)
    trainings = int(job.verify.seconds / each)
    if trainings < LEAST_TRAININGS:
        return 0.0
    ended = 0 if job.run is None else trainings_on_disk(job.run)
    return max(0, trainings - ended) * each
