"""Looking ahead: every end has the same beginning, and what is concluded from them."""

from __future__ import annotations

import copy
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

import dada
from dada import Policy, models, recipes
from dada.api.preparation import SharedOptions, prepare
from dada.api.searching import search_job as begun
from dada.api.training import train_job
from dada.config import (
    BASES,
    LOOKAHEAD,
    LOOKAHEAD_FINE_TUNING,
    Base,
    TrainConfig,
    search_config,
)
from dada.data import Split, load, reduce, split_off_validation
from dada.policy import baselines
from dada.policy.space import SearchSpace
from dada.policy_search import SearchJob, lookahead
from dada.policy_search.job import TrainingLength
from dada.policy_search.lookahead import (
    OPERATIONS,
    POLICIES,
    runs,
    single_operations,
)
from dada.policy_search.lookahead.plan import JUDGED, _times_as_long
from dada.policy_search.lookahead.runs import BranchedRun, BranchedRuns, run_branches
from dada.policy_search.lookahead.scoring import (
    ArmLosses,
    choose_policy,
    score_operations,
    scores_of,
)
from dada.policy_search.lookahead.shapes import (
    BROADEST,
    MILD,
    SHAPES,
    USUAL,
    Shape,
    few_shapes_for,
    policies_of,
    shapes_for,
)
from dada.policy_search.lookahead.signal import Signal
from dada.policy_search.measuring import Measured
from dada.policy_search.parameters import MagnitudeDistribution, PolicyParameters
from dada.runlog import RunLog
from dada.terminal.results import print_result
from dada.training.loop import Job
from dada.training.many import run_job
from quick import QUICK_LOOKAHEAD, search_job

CPU = torch.device("cpu")
SPACE = SearchSpace.named("paper")
NAMES = {op.name for op in SPACE.ops}
UNIFORM = baselines.uniform(SPACE)
SHORT = TrainConfig(epochs=4, batch_size=16)
MOST_RUNS = QUICK_LOOKAHEAD.most_runs


@pytest.fixture(scope="module")
def split() -> Split:
    return split_off_validation(reduce(load("digits"), 96, 0), 0.5, 0)


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 3 * 3, 10))


def a_run(split: Split, arms: dict[str, Policy], seed: int = 1) -> BranchedRun:
    job = Job(split=split, model=network(seed), policy=UNIFORM, config=SHORT, seed=seed, device=CPU)
    return BranchedRun(job=job, arms=arms, repeated=0.5)


def ends(split: Split, arms: dict[str, Policy], seed: int = 1) -> dict[str, Any]:
    [(_, scores)] = run_branches([a_run(split, arms, seed)])
    return scores


def test_arms_of_several_spaces_share_a_run(split):
    wide, narrow = Policy.load("trivialaugment"), single_operations(SPACE)["Rotate"]
    alone = {"wide": ends(split, {"it": wide})["it"], "narrow": ends(split, {"it": narrow})["it"]}
    assert alone["wide"].loss != alone["narrow"].loss
    for arms in ({"wide": wide, "narrow": narrow}, {"narrow": narrow, "wide": wide}):
        assert {name: each.loss for name, each in ends(split, arms).items()} == {
            name: each.loss for name, each in alone.items()
        }


@pytest.mark.gpu
def test_a_recorded_step_is_not_replayed_for_another_space(split):
    """The operations of a space are part of what was recorded."""
    wide, narrow = Policy.load("trivialaugment"), single_operations(SPACE)["Rotate"]
    arms = {"narrow": narrow, "wide": wide, "narrow again": narrow}
    seen = {}
    for graph in (True, False):
        run = a_run(split, arms)
        job = replace(run.job, device=torch.device("cuda"), graph=graph)
        [(_, scores)] = run_branches([replace(run, job=job)])
        seen[graph] = {name: each.loss for name, each in scores.items()}
    assert seen[True] == pytest.approx(seen[False], rel=1e-4)
    assert seen[True]["narrow again"] == pytest.approx(seen[True]["narrow"], rel=1e-4)
    assert abs(seen[True]["wide"] - seen[True]["narrow"]) > 1e-3


def test_the_end_under_the_policy_of_the_beginning_is_a_plain_training(split):
    scores = ends(split, {"Rotate": single_operations(SPACE)["Rotate"], "uniform": UNIFORM})
    plain = run_job(replace(a_run(split, {}).job, judge=split.val))  # scored on the same images
    assert scores["uniform"] == plain.scores
    assert scores["Rotate"] != plain.scores


def test_an_end_does_not_depend_on_those_before_it(split):
    arms = single_operations(SPACE) | {"none": Policy.load("none")}
    some = {name: arms[name] for name in ("Invert", "none", "Rotate")}
    together = ends(split, some)
    backwards = ends(split, dict(reversed(some.items())))
    assert together == backwards
    assert together["Rotate"] == ends(split, {"Rotate": arms["Rotate"]})["Rotate"]
    assert len({s.loss for s in together.values()}) == 3


def test_an_end_that_breaks_is_named(split):
    broken = a_run(split, {"Rotate": single_operations(SPACE)["Rotate"]})
    broken = replace(broken, job=replace(broken.job, config=replace(SHORT, lr=1e30, clip=0.0)))
    with pytest.raises(ValueError, match=r"with Rotate became nan.*`lookahead=0`"):
        list(run_branches([broken]))


def test_runs_that_take_turns_end_as_each_alone(split):
    arms = {name: single_operations(SPACE)[name] for name in ("Invert", "Color")}
    both = [a_run(split, arms, seed) for seed in (1, 2)]
    assert {run.job.seed: scores for run, scores in run_branches(both, 2)} == {
        seed: ends(split, arms, seed) for seed in (1, 2)
    }


# --- what is concluded --------------------------------------------------------------------------


def losses(effect: dict[str, float], noise: float, runs: int = 4, seed: int = 0) -> ArmLosses:
    """Every run has a level of its own, which says nothing of any operation."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randn(runs, generator=generator)
    return ArmLosses(
        loss={
            op.name: (
                level - effect.get(op.name, 0.0) + noise * torch.randn(runs, generator=generator)
            ).tolist()
            for op in SPACE.ops
        }
    )


def named_scores(seen: ArmLosses, prior_O: torch.Tensor | None = None) -> dict[str, float]:
    return dict(zip(seen.loss, scores_of(seen, prior_O).tolist(), strict=True))


def test_what_lowers_the_loss_scores_high_and_what_raises_it_low():
    scores = named_scores(losses({"Rotate": 0.3, "Color": 0.05, "Invert": -0.5}, noise=0.005))
    assert scores["Rotate"] > scores["Color"] > 0.5
    assert scores["Invert"] < -2
    neutral = [s for name, s in scores.items() if name not in ("Rotate", "Color", "Invert")]
    assert max(map(abs, neutral)) < 1
    assert max(map(abs, scores.values())) <= 3


@pytest.mark.parametrize(("runs", "many"), [(2, 0.09), (3, 0.05), (4, 0.04)])
def test_of_pure_noise_little_is_left(runs, many):
    """A score of 0.5 would make an operation 1.6 times as likely as another."""
    seen = [
        score
        for seed in range(200)
        for score in named_scores(losses({}, 0.1, runs=runs, seed=seed)).values()
    ]
    assert sum(abs(score) > 0.5 for score in seen) / len(seen) < many
    assert sum(score == 0 for score in seen) / len(seen) > 0.55


@pytest.mark.parametrize("operations", [2, 3, 14])
def test_few_operations_are_no_reason_to_believe_noise(operations):
    worst = []
    for seed in range(100):
        loss = losses({}, 0.1, runs=2, seed=seed).loss
        some = {name: loss[name] for name in list(loss)[:operations]}
        worst.append(max(map(abs, scores_of(ArmLosses(loss=some)).tolist())))
    assert sum(score > 2 for score in worst) / len(worst) < 0.05


def test_a_wild_operation_does_not_hide_the_others():
    seen = losses({"Color": -0.05}, noise=0.005)
    wild = {**seen.loss, "Invert": [3.0, 9.0, 1.0, 6.0]}
    assert named_scores(ArmLosses(loss=wild))["Color"] < -1


def a_search(*, learned: bool = True) -> Measured:
    """One that found every magnitude in the upper half of its range, or kept them all at 0.5."""
    n = SPACE.num_subpolicies
    upper = MagnitudeDistribution(n, 2, bins=2, op_index_NK=SPACE.op_index_NK)
    parameters = PolicyParameters(n, 2, magnitude_distribution=upper if learned else None)
    with torch.no_grad():
        upper.logits_RM.copy_(torch.tensor([-9.0, 9.0]))
    policy = parameters.to_policy(SPACE, provenance={"name": "x"})
    return Measured(
        policy=policy,
        parameters=parameters,
        space=SPACE,
        goodness_O=None,
        history=[],
        seconds=0.0,
    )


def shaped(measured: Measured, losses: ArmLosses) -> dict[str, Policy]:
    """The policies of all shapes, by name, as looking ahead makes them."""
    learned = measured.parameters.magnitude_distribution is not None
    shapes = shapes_for(measured.space, learned=learned)
    score = score_operations(losses, measured)
    facts = {"runs": losses.runs, "score": score}
    return {
        shape.name: replace(
            policy,
            provenance={**policy.provenance, "lookahead": {**facts, "shape": shape.name}},
        )
        for shape, policy in policies_of(measured, score, shapes).items()
    }


def magnitudes_of(policy: Policy) -> set[Any]:
    steps = (step for subpolicy in policy.subpolicies for step in subpolicy.ops)
    return {step.magnitude for step in steps if SPACE.op(step.op).has_strength}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_better_operations_become_likelier_in_every_shape(shape):
    found = a_search()
    before = copy.deepcopy(found.parameters.state_dict())
    policies = shaped(found, losses({"Rotate": 0.3, "AutoContrast": -0.3}, noise=0.01))
    assert list(policies) == [shape.name for shape in SHAPES]
    policy = policies[shape.name]
    rate = policy.op_probabilities()
    assert max(rate, key=lambda name: rate[name]) == "Rotate"
    assert min(rate, key=lambda name: rate[name]) == "AutoContrast"
    steps = [step for subpolicy in policy.subpolicies for step in subpolicy.ops]
    assert {step.probability for step in steps} == {shape.probability}
    assert {len(subpolicy.ops) for subpolicy in policy.subpolicies} == {1 if shape.single else 2}
    as_found = magnitudes_of(found.policy)
    assert magnitudes_of(policy) == (as_found if shape.magnitude is None else {shape.magnitude})
    assert policy.space == (shape.space or "paper")
    assert (rate.get("Cutout", 0) == 0) == (shape.space == "wide")  # which does not have it
    assert policy.provenance["name"] == "x" and policy.provenance["lookahead"]["runs"] == 4
    after = found.parameters.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)  # stays as it was


def test_sub_policies_are_as_likely_as_their_scores_say():
    policies = shaped(a_search(), losses({"Rotate": 0.3, "Color": 0.1}, noise=0.01))
    policy = policies[Shape(1, 0.5, single=True, space="strength").name]
    score = policy.provenance["lookahead"]["score"]
    weight = {subpolicy.ops[0].op: subpolicy.weight for subpolicy in policy.subpolicies}
    for name in ("Color", "Cutout"):
        odds = math.exp(score["Rotate"] - score[name])
        assert weight["Rotate"] / weight[name] == pytest.approx(odds)


def test_magnitudes_that_were_not_learned_stay():
    policies = shaped(a_search(learned=False), losses({"Rotate": 0.3}, noise=0.01))
    assert list(policies) == [Shape(p, None).name for p in (1, 0.5, 0.25)]
    assert all(magnitudes_of(policy) == {0.5} for policy in policies.values())


@pytest.mark.parametrize(
    ("space", "left_out"),
    [
        (SearchSpace.named("strength"), {"space strength"}),  # it is the search's own
        (SearchSpace.named("wide"), {"space wide"}),
        # None of these has wider ranges.
        (SearchSpace.named("paper").without(NAMES - {"Cutout", "Invert"}), {"space wide"}),
        (SearchSpace.named("paper", ops_per_subpolicy=1), {"combined operations"}),
    ],
    ids=["strength", "wide", "few", "one at a time"],
)
def test_shapes_that_a_space_has_no_use_for_are_left_out(space, left_out):
    n, k = space.op_index_NK.shape
    learned = MagnitudeDistribution(n, k, bins=2, op_index_NK=space.op_index_NK)
    parameters = PolicyParameters(n, k, magnitude_distribution=learned)
    found = replace(a_search(), space=space, parameters=parameters)
    names = [shape.name for shape in shapes_for(space)]
    assert len(set(names)) == len(names) >= 5
    assert not [name for name in names for words in left_out if words in name]
    assert set(shaped(found, ArmLosses(loss={op.name: [1.0, 1.1] for op in space.ops}))) == set(
        names
    )


def test_of_few_shapes_there_is_always_a_milder_one():
    assert few_shapes_for(SPACE) == (BROADEST, MILD)
    assert few_shapes_for(SPACE, learned=False) == (Shape(1, None), Shape(0.5, None))
    assert LOOKAHEAD["cpu"].few_shapes and not LOOKAHEAD["cuda"].few_shapes
    assert not any(settings.few_shapes for settings in LOOKAHEAD_FINE_TUNING.values())


def test_a_sharper_shape_has_more_of_the_best_operations():
    score = {op.name: 1.0 if op.name == "Rotate" else -1.0 for op in a_search().space.ops}
    plain, sharp = Shape(0.5, single=True), Shape(0.5, single=True, sharpness=3.0)
    made = policies_of(a_search(), score, (plain, sharp))
    share = [made[shape].op_probabilities()["Rotate"] for shape in (plain, sharp)]
    odds = [math.exp(2 * times) / (math.exp(2 * times) + 14) for times in (1, 3)]
    assert share == pytest.approx([each / 2 for each in odds])
    assert plain.name != sharp.name


def test_excluded_operations_stay_out_of_other_spaces():
    space = SearchSpace.named("paper", exclude=["Rotate"])
    n = space.num_subpolicies
    learned = MagnitudeDistribution(n, 2, bins=2, op_index_NK=space.op_index_NK)
    parameters = PolicyParameters(n, 2, magnitude_distribution=learned)
    found = replace(a_search(), space=space, parameters=parameters)
    seen = ArmLosses(loss={op.name: [1.0, 1.1] for op in space.ops})
    for policy in shaped(found, seen).values():
        assert policy.op_probabilities()["Rotate"] == 0


def test_the_shape_with_the_lowest_loss_is_taken():
    policies = shaped(a_search(), losses({}, noise=0.1))
    good, best = SHAPES[1].name, SHAPES[2].name
    less = {good: 0.1, best: 0.6}
    seen = ArmLosses(
        loss={name: [r - less.get(name, 0.0) for r in (2.0, 1.0)] for name in policies}
    )
    chosen, facts = choose_policy(policies, seen)
    assert chosen == best and facts["policy_runs"] == 2
    assert facts["policy_loss"][best] == 0.9 and facts["policy_loss"][BROADEST.name] == 1.5


@pytest.mark.parametrize(
    ("gains", "leaves"),
    [
        ([1.0, 1.2], True),
        ([0.01, 0.01], False),  # others differ by more from run to run: these agree by luck
        ([1.2, 0.8, 1.0, -0.1], True),
        ([0.3, 0.1, 0.1, -0.3], False),
        ([-1.0, -1.0, -1.0, -1.0], False),
    ],
)
def test_the_broadest_shape_is_left_for_a_gain_beyond_its_error(gains, leaves):
    policies = shaped(a_search(), losses({}, noise=0.1))
    other = SHAPES[2].name
    noise = torch.Generator().manual_seed(0)
    loss = {
        name: (2.5 + 0.1 * torch.randn(len(gains), generator=noise)).tolist() for name in policies
    }
    loss[BROADEST.name] = [2.0 for _ in gains]
    loss[other] = [2.0 - gain for gain in gains]
    chosen, _ = choose_policy(policies, ArmLosses(loss=loss))
    assert chosen == (other if leaves else BROADEST.name)


def test_where_it_cannot_tell_the_search_is_believed():
    """And only there: of Rotate and Invert it knows better."""
    seen = losses({"Rotate": 0.3, "Invert": -0.3}, noise=0.01)
    wrong = {"Rotate": -2.0, "Invert": 2.0, "Color": 2.0, "Cutout": -2.0}
    prior_O = torch.tensor([wrong.get(op.name, 0.0) for op in SPACE.ops], dtype=torch.float64)
    scores = named_scores(seen, prior_O)
    assert scores["Rotate"] > 2 and scores["Invert"] < -2
    assert scores["Color"] > 1 and scores["Cutout"] < -1


# --- how it is carried out ----------------------------------------------------------------------


def branched(split: Split, **changes: Any) -> BranchedRuns:
    settings = changes.pop("settings", QUICK_LOOKAHEAD)
    over = {"exchange": True, "seed": 3}
    over |= {name: changes.pop(name) for name in list(changes) if name in over}
    base = TrainConfig().base
    shared = BranchedRuns.over(split, SPACE, base, settings, network, CPU, **over)
    return replace(shared, **changes)


def looked(split: Split, on_run: Any = None, **changes: Any) -> ArmLosses:
    arms = single_operations(SPACE)
    return branched(split, **changes).losses(arms, 2, file="ends.json", on_run=on_run)


def test_halves_are_exchanged_only_where_chance_made_them(split, monkeypatch):
    asked: list[BranchedRun] = []

    def noted(given: list[BranchedRun], at_once: int) -> Any:
        asked.extend(given)
        return run_branches(given, at_once)

    monkeypatch.setattr(runs, "run_branches", noted)
    looked(split, exchange=True)
    looked(split, exchange=False)
    judged_on = [run.job.split.val is split.val for run in asked]
    assert judged_on == [True, False, True, True]
    assert asked[1].job.split.train is split.val


def test_exchanged_halves_are_trained_on_no_more_images_than_others(split):
    few = replace(QUICK_LOOKAHEAD.training, most_images=20, most_images_of_a_class=2)
    settings = replace(QUICK_LOOKAHEAD, training=few)
    (one, _), (other, _) = branched(split, settings=settings).halves
    assert len(one.train) == len(other.train) == 20
    assert len(one.val) == len(other.val) == 48


@pytest.mark.parametrize("even", [True, False])
def test_unequal_classes_are_trained_on_evenly_where_asked(split, even):
    unequal = replace(
        split, train=split.train.take((split.train.labels_N < 2).nonzero()[:, 0].repeat(4))
    )
    few = torch.cat([unequal.train.labels_N.eq(c).nonzero()[:n, 0] for c, n in ((0, 12), (1, 3))])
    unequal = replace(unequal, train=unequal.train.take(few), classes=("a", "b"))
    unequal = replace(unequal, val=unequal.train.take(torch.arange(15)))
    found = branched(unequal, settings=replace(QUICK_LOOKAHEAD, even_classes=even))
    (one, _), (other, _) = found.halves
    for half in (one, other):
        counts = torch.bincount(half.train.labels_N).tolist()
        assert counts == ([7, 7] if even else [12, 3])
        assert torch.bincount(half.val.labels_N).tolist() == [12, 3]  # judged as they are
    assert found.reading == "balanced_loss"
    assert len(found.judged_on) == (2 if even else 1)
    given = branched(unequal, settings=found.settings, exchange=False)
    assert len(given.judged_on) == 1  # the same images again say no more


def test_equal_classes_stay_as_they_are(split):
    found = branched(split, settings=replace(QUICK_LOOKAHEAD, even_classes=True))
    assert found.read_on.train is split.train and found.reading == "loss"


def test_neighbouring_searches_share_no_network(split):
    seeds = [
        branched(split, seed=seed).numbered({}, number).job.seed
        for seed in (3, 4)
        for number in (0, 1)
    ]
    assert len({s + i for s in seeds for i in (0, 1)}) == 8


def test_a_larger_budget_buys_more_pairs_of_runs_within_limits(split, monkeypatch):
    monkeypatch.setattr(runs, "training_seconds", lambda *given: 1.0)
    each = (1 + 15 * 2) / 3  # one shared epoch and fifteen ends of two, of a schedule of three
    for count, budget in ((0, 0.9), (2, 1.01), (2, 2.9), (4, 3.1), (4, 4.9), (6, 5.1), (8, 100)):
        assert branched(split).affordable(15, budget * each) == count


def test_a_killed_look_ahead_goes_on(split, tmp_path):
    whole = looked(split)
    ended = []

    def stop(done: int) -> None:
        ended.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        looked(split, run=RunLog(tmp_path / "run"), on_run=stop)
    assert ended == [1]
    again = looked(split, run=RunLog(tmp_path / "run", resume=True), on_run=ended.append)
    assert again == whole and ended == [1, 2]


def test_everything_is_finite_and_in_the_order_of_the_space(split):
    seen = looked(split)
    assert list(seen.loss) == [op.name for op in SPACE.ops]
    assert all(math.isfinite(x) for each in seen.loss.values() for x in each)


def test_arms_may_have_fewer_rows_than_the_policy_they_leave(split):
    """Three operations in each of 455 sub-policies, then one operation alone."""
    threes = baselines.uniform(SearchSpace.named("paper", ops_per_subpolicy=3))
    arms = {"Rotate": single_operations(SPACE)["Rotate"], "threes": threes}
    seen = branched(split, start=threes).losses(arms, 2, file="ends.json")
    assert all(math.isfinite(x) for each in seen.loss.values() for x in each)


# --- as a part of a search ----------------------------------------------------------------------


def searched(split: Split, out: Any, **changes: Any) -> dada.Result:
    data, val = ((p.images_NCHW, p.labels_N) for p in (split.train, split.val))
    given = {
        "epochs": 1,
        "batch_size": 16,
        "seed": 0,
        "device": "cpu",
        "lookahead": QUICK_LOOKAHEAD,
    }
    return dada.search(data, val, network(0), out=out, **given | changes)


@pytest.mark.usefixtures("signal_seen")
@pytest.mark.parametrize("ended", ["operations", "base", "policies"])
def test_a_search_that_is_killed_while_it_looks_ahead_ends_as_one_that_was_not(
    split, tmp_path, ended
):
    told: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        before = {"operations": 0, "base": facts["runs"], "policies": total - 4}
        if done == 1 + before[ended]:
            raise KeyboardInterrupt

    whole = searched(split, tmp_path / "whole")
    facts = whole.policy.provenance["lookahead"]
    assert facts["runs"] >= 2 and facts["policy_runs"] == 4
    total = facts["runs"] + whole.policy.provenance["base"]["runs"] + facts["policy_runs"]
    assert set(facts["policy_loss"]) == {shape.name for shape in SHAPES}
    assert facts["policy_loss"][facts["shape"]] <= facts["policy_loss"][BROADEST.name]
    with pytest.raises(KeyboardInterrupt):
        searched(split, tmp_path / "run", on_lookahead=stop)
    searched(split, tmp_path / "run", resume=True, on_lookahead=lambda *now: told.append(now))
    assert told == [(done, total) for done in range(1, total + 1)]
    policies = [(tmp_path / name / "policy.json").read_bytes() for name in ("whole", "run")]
    assert policies[0] == policies[1]


@pytest.mark.usefixtures("signal_seen")
def test_the_second_round_has_seeds_of_its_own(split, tmp_path):
    runs = searched(split, tmp_path / "run").policy.provenance["lookahead"]["runs"]
    numbers = [
        list(map(int, json.loads((tmp_path / "run" / name).read_text())))
        for name in (OPERATIONS, POLICIES)
    ]
    assert numbers == [[*range(runs)], [MOST_RUNS + i for i in range(4)]]


NOISE = Signal(word="none", chance=0.5, agreement=0.0, learned=True)
SEEN = replace(NOISE, word="weak", chance=0.01)


@pytest.mark.parametrize(
    ("looks", "times"),
    [
        ([SEEN], 1),
        ([NOISE, NOISE], 2),
        ([NOISE, SEEN], 2),
        ([replace(NOISE, learned=False)], 1),  # more runs would not learn either
    ],
    ids=["seen", "never seen", "seen at the second look", "nothing learned"],
)
def test_where_nothing_is_seen_one_looks_again_and_without_a_signal_there_is_no_second_round(
    split, tmp_path, monkeypatch, looks, times
):
    given: list[int] = []

    def signal_of(losses: ArmLosses, judged_on: Any, of: int) -> Signal:
        given.append(losses.runs)
        assert of == 2
        return looks[len(given) - 1]

    monkeypatch.setattr(lookahead, "signal_of", signal_of)
    how = {"lookahead": replace(QUICK_LOOKAHEAD, look_again=True), "base": "none"}
    told: list[tuple[int, int]] = []
    out = tmp_path / "run"
    policy = searched(split, out, on_lookahead=lambda *now: told.append(now), **how).policy
    seen, facts = looks[-1].word != "none", policy.provenance["lookahead"]
    first = given[0]
    assert given == [first * (1 + i) for i in range(times)] and facts["runs"] == given[-1]
    assert sorted(map(int, json.loads((out / OPERATIONS).read_text()))) == [*range(given[-1])]
    assert ("policy_runs" in facts) == seen == (out / POLICIES).exists()
    assert ("as no signal was seen" in policy.provenance["name"]) == (not seen)
    total = given[-1] + (4 if seen else 0)
    assert told[-1] == (total, total) and [done for done, _ in told] == sorted(d for d, _ in told)
    # Without a directory the same, though nothing is kept between the looks.
    given.clear()
    again = searched(split, None, **how).policy
    assert again.subpolicies == policy.subpolicies


def test_a_search_that_is_killed_while_it_looks_again_ends_as_one_that_was_not(
    split, tmp_path, monkeypatch
):
    how = {"lookahead": replace(QUICK_LOOKAHEAD, look_again=True), "base": "none"}
    fewest: list[int] = []

    def signal_of(losses: ArmLosses, judged_on: Any, of: int) -> Signal:
        fewest.append(losses.runs)
        return NOISE if losses.runs == min(fewest) else SEEN

    def stop(done: int, total: int) -> None:
        if done == min(fewest, default=total) + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(lookahead, "signal_of", signal_of)
    searched(split, tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        searched(split, tmp_path / "run", on_lookahead=stop, **how)
    assert not (tmp_path / "run" / POLICIES).exists()
    searched(split, tmp_path / "run", resume=True, **how)
    policies = [(tmp_path / name / "policy.json").read_bytes() for name in ("whole", "run")]
    assert policies[0] == policies[1]


@pytest.mark.usefixtures("signal_seen")
@pytest.mark.parametrize("together", [2, 1])
def test_without_time_for_a_second_round_the_shape_is_the_usual(split, tmp_path, together):
    settings = replace(QUICK_LOOKAHEAD, first_round=1.0)
    given = {"ops_per_subpolicy": together, "lookahead": settings}
    policy = searched(split, tmp_path / "run", **given).policy
    facts = policy.provenance["lookahead"]
    assert facts["shape"] == replace(USUAL, single=together == 1).name
    assert "policy_runs" not in facts


@pytest.mark.usefixtures("signal_seen")
def test_few_shapes_are_tried_and_the_mild_one_taken_without_time_for_it(split, tmp_path):
    few = replace(QUICK_LOOKAHEAD, few_shapes=True)
    tried = searched(split, tmp_path / "tried", lookahead=few).policy.provenance["lookahead"]
    assert list(tried["policy_loss"]) == [BROADEST.name, MILD.name]
    without = replace(few, first_round=1.0)
    taken = searched(split, tmp_path / "taken", lookahead=without).policy.provenance["lookahead"]
    assert taken["shape"] == MILD.name and "policy_runs" not in taken


def test_without_time_for_two_runs_the_search_is_left_as_it_is(split, tmp_path):
    too_short = replace(QUICK_LOOKAHEAD, seconds=1e-6)
    short = searched(split, tmp_path / "short", lookahead=too_short).policy
    off = searched(split, tmp_path / "off", lookahead=0).policy
    assert short.provenance["lookahead"] is None and "lookahead" not in off.provenance
    assert short.subpolicies == off.subpolicies
    with pytest.raises(ValueError, match="`lookahead` should be 0 or more seconds, got -1"):
        searched(split, tmp_path / "bad", lookahead=-1.0)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (None, "Looking ahead was left out: too long here"),
        ({"runs": 2}, "scored the operations in 2 runs."),
        (
            {"runs": 2, "stand_in": {"image_size": [9, 16], "model": "small"}},
            "in 2 runs (of small, with images shrunk to 16x9, to save time).",
        ),
        (
            {"runs": 3, "policy_runs": 2, "policy_loss": {"a": 1.0, "b": 2.0}, "shape": "a"},
            "scored the operations in 3 runs and, of 2 policies, took in 2 more: a.",
        ),
    ],
)
def test_the_terminal_says_what_was_decided(seen, words):
    console = Console(file=io.StringIO(), width=200)
    policy = replace(UNIFORM, provenance={"lookahead": seen})
    print_result(dada.Result(policy=policy, history=[], seconds=1.0), console)
    assert words in console.file.getvalue()


# --- a longer training than those in which a search looks ahead -----------------------------------


LONG = 1e6  # seconds


def test_the_longest_training_that_was_judged():
    results = Path(__file__).parents[1] / "benchmarks" / "results"
    judged = json.loads((results / "judge-cifar10.json").read_text())["settings"]
    assert judged["train"] * judged["epochs"] == JUDGED


@pytest.mark.parametrize(
    ("epochs", "images", "asked", "times"),
    [
        (1, 48, True, 1),
        (3, 48, True, 1),  # less than twice a training of the first round
        (8, 48, True, 4),
        (4, 96, True, 4),
        (2, 192, True, 4),
        (2 * JUDGED // 100, 100, False, 2 * JUDGED // 96),
        (2 * JUDGED // 100 - 1, 100, False, 1),  # nobody said so, and little more than was judged
    ],
)
def test_how_much_longer_the_second_round_trains(split, epochs, images, asked, times):
    job = search_job(split, network(0), search_config("dada"), device=CPU)
    runs = BranchedRuns.of(job)
    two_epochs = replace(runs, halves=tuple((s, replace(c, epochs=2)) for s, c in runs.halves))
    assert two_epochs.images_seen == 96 and _times_as_long(job, two_epochs, 6, LONG) == 1
    told = replace(job, length=TrainingLength(epochs=epochs, images=images, asked=asked))
    assert _times_as_long(told, two_epochs, 6, LONG) == times
    assert two_epochs.lengthened(times).epochs == 2 * times
    time_for_three = 2 * 3.5 * two_epochs.run_seconds(6)
    assert _times_as_long(told, two_epochs, 6, time_for_three) == min(3, times)
    five_epochs = replace(runs, halves=tuple((s, replace(c, epochs=5)) for s, c in runs.halves))
    for tenths in range(20, 80):  # there is time for a pair of what it says
        seconds = tenths / 10 * five_epochs.run_seconds(6)
        longer = five_epochs.lengthened(_times_as_long(told, five_epochs, 6, seconds))
        assert longer.affordable(6, seconds) >= 2 and 2 * longer.run_seconds(6) <= seconds
    assert _times_as_long(told, two_epochs, 6, 0.0) == 1


def asked_search(data: Any, device: str, recipe: str | None = None, **settings: Any) -> SearchJob:
    """As `dada search` would begin it, on a CPU, with the settings of looking ahead of a device."""
    options = SharedOptions(model="small", device="cpu", recipe=recipe, settings=settings)
    asked = prepare("search", data, options)
    return begun(asked, None, "dada", LOOKAHEAD[device], False, None)[1]


def some_images(count: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, side, side)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return images, torch.arange(count) % 10


@pytest.mark.parametrize(
    ("images", "side", "device", "times"),
    [
        (None, 8, "cpu", 1),  # the digits
        (None, 8, "cuda", 1),
        (200, 8, "cuda", 1),
        (4000, 32, "cuda", 1),
        (20_000, 4, "cuda", 1),
        (50_000, 4, "cuda", 18),
    ],
)
def test_who_says_nothing_gets_longer_trainings_for_many_images_alone(images, side, device, times):
    """Searches on usual data were judged as they are."""
    job = asked_search(some_images(images, side) if images else "digits", device)
    assert _times_as_long(job, BranchedRuns.of(job), 6, LONG) == times


def test_the_length_is_that_of_a_training_with_the_defaults():
    data = reduce(load("digits"), 500, 0)
    _, training = train_job(prepare("train", data, SharedOptions(device="cpu")), "none")
    # What a search is asked of its own training is another matter.
    length = asked_search(data, "cpu", epochs=3, batch_size=16).length
    assert length == TrainingLength(epochs=training.length.epochs, images=500, asked=False)
    length = asked_search(data, "cpu", for_images=50_000).length
    assert length == TrainingLength(epochs=30, images=50_000, asked=True)
    length = asked_search(data, "cpu", for_images=50_000, for_epochs=200).length
    assert length is not None and length.images_seen == 10_000_000


@pytest.mark.parametrize("name", ["cifar10_wrn40_2", "svhn_wrn28_10", "imagenet_resnet50"])
def test_a_recipe_for_training_says_what_the_policy_is_for(name):
    recipe, images = recipes.named(name), some_images(100, 32)
    job = asked_search(images, "cpu", name, base=None)  # as the command line has it
    assert job.length == TrainingLength(epochs=recipe.train.epochs, images=100, asked=True)
    assert job.config.preset == "dada" and not job.choose_base
    assert job.config.base == BASES[recipe.data] and job.lookahead.seconds > 0
    job = asked_search(images, "cpu", name, base="none", for_epochs=7)
    assert job.config.base == Base() and job.length.epochs == 7


def test_a_search_for_the_training_of_a_recipe_has_its_own_settings(tmp_path):
    """The usual ones of a pretrained network; the recipe's are those of its training."""
    net, images = "torchvision:shufflenet_v2_x0_5", some_images(100, 32)
    save_file(models.build(net, 10, 3, (32, 32), seed=0).state_dict(), tmp_path / "net.safetensors")
    how = {"model": net, "weights": tmp_path / "net.safetensors", "device": "cpu"}
    asked = (
        prepare("search", images, SharedOptions(recipe=recipe, **how))
        for recipe in (None, "cifar10_wrn40_2")
    )
    usual, told = (begun(each, None, "dada", None, False, None)[1] for each in asked)
    assert told.config == replace(usual.config, base=BASES["cifar10"])
    assert (told.training, told.lookahead) == (usual.training, usual.lookahead)


def test_the_length_of_a_recipe_is_its_evaluation_on_all_images():
    job = asked_search(some_images(5000, 8), "cuda", "reduced_cifar10_wrn40_2")
    assert len(job.split.train) == 2000
    assert job.length == TrainingLength(epochs=200, images=5000, asked=False)
    assert _times_as_long(job, BranchedRuns.of(job), 6, LONG) == 200 * 5000 // (40 * 2000)


@pytest.mark.usefixtures("signal_seen")
def test_a_search_for_a_long_training_has_a_longer_second_round_and_is_resumed(split, tmp_path):
    settings = replace(QUICK_LOOKAHEAD, seconds=12.0, most_policy_runs=2)
    how = {"for_epochs": 3, "for_images": 96, "lookahead": settings}
    told: list[tuple[int, int]] = []
    whole = searched(split, tmp_path / "whole", on_lookahead=lambda *now: told.append(now), **how)
    facts = whole.policy.provenance["lookahead"]
    wanted = {"times_as_long": 2, "for_epochs": 3, "for_images": 96}
    assert wanted.items() <= facts.items() and told[-1][0] == told[-1][1]
    console = Console(file=io.StringIO(), width=200)
    print_result(replace(whole, out=None), console)
    assert "For a training of 3 epochs on 96 images: " in console.file.getvalue()
    usual = searched(split, tmp_path / "usual", lookahead=settings)
    assert "times_as_long" not in usual.policy.provenance["lookahead"]
    rounds = {}
    for file in (OPERATIONS, POLICIES):
        texts = ((tmp_path / run / file).read_text() for run in ("whole", "usual"))
        rounds[file] = [json.loads(text) for text in texts]
    assert rounds[OPERATIONS][0] == rounds[OPERATIONS][1]
    assert rounds[POLICIES][0].keys() == rounds[POLICIES][1].keys()
    assert rounds[POLICIES][0] != rounds[POLICIES][1]

    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(split, tmp_path / "run", on_lookahead=stop, **how)
    searched(split, tmp_path / "run", resume=True, **how)
    policies = [(tmp_path / name / "policy.json").read_bytes() for name in ("whole", "run")]
    assert policies[0] == policies[1]
