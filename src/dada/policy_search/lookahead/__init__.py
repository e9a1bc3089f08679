"""Looks further ahead than one step, in two rounds.

    plan.py      what there is time for: which runs of which arms, with whose images
    runs.py      a training whose end is repeated once for each arm
    features.py  what the features of a pretrained network say instead, sooner
    arms.py      what both have in common: runs that are kept on disk
    scoring.py   from the losses of the arms to scores of operations, and to a choice of policy
    shapes.py    from scores to policies, in several shapes
    signal.py    how sure that is
    stand_in.py  small images and a small network, where the user's own would take too long
    base_choice.py  between the rounds: whether to mirror, turn and cut every image, if nobody said

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

from dada import tasks
from dada.config import Base
from dada.policy import Policy
from dada.policy_search.free_policies import usual_policy
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.plan import plan_for, single_operations, with_fewer_steps
from dada.policy_search.lookahead.scoring import choose_policy, score_operations
from dada.policy_search.lookahead.shapes import policies_of
from dada.policy_search.lookahead.signal import signal_of
from dada.policy_search.measuring import Measured

__all__ = ["LookedAhead", "OnRun", "look_ahead", "single_operations", "with_fewer_steps"]

# In a run directory.
OPERATIONS, POLICIES = "lookahead.json", "lookahead-policies.json"

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
    plan = plan_for(job, measured)
    if plan is None:
        unknown = {**measured.policy.provenance, "signal": None}
        return _with_facts(replace(measured.policy, provenance=unknown), None), job.config.base

    def told_after(before: int) -> Callable[[int], None]:
        return lambda done: on_run(before + done, plan.total) if on_run is not None else None

    # 1. Every operation alone.
    losses = plan.runs.losses(plan.operations, plan.first, file=OPERATIONS, on_run=told_after(0))
    score = score_operations(losses, measured)
    found = {s.name: policy for s, policy in policies_of(measured, score, plan.shapes).items()}
    moves = tasks.named(job.split.task).moves
    usual = usual_policy(job.space, pretrained=job.pretrained, moves=moves)
    base, chosen_base = job.config.base, None
    if plan.base.count:
        chosen_base = plan.base.answer(
            usual,
            losses,
            first=2 * job.lookahead.most_runs,  # seeds that no round has
            on_run=told_after(plan.first),
        )
        base = chosen_base.base
    # 2. Whole policies, with seeds of their own: what chance did for an operation in training does
    #    not come again.
    policy, chosen = found[plan.usual.name], {"shape": plan.usual.name}
    if plan.second:
        named = plan.free | found if plan.free_first else found | plan.free
        ends = plan.whole.with_base(base).losses(
            named,
            plan.second,
            file=POLICIES,
            first=job.lookahead.most_runs,
            on_run=told_after(plan.first + plan.base.count),
        )
        name, seen = choose_policy(named, ends)
        policy, chosen = named[name], {"shape": name, **seen}
    # 3. How sure is that? Where chance explains what was seen, the usual policy is taken.
    signal = signal_of(losses, plan.runs.judged_on, policy, plan.own.start)
    provenance: dict[str, Any] = {**measured.policy.provenance, "signal": signal.facts()}
    if signal.word == "none":
        policy = usual
        provenance["name"] = f"{policy.provenance['name']}, as no signal was seen"
    if job.choose_base:
        provenance["base"] = None if chosen_base is None else chosen_base.facts()
    facts = {**plan.facts, "runs": plan.first, "score": score, **chosen}
    return _with_facts(replace(policy, provenance=provenance), facts), base


def _with_facts(policy: Policy, facts: dict[str, Any] | None) -> Policy:
    return replace(policy, provenance={**policy.provenance, "lookahead": facts})
