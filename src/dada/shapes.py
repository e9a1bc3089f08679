"""From looking ahead to a policy, in two rounds.

Letters: O operations, R runs, N sub-policies, K operations in each.

In the first round every arm is one operation alone. How much lower its validation loss is than that
of the others is its score. In the second round the arms are whole policies made of these scores,
in several shapes: how much likelier good operations are, how often they fire, and whether their
magnitudes are those that the search found. What operations do in company is seen only there, and
how much augmentation is enough differs between data sets (docs/search-study.md). The shape with the
lowest validation loss is taken.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dada import baselines
from dada.config import SearchConfig, TrainConfig
from dada.data import Split
from dada.evidence import LARGEST_SCORE, SCALE_IN_ERRORS, beyond_noise, bounded
from dada.lookahead import MOST_RUNS, Lookout, Seen
from dada.policy import Policy, PolicyOp
from dada.search import SearchResult
from dada.space import SearchSpace

BUDGET = {"cpu": 80.0, "cuda": 76.0}  # seconds on a nominal machine, of both rounds
FIRST_ROUND = 0.625  # of it
PRIOR_DEGREES = 4.0  # how many runs the typical error of all operations counts for
OPERATIONS, POLICIES = "lookahead.json", "lookahead-policies.json"

OnRun = Callable[[int, int], None]
"""(runs done, runs in all)"""


@dataclass(frozen=True)
class Shape:
    """How a policy is made of scores."""

    sharpness: float  # a sub-policy is likelier by exp(sharpness (score + score))
    probability: float  # with which operations fire
    as_found: bool = False  # magnitudes as the search found them; else any

    @property
    def name(self) -> str:
        magnitudes = "magnitudes as found" if self.as_found else "any magnitude"
        return f"sharpness {self.sharpness:g}, probability {self.probability:g}, {magnitudes}"


# Where there is no time for a second round, the first of them is taken. None is both sharp and
# always at work: those few sub-policies are narrower than their loss after half a training tells.
SHAPES = (
    Shape(1, 0.5),
    Shape(1, 1),
    Shape(2, 0.5),
    Shape(2, 0.25),
    Shape(1, 0.5, as_found=True),
    Shape(1, 1, as_found=True),
)


def shapes_for(found: SearchResult) -> tuple[Shape, ...]:
    """Those that differ: a search that learned no ranges of magnitudes keeps those it has."""
    learned = found.parameters.magnitude_distribution is not None
    return tuple(
        dict.fromkeys(shape if learned else replace(shape, as_found=True) for shape in SHAPES)
    )


def improved(
    found: SearchResult,
    split: Split,
    build: Callable[[int], nn.Module],
    config: SearchConfig,
    *,
    device: torch.device,
    on_run: OnRun | None = None,
    **how: Any,
) -> Policy:
    """The policy of a search after looking ahead; `how` are the other fields of `Lookout`."""
    space = found.space
    lookout = Lookout.over(
        split,
        TrainConfig(base=config.base),
        build=build,
        trunk=baselines.uniform(space),
        device=device,
        **how,
    )
    budget = BUDGET[device.type] if config.lookahead is None else config.lookahead
    arms = arms_of(space)
    first = lookout.affordable(len(arms), FIRST_ROUND * budget)
    if not first:
        return replace(found.policy, provenance={**found.policy.provenance, "lookahead": None})
    second = min(first, lookout.affordable(len(shapes_for(found)), (1 - FIRST_ROUND) * budget))

    def ended(done: int) -> None:
        if on_run is not None:
            on_run(done, first + second)

    operations = lookout.see(arms, first, file=OPERATIONS, on_run=ended)
    policies = shaped(found, operations)
    if not second:
        return next(iter(policies.values()))
    # With seeds of their own: what chance did for an operation in training does not come again.
    seen = lookout.see(
        policies,
        second,
        file=POLICIES,
        first=MOST_RUNS,
        on_run=lambda done: ended(first + done),
    )
    return chosen(policies, seen)


def arms_of(space: SearchSpace) -> dict[str, Policy]:
    """Every operation alone, at any magnitude, half of the time."""
    return {
        op.name: Policy.uniform([[(op.name, 0.5, (0.0, 1.0))]], space.name, name=op.name)
        for op in space.ops
    }


def scores_of(seen: Seen, else_O: Tensor | None = None) -> Tensor:
    """How much better each operation is than the others, in units of a typical difference.

    Nothing counts for more than odds of 20. What noise could explain is shrunk: all scores by one
    factor (James and Stein's, twice as wary), which is zero when they are no larger than noise
    would make them, unless an operation stands out by itself. Of one that does not, `else_O` is
    believed as well.
    """
    loss_RO = torch.tensor(list(seen.loss.values()), dtype=torch.float64).T
    gain_RO = loss_RO.quantile(0.5, dim=1, keepdim=True) - loss_RO
    gain_O = gain_RO.mean(0)
    error_O = _errors(gain_RO - gain_O)
    gain_O = gain_O - gain_O.quantile(0.5)
    error = error_O.quantile(0.5)
    scale = torch.maximum(gain_O.abs().quantile(0.5), SCALE_IN_ERRORS * error).clamp(min=1e-12)
    score_O = bounded(gain_O / scale)
    noise = (error / scale).square()
    shared = (1 - 2 * noise / score_O.square().mean().clamp(min=1e-12)).clamp(min=0)
    sure_O = beyond_noise(gain_O, error_O)
    score_O = torch.maximum(shared, sure_O) * score_O
    if else_O is not None:
        score_O = score_O + (1 - sure_O) * else_O
    return score_O.clamp(-LARGEST_SCORE, LARGEST_SCORE)


def _errors(noise_RO: Tensor) -> Tensor:
    """Standard errors of the means: each operation's own few differences, drawn to the typical."""
    degrees = max(1, len(noise_RO) - 1)
    variance_O = noise_RO.square().sum(0) / degrees
    # The middle of few squares lies below their mean (Wilson and Hilferty).
    typical = variance_O.quantile(0.5) / (1 - 2 / (9 * degrees)) ** 3
    moderated_O = (PRIOR_DEGREES * typical + degrees * variance_O) / (PRIOR_DEGREES + degrees)
    return (moderated_O / len(noise_RO)).sqrt()


@torch.no_grad()
def shaped(found: SearchResult, operations: Seen) -> dict[str, Policy]:
    """The policies of all shapes, by name.

    Where looking ahead cannot tell, an operation that the search saw do harm is believed to; of
    what helps, single steps know too little.
    """
    space = found.space
    harm_O = None if found.goodness_O is None else found.goodness_O.clamp(max=0)
    score_O = scores_of(operations, harm_O)
    scores = {op.name: round(float(s), 6) for op, s in zip(space.ops, score_O, strict=True)}
    policies = {}
    for shape in shapes_for(found):
        parameters = copy.deepcopy(found.parameters)
        score_NK = score_O[space.op_index_NK].to(parameters.subpolicy_logits_N)
        parameters.subpolicy_logits_N.copy_(shape.sharpness * score_NK.sum(1))
        facts = {"runs": operations.runs, "score": scores, "shape": shape.name}
        provenance = {**found.policy.provenance, "lookahead": facts}
        policy = parameters.to_policy(space, provenance=provenance)
        policies[shape.name] = _in_shape(policy, shape, space)
    return policies


def _in_shape(policy: Policy, shape: Shape, space: SearchSpace) -> Policy:
    def changed(step: PolicyOp) -> PolicyOp:
        keeps = shape.as_found or not space.op(step.op).has_strength
        magnitude = step.magnitude if keeps else (0.0, 1.0)
        return replace(step, probability=shape.probability, magnitude=magnitude)

    rows = (replace(row, ops=tuple(map(changed, row.ops))) for row in policy.subpolicies)
    return replace(policy, subpolicies=tuple(rows))


def chosen(policies: dict[str, Policy], seen: Seen) -> Policy:
    """The policy under which the validation loss was lowest, with what was seen of all."""
    loss = {name: statistics.fmean(each) for name, each in seen.loss.items()}
    policy = policies[min(loss, key=lambda name: loss[name])]
    facts = policy.provenance["lookahead"] | {
        "policy_runs": seen.runs,
        "policy_loss": {name: round(each, 6) for name, each in loss.items()},
    }
    return replace(policy, provenance={**policy.provenance, "lookahead": facts})
