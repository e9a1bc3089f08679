"""Is the policy that was found worth anything here? Short trainings decide, before a user does.

prior.py       what is known of candidates beforehand, and what is expected of them afterwards
plan.py        which candidates, in which rounds, with how many seeds
rounds.py      the rounds, the fresh pairs at the end, and what they allow to be said
trainings.py   the trainings themselves, and what is on disk of them

Everyone is trained on `split.train` and scored on `split.val`. Where those were divided at random,
the pairs that measure have halves of their own. The test images are not looked at.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from dada.config import TrainConfig
from dada.data import Split, split_off_validation
from dada.engine import ALONE, Ranks
from dada.policy import Policy, baselines
from dada.policy_search.free_policies import free_policies
from dada.policy_search.job import SearchJob
from dada.policy_search.verify.plan import LEAST_TRAININGS, plan_for
from dada.policy_search.verify.prior import prior_of
from dada.policy_search.verify.rounds import AGAINST, decide
from dada.policy_search.verify.trainings import OnTraining, Trainings
from dada.runlog import RunLog
from dada.trials.cost import forward_work, training_seconds
from dada.trials.short import short_config, shorten
from dada.trials.statistics import CONFIDENCE

__all__ = [
    "OnTraining",
    "Verification",
    "free_policies",
    "short_config",
    "shorten",
    "verify",
    "verify_searched",
]

FILE = "verification.json"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Which policy to take, and what was seen of it. Scores in percent, differences in points."""

    policy: Policy  # the chosen one, with provenance["verification"] filled
    chosen: str  # the best guess, by the record of earlier studies and all trainings here
    verdict: str
    left_out: list[str]  # candidates for which the budget had no room
    budget: float
    # Without any training, these are as they are here.
    measured: str | None = None  # whose difference to uniform was measured; None: no pairs
    metric: str = "accuracy"  # the task's; "balanced_accuracy" where classes are unequal
    against: str = AGAINST
    difference: float | None = None  # in points, of fresh seeds only
    interval: tuple[float, float] | None = None
    seeds: int = 0  # fresh pairs
    rounds: list[dict[str, Any]] = field(default_factory=list)
    candidates: list[dict[str, Any]] = field(default_factory=list)
    trainings: int = 0
    seconds: float = 0.0
    looks: int = 1  # how often fresh pairs were looked at: later intervals are wider

    def facts(self) -> dict[str, Any]:
        """What a policy file keeps: nothing that differs between two equal runs."""
        return {
            "verdict": self.verdict,
            "against": self.against,
            "difference": self.difference,
            "interval": None if self.interval is None else list(self.interval),
            "seeds": self.seeds,
            "chosen": self.chosen,
            "measured": self.measured,
            "metric": self.metric,
            "looks": self.looks,
            "trainings": self.trainings,
            "budget": self.budget,
            "candidates": self.candidates,
            "left_out": self.left_out,
        }


def verify_searched(
    job: SearchJob, searched: Policy, on_training: OnTraining | None = None, looks: int = 1
) -> Verification:
    """What a search found against the free policies of its space, in short trainings.

    `looks` counts this one and those that were made of the same run before. The policy that is
    chosen keeps the search's provenance.
    """
    split, undivided = job.split, job.undivided
    training, short = replace(job.training, base=job.config.base), job.verify.training
    reduced, config = shorten(split, training, short, seed=job.seed)

    def divided_again(seed: int) -> Split:
        assert undivided is not None
        try:
            halves = split_off_validation(undivided, job.config.val_fraction, seed)
        except ValueError:  # its groups, in that order, leave a class on one side only
            halves = split
        return replace(shorten(halves, training, short, seed=seed)[0], test=None)

    # What is one of the free policies, as where no signal was seen, has that one's name and record.
    free = free_policies(job.space)
    name = next((known for known, policy in free.items() if policy == searched), "searched")
    candidates = {name: searched, **{k: policy for k, policy in free.items() if k != name}}
    verified = verify(
        reduced,
        candidates,
        job.build,
        config=config,
        budget=job.verify.seconds,
        seed=job.seed,
        device=job.device,
        run=job.run,
        on_training=on_training,
        halves=None if undivided is None else divided_again,
        ranks=job.ranks,
        pretrained=job.pretrained,
        without=job.verify.judged_data,
        looks=looks,
    )
    provenance = {**searched.provenance, **verified.policy.provenance}
    return replace(verified, policy=replace(verified.policy, provenance=provenance))


def verify(
    split: Split,
    candidates: Mapping[str, Policy],
    build: Callable[[int], nn.Module],
    *,
    config: TrainConfig,
    budget: float,
    seed: int,
    device: torch.device,
    run: RunLog | None = None,
    on_training: OnTraining | None = None,
    at_once: int | None = None,
    halves: Callable[[int], Split] | None = None,
    ranks: Ranks = ALONE,
    pretrained: bool = False,
    without: Collection[str] = (),
    looks: int = 1,
) -> Verification:
    """Choose between `candidates` by short trainings, and measure the choice on fresh seeds.

    `candidates` are policies by name, `uniform` among them; where the budget has not room for all,
    the last ones are left out. `build(seed)` gives a new network. `config` is one training's (see
    `shorten`). `budget` is in seconds of a nominal machine: it is turned into a number of trainings
    by counting operations, never by a clock, so that the same call gives the same answer.

    With `run`, every training that ends is written to its directory, and the same call goes on from
    there. `on_training(name, score, done, total)` is called after each. `at_once` trainings run
    side by side (None: a few small ones on a card, one on a CPU); it does not change the plan.
    `halves(seed)` divides the images again for a pair that measures. Where none is given, all pairs
    have the images of `split`, and the interval does not hold what is due to those. Several
    `ranks` train a share each.

    What is known of candidates beforehand is of `pretrained` networks or of others, and leaves out
    data sets by name (`without`). Each look at a run halves what may be claimed by chance.
    """
    _check(split, candidates, budget, at_once)
    started = time.perf_counter()
    # Without its test images, so that no way leads to them.
    split = replace(split, test=None)
    settled = _settled(candidates, config, split)
    network = build(seed)
    work = forward_work(network, (split.channels, *split.image_size))
    del network
    each = training_seconds(split, config, work, device.type)
    plan = plan_for(int(budget / each), len(settled))
    if plan is None:
        return _not_verified(candidates, settled, budget, each)
    names = [*[name for name in settled if name != AGAINST][: plan.candidates - 1], AGAINST]
    trainings = Trainings(
        split=split,
        build=build,
        settled={name: settled[name] for name in names},
        device=device,
        at_once=at_once,
        total=plan.trainings,
        run=run,
        on_training=on_training,
        halves=halves,
        ranks=ranks,
    )
    assert split.val is not None
    outcome = decide(
        names,
        plan,
        trainings,
        measure=trainings.measure,
        prior={name: prior_of(name, pretrained=pretrained, without=without) for name in names},
        confidence=1 - (1 - CONFIDENCE) / 2 ** (looks - 1),
        seed=seed,
        images=len(split.val),
    )
    found = _with_facts(
        Verification(
            policy=candidates[outcome.chosen],
            chosen=outcome.chosen,
            measured=outcome.measured,
            metric=trainings.metric,
            looks=looks,
            difference=outcome.difference,
            interval=outcome.interval,
            seeds=plan.pairs,
            verdict=outcome.verdict,
            rounds=[asdict(each) for each in outcome.rounds],
            candidates=outcome.candidates,
            left_out=[name for name in settled if name not in names],
            trainings=plan.trainings,
            seconds=round(time.perf_counter() - started + trainings.seconds_before, 2),
            budget=budget,
        )
    )
    if run is not None:
        content = {**found.facts(), "rounds": found.rounds}
        run.save_text(FILE, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return found


def _check(
    split: Split, candidates: Mapping[str, Policy], budget: float, at_once: int | None
) -> None:
    if split.val is None or not len(split.val):
        raise ValueError(
            f"{split.name}: policies are verified on validation images, and there are none; "
            "split some off first"
        )
    if AGAINST not in candidates:
        given = ", ".join(candidates) or "none"
        raise ValueError(f"the candidates should hold {AGAINST!r} to compare with, got {given}")
    if isinstance(budget, bool) or not (math.isfinite(budget) and budget >= 0):
        raise ValueError(f"`budget` should be a number of seconds, got {budget!r}")
    if at_once is not None and at_once < 1:
        raise ValueError(f"`at_once` should be 1 or more, got {at_once}")


def _settled(
    candidates: Mapping[str, Policy], config: TrainConfig, split: Split
) -> dict[str, tuple[Policy, TrainConfig]]:
    """Each candidate and its settings; of those that do the same, only the first, or uniform."""
    settled: dict[str, tuple[Policy, TrainConfig]] = {}
    for name in [AGAINST, *(name for name in candidates if name != AGAINST)]:
        policy = candidates[name]
        base = baselines.base_for(str(policy.provenance.get("name")), config.base, split.image_size)
        entry = (policy, replace(config, base=base))
        if entry not in settled.values():
            settled[name] = entry
    return settled


def _not_verified(
    candidates: Mapping[str, Policy],
    settled: Mapping[str, object],
    budget: float,
    each: float,
) -> Verification:
    """No training at all: the first candidate is returned as it is, and nothing is claimed."""
    first = next(iter(candidates))
    chosen = first if first in settled else AGAINST  # of which it is a copy then
    others = [name for name in settled if name != AGAINST]
    if others:
        enough = math.ceil(LEAST_TRAININGS * each)
        verdict = (
            f"not verified: the budget of {budget:g} s allows no comparison; "
            f"give --verify-budget {enough} or more (`dada verify`: --budget)"
        )
    else:
        verdict = "not verified: no candidate differs from uniform; uniform is returned"
    return _with_facts(
        Verification(
            policy=candidates[chosen],
            chosen=chosen,
            verdict=verdict,
            left_out=[name for name in others if name != chosen],
            budget=budget,
        )
    )


def _with_facts(found: Verification) -> Verification:
    provenance = {**found.policy.provenance, "verification": found.facts()}
    return replace(found, policy=replace(found.policy, provenance=provenance))
