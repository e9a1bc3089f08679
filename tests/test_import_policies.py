"""Policies from other libraries: checked against what those libraries themselves do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dada.exchange.exports import export
from dada.exchange.exports.physical_policy import in_physical_units
from dada.exchange.imports import import_file, import_policy
from dada.policy import Policy, PolicyOp, SubPolicy


def steps_of(policy: Policy) -> list[list[tuple[str, float, list[float]]]]:
    """Physical units, with only the positive or larger of two directions."""
    return [
        [(step.op, step.probability, [max(ends) for ends in step.ranges]) for step in steps]
        for steps in in_physical_units(policy, "this test").subpolicies
    ]


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


# --- torchvision --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "svhn"])
def test_torchvision_policies_are_what_torchvision_does(name):
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    theirs = AutoAugment(AutoAugmentPolicy[name.upper()])
    side = 331
    magnitudes = theirs._augmentation_space(10, (side, side))
    policy = import_policy(name, "torchvision")
    assert len(policy.subpolicies) == len(theirs.policies) == 25
    assert policy.sampling == "uniform" and policy.space == "strength"
    for ours, subpolicy in zip(policy.subpolicies, theirs.policies, strict=True):
        assert [step.op for step in ours.ops] == [op for op, _, _ in subpolicy]
        assert [step.probability for step in ours.ops] == [p for _, p, _ in subpolicy]
        for step, (op, _, level) in zip(ours.ops, subpolicy, strict=True):
            alone = Policy((SubPolicy(1.0, (step,)),), policy.space)
            (ops,) = in_physical_units(alone, "this test").subpolicies
            if level is None or not ops:  # no strength, or a bin that does nothing
                continue
            wanted = float(magnitudes[op][0][level])
            got, *other = (start for start, _ in ops[0].ranges)
            if op.startswith("Translate"):
                assert got * side == pytest.approx(wanted, rel=0.01)
            elif op in ("Brightness", "Color", "Contrast", "Sharpness"):
                assert got - 1 == pytest.approx(wanted)
                assert other[0] - 1 == pytest.approx(-wanted)
            else:
                assert got == pytest.approx(wanted)


def test_what_is_only_near_is_said():
    notes = import_policy("AutoAugmentPolicy.CIFAR10", "torchvision").provenance["approximations"]
    assert notes[0] == "TranslateX of 0.4532 became 0.45, the range's end"
    assert "approximations" not in import_policy("svhn", "torchvision").provenance


def test_a_list_of_torchvisions_as_json(tmp_path):
    rows = [[["ShearX", 0.9, 4], ["Invert", 0.2, None]], [["Solarize", 1, 3]]]
    policy = import_policy(write(tmp_path / "p.json", rows), "torchvision")
    expected = [
        [("ShearX", 0.9, [pytest.approx(4 / 30), pytest.approx(-4 / 30)]), ("Invert", 0.2, [0.0])],
        [("Solarize", 1.0, [pytest.approx(170.0)])],
    ]
    assert steps_of(policy) == expected


@pytest.mark.parametrize(
    "rows, message",
    [
        ({"a": 1}, "should be a list of sub-policies"),
        ([["Invert", 0.5, None]], r"step 0 should be \[op, probability, magnitude\], got 'Invert'"),
        ([[["Swirl", 0.5, 3]]], "op 'Swirl' cannot be imported"),
        ([[["Rotate", 1.5, 3]]], r"probability should be in 0\.\.1, got 1\.5"),
        ([[["Rotate", True, 3]]], "True should be a number"),
        ([[["Rotate", 0.5, 10]]], r"Rotate needs a bin of 0\.\.9, got 10"),
        ([[["Rotate", 0.5, None]]], r"Rotate needs a bin of 0\.\.9, got None"),
    ],
)
def test_mistakes_in_a_list_are_named(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        import_policy(write(tmp_path / "p.json", rows), "torchvision")


# --- timm ---------------------------------------------------------------------------------------


def test_timm_original_is_what_timm_does():
    timm = pytest.importorskip("timm.data.auto_augment")
    policy = import_policy("original", "timm")
    theirs = timm.auto_augment_policy("original", hparams={})
    assert policy.space == "paper" and len(policy.subpolicies) == len(theirs)
    for steps, subpolicy in zip(steps_of(policy), theirs, strict=True):
        for (name, probability, values), op in zip(steps, subpolicy, strict=True):
            assert probability == op.prob and op.name.startswith(name)
            arguments = op.level_fn(op.magnitude, {}) if op.level_fn else ()
            if arguments:
                assert abs(values[0]) == pytest.approx(abs(arguments[0]), abs=1e-6)


def test_timm_rand_with_operations_left_out():
    """SolarizeAdd, and Posterize to 1 bit, are in no space; a person may leave them out."""
    with pytest.raises(ValueError, match="'SolarizeAdd' cannot be imported; `exclude` can leave"):
        import_policy("rand-m9-n2-mstd0.5-inc1", "timm")
    drop = ("SolarizeAdd", "PosterizeIncreasing")
    policy = import_policy("rand-m9-n2-mstd0.5-inc1", "timm", exclude=drop)
    assert len(policy.subpolicies) == 13**2 and policy.space == "strength"
    notes = " ".join(policy.provenance["approximations"])
    assert "mstd0.5" in notes and "left out, as asked: PosterizeIncreasing, SolarizeAdd" in notes
    ops = {step.op: step for subpolicy in policy.subpolicies for step in subpolicy.ops}
    assert ops["Rotate"].probability == 0.5
    low, high = ops["Rotate"].magnitude_range
    assert (low + high) / 2 == pytest.approx((0.9 - 0.05 * 3**0.5 + 0.9 + 0.05 * 3**0.5) / 2)
    assert high - low == pytest.approx(0.1 * 3**0.5, abs=1e-6)
    fixed = import_policy("rand-m5-n1-inc1", "timm", exclude=drop)
    assert {s.ops[0].magnitude for s in fixed.subpolicies if s.ops[0].op == "Color"} == {0.5}
    drawn = import_policy("rand-m5-n1-mstd101-inc1", "timm", exclude=drop)
    assert {s.ops[0].magnitude for s in drawn.subpolicies if s.ops[0].op == "Color"} == {(0, 0.5)}


@pytest.mark.parametrize(
    "name, message",
    [
        ("v0", "op 'SolarizeAdd' cannot be imported"),
        ("originalr", r"its Posterize takes 2\.\.8, not 1"),
        ("nonsense", "neither a file nor one of timm's policies"),
        ("augmix-m5-w4", "cannot be imported|not understood|neither a file"),
        ("rand-x9", "'x9' is not understood"),
        ("rand-m9-n7", "n7 gives too many sub-policies"),
        ("rand-m99-n1", r"takes a magnitude of 0\.\.10, got 99"),
    ],
)
def test_what_timm_says_and_a_policy_cannot_is_refused(name, message):
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match=message):
        import_policy(name, "timm", exclude=("SolarizeAdd",) if name == "rand-m99-n1" else ())


def test_a_list_of_timms_as_json(tmp_path):
    rows = [
        [["PosterizeOriginal", 0.4, 8], ["Rotate", 0.6, 9]],
        [["SolarizeAdd", 0.5, 1], ["Color", 0.1, 5]],
    ]
    file = write(tmp_path / "p.json", rows)
    with pytest.raises(ValueError, match="SolarizeAdd"):
        import_policy(file, "timm")
    policy = import_policy(file, "timm", exclude=["SolarizeAdd"])
    assert steps_of(policy) == [[("Posterize", 0.4, [7.0]), ("Rotate", 0.6, [27.0, -27.0])]]
    assert "1 of 2 sub-policies" in policy.provenance["approximations"][0]


# --- Albumentations -----------------------------------------------------------------------------


def transforms(text: str) -> Any:
    """The transforms of an export without those that do nothing, numbers to six digits."""

    def plain(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: plain(value) for key, value in node.items()}
        if isinstance(node, list):
            kept = [n for n in node if not (isinstance(n, dict) and "NoOp" in n.values())]
            return [plain(n) for n in kept]
        return pytest.approx(node, abs=1e-6) if isinstance(node, float) else node

    return plain(json.loads(text)["transform"])


@pytest.mark.parametrize(
    "name",
    [
        *("dada-cifar10", "dada-svhn", "fastaa-imagenet", "uniform", "init", "trivialaugment"),
        *("randaugment:2,0.3", "none"),
    ],
)
def test_an_export_to_albumentations_comes_back(tmp_path, name):
    policy = Policy.load(name)
    file = tmp_path / "p.json"
    file.write_text(policy.export("albumentations"))
    back = import_policy(str(file), "albumentations")
    assert back.space == policy.space and back.sampling == policy.sampling
    assert transforms(back.export("albumentations")) == transforms(file.read_text())


def test_a_policy_comes_back_the_same(tmp_path):
    policy = Policy(
        (
            SubPolicy(0.75, (PolicyOp("Rotate", 0.57, 0.53), PolicyOp("ShearX", 0.2, (0.6, 0.9)))),
            SubPolicy(0.2, (PolicyOp("Sharpness", 1.0, (0.2, 0.9)), PolicyOp("Cutout", 0.0, 0.3))),
            SubPolicy(0.05, ()),
        ),
        "paper",
        "weighted",
    )
    file = tmp_path / "p.json"
    file.write_text(export(policy, "albumentations"))
    back = import_policy(str(file), "albumentations")
    for one, two in zip(back.subpolicies, policy.subpolicies, strict=True):
        assert one.weight == pytest.approx(two.weight)
        for ours, theirs in zip(one.ops, two.ops, strict=True):
            assert (ours.op, ours.probability) == (theirs.op, theirs.probability)
            assert ours.magnitude_range == pytest.approx(theirs.magnitude_range, abs=1e-6)


def test_what_albumentations_itself_writes(tmp_path):
    A = pytest.importorskip("albumentations")
    rotate = A.Affine(rotate=(-20, 20), interpolation=0, p=0.5)
    chosen = A.OneOf([A.InvertImg(p=0.3), A.Equalize(mode="pil", p=0.1)], p=0.6)
    made = A.Compose([rotate, chosen])
    file = tmp_path / "p.json"
    file.write_text(json.dumps(A.to_dict(made)))
    policy = import_policy(str(file), "albumentations")
    weights = {tuple(s.op for s in sub.ops): sub.weight for sub in policy.subpolicies}
    expected = {("Rotate", "Invert"): 0.45, ("Rotate", "Equalize"): 0.15, ("Rotate",): 0.4}
    assert weights == pytest.approx(expected)
    assert policy.op_probabilities()["Rotate"] == pytest.approx(0.5)
    assert steps_of(policy)[0][0] == ("Rotate", 0.5, [pytest.approx(20.0)])


def node(name: str, **arguments: Any) -> dict[str, Any]:
    return {"transform": {"__class_fullname__": name, "p": 1.0, **arguments}}


@pytest.mark.parametrize(
    "content, message",
    [
        ([1], '"transform" is missing'),
        (node("GridDistortion"), "transform GridDistortion cannot be imported"),
        (node("Affine", rotate=[5, 5]), "should have interpolation 0"),
        (node("Affine", rotate=[5, 5], scale=2.0, interpolation=0), "scale cannot be imported"),
        (node("Affine", rotate=[5, 5], interpolation=0), "it has no Rotate of 5"),
        (node("ColorJitter", hue=[0.1, 0.1]), "hue"),
        (node("Solarize"), "not understood: KeyError"),
        (node("Compose", transforms=7), "not understood: TypeError"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        import_policy(write(tmp_path / "p.json", content), "albumentations")


# --- files --------------------------------------------------------------------------------------


def test_a_python_file_is_never_run(tmp_path):
    trap = tmp_path / "policy.py"
    trap.write_text("import pathlib; pathlib.Path('ran').touch()\n")
    for source in ("torchvision", "timm", "albumentations"):
        with pytest.raises(ValueError, match=r"policy\.py: not JSON .* never run"):
            import_policy(str(trap), source)
    assert not Path("ran").exists()


def test_mistakes_with_files(tmp_path):
    with pytest.raises(ValueError, match="neither a file nor one of cifar10, imagenet, svhn"):
        import_policy("mnist", "torchvision")
    with pytest.raises(ValueError, match="no import from 'keras'; the sources are torchvision"):
        import_policy("x", "keras")
    out = tmp_path / "new" / "p.json"
    policy = import_file("svhn", "torchvision", out)
    assert Policy.load(out) == policy
    with pytest.raises(ValueError, match="exists already"):
        import_file("svhn", "torchvision", out)
    import_file("imagenet", "torchvision", out, force=True)
    assert Policy.load(out) != policy


def test_the_commands(tmp_path, monkeypatch, capsys):
    from dada.terminal.commands import main

    def dada(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dada", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        written = capsys.readouterr()
        return int(end.value.code or 0), written.out, written.err

    monkeypatch.chdir(tmp_path)
    code, out, err = dada("import", "cifar10", "--from", "torchvision")
    assert (code, out) == (0, "wrote policy.json: 25 sub-policies, space strength\n")
    assert "approximated: TranslateX" in err
    export_it = ("export", "policy.json", "--to", "albumentations", "--out", "a.json")
    assert dada(*export_it) == (0, "wrote a.json\n", "")
    refused = "dada: a.json: exists already; choose another --out or pass --force\n"
    assert dada(*export_it) == (2, "", refused)
    assert dada(*export_it, "--force")[0] == 0


HOSTILE = {
    "albumentations": [
        node("GaussianBlur", blur_limit=[3, 3], sigma_limit=[0, 0]),
        node("OneOf", transforms=[]),
        node("OneOf", transforms=[node("NoOp", p=0)["transform"]] * 2),
        node("Compose", transforms=[5]),
        node("Posterize", num_bits=10**290),
        node("InvertImg") | {"transform": {"__class_fullname__": "InvertImg", "p": "nan"}},
        node("Affine", rotate={"a": 1}, interpolation=0),
    ],
    "torchvision": [
        [[["Rotate", 10**400, 1]]],
        [[["Rotate", 1, 10**300]]],
        [[]] * 3,
        [[[1, 2, 3]]],
    ],
    "timm": [[[["Rotate", 0.5, 10**400]]], [[["Rotate", 0.5, -(10**300)]]], {"a": 1}],
}


@pytest.mark.parametrize("source", HOSTILE)
def test_whatever_is_in_a_file_is_a_policy_or_one_line(tmp_path, source):
    for number, content in enumerate(HOSTILE[source]):
        try:
            policy = import_policy(write(tmp_path / f"{number}.json", content), source)
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) < 700
        else:
            assert Policy.from_json(policy.to_json()) == policy


@pytest.mark.parametrize("name", [f"rand-n{9**40}", f"rand-m{'9' * 400}", "rand-n0", "x" * 5000])
def test_numbers_of_any_size_in_a_name(name):
    with pytest.raises(ValueError, match=r"n should be 1 to 20|0\.\.10|neither a file"):
        import_policy(name, "timm")
