"""Whether to mirror, turn and cut every image, where nobody says so: the search decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dada
from dada.api.verifying import _job_of as job_of
from dada.config import LOOKAHEAD, NAMED_BASES, Base
from dada.ops import PAPER
from dada.policy_search.lookahead.base_choice import (
    BASES,
    BASES_OF_PLACES,
    BaseQuestion,
    bases_for,
    clear_base,
)
from dada.policy_search.lookahead.scoring import ArmLosses
from dada.report.base import base_sentence, chosen_base
from dada.report.repeat import compare_commands, search_command
from dada.report.run_directory import read_run_directory
from dada.runlog import read_toml
from test_planted import digits

Pair = tuple[Tensor, Tensor]

# As on a CPU, but with fewer images and runs.
LESS = replace(
    LOOKAHEAD["cpu"],
    seconds=30.0,
    training=replace(LOOKAHEAD["cpu"].training, steps=40, most_images=240, least_epochs=10),
    most_runs=2,
    most_policy_runs=2,
    base_share=1.0,
)
# Few operations make a short search.
KEPT = ("Rotate", "Brightness", "Cutout", "Solarize", "ShearX")
HOW = {
    "device": "cpu",
    "lookahead": LESS,
    "epochs": 1,
    "batch_size": 64,
    "exclude": tuple(op.name for op in PAPER if op.name not in KEPT),
}


DATA = {"name": "arrays", "classes": 10}


def part(pair: Pair, count: int = 240) -> Pair:
    return pair[0][:count], pair[1][:count]


@pytest.fixture(scope="module")
def upright() -> tuple[Pair, Pair]:
    train, val = digits(0, side=8)
    return part(train), part(val)


@pytest.fixture(scope="module")
def mirrored(upright: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
    """Validation images of which every second is mirrored."""
    train, (images, labels) = upright
    odd_N = (torch.arange(len(images)) % 2 == 1).view(-1, 1, 1, 1)
    return train, (torch.where(odd_N, images.flip(3), images), labels)


@pytest.fixture(scope="module")
def turned(upright: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
    """Validation images of which every quarter is turned by one more quarter."""
    train, (images, labels) = upright
    turns = [image.rot90(i % 4, (1, 2)) for i, image in enumerate(images)]
    return train, (torch.stack(turns), labels)


def test_turned_images_are_learned_from_turned_ones(turned):
    found = dada.search(*turned, **HOW).policy
    facts = found.provenance["base"]
    assert facts["chosen"] == "turn", facts
    assert "mirrored and turned at random (--base turn)" in str(base_sentence(found))


@pytest.mark.usefixtures("signal_seen")
def test_mirrored_images_are_learned_from_mirrored_ones(mirrored, tmp_path: Path):
    run = tmp_path / "run"
    found = dada.search(*mirrored, out=run, **HOW)
    facts = found.policy.provenance["base"]
    assert facts["chosen"].startswith(("flip", "photo")) and set(facts["loss"]) == set(BASES)
    assert facts["loss"][facts["chosen"]] < facts["loss"]["none"]
    name = chosen_base(found.policy)
    config = read_toml(run / "config.toml")
    assert config["chosen_base"] == name
    assert Base(**config["search"]["base"]) == Base(), "what was asked"
    # A comparison is to have it, the same search again is to choose again.
    assert f"--base {name}" in compare_commands(config, run)[0]
    assert "--base" not in str(search_command(config, run))
    assert f"--base {name}" in str(base_sentence(found.policy))
    assert f"--base {name}" in (run / "report.html").read_text()
    # Verified later, it is so with that base.
    train, val = mirrored
    job = job_of(read_run_directory(run), train, val, None, None, None)[1]
    assert job.config.base == NAMED_BASES[name] and not job.choose_base
    # The policy was chosen among those trained with it.
    told = dada.search(*mirrored, base=name, **HOW).policy.provenance
    told_loss, loss = (p["lookahead"]["policy_loss"] for p in (told, found.policy.provenance))
    assert set(told_loss) == set(loss) and "base" not in told
    again = dada.search(*mirrored, out=run, resume=True, **HOW)
    assert again.policy == found.policy


@pytest.mark.parametrize(
    ("chosen", "asked", "why"),
    [
        ("none", ("none", "flip", "photo"), "nothing else was clearly better"),
        ("none", ("none", "flip"), "cuts were not asked about"),
        ("none", ("flip", "none", "turn"), "that was clearly better than mirrored at random"),
        ("flip", ("flip", "none", "turn"), "mirrored at random (--base flip): nothing else was"),
        ("flip", ("none", "flip", "turn"), "(--base flip): loss 1.000, without 1.000"),
    ],
)
def test_why_this_is_done_to_images_is_said(chosen: str, asked: tuple[str, ...], why: str) -> None:
    facts = {"chosen": chosen, "loss": dict.fromkeys(asked, 1.0)}
    assert why in str(base_sentence(replace(dada.Policy.load("none"), provenance={"base": facts})))


def test_digits_are_neither_mirrored_nor_cut_and_nothing_else_changes(upright):
    asked = dada.search(*upright, **HOW).policy
    assert asked.provenance["base"]["chosen"] == "none"
    assert "neither mirrored nor cut" in str(base_sentence(asked))
    told = dada.search(*upright, base="none", **HOW).policy
    assert "base" not in told.provenance and base_sentence(told) is None
    assert asked.subpolicies == told.subpolicies
    assert asked.provenance["lookahead"] == told.provenance["lookahead"]
    assert asked.provenance["signal"] == told.provenance["signal"]


@pytest.mark.parametrize("said", [{"base": "cifar"}, {"flip": False}, {"crop": 1}])
def test_who_says_what_to_do_is_not_asked(upright, said):
    how = {**HOW, "lookahead": replace(LESS, seconds=3.0)}
    assert "base" not in dada.search(*upright, **said, **how).policy.provenance


def test_trainings_of_the_same_data_take_the_base_of_the_search(upright):
    policy = dada.Policy.load("uniform")
    facts = {"data": DATA, "base": {"chosen": "flip", "runs": 2, "loss": {}}}
    notes: list[str] = []
    how = {"device": "cpu", "epochs": 1, "batch_size": 64, "on_note": notes.append}
    seen: list[Base] = []
    how["on_start"] = lambda split, config, model: seen.append(config.base)
    dada.train(upright[0], replace(policy, provenance=facts), **how)
    assert seen[-1] == NAMED_BASES["flip"] and any("base: flip" in note for note in notes)
    for other in (
        facts | {"data": DATA | {"name": "cats"}},
        facts | {"data": DATA | {"classes": 2}},
        facts | {"base": {"chosen": "none"}},
        facts | {"base": {"chosen": ["flip"]}},
        facts | {"base": {"chosen": "rm -rf"}},
    ):
        dada.train(upright[0], replace(policy, provenance=other), **how)
        assert seen[-1] == Base()
    dada.train(upright[0], replace(policy, provenance=facts), base="none", **how)
    assert seen[-1] == Base()


def test_a_comparison_gives_all_policies_the_same_base(upright, tmp_path: Path):
    facts = {"name": "mine", "data": DATA, "base": {"chosen": "photo-mild"}}
    mine = replace(dada.Policy.load("uniform"), provenance=facts)
    how = {"device": "cpu", "epochs": 1, "batch_size": 64, "seeds": 1}
    notes: list[str] = []
    out = tmp_path / "compared"
    dada.compare(upright[0], [mine, "none"], on_note=notes.append, out=out, **how)
    assert any("base: photo-mild" in note for note in notes)
    held = read_toml(out / "config.toml")["train"]["base"]
    assert (held["scale"], held["flip"]) == (0.7, True)


# --- the rule -----------------------------------------------------------------------------------


def table(gains: dict[str, float], runs: int, noise: float, seed: int = 0) -> ArmLosses:
    drawn = torch.Generator().manual_seed(seed)
    return ArmLosses(
        loss={
            name: (1 - gain + noise * torch.randn(runs, generator=drawn)).tolist()
            for name, gain in gains.items()
        }
    )


OPERATIONS = table({str(i): 0.0 for i in range(15)}, 2, noise=0.1, seed=1)


def test_only_a_clear_gain_is_taken():
    gains = {"none": 0.0, "flip": 1.0, "photo-mild": 2.0, "photo": -1.0}
    assert clear_base(table(gains, 2, 0.1), OPERATIONS) == "photo-mild"
    assert (
        clear_base(table(dict.fromkeys(gains, 0.0) | {"flip": 0.1}, 2, 0.1), OPERATIONS) == "none"
    )
    # The same gains, where ends of trainings differ more by chance.
    loud = table({str(i): 0.0 for i in range(15)}, 2, noise=2.0)
    assert clear_base(table(gains, 2, 0.1), loud) == "none"


def test_chance_is_taken_for_a_gain_as_seldom_as_it_says():
    """One in a hundred for each of four bases."""
    same = dict.fromkeys(BASES, 0.0)
    seen = [clear_base(table(same, 2, 0.1, seed), OPERATIONS) for seed in range(400)]
    assert sum(name != "none" for name in seen) <= 20


@pytest.mark.parametrize(
    ("moves", "pretrained", "channels", "usual"),
    [
        (False, False, 3, "none"),
        (False, True, 3, "flip"),
        (False, True, 1, "none"),  # a letter may become another
        (True, False, 3, "flip"),
        (True, True, 1, "flip"),
    ],
)
def test_photographs_masks_and_boxes_are_mirrored(moves, pretrained, channels, usual):
    """Unless something else is clearly better. Colour images for a pretrained network are taken for
    photographs."""
    bases = bases_for(moves=moves, pretrained=pretrained, channels=channels)
    gains = dict.fromkeys(bases, 0.0)
    (other,) = {"none", "flip"} - {usual}
    assert clear_base(table(gains | {other: 0.1}, 2, 0.1), OPERATIONS) == usual
    assert clear_base(table(gains | {other: 1.0}, 2, 0.1), OPERATIONS) == other


def test_small_images_of_masks_and_boxes_are_not_asked_about_cuts():
    question = BaseQuestion.of(Costs(), 99.0, small=True, all_bases=BASES_OF_PLACES)
    assert question.bases == ("flip", "none", "turn")


class Costs:
    """Runs that take a second for each arm."""

    def run_seconds(self, arms: int) -> float:
        return float(arms)


@pytest.mark.parametrize(
    ("seconds", "small", "bases", "count"),
    [
        (3.9, False, 5, 0),
        (4.0, False, 2, 2),
        (8.0, False, 4, 2),
        (10.0, False, 5, 2),
        (99.0, False, 5, 4),
        (4.0, True, 2, 2),
        (99.0, True, 3, 4),
    ],
)
def test_what_time_there_is_for(seconds, small, bases, count):
    question = BaseQuestion.of(Costs(), seconds, small=small)
    assert (question.bases, question.count) == (BASES[:bases], count)


def test_there_is_time_for_all_beside_four_runs_of_all_operations():
    """A run trains its beginning once, its end for every arm."""

    class Branches:
        def run_seconds(self, arms: int) -> float:
            return 0.5 * (1 + arms)

    seconds = LOOKAHEAD["cpu"].base_share * 4 * Branches().run_seconds(len(PAPER))
    for bases in (BASES, BASES_OF_PLACES):
        question = BaseQuestion.of(Branches(), seconds, small=False, all_bases=bases)
        assert (question.bases, question.count) == (bases, 2)
