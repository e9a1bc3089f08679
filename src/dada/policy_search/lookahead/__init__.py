"""Looks further ahead than one step, in two rounds.

    runs.py      a training whose end is repeated once for each arm
    features.py  what the features of a pretrained network say instead, sooner
    arms.py      what both have in common: runs that are kept on disk
    scoring.py   from the losses of the arms to scores of operations, and to a choice of policy
    shapes.py    from scores to policies, in several shapes
    signal.py    how sure that is
    stand_in.py  small images and a small network, where the user's own would take too long
    base_choice.py  between the rounds: whether to mirror and cut every image, if nobody said

An arm is one of several policies under which the end of a training is repeated. In the first round
every arm is one operation alone. How much lower its validation loss is than that
of the others is its score. In the second round the arms are whole policies made of these scores,
in several shapes: how many operations an image gets, how often they fire, and how strongly. What
operations do in company is seen only there, and how much augmentation is enough differs between
data sets (docs/search-study.md).

Tian et al. (AWS, NeurIPS 2020) were the first to compare policies by the ends of a training that
share their beginning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dada import tasks
from dada.config import Base
from dada.policy import Policy
from dada.policy.space import SearchSpace
from dada.policy_search.free_policies import free_policies, usual_policy
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.base_choice import BaseQuestion
from dada.policy_search.lookahead.features import FeatureRuns
from dada.policy_search.lookahead.runs import BranchedRuns
from dada.policy_search.lookahead.scoring import choose_policy, score_operations
from dada.policy_search.lookahead.shapes import (
    FINE_TUNING_SHAPES,
    SHAPES,
    Shape,
    few_shapes_for,
    policies_of,
    shapes_for,
    usual_of,
)
from dada.policy_search.lookahead.signal import signal_of
from dada.policy_search.lookahead.stand_in import StandIn
from dada.policy_search.measuring import Measured

__all__ = ["LookedAhead", "OnRun", "look_ahead", "with_fewer_steps"]

# In a run directory.
OPERATIONS, POLICIES, LONGER = "lookahead.json", "lookahead-policies.json", "lookahead-longer.json"
FEWEST_IMAGES = 50  # of a half: with fewer the ends of trainings differ by chance alone
MOST_DOUBLINGS = 3.0  # a trend is not followed further: what is noise of one doubling grows, too

OnRun = Callable[[int, int], None]
"""(runs done, runs in all)"""


@dataclass(frozen=True, kw_only=True)
class LookedAhead:
    policy: Policy  # its provenance["lookahead"] is None where there was no time for it
    base: Base  # what every image gets besides the policy: as it was said, or as it was chosen
    seconds: float  # of this session


def look_ahead(job: SearchJob, measured: Measured, on_run: OnRun | None = None) -> LookedAhead:
    """The policy of a search after looking ahead."""
    started = time.perf_counter()
    policy, base = _look_ahead(job, measured, on_run)
    return LookedAhead(policy=policy, base=base, seconds=time.perf_counter() - started)


def _look_ahead(job: SearchJob, measured: Measured, on_run: OnRun | None) -> tuple[Policy, Base]:
    settings, arms = job.lookahead, single_operations(measured.space)
    features, first_seconds = FeatureRuns.of(job), settings.first_round * settings.seconds
    runs: BranchedRuns | FeatureRuns
    facts: dict[str, Any] = {}
    if features is None:
        own, first = _affordable_runs(job, len(arms), first_seconds)
        runs = own
    else:
        own, runs, facts = BranchedRuns.of(job), features, {"features": True}
        first = features.affordable(len(arms), first_seconds)
    if not first:
        # A stand-in knows which operations help. How much of them is enough is another matter for
        # larger images and networks (docs/search-study.md), so there is no second round.
        small = StandIn.of(job.split, job.config.base, settings, job.device, seed=job.seed)
        runs, first = _affordable_runs(job, len(arms), settings.seconds, small)
        facts = {"stand_in": small.facts}
    if not first and tasks.named(job.split.task).moves:
        raise ValueError(
            f"{job.split.task} is searched by looking ahead alone, and {settings.seconds:g} "
            "seconds are too few for that; give `lookahead` more"
        )
    if not first:
        unknown = {**measured.policy.provenance, "signal": None}
        return _with_facts(replace(measured.policy, provenance=unknown), None), job.config.base
    shapes, usual, free = _candidates(job, measured)
    whole = features or own
    left = 0.0 if "stand_in" in facts else (1 - settings.first_round) * settings.seconds
    count = len(shapes) + len(free)
    doublings = 0.0 if features else _doublings(job, own)
    # A run of twice the length beside each costs two more of them.
    second = min(whole.affordable((3 if doublings else 1) * count, left), settings.most_policy_runs)
    both = 2 if doublings else 1
    question = BaseQuestion(runs=runs)
    if job.choose_base:
        share = settings.base_share * first * runs.run_seconds(len(arms))
        question = BaseQuestion.of(runs, share, small="stand_in" in facts)
    before = first + question.count  # the second round

    def ended(done: int) -> None:
        if on_run is not None:
            on_run(done, before + both * second)

    # 1. Every operation alone.
    losses = runs.losses(arms, first, file=OPERATIONS, on_run=ended)
    score = score_operations(losses, measured)
    found = {shape.name: policy for shape, policy in policies_of(measured, score, shapes).items()}
    policy = found[usual.name]
    chosen_base = None
    if question.count:
        chosen_base = question.answer(
            usual_policy(job.space, job.pretrained),
            losses,
            first=2 * settings.most_runs,  # seeds that no round has
            on_run=lambda done: ended(first + done),
        )
        own, whole = own.with_base(chosen_base.base), whole.with_base(chosen_base.base)
    # 2. Whole policies, with seeds of their own: what chance did for an operation in training does
    #    not come again.
    chosen: dict[str, Any] = {"shape": usual.name}
    if second:
        named = found | free
        ends = whole.losses(
            named,
            second,
            file=POLICIES,
            first=settings.most_runs,
            on_run=lambda done: ended(before + done),
        )
        if doublings:
            longer = own.lengthened(2).losses(
                named,
                second,
                file=LONGER,
                first=settings.most_runs,
                on_run=lambda done: ended(before + second + done),
            )
            ends, facts = ends.followed(longer, doublings), {**facts, "doublings": doublings}
        name, seen = choose_policy(named, ends)
        policy, chosen = named[name], {"shape": name, **seen}
    # 3. How sure is that? Where chance explains what was seen, the usual policy is taken.
    signal = signal_of(losses, runs.judged_on, policy, own.start)
    provenance: dict[str, Any] = {**measured.policy.provenance, "signal": signal.facts()}
    if signal.word == "none":
        policy = usual_policy(job.space, job.pretrained)
        provenance["name"] = f"{policy.provenance['name']}, as no signal was seen"
    if job.choose_base:
        provenance["base"] = None if chosen_base is None else chosen_base.facts()
    seen_ahead = {**facts, "runs": first, "score": score, **chosen}
    policy = _with_facts(replace(policy, provenance=provenance), seen_ahead)
    return policy, job.config.base if chosen_base is None else chosen_base.base


def _affordable_runs(
    job: SearchJob, arms: int, seconds: float, stand_in: StandIn | None = None
) -> tuple[BranchedRuns, int]:
    """Runs of so many arms, and how many of them these seconds have room for.

    A task whose targets move has small batches: many images are many steps. As looking ahead alone
    searches for it, there it takes as many images as there is time for.
    """
    runs = BranchedRuns.of(job, stand_in)
    images = len(runs.read_on.train)
    while not (count := runs.affordable(arms, seconds)):
        if not tasks.named(job.split.task).moves or images <= FEWEST_IMAGES:
            break
        images = max(FEWEST_IMAGES, images // 2)
        runs = BranchedRuns.of(job, stand_in, most_images=images)
    return runs, count


def _doublings(job: SearchJob, own: BranchedRuns) -> float:
    """How often a training of the second round has to be doubled to be as long as the one that the
    policy is for: longer trainings want more augmentation (docs/search-study.md)."""
    if job.config.for_epochs is None or job.config.for_epochs <= own.epochs:
        return 0.0
    return round(min(MOST_DOUBLINGS, math.log2(job.config.for_epochs / own.epochs)), 4)


def _candidates(
    job: SearchJob, measured: Measured
) -> tuple[tuple[Shape, ...], Shape, dict[str, Policy]]:
    """The shapes of the second round, the first of which is left only for a clear gain, the one to
    take without that round, and the free policies that take part in it."""
    if job.lookahead.few_shapes:
        few = few_shapes_for(measured)
        return few, few[-1], {}
    wanted, names = SHAPES, set[str]()
    if job.pretrained:
        wanted, names = FINE_TUNING_SHAPES, {"trivialaugment", "none"}
    # "trivialaugment without Color" is one of them, too.
    free = {
        name: policy
        for name, policy in free_policies(job.space).items()
        if name.partition(" ")[0] in names
    }
    shapes = shapes_for(measured, wanted)
    return shapes, usual_of(shapes), free


def _with_facts(policy: Policy, facts: dict[str, Any] | None) -> Policy:
    return replace(policy, provenance={**policy.provenance, "lookahead": facts})


def single_operations(space: SearchSpace) -> dict[str, Policy]:
    """The arms of the first round: every operation alone, at any magnitude, half of the time."""
    return {
        op.name: Policy.from_rows([[(op.name, 0.5, (0.0, 1.0))]], space.name, name=op.name)
        for op in space.ops
    }


def with_fewer_steps(job: SearchJob) -> SearchJob:
    """Fewer steps in the first phase where the second has more to say.

    Half of them where a stand-in will look ahead: a step with images or a network of that size
    takes long. A fifth where features of a pretrained network are read. Not where a user asked for
    a number of epochs or for some seconds of looking ahead.
    """
    config, settings = job.config, job.lookahead
    if config.lookahead is not None or config.epochs is not None or not settings.seconds:
        return job
    arms, share = len(job.space.ops), settings.first_round * settings.seconds
    features = FeatureRuns.of(job)
    if features is not None and features.affordable(arms, share):
        fewer = replace(config, least_steps=config.least_steps // 5, least_epochs=1)
    elif BranchedRuns.of(job).affordable(arms, share):
        return job
    else:
        fewer = replace(config, least_steps=config.least_steps // 2)
    return replace(job, config=fewer)
