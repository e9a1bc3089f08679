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
from dada.policy.baselines import AS_NO_SIGNAL
from dada.policy_search.free_policies import usual_policy
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.plan import (
    OPERATIONS,
    POLICIES,
    LookaheadPlan,
    plan_for,
    single_operations,
    with_fewer_steps,
)
from dada.policy_search.lookahead.scoring import ArmLosses, choose_policy, score_operations
from dada.policy_search.lookahead.shapes import policies_of
from dada.policy_search.lookahead.signal import Signal, signal_of
from dada.policy_search.measuring import Measured

__all__ = [
    "OPERATIONS",
    "POLICIES",
    "LookaheadPlan",
    "LookedAhead",
    "OnRun",
    "first_round",
    "look_ahead",
    "plan_for",
    "single_operations",
    "with_fewer_steps",
]

OnRun = Callable[[int, int], None]
"""(runs done, runs in all)"""


@dataclass(frozen=True, kw_only=True)
class LookedAhead:
    policy: Policy  # its provenance["lookahead"] is None where there was no time for it
    base: Base  # what every image gets besides the policy: as it was said, or as it was chosen
    seconds: float  # of this session


@dataclass
class RunCount:
    """Counts the runs of all rounds together."""

    on_run: OnRun | None = None
    total: int = 0
    before: int = 0

    def next(self, count: int) -> Callable[[int], None]:
        """What to call with the number of those that have ended, of so many runs that come next."""
        before, self.before = self.before, self.before + count
        return lambda done: self._tell(before + done)

    def expect(self, more: int) -> None:
        """Or fewer, below zero."""
        if more:
            self.total += more
            self._tell(self.before)

    def _tell(self, done: int) -> None:
        if self.on_run is not None:
            self.on_run(done, self.total)


def look_ahead(
    job: SearchJob, plan: LookaheadPlan | None, measured: Measured, on_run: OnRun | None = None
) -> LookedAhead:
    """The policy of a search after looking ahead."""
    started = time.perf_counter()
    if plan is None:
        unknown = {**measured.policy.provenance, "signal": None}
        policy = _with_facts(replace(measured.policy, provenance=unknown), None)
        base = job.config.base
    else:
        policy, base = _look_ahead(job, plan, measured, RunCount(on_run, plan.total))
    return LookedAhead(policy=policy, base=base, seconds=time.perf_counter() - started)


def first_round(plan: LookaheadPlan, ended: RunCount | None = None) -> tuple[ArmLosses, Signal]:
    """Every operation alone. Where chance explains what is seen, as many runs again."""
    ended = ended or RunCount()

    def of_operations(count: int, first: int = 0) -> ArmLosses:
        return plan.runs.losses(
            plan.operations, count, file=OPERATIONS, first=first, on_run=ended.next(count)
        )

    losses, looks = of_operations(plan.first), 2 if plan.again else 1
    signal = signal_of(losses, plan.runs.judged_on, looks)
    if plan.again and signal.learned and signal.word == "none":
        ended.expect(plan.again)
        losses = losses.and_also(of_operations(plan.again, plan.first))
        signal = signal_of(losses, plan.runs.judged_on, looks)
    return losses, signal


def _look_ahead(
    job: SearchJob, plan: LookaheadPlan, measured: Measured, ended: RunCount
) -> tuple[Policy, Base]:
    # 1. Every operation alone.
    losses, signal = first_round(plan, ended)
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
            on_run=ended.next(plan.base.count),
        )
        base = chosen_base.base
    # 2. Whole policies, with seeds of their own: what chance did for an operation in training does
    #    not come again. Without a signal there is nothing to make them of, and the usual policy is
    #    taken.
    chosen: dict[str, Any] = {"shape": plan.usual.name}
    policy = found[plan.usual.name]
    if signal.word == "none":
        ended.expect(-plan.second)
        policy, chosen = usual, {}
    elif plan.second:
        named = plan.free | found if plan.free_first else found | plan.free
        whole = plan.whole if chosen_base is None else plan.whole.with_base(base)
        ends = whole.losses(
            named,
            plan.second,
            file=POLICIES,
            first=job.lookahead.most_runs,
            on_run=ended.next(plan.second),
        )
        name, seen = choose_policy(named, ends)
        policy, chosen = named[name], {"shape": name, **seen}
    # 3. How sure is that?
    sure = signal.facts(policy, plan.own.start)
    provenance: dict[str, Any] = {**measured.policy.provenance, "signal": sure}
    if signal.word == "none":
        provenance["name"] = f"{policy.provenance['name']}{AS_NO_SIGNAL}"
    if job.choose_base:
        provenance["base"] = None if chosen_base is None else chosen_base.facts()
    facts = {**plan.facts, "runs": losses.runs, "score": score, **chosen}
    return _with_facts(replace(policy, provenance=provenance), facts), base


def _with_facts(policy: Policy, facts: dict[str, Any] | None) -> Policy:
    return replace(policy, provenance={**policy.provenance, "lookahead": facts})
