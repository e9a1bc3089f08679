"""Looks further ahead than one step: half a training again, once for each operation.

Letters: O operations, R runs.

A network is trained under `uniform`. From its middle on, the training is then repeated, each time
with one operation alone in place of the whole policy, and every end is judged on the validation
images. All ends of a run share their beginning, order of images and random numbers, so what differs
between them is the operation. The effect of an operation is how much lower its validation loss is
than that of the others.

One step of the paper's search asks the same question of the next step only, where an operation
that makes images harder always looks bad. Here the network has time to learn from it, and the
learning rate falls to zero, as at the end of every training (docs/search-study.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dada import baselines
from dada.augment import PolicyTables
from dada.config import SearchConfig, TrainConfig
from dada.data import Split
from dada.engine import ALONE, Ranks
from dada.evidence import SCALE_IN_ERRORS, beyond_noise, bounded
from dada.nominal import forward_operations, training_seconds
from dada.policy import Policy
from dada.runlog import RunLog
from dada.scores import Scores
from dada.search import SearchResult
from dada.short import shorten
from dada.space import SPACES, SearchSpace
from dada.train import Job, Length, Place, Turns, at_once_for, learning_rates_T, take_turns

REPEATED = 0.5  # of the schedule, its end, in which an operation is alone
STEPS = {"cpu": 100, "cuda": 600}  # of a whole schedule
IMAGES = {"cpu": 500, "cuda": 4000}  # to train on, at most
BATCH = {"cpu": 64, "cuda": 128}
STEPS_PER_EPOCH = 1  # at least: of few images large batches, or the ends differ by chance
BUDGET = {"cpu": 40.0, "cuda": 60.0}  # seconds on a nominal machine
FEWEST_RUNS, MOST_RUNS = 2, 8  # two may take twice the budget; one alone would have no error
PRIOR_DEGREES = 4.0  # how many runs the typical error of all operations counts for
FILE = "lookahead.json"

OnRun = Callable[[int, int], None]
"""(runs done, runs in all)"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training whose end is repeated under each of `arms`, judged on the validation images."""

    job: Job
    arms: Mapping[str, Policy]

    @property
    def shared_epochs(self) -> int:
        epochs = Length.of(self.job).epochs
        return epochs - max(1, round(REPEATED * epochs))

    @property
    def steps(self) -> int:
        length = Length.of(self.job)
        repeated = len(self.arms) * (length.epochs - self.shared_epochs)
        return (self.shared_epochs + repeated) * length.steps_per_epoch


def look_ahead(runs: Sequence[Run], at_once: int = 1) -> Iterator[tuple[Run, dict[str, Scores]]]:
    """The scores of every arm, run by run in the order in which they end."""
    total = sum(run.steps for run in runs)
    return take_turns(((run, _ends(run, total)) for run in runs), at_once)


def _ends(run: Run, steps_of_all: int) -> Turns[dict[str, Scores]]:
    job = run.job
    assert job.split.val is not None
    length, place = Length.of(job), Place(job)
    state, space = place.state, SPACES[job.policy.space]
    rates_T = learning_rates_T(job.config, length.epochs, length.steps_per_epoch).to(job.device)
    rates_ES = rates_T.view(length.epochs, length.steps_per_epoch)
    for rates_S in rates_ES[: run.shared_epochs]:
        yield from place.epoch(rates_S, steps_of_all)
    with state.lane:
        middle = _copied(state.checkpoint(run.shared_epochs, []))
    scores = {}
    for name, arm in run.arms.items():
        state.restore(middle)
        with state.lane:
            state.model.train()
            longest = state.tables.op_index_NK.shape[1]
            state.tables.replace_(PolicyTables.of(arm, space, job.device, least_ops=longest))
        for rates_S in rates_ES[run.shared_epochs :]:
            yield from place.epoch(rates_S, steps_of_all)
        scores[name] = place.judged_on(job.split.val)
        if not math.isfinite(scores[name].loss):
            raise ValueError(
                f"looking ahead, the validation loss with {name} alone became {scores[name].loss}; "
                "look for broken images, or leave it out with --lookahead 0"
            )
    return scores


def _copied(held: Any) -> Any:
    """Checkpoints hold the very tensors that the next step changes."""
    if isinstance(held, Tensor):
        return held.clone()
    if isinstance(held, dict):
        return {name: _copied(each) for name, each in held.items()}
    return [_copied(each) for each in held] if isinstance(held, list) else held


def arms_of(space: SearchSpace) -> dict[str, Policy]:
    """Every operation alone, at any magnitude, half of the time."""
    return {
        op.name: Policy.uniform([[(op.name, 0.5, (0.0, 1.0))]], space.name, name=op.name)
        for op in space.ops
    }


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The validation loss with each operation alone, run by run."""

    loss: dict[str, list[float]]

    @property
    def runs(self) -> int:
        return len(next(iter(self.loss.values())))

    def scores_O(self, else_O: Tensor | None = None) -> Tensor:
        """How much better each operation is than the others, in units of a typical difference.

        Of what noise could explain, `else_O` is believed instead. Nothing counts for more than odds
        of 20.
        """
        loss_RO = torch.tensor(list(self.loss.values()), dtype=torch.float64).T
        gain_RO = loss_RO.median(1, keepdim=True).values - loss_RO
        gain_O = gain_RO.mean(0)
        error_O = _errors(gain_RO - gain_O)
        gain_O = gain_O - gain_O.median()
        scale = torch.maximum(gain_O.abs().median(), SCALE_IN_ERRORS * error_O.median())
        sure_O = beyond_noise(gain_O, error_O)
        score_O = sure_O * gain_O / scale.clamp(min=1e-12)
        if else_O is not None:
            score_O = score_O + (1 - sure_O) * else_O
        return bounded(score_O)


def _errors(noise_RO: Tensor) -> Tensor:
    """Standard errors of the means: each operation's own few differences, drawn to the typical."""
    degrees = len(noise_RO) - 1
    variance_O = noise_RO.square().sum(0) / max(1, degrees)
    typical = variance_O.median()
    moderated_O = (PRIOR_DEGREES * typical + degrees * variance_O) / (PRIOR_DEGREES + degrees)
    return (moderated_O / len(noise_RO)).sqrt()


def schedule(
    split: Split, training: TrainConfig, seed: int, device: torch.device
) -> tuple[Split, TrainConfig]:
    """The images of a run, and how it is trained."""
    kind = device.type
    return shorten(
        split,
        replace(training, batch_size=BATCH[kind]),
        seed=seed,
        images=IMAGES[kind],
        steps=STEPS[kind],
        per_epoch=STEPS_PER_EPOCH,
    )


def see(
    split: Split,
    build: Callable[[int], nn.Module],
    space: SearchSpace,
    training: TrainConfig,
    *,
    budget: float | None,
    exchange: bool,
    seed: int,
    device: torch.device,
    run: RunLog | None = None,
    on_run: OnRun | None = None,
    graph: bool = True,
    ranks: Ranks = ALONE,
) -> Seen:
    """Look ahead as often as `budget` seconds of a nominal machine allow: at least twice, or not.

    With `exchange`, every second run is trained on the validation images and judged on the others:
    for halves that chance has made. `build(seed)` gives a new network. With `run`, what has ended
    is written to its directory, and the same call goes on from there.
    """
    split, config = schedule(split, training, seed, device)
    assert split.val is not None
    exchanged = replace(split, train=split.val, val=split.train)
    arms, trunk = arms_of(space), baselines.uniform(space)

    def a_run(i: int) -> Run:
        job = Job(
            split=exchanged if exchange and i % 2 else split,
            model=build(seed + i),
            policy=trunk,
            config=config,
            seed=seed + i,
            device=device,
            graph=graph,
            ranks=ranks,
        )
        return Run(job=job, arms=arms)

    count = _affordable(a_run(0), BUDGET[device.type] if budget is None else budget)
    known = ranks.same(_on_disk(run, list(arms)))
    left = [a_run(i) for i in range(count) if i not in known]
    at_once = 1 if ranks.world > 1 else at_once_for(device, split.image_size)
    for one, scores in look_ahead(left, at_once):
        known[one.job.seed - seed] = {name: score.loss for name, score in scores.items()}
        if run is not None:
            ended = {str(i): known[i] for i in sorted(known)}
            run.save_text(FILE, json.dumps(ended, indent=1) + "\n")
        if on_run is not None:
            on_run(len(known), count)
    return Seen(loss={name: [known[i][name] for i in range(count)] for name in arms})


def _affordable(run: Run, budget: float) -> int:
    """How many runs, by counting: no clock has a say in a result."""
    job = run.job
    operations = forward_operations(job.model, (job.split.channels, *job.split.image_size))
    whole = training_seconds(job.split, job.config, operations, job.device.type)
    each = whole * run.steps / Length.of(job).steps
    affordable = min(MOST_RUNS, int(budget / each))
    if affordable < FEWEST_RUNS:
        affordable = FEWEST_RUNS if FEWEST_RUNS * each <= 2 * budget else 0
    return affordable


def _on_disk(run: RunLog | None, names: list[str]) -> dict[int, dict[str, float]]:
    """What an earlier session of the same run wrote."""
    path = None if run is None else run.path / FILE
    if path is None or not path.exists():
        return {}
    held = json.loads(path.read_text())
    return {int(i): {name: float(loss[name]) for name in names} for i, loss in held.items()}


def improved(
    found: SearchResult,
    split: Split,
    build: Callable[[int], nn.Module],
    config: SearchConfig,
    **how: Any,
) -> Policy:
    """The policy of a search after looking ahead; `how` are the other arguments of `see`."""
    training = TrainConfig(base=config.base)
    seen = see(split, build, found.space, training, budget=config.lookahead, **how)
    return concluded(found, seen)


@torch.no_grad()
def concluded(found: SearchResult, seen: Seen) -> Policy:
    """The policy of a search, with sub-policies of better operations likelier.

    Where looking ahead cannot tell, an operation that the search saw do harm is believed to; of
    what helps, single steps know too little. Magnitudes stay as the search found them. Operations
    fire as often as they did while all this was measured: to let the better ones fire more often
    changed nothing (docs/search-study.md).
    """
    space, parameters = found.space, found.parameters
    if not seen.runs:
        return replace(found.policy, provenance={**found.policy.provenance, "lookahead": None})
    harm_O = None if found.goodness_O is None else found.goodness_O.clamp(max=0)
    score_O = seen.scores_O(harm_O)
    score_NK = score_O[space.op_index_NK].to(parameters.subpolicy_logits_N)
    parameters.subpolicy_logits_N.copy_(score_NK.sum(1))
    parameters.apply_prob_NK.fill_(0.5)
    parameters.project_()
    scores = {op.name: round(float(s), 6) for op, s in zip(space.ops, score_O, strict=True)}
    facts = {"runs": seen.runs, "score": scores}
    return parameters.to_policy(space, provenance={**found.policy.provenance, "lookahead": facts})
