"""THE ALGORITHM THAT SHIPS. Start reading at `find_policy`.

    measuring.py phase 1: a training whose every step is `search_step` (step.py, the paper)
    duration.py  how long all of it will take
    lookahead/   phase 2: trainings whose end is repeated once for each of several policies
    verify/      phase 3: short paired trainings against the policies that cost nothing

What the step is made of: parameters.py (what is learned), estimators/ (its gradient),
hypergradient.py (what an augmented image does to the validation loss), evidence.py (all steps
together), pixel_effects.py (gradients by pixel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dada.engine import out_of_memory_named
from dada.policy import Policy
from dada.policy_search.duration import OnPlan, expected_seconds
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead import OnRun, look_ahead, plan_for
from dada.policy_search.measuring import measure
from dada.policy_search.verify import OnTraining, verify_searched
from dada.runlog import POLICY, UNFINISHED_POLICY
from dada.training.epochs import DivergedError

__all__ = ["FoundPolicy", "SearchJob", "find_policy"]

SEARCHED = "searched.json"  # in a run directory: what the search found, whatever verification chose


@dataclass(frozen=True, kw_only=True)
class FoundPolicy:
    """The policy, what was measured after every epoch of the first phase, and the time spent."""

    policy: Policy
    history: list[dict[str, Any]]
    seconds: float


def find_policy(
    job: SearchJob,
    *,
    on_plan: OnPlan | None = None,
    on_epoch: Callable[[dict[str, Any], int], None] | None = None,
    on_lookahead: OnRun | None = None,
    on_training: OnTraining | None = None,
) -> FoundPolicy:
    """A policy for `job.split`, in three phases.

    `on_plan` is told how long each will still take, `on_epoch` of epochs of the first,
    `on_lookahead` of trainings of the second, `on_training` of trainings of the third.
    """
    plan = plan_for(job) if job.lookahead.seconds > 0 else None
    if on_plan is not None:
        on_plan(expected_seconds(job, plan))
    # 1. Measure. One network is trained, each image under a random sub-policy (preset `paper`: one
    #    drawn from the policy that is being learned). Each step asks whether training on that
    #    augmented image lowers the validation loss one step later. The paper's search ends here.
    with named_phase(job, "measuring", "`batch_size` ('auto' finds one that fits) or `views`"):
        measured = measure(job, on_epoch)
    policy, seconds = measured.policy, measured.seconds

    # 2. Look ahead. One step knows little. So the second half of a training is repeated, once with
    #    each operation alone: the validation loss at the end says which operations help. Then once
    #    with each of several policies made of those scores: that says how strong and how frequent
    #    augmentation should be.
    if job.lookahead.seconds > 0:
        with named_phase(job, "looking ahead", "`lookahead` (0: none)"):
            found = look_ahead(job, plan, measured, on_lookahead)
        policy, seconds = found.policy, seconds + found.seconds
        job = job.with_base(found.base)

    # 3. Verify. Short trainings choose among this policy and those that need no search
    #    (TrivialAugment, RandAugment, none, and `uniform`: every sub-policy equally likely). The
    #    choice and `uniform` are then trained with the same seeds, none of which chose. Only what
    #    they show is claimed.
    if job.verify.seconds > 0:
        searched = policy
        with named_phase(job, "verifying", "`verify_budget` (0: none)"):
            verified = verify_searched(job, searched, on_training)
        policy, seconds = verified.policy, seconds + verified.seconds
        if job.run is not None:
            job.run.save_text(SEARCHED, searched.to_json())

    if job.run is not None:
        job.run.save_text(POLICY, policy.to_json())
        (job.run.path / UNFINISHED_POLICY).unlink(missing_ok=True)
    return FoundPolicy(policy=policy, history=measured.history, seconds=seconds)


@contextmanager
def named_phase(job: SearchJob, name: str, lower: str) -> Iterator[None]:
    """When numbers or memory run out, the line says in which phase, and what to lower."""
    size = job.split.image_size
    try:
        with out_of_memory_named(job.config.batch_size, size, name, f"{lower} or `image_size`"):
            yield
    except DivergedError as error:
        raise DivergedError(str(error) if name in str(error) else f"{name}: {error}") from None
