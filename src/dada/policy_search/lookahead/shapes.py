"""From looking ahead to a policy, in two rounds.

Letters: O operations, P policies, R runs, N sub-policies, K operations in each.

In the first round every arm is one operation alone. How much lower its validation loss is than that
of the others is its score. In the second round the arms are whole policies made of these scores,
in several shapes: how many operations an image gets, how often they fire, and how strongly. What
operations do in company is seen only there, and how much augmentation is enough differs between
data sets (docs/search-study.md). The shape with the lowest validation loss is taken, if that is
clearly lower than under the broadest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dada.config import Base, SearchConfig, TrainConfig
from dada.data import Split
from dada.policy import Magnitude, Policy, PolicyOp, SubPolicy, baselines
from dada.policy.space import SPACES, SearchSpace
from dada.policy_search.evidence import LARGEST_SCORE, SCALE_IN_ERRORS, beyond_noise, bounded
from dada.policy_search.lookahead.runs import MOST_RUNS, Lookout, Seen
from dada.policy_search.lookahead.stand_in import StandIn
from dada.policy_search.measure import SearchResult

BUDGET = {"cpu": 80.0, "cuda": 76.0}  # seconds on a nominal machine, of both rounds
FIRST_ROUND = 0.625  # of it
MOST_POLICY_RUNS = 4  # of the second round: what is still too close to tell is worth no more
PRIOR_DEGREES = 4.0  # how many runs the typical error of all operations counts for
OPERATIONS, POLICIES = "lookahead.json", "lookahead-policies.json"
ANY, MIDDLE = (0.0, 1.0), 0.5
USUAL_SPACE = "paper"  # it alone may be left: others have been asked for

OnRun = Callable[[int, int], None]
"""(runs done, runs in all)"""


@dataclass(frozen=True)
class Shape:
    """How a policy is made of scores; a sub-policy is likelier by the exponential of their sum."""

    probability: float  # with which operations fire
    magnitude: Magnitude | None = ANY  # of every operation; None: as the search found it
    single: bool = False  # one operation for an image; else as many as the space combines
    space: str | None = None  # whose magnitudes; None: those of the search

    @property
    def name(self) -> str:
        magnitude = "any magnitude" if self.magnitude == ANY else f"magnitude {self.magnitude}"
        words = [
            "single operations" if self.single else "combined operations",
            f"probability {self.probability:g}",
            "magnitudes as found" if self.magnitude is None else magnitude,
        ]
        return ", ".join([*words, f"space {self.space}"] if self.space else words)


# After half a training a narrow policy looks better than it is, and one that changes images a lot
# looks worse. So scores are not sharpened here, and the broadest is left only for a clear gain.
BROADEST = Shape(1)
USUAL = Shape(0.5)  # where there is no time for a second round
# The first three fit every search.
SHAPES = (
    BROADEST,
    USUAL,
    Shape(0.25),
    Shape(0.5, None),
    Shape(1, MIDDLE, single=True, space="strength"),
    Shape(1, single=True, space="wide"),
)


def shapes_for(found: SearchResult) -> tuple[Shape, ...]:
    """Those that the search has a use for, each once.

    One that learned no ranges of magnitudes keeps the numbers it has, and with them its space and
    its combinations.
    """
    learned = found.parameters.magnitude_distribution is not None
    shapes = []
    for shape in SHAPES:
        if shape.space == found.space.name:
            shape = replace(shape, space=None)
        combines = found.space.ops_per_subpolicy > 1
        shape = replace(shape, single=shape.single or not combines)
        stays = shape.space is None and shape.single != combines
        if stays and not learned:
            shape = replace(shape, magnitude=None)
        if (stays or learned) and _space_of(shape, found.space) is not None:
            shapes.append(shape)
    return tuple(dict.fromkeys(shapes))


def _space_of(shape: Shape, searched: SearchSpace) -> SearchSpace | None:
    """The operations of the search in the space of the shape, or None where that has too few."""
    name = shape.space or searched.name
    together = 1 if shape.single else searched.ops_per_subpolicy
    if name == searched.name:
        return replace(searched, ops_per_subpolicy=together)
    if searched.name != USUAL_SPACE:
        return None
    known = {op.name for op in searched.ops}
    kept = tuple(op for op in SPACES[name].ops if op.name in known)
    if len(kept) < together:
        return None
    return replace(SPACES[name], ops=kept, ops_per_subpolicy=together)


def with_fewer_steps(
    config: SearchConfig, split: Split, build: Callable[[int], nn.Module], device: torch.device
) -> SearchConfig:
    """Half of the steps where a stand-in will look ahead, if nothing else was asked for.

    It decides nearly all then, and a step with images or a network of that size takes long.
    """
    if config.lookahead is not None or config.epochs is not None:
        return config
    space = SearchSpace.of(config)
    lookout = _lookout(space, split, config.base, build, device, exchange=False, seed=0)
    runs = lookout.affordable(len(space.ops), FIRST_ROUND * BUDGET[device.type])
    return config if runs else replace(config, least_steps=config.least_steps // 2)


def _lookout(
    space: SearchSpace,
    split: Split,
    base: Base,
    build: Callable[[int], nn.Module],
    device: torch.device,
    **how: Any,
) -> Lookout:
    training, trunk = TrainConfig(base=base), baselines.uniform(space)
    return Lookout.over(split, training, build=build, trunk=trunk, device=device, **how)


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
    space, arms = found.space, arms_of(found.space)
    budget = BUDGET[device.type] if config.lookahead is None else config.lookahead
    lookout = _lookout(space, split, config.base, build, device, **how)
    first, facts = lookout.affordable(len(arms), FIRST_ROUND * budget), {}
    if first:
        second = lookout.affordable(len(shapes_for(found)), (1 - FIRST_ROUND) * budget)
        second = min(second, MOST_POLICY_RUNS)
    else:
        # It knows which operations help. How much of them is enough is another matter for larger
        # images and networks (docs/search-study.md), so there is no second round.
        small = StandIn.of(split, config.base, how["seed"], device)
        lookout = _lookout(space, small.split, small.base, small.build, device, **how)
        first, second = lookout.affordable(len(arms), budget), 0
        facts = {"stand_in": small.facts}
    if not first:
        return replace(found.policy, provenance={**found.policy.provenance, "lookahead": None})

    def ended(done: int) -> None:
        if on_run is not None:
            on_run(done, first + second)

    operations = lookout.see(arms, first, file=OPERATIONS, on_run=ended)
    policies = shaped(found, operations, **facts)
    if not second:
        _, usual, *_ = policies.values()
        return usual
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
        op.name: Policy.from_rows([[(op.name, 0.5, (0.0, 1.0))]], space.name, name=op.name)
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
    """Standard errors of the means: each column's own few differences, drawn to the typical."""
    degrees = max(1, len(noise_RO) - 1)
    variance_O = noise_RO.square().sum(0) / degrees
    # The middle of few squares lies below their mean (Wilson and Hilferty).
    typical = variance_O.quantile(0.5) / (1 - 2 / (9 * degrees)) ** 3
    moderated_O = (PRIOR_DEGREES * typical + degrees * variance_O) / (PRIOR_DEGREES + degrees)
    return (moderated_O / len(noise_RO)).sqrt()


def shaped(found: SearchResult, operations: Seen, **facts: Any) -> dict[str, Policy]:
    """The policies of all shapes, by name; `facts` of how they came about go with each.

    Where looking ahead cannot tell, an operation that the search saw do harm is believed to; of
    what helps, single steps know too little.
    """
    harm_O = None if found.goodness_O is None else found.goodness_O.clamp(max=0)
    score_O = scores_of(operations, harm_O).tolist()
    score = {op.name: round(s, 6) for op, s in zip(found.space.ops, score_O, strict=True)}
    policies = {}
    for shape in shapes_for(found):
        seen = {**facts, "runs": operations.runs, "score": score, "shape": shape.name}
        provenance = {**found.policy.provenance, "lookahead": seen}
        policies[shape.name] = _in_shape(found, score, shape, provenance)
    return policies


def _in_shape(
    found: SearchResult, score: dict[str, float], shape: Shape, provenance: dict[str, Any]
) -> Policy:
    space = _space_of(shape, found.space)
    assert space is not None
    if shape.magnitude is None:
        as_found = found.parameters.to_policy(space).subpolicies
        rows = [[replace(s, probability=shape.probability) for s in row.ops] for row in as_found]
    else:
        rows = [
            [PolicyOp(name, shape.probability, shape.magnitude) for name in names]
            for names in space.subpolicies
        ]
    odds = [math.exp(sum(score[step.op] for step in row)) for row in rows]
    subpolicies = tuple(
        SubPolicy(one / math.fsum(odds), tuple(row)) for one, row in zip(odds, rows, strict=True)
    )
    return Policy(subpolicies, space.name, "weighted", provenance)


def chosen(policies: dict[str, Policy], seen: Seen) -> Policy:
    """The policy that is taken, with what was seen of all; the first of them is the broadest."""
    loss_RP = torch.tensor([seen.loss[name] for name in policies], dtype=torch.float64).T
    loss = dict(zip(policies, loss_RP.mean(0).tolist(), strict=True))
    policy = policies[list(policies)[clearly_lowest(loss_RP)]]
    facts = policy.provenance["lookahead"] | {
        "policy_runs": seen.runs,
        "policy_loss": {name: round(each, 6) for name, each in loss.items()},
    }
    return replace(policy, provenance={**policy.provenance, "lookahead": facts})


def clearly_lowest(loss_RP: Tensor) -> int:
    """Which policy's loss is the lowest of those that beat the first by more than the standard
    error; the first, where none does."""
    gain_RP = loss_RP[:, :1] - loss_RP
    gain_P = gain_RP.mean(0)
    clear_P = gain_P[1:] > _errors((gain_RP - gain_P)[:, 1:])
    return int((gain_P[1:] * clear_P).argmax()) + 1 if bool(clear_P.any()) else 0
