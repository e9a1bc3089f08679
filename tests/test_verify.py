"""Verification: how a budget is spent, what may be said, and that nothing else is looked at."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dada import models
from dada.config import FINE_TUNING, VERIFY_FINE_TUNING, Base, TrainConfig
from dada.data import Split, TensorPart, split_off_validation
from dada.policy import Policy, baselines
from dada.policy.space import SPACES, SearchSpace, register
from dada.policy_search.verify import free_policies, short_config, shorten, verify
from dada.policy_search.verify.plan import LEAST_PAIRS, LEAST_TRAININGS, Plan, plan_for
from dada.policy_search.verify.rounds import decide
from dada.policy_search.verify.trainings import Trainings
from dada.runlog import RunLog
from dada.training.loop import at_once_for
from dada.trials import runners as trials
from dada.trials.cost import SPEEDS, Layer, Work, forward_work, training_seconds
from dada.trials.statistics import student_quantile

CPU = torch.device("cpu")
SHORT = TrainConfig(epochs=2, batch_size=10, warmup_epochs=0)


class Tiny(nn.Module):
    """The mean of an image and what one layer makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, images_BCHW):
        return self.layer(images_BCHW.mean((1, 2, 3))[:, None])


def tiny(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return Tiny()


def part(count: int, seed: int, shuffled: bool = False) -> TensorPart:
    """Dark images and bright ones, which Invert turns into each other."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 60, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 2
    images[labels == 1] += 190
    if shuffled:
        labels = labels[torch.randperm(count, generator=generator)]
    return TensorPart(images, labels)


class Untouchable:
    """Test images that complain when anybody looks at them."""

    def __getattribute__(self, name):
        raise AssertionError(f"the test images were asked for {name}")

    def __len__(self):
        raise AssertionError("the test images were counted")


@pytest.fixture
def split() -> Split:
    return Split(train=part(40, 0), val=part(60, 1), classes=("dark", "bright"), name="shades")


@pytest.fixture
def candidates() -> dict[str, Policy]:
    """`uniform` is a policy that does harm here; no augmentation is the best there is."""
    inverted = Policy.from_rows([[("Invert", 0.5, 0.5)]], name="uniform")
    return {
        "searched": Policy.from_rows([[("Rotate", 0.5, 0.6)]]),
        "uniform": inverted,
        "trivialaugment": Policy.from_rows([[("Invert", 0.4, 0.5)]]),
        "none": baselines.none(),
    }


def enough_for(trainings: int, split: Split, config: TrainConfig = SHORT) -> float:
    """A budget for that many trainings and no more."""
    work = forward_work(tiny(0), (split.channels, *split.image_size))
    return (trainings + 0.5) * training_seconds(split, config, work, "cpu")


def checked(split, candidates, trainings=20, **options):
    budget = options.pop("budget", enough_for(trainings, split))
    options = {"config": SHORT, "seed": 0, "device": CPU, **options}
    return verify(split, candidates, tiny, budget=budget, **options)


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, int]]:
    """No training: scores made up from the name and the seed, and a list of what was asked for."""
    found: list[tuple[str, int]] = []
    gain = {"searched": 0.04, "trivialaugment": 0.02, "none": 0.01}

    def made_up(setting, trial):
        found.append((trial.name, trial.seed))
        accuracy = 0.8 + gain.get(trial.name, 0.0) + trial.seed % 7 / 100
        accuracy += (trial.seed + len(trial.name)) % 3 / 500
        return {
            "accuracy": accuracy,
            "balanced_accuracy": accuracy,
            "images": 60,
            "class_error_C": [0.1, 0.1],
            "seconds": 1.5,
        }

    monkeypatch.setattr(trials, "_train", made_up)
    return found


# --- the plan -----------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(2, 12))
def test_a_plan_spends_what_there_is_and_no_more(trainings, candidates):
    plan = plan_for(trainings, candidates)
    if plan is None:
        assert trainings < LEAST_TRAININGS
        return
    assert trainings - 2 < plan.trainings <= trainings
    assert plan.pairs >= max(LEAST_PAIRS, trainings // 6)
    assert 2 <= plan.candidates <= candidates
    if plan.rounds:
        assert plan.rounds[0][0] == plan.candidates and plan.rounds[0][1] >= 2
        assert plan.rounds[-1][0] in (3, 4)  # the round that leaves uniform and one other


def test_rounds_halve_the_candidates_and_double_the_seeds():
    assert Plan(candidates=8, first_seeds=2, pairs=5).rounds == [(8, 2), (4, 2)]
    assert Plan(candidates=16, first_seeds=3, pairs=5).rounds == [(16, 3), (8, 3), (4, 6)]
    assert Plan(candidates=8, first_seeds=2, pairs=5).trainings == 16 + 8 + 10
    assert Plan(candidates=2, first_seeds=2, pairs=5).rounds == []


def test_fewer_trainings_leave_out_candidates_first():
    assert plan_for(32, 7) == Plan(candidates=7, first_seeds=2, pairs=5)
    assert plan_for(31, 7) == Plan(candidates=6, first_seeds=2, pairs=6)
    assert plan_for(8, 7) == Plan(candidates=2, first_seeds=2, pairs=4)
    assert plan_for(7, 7) is None and plan_for(0, 7) is None
    assert plan_for(1000, 1) is None


# --- what may be said ---------------------------------------------------------------------------


def simulated(
    effects: dict[str, float], *, trainings: int, seed: int, images: int = 2000
) -> tuple[str, str]:
    """What a verification claims to be better, or uniform, and what it returns, when scores are
    effect + what a seed shares + noise of 1."""
    names = [*effects, "uniform"]

    def train(wanted, seeds):
        scores = {name: [] for name in wanted}
        for number in seeds:
            noise = torch.randn(1 + len(names), generator=torch.Generator().manual_seed(number))
            for name in wanted:
                score = 70 + effects.get(name, 0) + 0.7 * noise[0] + noise[1 + names.index(name)]
                scores[name].append(round(float(score) * images / 100) * 100 / images)
        return scores

    plan = plan_for(trainings, len(names))
    assert plan is not None and plan.candidates == len(names)
    outcome = decide(names, plan, train, seed=seed, images=images)
    claimed = outcome.measured if outcome.interval[0] > 0 else "uniform"
    return claimed, outcome.chosen


@pytest.mark.parametrize(("trainings", "others"), [(40, 6), (8, 1)])
def test_without_a_difference_hardly_ever_is_one_claimed(trainings, others):
    effects = {f"candidate {i}": 0.0 for i in range(others)}
    claimed = [simulated(effects, trainings=trainings, seed=s)[0] for s in range(400)]
    claims = sum(name != "uniform" for name in claimed) / len(claimed)
    assert claims <= 0.025, f"{claims:.1%} claimed a difference that is not there"


def test_a_difference_of_three_points_is_found():
    effects = {"searched": 3.0, "a": 0.5, "b": 0.0, "c": 0.0, "d": -1.0, "none": -2.0}
    found = [simulated(effects, trainings=40, seed=s) for s in range(100)]
    assert found.count(("searched", "searched")) >= 98


def test_a_worse_policy_is_never_chosen():
    effects = {"searched": -3.0, "none": -3.0}
    found = {simulated(effects, trainings=30, seed=s) for s in range(100)}
    assert found == {("uniform", "uniform")}


def test_the_best_guess_is_better_than_uniform_where_no_proof_is_possible():
    """A true gain of half a point is hardly ever claimed, and mostly returned."""
    effects = {"searched": 0.5, "none": -2.0}
    found = [simulated(effects, trainings=30, seed=s) for s in range(100)]
    assert sum(claimed == "searched" for claimed, _ in found) < 30
    assert sum(returned == "searched" for _, returned in found) > 65


def test_luck_in_choosing_is_not_reported():
    """The favourite of the seeds that choose does no better on fresh ones: nothing is claimed."""
    calls = []

    def train(names, seeds):
        calls.append((list(names), list(seeds)))
        lucky = 5.0 if len(names) > 2 else 0.0
        return {
            name: [70 + lucky * (name == "a") + 0.3 * (i % 3) * (name == "a") for i in range(n)]
            for name in names
            for n in [len(seeds)]
        }

    plan = plan_for(32, 7)
    names = ["a", "b", "c", "d", "e", "f", "uniform"]
    outcome = decide(names, plan, train, seed=0, images=2000)
    assert [sorted(set(names) & set(left)) for left, _ in calls][-1] == ["a", "uniform"]
    assert outcome.interval[0] < 0 and outcome.difference < 0.5
    *choosing, fresh = [set(seeds) for _, seeds in calls]
    assert not fresh & set().union(*choosing)
    assert len(fresh) == plan.pairs and len(set().union(*choosing)) == 4
    assert [each.fresh for each in outcome.rounds] == [False, False, True]
    assert outcome.candidates[0]["mean"] == pytest.approx(75.15)  # those that chose, kept apart


def test_seeds_of_two_verifications_differ():
    seen = []
    plan = plan_for(14, 3)
    for seed in (0, 1):
        decide(
            ["a", "b", "uniform"],
            plan,
            lambda names, seeds: seen.extend(seeds) or {name: [1.0] * len(seeds) for name in names},
            seed=seed,
            images=100,
        )
    assert len(set(seen)) == len(seen) == 12
    assert all(0 <= number < 2**62 for number in seen)


@pytest.mark.parametrize(
    ("differences", "chosen", "said"),
    [
        ([3, 4, 3, 4], "a", r"^a is better than uniform by 3\.50 \+- 0\.92 points over 4 fresh"),
        (
            [-1, 2, -1, 2],
            "a",
            r"^no difference .* \(a: \+0\.50 \+- 2\.76 .*; a is returned as the best",
        ),
        (
            [-2, 1, -2, 1],
            "uniform",
            r"^no difference .* \(a: -0\.50 .*; uniform is returned as the",
        ),
        ([-3, -4, -3, -4], "uniform", r"^a is worse than uniform by 3\.50 \+- .*; uniform is ret"),
    ],
)
def test_words_and_choice_follow_the_interval(differences, chosen, said):
    def train(names, seeds):
        return {"a": [50.0 + d for d in differences], "uniform": [50.0] * 4}

    outcome = decide(["a", "uniform"], plan_for(8, 2), train, seed=0, images=100_000)
    assert outcome.chosen == chosen
    assert re.search(said, outcome.verdict), outcome.verdict
    assert outcome.interval[0] <= outcome.difference <= outcome.interval[1]


@pytest.mark.parametrize(
    ("scores", "images", "half"),
    [
        # Each right about half of 400 images: differences deviate by 100 sqrt(0.5 / 400) points.
        (50.0, 400, student_quantile(0.975, 3) * 3.5355 / 2),
        (100.0, 400, 0.25),  # nothing is left to chance, yet one image may be
    ],
)
def test_differences_that_agree_by_luck_are_not_taken_for_certain(scores, images, half):
    outcome = decide(
        ["a", "uniform"],
        plan_for(8, 2),
        lambda names, seeds: {name: [scores] * len(seeds) for name in names},
        seed=0,
        images=images,
    )
    assert outcome.interval == pytest.approx((-half, half), abs=1e-3)


# --- real trainings -----------------------------------------------------------------------------


def test_the_better_policy_is_found_on_images_and_measured(split, candidates):
    split = replace(split, test=Untouchable())
    config = replace(SHORT, epochs=15, lr=0.5)
    seen = []
    found = checked(
        split,
        candidates,
        config=config,
        budget=enough_for(20, replace(split, test=None), config),
        on_training=lambda *about: seen.append(about),
    )
    assert found.chosen in ("searched", "none") and found.policy == candidates[found.chosen]
    assert found.interval[0] > 0 and found.difference > 20
    assert found.verdict.startswith(f"{found.chosen} is better than uniform by ")
    assert found.trainings == 20 == len(seen) and found.left_out == []
    assert [done for *_, done, _ in seen] == list(range(1, 21))
    assert {total for *_, total in seen} == {20}
    facts = found.policy.provenance["verification"]
    assert facts["chosen"] == found.chosen and facts["interval"] == list(found.interval)
    assert Policy.from_json(found.policy.to_json()).provenance["verification"] == facts
    assert "seconds" not in json.dumps(facts)


def test_the_same_call_gives_the_same_bytes(split, candidates):
    first, second = (checked(split, candidates, trainings=14) for _ in range(2))
    assert first.policy.to_json() == second.policy.to_json()
    assert first.rounds == second.rounds
    other = checked(split, candidates, trainings=14, seed=1)
    assert other.rounds != first.rounds


def test_shuffled_labels_are_chance(candidates):
    shuffled = Split(
        train=part(40, 0, shuffled=True),
        val=part(200, 1, shuffled=True),
        classes=("dark", "bright"),
        name="chance",
    )
    found = checked(shuffled, candidates, trainings=20)
    assert found.interval[0] < 0 < found.interval[1]
    scores = [
        score for entry in found.rounds for each in entry["scores"].values() for score in each
    ]
    assert 40 < sum(scores) / len(scores) < 60


def test_a_further_look_has_a_wider_interval(split, candidates):
    first, second = (checked(split, candidates, trainings=14, looks=looks) for looks in (1, 2))
    assert first.rounds == second.rounds and second.looks == 2
    narrow, wide = (found.interval[1] - found.interval[0] for found in (first, second))
    assert wide > narrow


def test_one_validation_image_is_no_proof(split, candidates):
    found = checked(replace(split, val=part(1, 1)), candidates, trainings=8)
    assert found.interval[0] < 0 and found.interval[1] - found.interval[0] >= 200


def test_pairs_start_from_the_same_weights(split, candidates):
    built = []

    def build(seed):
        built.append((seed, tiny(seed).layer.weight[0].item()))
        return tiny(seed)

    found = verify(
        split, candidates, build, config=SHORT, budget=enough_for(8, split), seed=3, device=CPU
    )
    of_pairs = built[1:]  # the first was counted, not trained
    assert len(of_pairs) == 8 and of_pairs[::2] == of_pairs[1::2]
    assert len({weight for _, weight in of_pairs}) == 4 == found.seeds


# --- what is on disk ----------------------------------------------------------------------------


def test_a_stopped_verification_goes_on_where_it_was(split, candidates, asked, tmp_path):
    whole = checked(split, candidates, run=RunLog(tmp_path / "whole"))
    order = list(asked)
    asked.clear()

    def stop(name, score, done, total):
        if done == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checked(split, candidates, run=RunLog(tmp_path / "two"), on_training=stop)
    assert asked == order[:11]
    done = []
    resumed = checked(
        split,
        candidates,
        run=RunLog(tmp_path / "two", resume=True),
        on_training=lambda name, score, count, total: done.append(count),
    )
    assert asked == order and done == list(range(1, 21))
    assert resumed.policy.to_json() == whole.policy.to_json()
    assert resumed.seconds >= 11 * 1.5  # those of the first session count
    texts = [(tmp_path / run / "verification.json").read_bytes() for run in ("whole", "two")]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["rounds"][-1]["fresh"] is True


def test_trainings_of_another_policy_are_not_taken_over(split, candidates, asked, tmp_path):
    checked(split, candidates, run=RunLog(tmp_path / "run"))
    asked.clear()
    changed = {**candidates, "searched": Policy.from_rows([[("Rotate", 0.5, 0.9)]])}
    checked(split, changed, run=RunLog(tmp_path / "run", resume=True))
    assert asked and {name for name, _ in asked} == {"searched"}
    asked.clear()
    longer = replace(SHORT, epochs=3)
    budget = enough_for(20, split, longer)
    checked(split, changed, config=longer, budget=budget, run=RunLog(tmp_path / "run", resume=True))
    assert len(asked) == 20


def test_a_damaged_record_is_named(split, candidates, asked, tmp_path):
    checked(split, candidates, run=RunLog(tmp_path / "run"))
    file = sorted((tmp_path / "run" / "verification" / "trainings").iterdir())[0]
    file.write_text("{")
    with pytest.raises(ValueError, match=rf"{file.name} is damaged; delete it"):
        checked(split, candidates, run=RunLog(tmp_path / "run", resume=True))


# --- budget, candidates and mistakes ------------------------------------------------------------


def test_too_small_a_budget_is_said_and_how_much_is_enough(split, candidates, asked):
    found = checked(split, candidates, trainings=7)
    assert asked == [] and found.trainings == 0 and found.seeds == 0
    assert found.chosen == "searched" and found.policy == candidates["searched"]
    assert found.difference is None and found.interval is None
    assert found.verdict.startswith("not verified: the budget of ")
    enough = int(found.verdict.rpartition("--verify-budget ")[2].split()[0])
    assert found.verdict.endswith(" or more (`dada verify`: --budget)")
    assert found.policy.provenance["verification"]["verdict"] == found.verdict
    assert checked(split, candidates, budget=enough).trainings >= LEAST_TRAININGS


def test_a_small_budget_leaves_out_the_last_candidates(split, candidates, asked):
    found = checked(split, candidates, trainings=10)
    assert {name for name, _ in asked} == {"searched", "uniform"}
    assert found.left_out == ["trivialaugment", "none"] and found.seeds == 5
    assert found.policy.provenance["verification"]["left_out"] == found.left_out


def test_the_clock_has_no_say(split, candidates, asked, monkeypatch):
    first = checked(split, candidates)
    monkeypatch.setattr("time.perf_counter", iter(range(0, 10**9, 10**5)).__next__)
    assert checked(split, candidates).facts() == first.facts()


def test_candidates_that_do_the_same_are_trained_once(split, candidates, asked):
    same = {**candidates, "again": candidates["searched"], "other": candidates["uniform"]}
    checked(split, same, trainings=40)
    assert {name for name, _ in asked} == set(candidates)
    asked.clear()
    found = checked(split, {"searched": baselines.uniform(), "uniform": baselines.uniform()})
    assert asked == [] and found.chosen == "uniform"
    assert found.verdict == "not verified: no candidate differs from uniform; uniform is returned"
    # Without time for trainings what was found is returned, not the next best that differs from it.
    copy = {"searched": candidates["uniform"], **{n: candidates[n] for n in ("uniform", "none")}}
    assert checked(split, copy, budget=1e-6).chosen == "uniform"


def test_none_switches_off_the_square_that_is_covered(split, candidates, monkeypatch):
    """As `dada train --policy none` does, so that what is verified is what one gets."""
    cutouts = {}

    def noted(setting, trial):
        cutouts[trial.name] = trial.config.base.cutout
        return {"accuracy": 0.5, "seconds": 0.0, "images": 60}

    monkeypatch.setattr(trials, "_train", noted)
    checked(split, candidates, config=replace(SHORT, base=Base(cutout=4)))
    assert cutouts == {"searched": 4, "uniform": 4, "trivialaugment": 4, "none": 0}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"budget": -1.0}, r"`budget` should be a number of seconds, got -1\.0"),
        ({"budget": math.nan}, "`budget` should be a number of seconds, got nan"),
        ({"budget": math.inf}, "`budget` should be a number of seconds, got inf"),
        ({"at_once": 0}, "`at_once` should be 1 or more, got 0"),
    ],
)
def test_mistakes_are_named(split, candidates, change, complaint):
    with pytest.raises(ValueError, match=complaint):
        checked(split, candidates, **change)


def test_missing_images_and_missing_uniform_are_named(split, candidates):
    with pytest.raises(ValueError, match="shades: policies are verified on validation images, and"):
        verify(
            replace(split, val=None),
            candidates,
            tiny,
            config=SHORT,
            budget=60,
            seed=0,
            device=CPU,
        )
    del candidates["uniform"]
    with pytest.raises(ValueError, match=r"should hold 'uniform' .* got searched, trivialaugment"):
        checked(split, candidates)


def test_a_training_that_fails_says_whose_it_was(split, candidates):
    wild = replace(SHORT, lr=1e30, clip=0.0, epochs=4)
    with pytest.raises(ValueError, match=r"^searched, seed \d+: the .* lower `lr`"):
        checked(split, candidates, config=wild, budget=enough_for(8, split, wild))


def test_operations_are_counted():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 64, 5))
    work = forward_work(network, (3, 8, 8))
    assert [layer.operations for layer in work.layers] == [2 * 3 * 4 * 9 * 64, 2 * 4 * 64 * 5]
    assert [layer.moved for layer in work.layers] == [7 * 64, 4 * 64 + 5]
    assert [layer.weights for layer in work.layers] == [4 * 3 * 9 + 4, 4 * 64 * 5 + 5]
    assert network.training
    assert not any(layer._forward_hooks for layer in network.modules()), "nothing is left behind"
    wide = models.build("wrn40_2", 10, 3, (32, 32), seed=0)
    work = forward_work(wide, (3, 32, 32))
    assert sum(layer.operations for layer in work.layers) == pytest.approx(0.655e9, rel=0.01)
    norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in wide.modules())
    products = sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in wide.modules())
    assert len(work.layers) == norms + products, "also the norms that add a branch are seen"


def test_nominal_seconds_grow_with_steps_and_images(split):
    cifar = replace(split, train=part(2000, 0), val=part(10, 0))
    config = TrainConfig(epochs=20, batch_size=128)
    wide = forward_work(models.build("wrn40_2", 10, 3, (32, 32), seed=0), (3, 32, 32))
    seconds = training_seconds(cifar, config, wide, "cuda")
    # Three of them on a card take 3.0 ms a step each, one alone 4.1 (results/train.json).
    assert 0.0028 < (seconds - SPEEDS["cuda"].start) / (20 * 15) < 0.0042
    twice = training_seconds(cifar, replace(config, epochs=40), wide, "cuda")
    assert twice - seconds == pytest.approx(seconds - SPEEDS["cuda"].start, rel=0.01)
    tiny_part = replace(split, train=part(5, 0))  # fewer images than a batch
    work = Work(layers=(Layer(operations=10**6),))
    assert training_seconds(tiny_part, config, work, "cpu") > 20 * SPEEDS["cpu"].step


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_what_is_bound_by_memory_costs_more_than_its_multiplications(device_type):
    """A depthwise convolution makes a hundredth of the multiplications, and takes its time."""
    speed = SPEEDS[device_type]
    shape = (64, 56, 56)
    dense = forward_work(nn.Conv2d(64, 64, 3, padding=1), shape)
    depthwise = forward_work(nn.Conv2d(64, 64, 3, padding=1, groups=64), shape)
    assert depthwise.layers[0].grouped and not dense.layers[0].grouped
    assert depthwise.layers[0].operations == dense.layers[0].operations / 64
    assert speed.forward(depthwise, 64) > 2 * speed.forward(dense, 64) / 64
    assert speed.forward(dense, 128) > 1.8 * speed.forward(dense, 64)


def test_attention_of_torch_is_counted():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = layer

        def forward(self, images):
            tokens = images.flatten(2).transpose(1, 2)
            return self.attention(tokens, tokens, tokens)[0].mean(1)

    work = forward_work(Tokens(), (8, 4, 4))
    assert sum(layer.operations for layer in work.layers) == 8 * 16 * 8**2 + 4 * 16**2 * 8


def test_how_many_share_a_device():
    assert at_once_for(torch.device("cuda"), (32, 32)) > 1
    assert at_once_for(torch.device("cuda"), (224, 224)) == 1


def test_a_full_card_is_shared_by_fewer(split, candidates, asked, monkeypatch):
    """Those that have ended count, the others begin again, and no score is asked for twice."""
    tried = []

    def run(setting, left, at_once):
        tried.append((len(left), at_once))
        for number, trial in enumerate(left):
            if at_once > room and number == 1:
                raise torch.cuda.OutOfMemoryError("full")
            yield trial, trials._train(setting, trial)

    monkeypatch.setattr("dada.policy_search.verify.trainings.run_trials", run)
    room = 1
    found = checked(split, candidates, trainings=8, at_once=4)
    assert tried == [(8, 4), (7, 2), (6, 1)]
    assert len(asked) == len(set(asked)) == 8 == found.trainings
    room = 0
    with pytest.raises(torch.cuda.OutOfMemoryError):
        checked(split, candidates, trainings=8, at_once=1)


def test_every_fresh_pair_has_halves_of_its_own(split, candidates, monkeypatch):
    """Those that choose share the images of the search; a pair is trained and judged alike."""
    seen: dict[int, set[str]] = {}

    def run(setting, left, at_once):
        for trial in left:
            judged_on = setting.job(trial).split
            seen.setdefault(trial.seed, set()).add(judged_on.fingerprint)
            yield trial, {"accuracy": 0.5, "seconds": 0.0}

    monkeypatch.setattr("dada.policy_search.verify.trainings.run_trials", run)

    def halves(seed: int) -> Split:
        return split_off_validation(replace(split, val=None, test=None), 0.5, seed)

    found = checked(split, candidates, trainings=14, halves=halves)
    *choosing, fresh = found.rounds
    shared = {replace(split, test=None).fingerprint}
    assert choosing and all(seen[seed] == shared for each in choosing for seed in each["seeds"])
    for seed in fresh["seeds"]:
        assert seen[seed] == {halves(seed).fingerprint}
    assert len(set().union(*(seen[seed] for seed in fresh["seeds"]))) == len(fresh["seeds"])


def test_a_card_that_fills_while_measuring_loses_no_pair(split, candidates, asked, monkeypatch):
    def run(setting, left, at_once):
        if at_once > 1 and setting.split_of:  # not before: those that choose lower it, too
            raise torch.cuda.OutOfMemoryError("full")
        yield from ((trial, trials._train(setting, trial)) for trial in left)

    monkeypatch.setattr("dada.policy_search.verify.trainings.run_trials", run)
    found = checked(split, candidates, trainings=40, at_once=3, halves=lambda _: split)
    assert found.seeds > 4  # so that a second portion has several
    assert found.trainings == len(asked) == len(set(asked))
    assert (
        len(found.rounds[-1]["scores"]["uniform"]) == found.seeds == len(found.rounds[-1]["seeds"])
    )


def test_processes_give_the_same_scores(split, candidates):
    """Two at once on a CPU means new processes; a network that can be sent there is needed."""
    build = models.small.Small
    options = {"split": split, "device": CPU, "total": 4, "run": None, "on_training": None}
    settled = {name: (candidates[name], SHORT) for name in ("searched", "uniform")}
    alone, beside = (
        Trainings(build=_small, settled=settled, at_once=at_once, **options) for at_once in (1, 2)
    )
    assert isinstance(_small(0), build)
    assert alone(["searched", "uniform"], [5, 6]) == beside(["searched", "uniform"], [5, 6])


def _small(seed: int) -> nn.Module:
    return models.build("small", 2, 1, (8, 8), seed=seed)


def test_free_policies_cover_the_space_and_nothing_else():
    free = free_policies(SearchSpace.named("paper"))
    assert list(free) == [
        "uniform",
        "trivialaugment",
        "randaugment:1,0.5",
        "randaugment:2,0.5",
        "none",
    ]
    assert free["trivialaugment"] == baselines.trivialaugment()
    assert len(free["uniform"].subpolicies) == 105


def test_free_policies_do_without_what_the_user_excluded():
    free = free_policies(SearchSpace.named("paper", exclude=["Rotate", "Equalize"]))
    for name, policy in free.items():
        done = {step.op for s in policy.subpolicies for step in s.ops}
        assert not done & {"Rotate", "Equalize"}, name
    assert len(free["uniform"].subpolicies) == 13 * 12 // 2
    assert len(free["randaugment:2,0.5 without Equalize, Rotate"].subpolicies) == 13**2
    wide = free["trivialaugment without Equalize, Rotate"]
    whole = baselines.trivialaugment()
    assert len(wide.subpolicies) == len(whole.subpolicies) - 2
    assert wide.subpolicies[0].ops == () and wide.sampling == "uniform"
    assert list(free) == [*(policy.provenance["name"] for policy in free.values())]


def test_a_space_of_other_operations_has_no_trivialaugment():
    row = replace(SearchSpace.named("paper").op("Rotate"), name="Tilt")
    other = replace(row, name="Lean")
    try:
        register("own", [row, other])
        free = free_policies(SearchSpace.named("own", ops_per_subpolicy=2))
        assert list(free) == ["uniform", "none"]
    finally:
        SPACES.pop("own", None)


@pytest.mark.parametrize(
    ("images", "batch", "epochs"),
    [(10, 16, 400), (200, 20, 40), (649, 64, 40), (2000, 128, 27), (40_000, 128, 20)],
)
def test_a_short_training_sees_every_image_often(images, batch, epochs):
    short = short_config(TrainConfig(), images)
    assert (short.batch_size, short.epochs) == (batch, epochs)
    assert short.warmup_epochs <= 0.1 * epochs
    assert short.lr == TrainConfig().lr


def test_a_large_data_set_is_reduced(split):
    large = replace(split, train=part(9000, 0))
    shorter, config = shorten(large, TrainConfig(), seed=0)
    assert len(shorter.train) == 4000 and len(shorter.val) == len(split.val)
    assert config.epochs == 20 and config.batch_size == 128
    same, _ = shorten(split, TrainConfig(), seed=0)
    assert same is split
    with pytest.raises(ValueError, match="images should be 1 or more, got 0"):
        short_config(TrainConfig(), 0)


@pytest.mark.slow
def test_the_simulated_numbers_of_the_page():
    """docs/verify.md, "What the interval means": 0.8%, all, 70% and 94%."""
    others = ["a", "b", "c", "d", "e"]

    def share(effect: float, trainings: int, count: int) -> float:
        effects = {"searched": effect, **dict.fromkeys(others, 0.0)}
        chosen = [simulated(effects, trainings=trainings, seed=s) for s in range(count)]
        return sum(name != "uniform" for name in chosen) / count

    assert share(0.0, 40, 2000) == pytest.approx(0.008, abs=0.005)
    assert share(3.0, 40, 500) >= 0.998
    assert share(1.5, 40, 500) == pytest.approx(0.70, abs=0.05)
    assert share(1.5, 73, 500) == pytest.approx(0.94, abs=0.03)


@pytest.mark.parametrize("side", [160, 224])
def test_photographs_are_verified_within_the_default_budget_of_a_card(side: int):
    """Some 1,700 of them, one half to train on, with a network that people fine-tune."""
    settings = VERIFY_FINE_TUNING["cuda"]
    labels_N = torch.arange(850) % 38
    images_NCHW = torch.zeros(1, 3, 1, 1, dtype=torch.uint8).expand(850, 3, side, side)
    half = TensorPart(images_NCHW, labels_N)
    split = Split(
        name="photos", train=half, val=half, test=None, classes=tuple(map(str, range(38)))
    )
    short, config = shorten(split, TrainConfig(**FINE_TUNING), settings.training, seed=0)
    network = models.build("timm:tf_efficientnet_lite0", 38, 3, (side, side), seed=0)
    each = training_seconds(short, config, forward_work(network, (3, side, side)), "cuda")
    plan = plan_for(int(settings.seconds / each), 6)
    assert plan is not None and plan.candidates >= 5 and plan.pairs >= LEAST_PAIRS
