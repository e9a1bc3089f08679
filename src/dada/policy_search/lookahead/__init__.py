"""Looks further ahead than one step, in two rounds.

    runs.py      a training whose end is repeated once for each arm
    scoring.py   from the losses of the arms to scores of operations, and to a choice of policy
    shapes.py    from scores to policies, in several shapes
    stand_in.py  small images and a small network, where the user's own would take too long

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

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dada.config import FROM_SCRATCH, LookaheadConfig, SearchConfig, TrainConfig
from dada.data import Split
from dada.policy import Policy
from dada.policy.space import SearchSpace
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.runs import BranchedRuns
from dada.policy_search.lookahead.scoring import choose_policy, score_operations
from dada.policy_search.lookahead.shapes import policies_of, shapes_for, usual_of
from dada.policy_search.lookahead.stand_in import StandIn
from dada.policy_search.measuring import Measured

__all__ = ["LookedAhead", "OnRun", "look_ahead", "with_fewer_steps"]

OPERATIONS, POLICIES = "lookahead.json", "lookahead-policies.json"  # in a run directory

OnRun = Callable[[int, int], None]
"""(runs done, runs in all)"""


@dataclass(frozen=True, kw_only=True)
class LookedAhead:
    policy: Policy  # its provenance["lookahead"] is None where there was no time for it
    seconds: float  # of this session


def look_ahead(job: SearchJob, measured: Measured, on_run: OnRun | None = None) -> LookedAhead:
    """The policy of a search after looking ahead."""
    started = time.perf_counter()
    return LookedAhead(
        policy=_look_ahead(job, measured, on_run), seconds=time.perf_counter() - started
    )


def _look_ahead(job: SearchJob, measured: Measured, on_run: OnRun | None) -> Policy:
    settings, shapes = job.lookahead, shapes_for(measured)
    arms = single_operations(measured.space)
    runs = BranchedRuns.of(job)
    first = runs.affordable(len(arms), settings.first_round * settings.seconds)
    facts: dict[str, Any] = {}
    second = 0
    if first:
        share = (1 - settings.first_round) * settings.seconds
        second = min(runs.affordable(len(shapes), share), settings.most_policy_runs)
    else:
        # A stand-in knows which operations help. How much of them is enough is another matter for
        # larger images and networks (docs/search-study.md), so there is no second round.
        small = StandIn.of(job.split, job.config.base, settings, job.device, seed=job.seed)
        runs = BranchedRuns.of(job, small)
        first, facts = runs.affordable(len(arms), settings.seconds), {"stand_in": small.facts}
    if not first:
        return _with_facts(measured.policy, None)

    def ended(done: int) -> None:
        if on_run is not None:
            on_run(done, first + second)

    # 1. Every operation alone.
    losses = runs.losses(arms, first, file=OPERATIONS, on_run=ended)
    score = score_operations(losses, measured)
    facts |= {"runs": first, "score": score}
    policies = {
        shape: _with_facts(policy, {**facts, "shape": shape.name})
        for shape, policy in policies_of(measured, score, shapes).items()
    }
    if not second:
        return policies[usual_of(shapes)]
    # 2. Whole policies, with seeds of their own: what chance did for an operation in training does
    #    not come again.
    named = {shape.name: policy for shape, policy in policies.items()}
    losses = runs.losses(
        named,
        second,
        file=POLICIES,
        first=settings.most_runs,
        on_run=lambda done: ended(first + done),
    )
    return choose_policy(named, losses)


def _with_facts(policy: Policy, facts: dict[str, Any] | None) -> Policy:
    return replace(policy, provenance={**policy.provenance, "lookahead": facts})


def single_operations(space: SearchSpace) -> dict[str, Policy]:
    """The arms of the first round: every operation alone, at any magnitude, half of the time."""
    return {
        op.name: Policy.from_rows([[(op.name, 0.5, (0.0, 1.0))]], space.name, name=op.name)
        for op in space.ops
    }


def with_fewer_steps(
    config: SearchConfig,
    settings: LookaheadConfig,
    split: Split,
    build: Callable[[int], nn.Module],
    device: torch.device,
    training: TrainConfig = FROM_SCRATCH,
) -> SearchConfig:
    """Half of `least_steps` in the first phase where a stand-in will look ahead in the second.

    The stand-in decides nearly all then, and a step with images or a network of that size takes
    long. Not where a user asked for a number of epochs or for some seconds of looking ahead.
    """
    if config.lookahead is not None or config.epochs is not None or not settings.seconds:
        return config
    space = SearchSpace.of(config)
    runs = BranchedRuns.over(split, space, config.base, settings, build, device, training=training)
    arms = len(space.ops)
    if runs.affordable(arms, settings.first_round * settings.seconds):
        return config
    return replace(config, least_steps=config.least_steps // 2)
