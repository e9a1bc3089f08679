"""Policies: the file, its mistakes, the shipped ones, and conversion between spaces."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from dada import ops
from dada.names import found_policies, published_policies
from dada.policy import Policy, PolicyOp, SubPolicy, baselines
from dada.policy import policy as policy_module
from dada.policy.space import SPACES, SearchSpace

# How many sub-policies, the first and the last of them.
PUBLISHED = {
    "dada-cifar10": (
        25,
        [("TranslateX", 0.52, 0.58), ("Rotate", 0.57, 0.53)],
        [("ShearX", 0.58, 0.56), ("TranslateX", 0.48, 0.49)],
    ),
    "dada-cifar100": (
        25,
        [("ShearY", 0.56, 0.28), ("Sharpness", 0.49, 0.22)],
        [("ShearY", 0.46, 0.09), ("Posterize", 0.55, 0.34)],
    ),
    "dada-svhn": (
        25,
        [("Solarize", 0.61, 0.53), ("Brightness", 0.64, 0.5)],
        [("Rotate", 0.54, 0.53), ("Equalize", 0.52, 0.5)],
    ),
    "dada-imagenet": (
        25,
        [("TranslateY", 0.85, 0.64), ("Contrast", 0.7, 0.47)],
        [("Posterize", 0.15, 0.33), ("Color", 0.5, 0.59)],
    ),
    "fastaa-cifar10": (
        493,
        [("Contrast", 0.8321, 0.4988), ("TranslateX", 0.4185, 0.394)],
        [("Cutout", 0.7551, 0.0898), ("ShearX", 0.5845, 0.3605)],
    ),
    "fastaa-svhn": (
        497,
        [("TranslateX", 0.0016, 0.4318), ("Invert", 0.7395, 0.7538)],
        [("Contrast", 0.9933, 0.4693), ("Posterize", 0.9033, 0.5746)],
    ),
    "fastaa-imagenet": (
        498,
        [("ShearY", 0.1414, 0.5131), ("Sharpness", 0.929, 0.9788)],
        [("AutoContrast", 0.5405, 0.7472), ("Equalize", 0.0565, 0.5628)],
    ),
}


def a_policy() -> Policy:
    return Policy(
        (
            SubPolicy(0.25, (PolicyOp("Rotate", 0.57, 0.53), PolicyOp("Color", 1.0, (0.2, 0.9)))),
            SubPolicy(0.75, (PolicyOp("Invert", 0.1),)),
            SubPolicy(0.0, ()),
        ),
        "strength",
        "weighted",
        {"name": "mine", "seed": 3},
    )


# --- the file -----------------------------------------------------------------------------------


def test_a_policy_survives_its_file(tmp_path):
    policy = a_policy()
    assert policy.save(tmp_path / "p.json") == tmp_path / "p.json"
    read = Policy.load(tmp_path / "p.json")
    assert read == policy and hash(read) == hash(policy)
    assert read.provenance == {"name": "mine", "seed": 3}
    assert read.to_json() == policy.to_json()
    assert list(tmp_path.iterdir()) == [tmp_path / "p.json"]


def test_the_file_has_the_documented_shape():
    content = json.loads(a_policy().to_json())
    assert list(content) == ["format", "version", "space", "sampling", "subpolicies", "provenance"]
    assert content["format"] == "dada-policy" and content["version"] == 1
    assert content["subpolicies"][0] == {
        "weight": 0.25,
        "ops": [
            {"op": "Rotate", "probability": 0.57, "magnitude": 0.53},
            {"op": "Color", "probability": 1.0, "magnitude": [0.2, 0.9]},
        ],
    }


def test_numbers_come_back_to_the_last_bit():
    rows = [[("Rotate", 1 / 3, 0.1 + 0.2)], [("Color", math.pi / 4, (1e-17, 2 / 3))]]
    policy = Policy.from_rows(rows)
    read = Policy.from_json(policy.to_json())
    assert [step for s in read.subpolicies for step in s.ops] == [
        PolicyOp(*step) for row in rows for step in row
    ]


def test_equal_means_does_the_same():
    policy = a_policy()
    assert dataclasses.replace(policy, provenance={}) == policy
    assert dataclasses.replace(policy, space="paper") != policy
    other = (SubPolicy(0.25, (PolicyOp("Rotate", 0.57, 0.54),)), *policy.subpolicies[1:])
    assert dataclasses.replace(policy, subpolicies=other) != policy


def test_a_policy_does_not_change():
    policy = a_policy()
    for thing, name in (
        (policy, "space"),
        (policy.subpolicies[0], "weight"),
        (policy.subpolicies[0].ops[0], "probability"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, 0.5)
    assert isinstance(policy.subpolicies, tuple) and isinstance(policy.subpolicies[0].ops, tuple)


def test_rows_of_another_form_are_refused_in_words():
    with pytest.raises(ValueError, match=r"^`rows` should be a list of sub-policies"):
        Policy.from_rows([("Rotate", 1.0, 0.5)])


def test_the_old_name_of_from_rows_warns():
    rows = [[("Rotate", 0.5, 0.25)], [("Invert", 1.0, 0.0)]]
    with pytest.warns(DeprecationWarning, match=r"Policy.uniform\(rows\) is now Policy.from_rows"):
        old = Policy.uniform(rows, "strength", name="mine")
    new = Policy.from_rows(rows, "strength", name="mine")
    assert old == new and old.provenance == new.provenance == {"name": "mine"}


def test_a_run_directory_holds_its_policy(tmp_path):
    a_policy().save(tmp_path / "policy.json")
    assert Policy.load(tmp_path) == a_policy()


def test_a_directory_without_one_is_named(tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}: no policy.json in this dir")):
        Policy.load(tmp_path)


def test_a_search_that_has_not_finished_has_no_policy_yet(tmp_path):
    a_policy().save(tmp_path / "unfinished-policy.json")
    says = f"{tmp_path}: the search there has not finished; `dada search ... --resume` continues it"
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        Policy.load(tmp_path)
    named = re.search(r"(\S+) is its policy so far", str(error.value))
    assert Policy.load(named[1]) == a_policy()
    empty = Policy(())
    empty.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path) == empty, "the result counts, wherever it comes from"


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    a_policy().save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        dataclasses.replace(a_policy(), provenance={"loss": math.nan}).save(path)
    assert path.read_bytes() == before

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full_disk)  # when the text is written beside, not yet renamed
        with pytest.raises(OSError, match="No space left"):
            Policy.load("dada-cifar10").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OSError, match="no/such"):
        a_policy().save(tmp_path / "no" / "such" / "p.json")


# --- mistakes in it -----------------------------------------------------------------------------


def text_with(change) -> str:
    content = json.loads(a_policy().to_json())
    change(content)
    return json.dumps(content)


def put(*path_and_value):
    """A change of the content: put("subpolicies", 0, "weight", 2.0)."""
    *path, last, value = path_and_value

    def change(content):
        for key in path:
            content = content[key]
        content[last] = value

    return change


def drop(*path):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


STEP = ("subpolicies", 0, "ops", 1)
MALFORMED = {
    "NaN in provenance": (put("provenance", {"a": [math.nan]}), "not JSON: NaN is not a number"),
    "beyond floats": (put(*STEP, "magnitude", 10**400), "401 digits is too large"),
    "half a character": (put("provenance", {"name": "\ud800"}), "half of a character"),
    "a key twice": ('{"format": "dada-policy", "format": "x"}', "'format' is there twice"),
    "not JSON": ("{", "not JSON: "),
    "empty": ("", "not JSON: "),
    "a list": ("[]", 'not a policy file: "format" should be "dada-policy"'),
    "a number": ("1", 'not a policy file: "format" should be "dada-policy"'),
    "nested too deeply": ("[" * 200_000, "not JSON: nested too deeply"),
    "another format": (put("format", "timm"), '"format" should be "dada-policy"'),
    "format missing": (drop("format"), '"format" should be "dada-policy"'),
    "version 2": (put("version", 2), "version 2 is newer than this program reads (1); pip install"),
    "version 0": (put("version", 0), "version should be 1, got 0"),
    "version true": (put("version", True), "version should be 1, got True"),
    "version as text": (put("version", "1"), "version should be 1, got '1'"),
    "version missing": (drop("version"), "version should be 1, got None"),
    "unknown field": (put("weights", []), "weights is not a field of this format"),
    "unknown field of a sub-policy": (
        put("subpolicies", 1, "name", "x"),
        "subpolicies[1].name is not a field of this format",
    ),
    "unknown field of an op": (
        put(*STEP, "level", 3),
        "subpolicies[0].ops[1].level is not a field of this format",
    ),
    "space missing": (drop("space"), "space is missing"),
    "sampling missing": (drop("sampling"), "sampling is missing"),
    "subpolicies missing": (drop("subpolicies"), "subpolicies is missing"),
    "weight missing": (drop("subpolicies", 0, "weight"), "subpolicies[0].weight is missing"),
    "ops missing": (drop("subpolicies", 0, "ops"), "subpolicies[0].ops is missing"),
    "op missing": (drop(*STEP, "op"), "subpolicies[0].ops[1].op is missing"),
    "probability missing": (drop(*STEP, "probability"), "[0].ops[1].probability is missing"),
    "magnitude missing": (drop(*STEP, "magnitude"), "[0].ops[1].magnitude is missing"),
    "probability 1.5": (
        put(*STEP, "probability", 1.5),
        "subpolicies[0].ops[1].probability should be a number in 0..1, got 1.5",
    ),
    "probability negative": (put(*STEP, "probability", -0.1), "in 0..1, got -0.1"),
    "probability NaN": (
        put(*STEP, "probability", math.nan),
        "not JSON: NaN is not a number of JSON",
    ),
    "probability a bool": (
        put(*STEP, "probability", True),
        "subpolicies[0].ops[1].probability should be a number in 0..1, got True",
    ),
    "probability as text": (put(*STEP, "probability", "0.5"), "probability should be a number in"),
    "probability null": (put(*STEP, "probability", None), "probability should be a number in"),
    "magnitude 2": (
        put(*STEP, "magnitude", 2),
        "subpolicies[0].ops[1].magnitude should be a number in 0..1, got 2",
    ),
    "magnitude falls": (
        put(*STEP, "magnitude", [0.9, 0.1]),
        "subpolicies[0].ops[1].magnitude [low, high] should rise, got [0.9, 0.1]",
    ),
    "magnitude of three": (
        put(*STEP, "magnitude", [0.1, 0.2, 0.3]),
        "subpolicies[0].ops[1].magnitude should be a number or [low, high]",
    ),
    "magnitude beyond": (put(*STEP, "magnitude", [0.5, 1.1]), "magnitude should be a number in 0"),
    "magnitude infinite": (put(*STEP, "magnitude", math.inf), "not JSON: Infinity is not"),
    "magnitude an object": (put(*STEP, "magnitude", {}), "magnitude should be a number in 0..1"),
    "weight negative": (
        put("subpolicies", 0, "weight", -0.25),
        "subpolicies[0].weight should be a number in 0..1, got -0.25",
    ),
    "weights of 0.9": (
        put("subpolicies", 1, "weight", 0.65),
        "weights should sum to 1, they sum to 0.9",
    ),
    "unequal under uniform": (
        put("sampling", "uniform"),
        "subpolicies[0].weight is 0.25, but sampling 'uniform' means 1/3 for all; use sampling 'w",
    ),
    "unknown op": (
        put(*STEP, "op", "Colour"),
        "subpolicies[0].ops[1].op: unknown op 'Colour'; the ops of space 'strength' are ShearX",
    ),
    "op not a name": (put(*STEP, "op", 3), "subpolicies[0].ops[1].op should be a name, got 3"),
    "unknown space": (put("space", "narrow"), "space should be one of paper, strength, wide"),
    "space a list": (put("space", ["paper"]), "space should be one of paper, strength, wide"),
    "unknown sampling": (put("sampling", "x"), "sampling should be one of uniform, weighted"),
    "sampling a list": (put("sampling", []), "sampling should be one of uniform, weighted, got []"),
    "subpolicies an object": (put("subpolicies", {}), "subpolicies should be a list"),
    "a sub-policy a list": (put("subpolicies", 0, []), "subpolicies[0] should be an object"),
    "ops an object": (put("subpolicies", 0, "ops", {}), "subpolicies[0].ops should be a list"),
    "a step a name": (put(*STEP, "Color"), "[0].ops[1] should be an object, got 'Color'"),
    "provenance a list": (put("provenance", []), "provenance should be an object"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MALFORMED)
def test_what_is_not_understood_is_refused_by_name(mistake, tmp_path):
    text, says = MALFORMED[mistake]
    text = text if isinstance(text, str) else text_with(text)
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        Policy.from_json(text)
    assert "\n" not in str(caught.value)
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        Policy.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "policy.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match=re.escape(f"{path}: ")):
        Policy.load(path)


def test_provenance_may_be_left_out():
    assert Policy.from_json(text_with(drop("provenance"))) == a_policy()


def test_an_unknown_name_lists_the_known():
    says = "no policy 'dada-cifar11': neither a file, nor a run directory, nor one of dada-cifar10"
    with pytest.raises(ValueError, match=says):
        Policy.load("dada-cifar11")


# --- published ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_policy(name):
    count, first, last = PUBLISHED[name]
    policy = Policy.load(name)
    assert len(policy.subpolicies) == count
    assert policy.space == "paper" and policy.sampling == "uniform"
    assert policy.provenance["name"] == name
    assert all(s.weight == pytest.approx(1 / count) for s in policy.subpolicies)
    assert policy.subpolicies[0].ops == tuple(PolicyOp(*step) for step in first)
    assert policy.subpolicies[-1].ops == tuple(PolicyOp(*step) for step in last)
    assert Policy.from_json(policy.to_json()) == policy
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    assert policy.transform(seed=0)(image).shape == image.shape


def test_the_published_file_is_all_there():
    assert set(published_policies()) == set(PUBLISHED)
    assert policy_module.names()[:7] == list(PUBLISHED)


@pytest.mark.parametrize("name", found_policies())
def test_a_policy_found_here(name):
    policy = Policy.load(name)
    facts = policy.provenance
    assert facts["name"] == name and facts["seed"] == 0 and name.startswith("found-")
    assert facts["data"]["fingerprint"] and facts["versions"] and facts["settings"]["base"]["flip"]
    assert name in policy_module.names() and Policy.from_json(policy.to_json()) == policy
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    assert policy.transform(seed=0)(image).shape == image.shape


def test_the_default_search_of_cifar10_ships():
    assert Policy.load("found-cifar10-dada").provenance["preset"] == "dada"


def test_fast_autoaugments_have_two_ops_each():
    for name in ("fastaa-cifar10", "fastaa-svhn", "fastaa-imagenet"):
        assert {len(s.ops) for s in Policy.load(name).subpolicies} == {2}


# --- free ones ----------------------------------------------------------------------------------


def test_none_leaves_the_image():
    policy = Policy.load("none")
    assert policy.subpolicies == () and policy.describe() == "no augmentation"
    assert Policy.from_json(policy.to_json()) == policy


@pytest.mark.parametrize(("name", "magnitude"), [("uniform", (0.0, 1.0)), ("init", 0.5)])
def test_uniform_and_init(name, magnitude):
    policy = Policy.load(name)
    pairs = [tuple(step.op for step in s.ops) for s in policy.subpolicies]
    assert pairs == list(SearchSpace.named("paper").subpolicies) and policy.space == "paper"
    steps = {(step.probability, step.magnitude) for s in policy.subpolicies for step in s.ops}
    assert steps == {(0.5, magnitude)}


def test_uniform_of_another_space():
    policy = baselines.uniform(SearchSpace.named("strength", exclude=["Invert"]))
    assert policy.space == "strength" and len(policy.subpolicies) == math.comb(14, 2)


def test_trivialaugment_does_one_op_or_none():
    policy = Policy.load("trivialaugment")
    assert policy.space == "wide" and len(policy.subpolicies) == 14
    assert [len(s.ops) for s in policy.subpolicies] == [0] + [1] * 13
    assert {s.ops[0].probability for s in policy.subpolicies[1:]} == {1.0}
    assert {s.ops[0].magnitude for s in policy.subpolicies[1:]} == {(0.0, 1.0)}


@pytest.mark.parametrize(
    ("name", "n", "m"), [("randaugment:2,0.3", 2, 0.3), ("randaugment", 1, 0.5)]
)
def test_randaugment_draws_every_op_every_time(name, n, m):
    policy = Policy.load(name)
    assert policy.space == "strength" and len(policy.subpolicies) == 15**n
    steps = {(step.probability, step.magnitude) for s in policy.subpolicies for step in s.ops}
    assert steps == {(1.0, m)}
    assert list(policy.op_probabilities().values()) == pytest.approx([n / 15] * 15)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("randaugment:2", "'randaugment:2': write randaugment:n,m such as randaugment:2,0.5"),
        ("randaugment:two,1", "'randaugment:two,1': write randaugment:n,m"),
        ("randaugment:0,0.5", "'randaugment:0,0.5': n should be 1, 2 or 3 and m in 0..1"),
        ("randaugment:1,9", "'randaugment:1,9': n should be 1, 2 or 3 and m in 0..1"),
        ("randaugment:1,nan", "'randaugment:1,nan': n should be 1, 2 or 3 and m in 0..1"),
        ("none:1", "no policy 'none:1'"),
    ],
)
def test_a_free_policy_misspelt(name, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Policy.load(name)


def test_the_page_lists_every_name():
    page = Path(__file__).parents[1] / "docs" / "policy-format.md"
    text = page.read_text(encoding="utf-8")
    assert [name for name in policy_module.names() if f"`{name}`" not in text] == []


def test_the_page_shows_a_file_that_loads():
    page = Path(__file__).parents[1] / "docs" / "policy-format.md"
    example = re.search(r"^```json\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    policy = Policy.from_json(example.group(1))
    assert [len(subpolicy.ops) for subpolicy in policy.subpolicies] == [2, 0]


def test_every_name_without_settings_loads():
    for name in policy_module.names():
        Policy.load(name.partition(":")[0])


# --- in words -----------------------------------------------------------------------------------


def test_the_first_row_of_dada_cifar10_in_words():
    line = Policy.load("dada-cifar10").describe().splitlines()[1]
    assert "TranslateX by +-7.2% of the width with probability 0.52" in line
    assert line.endswith(", then Rotate by +-1.8 degrees with probability 0.57")
    assert line.split()[:2] == ["1.", "4.00%"]


@pytest.mark.parametrize(
    ("space", "step", "words"),
    [
        ("paper", ("ShearX", 1.0, 0.0), "ShearX by +-0.30"),
        ("paper", ("Rotate", 1.0, 0.1), "Rotate by +-24.0 degrees"),
        ("paper", ("Rotate", 1.0, (0.4, 0.9)), "Rotate by +-0.0 to 24.0 degrees"),
        ("paper", ("Rotate", 1.0, (0.6, 0.9)), "Rotate by +-6.0 to 24.0 degrees"),
        ("paper", ("TranslateY", 1.0, 1.0), "TranslateY by +-45.0% of the height"),
        ("paper", ("Invert", 1.0, 0.3), "Invert"),
        ("paper", ("Solarize", 1.0, 0.42), "Solarize from grey level 107.5"),
        ("paper", ("Posterize", 1.0, 0.49), "Posterize to 5 bits"),
        ("paper", ("Color", 1.0, (0.0, 1.0)), "Color times 0.10 to 1.90"),
        ("paper", ("Cutout", 1.0, 0.5), "Cutout a square of 10.0% of the width"),
        ("strength", ("Color", 1.0, 0.5), "Color times 0.55 or 1.45"),
        ("strength", ("Color", 1.0, (0.0, 1.0)), "Color times 0.10 to 1.00 or 1.00 to 1.90"),
        ("strength", ("Rotate", 1.0, (0.0, 1.0)), "Rotate by +-0.0 to 30.0 degrees"),
        ("strength", ("Rotate", 1.0, 0.0), "Rotate by +-0.0 degrees"),
        ("strength", ("Posterize", 1.0, (0.0, 1.0)), "Posterize to 4 to 8 bits"),
        ("wide", ("TranslateX", 1.0, 0.5), "TranslateX by +-16.0 pixels"),
    ],
)  # fmt: skip
def test_a_step_in_words(space, step, words):
    assert Policy.from_rows([[step]], space).describe_op(PolicyOp(*step)) == words


def test_one_and_many():
    assert Policy.from_rows([[]]).describe().startswith("1 sub-policy, one drawn for every image")
    assert Policy.from_rows([[], []]).describe().startswith("2 sub-policies, one drawn for every")


def test_how_often_each_operation_is_done():
    shares = a_policy().op_probabilities()
    assert list(shares) == [op.name for op in ops.PAPER]
    done = {name: share for name, share in shares.items() if share}
    assert done == pytest.approx({"Rotate": 0.25 * 0.57, "Color": 0.25, "Invert": 0.075})


# --- from one space to another ------------------------------------------------------------------


def outcomes(policy: Policy) -> Counter:
    """How likely each sequence of (op, probability, value) is, signs of signed ops apart."""
    space, counted = SPACES[policy.space], Counter()
    for subpolicy in policy.subpolicies:
        sequences = [((), subpolicy.weight)]
        for step in subpolicy.ops:
            op = space.op(step.op)
            both = space.strengths and op.two_sided and not op.signed
            values = [space.value(op, step.magnitude, sign) for sign in ((1, -1) if both else (1,))]
            written = [None if v is None else (step.op, step.probability, v) for v in values]
            if not op.has_strength:  # the magnitude of an op without one means nothing
                written = [(step.op, step.probability)]
            sequences = [
                ((*done, new) if new else done, share / len(written))
                for done, share in sequences
                for new in written
            ]
        for sequence, share in sequences:
            counted[sequence] += round(share * 2**40)
    return counted


STRENGTH_POLICY = Policy.from_rows(
    [
        [("Color", 0.6, 0.37), ("Rotate", 0.5, 0.81)],
        [("Brightness", 0.9, 1.0), ("Sharpness", 0.3, 0.21)],
        [("Solarize", 1.0, 0.3), ("Posterize", 0.7, 0.6)],
        [("Cutout", 0.8, 0.9), ("Invert", 0.5, 0.0)],
        [("ShearX", 0.4, 0.0), ("Contrast", 1.0, 0.0)],
        [("Equalize", 0.2, 0.7)],
        [],
    ],
    "strength",
)


def test_strength_in_the_papers_space_is_the_same_policy():
    converted = STRENGTH_POLICY.to_space("paper")
    assert converted.space == "paper" and converted.sampling == "weighted"
    assert len(converted.subpolicies) == 2 + 4 + 1 + 1 + 1 + 1 + 1
    assert outcomes(converted) == outcomes(STRENGTH_POLICY)
    assert Policy.from_json(converted.to_json()) == converted
    for name, share in STRENGTH_POLICY.op_probabilities().items():
        if name not in ("ShearX", "Contrast"):  # strength 0: dropped, for it does nothing
            assert converted.op_probabilities()[name] == pytest.approx(share)


def test_one_draw_gives_the_same_bytes_in_both_spaces(images_BCHW):
    """Every sub-policy, every combination of directions, all ops fired."""
    strength, paper = SPACES["strength"], SPACES["paper"]
    generator = torch.Generator().manual_seed(0)
    for subpolicy in STRENGTH_POLICY.subpolicies:
        alone = Policy((SubPolicy(1.0, subpolicy.ops),), "strength").to_space("paper")
        seen = []
        for signs in torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * 2).tolist():
            center_BK2 = torch.rand(6, 2, 2, generator=generator).double() * 9
            expected = images_BCHW.cpu()
            for k, (step, sign) in enumerate(zip(subpolicy.ops, signs, strict=False)):
                value = strength.value(strength.op(step.op), step.magnitude, sign)
                if value is not None:
                    center = center_BK2[:, k]
                    expected = ops.apply(step.op, expected, value, center_B2=center)
            matches = 0
            for version in alone.subpolicies:
                result = images_BCHW.cpu()
                for step in version.ops:
                    k = [s.op for s in subpolicy.ops].index(step.op)
                    op = paper.op(step.op)
                    value = paper.value(op, step.magnitude, signs[k])
                    result = ops.apply(op, result, value, center_B2=center_BK2[:, k])
                matches += torch.equal(result, expected)
            seen.append(matches)
        assert min(seen) >= 1, [step.op for step in subpolicy.ops]


def test_ranges_keep_their_ends():
    policy = Policy.from_rows(
        [[("Color", 1.0, (0.2, 1.0)), ("Solarize", 1.0, (0.0, 0.5)), ("Rotate", 1.0, (0.0, 1.0))]],
        "strength",
    )
    darker, brighter = (s.ops for s in policy.to_space("paper").subpolicies)
    assert darker[0].magnitude == (0.0, pytest.approx(0.4))
    assert brighter[0].magnitude == (pytest.approx(0.6), 1.0)
    assert darker[1].magnitude == brighter[1].magnitude == (0.5, 1.0)
    assert darker[2].magnitude == (0.5, 1.0)


def test_a_policy_without_two_sided_ops_stays_uniform():
    policy = Policy.from_rows([[("Rotate", 0.5, 0.5)], [("Invert", 0.5, 0.5)]], "strength")
    assert policy.to_space("paper").sampling == "uniform"
    assert policy.to_space("strength") is policy


@pytest.mark.parametrize(("start", "end"), [("paper", "strength"), ("wide", "paper")])
def test_other_conversions_are_refused(start, end):
    policy = Policy.from_rows([[("Rotate", 0.5, 0.5)]], start)
    with pytest.raises(ValueError, match=f"space '{start}' cannot be written in space '{end}'"):
        policy.to_space(end)


def test_weights_that_sum_to_nothing_are_refused_however_many_they_are():
    nothing = SubPolicy(0.0, ())
    for sampling in ("weighted", "uniform"):
        with pytest.raises(ValueError, match="weights should sum to 1, they sum to 0"):
            Policy((nothing,) * 1_000_001, sampling=sampling)


def test_provenance_that_is_not_json_is_named_when_it_is_written():
    for content in (math.nan, object(), {1, 2}):
        with pytest.raises(ValueError, match="provenance cannot be written as JSON"):
            Policy((), provenance={"a": content}).to_json()


def test_numbers_of_numpy_are_numbers():
    step = PolicyOp("Rotate", np.float32(0.5), (np.float64(0), np.int64(1)))
    assert step == PolicyOp("Rotate", 0.5, (0.0, 1.0))
    assert type(step.probability) is float


def test_a_name_too_long_for_a_file_is_no_policy():
    with pytest.raises(ValueError, match=r"no policy 'xxx.*\.\.\.: neither a file"):
        Policy.load("x" * 5000)
