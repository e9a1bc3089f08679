"""The free policies mean what their originals mean: torchvision's own classes, byte by byte."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as tv
from torchvision.transforms import autoaugment as tv_auto
from torchvision.transforms import functional as tvf

from dada import ops
from dada.config import BASES, Base
from dada.policy import Policy, baselines
from dada.policy.space import SPACES, SearchSpace

NEAREST = tv.InterpolationMode.NEAREST


@pytest.fixture(scope="module")
def photos() -> dict[int, list[Image.Image]]:
    """Two RGB images and a grey one of each side: noise on ramps, so that histograms are uneven."""
    made = {}
    for side in (32, 224):
        generator = np.random.default_rng(side)
        ramp = np.linspace(20, 200, side)[:, None, None] + np.linspace(0, 40, side)[None, :, None]
        noisy = [np.clip(ramp + generator.normal(0, 25, (side, side, 3)), 0, 255) for _ in "ab"]
        rgb = [Image.fromarray(pixels.astype(np.uint8)) for pixels in noisy]
        made[side] = [*rgb, rgb[0].convert("L")]
    return made


def as_batch(image: Image.Image) -> torch.Tensor:
    return tvf.pil_to_tensor(image).unsqueeze(0)


def done_by_torchvision(image: Image.Image, op: str, magnitude: float) -> torch.Tensor:
    return as_batch(tv_auto._apply_op(image, op, magnitude, NEAREST, None))


def done_by_us(image: Image.Image, space: SearchSpace, op: str, strength: float, sign: int):
    value = space.value(space.op(op), strength, sign)
    if value is None:
        return as_batch(image)
    return ops.apply(space.op(op), as_batch(image), value)


def our_sign(op: str, theirs: int) -> int:
    """torchvision shifts right and down where the value is positive; Pillow's matrix, left."""
    return -theirs if op.startswith("Translate") else theirs


def assert_same(got: torch.Tensor, expected: torch.Tensor, *, by_a_hair: bool, what: object):
    """The same bytes; or, `by_a_hair`, one grey level more or less in one of a hundred.

    torchvision's levels are single precision. 1 - 0.3 is there 0.70000001788, half way between two
    of the numbers Pillow blends with, and falls to the one side for them, to the other for us.
    """
    if by_a_hair:
        differs = (got.int() - expected.int()).abs()
        assert differs.max() <= 1 and differs.float().mean() <= 0.01, what
    else:
        assert torch.equal(got, expected), what


def is_half_way(op: str, strength: float, sign: int) -> bool:
    factors = ("Contrast", "Color", "Brightness", "Sharpness")
    return op in factors and sign < 0 and abs(strength - 1 / 3) < 1e-6


# --- AutoAugment --------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [32, 224])
def test_every_op_of_autoaugment_at_every_level_gives_torchvisions_bytes(photos, side):
    reference = tv.AutoAugment(tv.AutoAugmentPolicy.CIFAR10)
    levels = reference._augmentation_space(10, (side, side))
    strength = SPACES["strength"]
    compared = 0
    for op, (magnitudes, signed) in levels.items():
        for magnitude in magnitudes.reshape(-1).tolist():
            ours = baselines._strength(strength.op(op), magnitude, side)
            for sign in (1, -1) if signed else (1,):
                for image in photos[side]:
                    expected = done_by_torchvision(image, op, magnitude * sign)
                    got = done_by_us(image, strength, op, ours, our_sign(op, sign))
                    half_way = is_half_way(op, ours, sign)
                    what = (op, magnitude, sign, image.mode)
                    assert_same(got, expected, by_a_hair=half_way, what=what)
                    compared += 1
    assert compared == 3 * (9 * 10 * 2 + 2 * 10 + 3)


@pytest.mark.parametrize("data", ["cifar10", "svhn", "imagenet"])
def test_autoaugment_is_torchvisions_table(data):
    policy = Policy.load(f"autoaugment:{data}")
    reference = tv.AutoAugment(tv.AutoAugmentPolicy(data))
    assert policy.space == "strength" and policy.sampling == "uniform"
    assert len(policy.subpolicies) == len(reference.policies) == 25
    for ours, theirs in zip(policy.subpolicies, reference.policies, strict=True):
        assert [(s.op, s.probability) for s in ours.ops] == [(op, p) for op, p, _ in theirs]
    assert Policy.from_json(policy.to_json()) == policy
    assert json.loads(policy.to_json())["provenance"]["name"] == f"autoaugment:{data}"
    assert len(policy.to_space("paper").subpolicies) >= 25  # so that it can be exported


@pytest.mark.parametrize(("data", "side"), [("cifar10", 32), ("svhn", 32), ("imagenet", 224)])
def test_whole_subpolicies_of_autoaugment_give_torchvisions_bytes(photos, data, side, monkeypatch):
    """Everything fires, one direction after the other: only the draw is taken from torchvision."""
    policy, reference = (
        Policy.load(f"autoaugment:{data}"),
        tv.AutoAugment(tv.AutoAugmentPolicy(data)),
    )
    space, image, compared = SPACES["strength"], photos[side][0], 0
    for index, subpolicy in enumerate(policy.subpolicies):
        for sign in (1, -1):
            signs = torch.tensor([sign > 0] * 2).long()
            drawn = (index, torch.zeros(2), signs)
            monkeypatch.setattr(reference, "get_params", lambda count, drawn=drawn: drawn)
            expected = as_batch(reference(image))
            got = as_batch(image)
            for step in subpolicy.ops:
                op = space.op(step.op)
                value = space.value(op, step.magnitude, our_sign(step.op, sign))
                if value is not None and step.probability > 0:
                    got = ops.apply(op, got, value)
            half_way = any(is_half_way(step.op, step.magnitude, sign) for step in subpolicy.ops)
            if all(step.probability for step in subpolicy.ops):  # a draw of 0 fires at 0 in theirs
                assert_same(got, expected, by_a_hair=half_way, what=(index, subpolicy))
                compared += 1
    assert compared >= 2 * 24


def test_a_level_becomes_a_value():
    words = Policy.load("autoaugment:cifar10").describe()
    assert "TranslateX by +-43.8% of the width" in words  # 14 of 32 pixels
    assert "Rotate by +-6.7 degrees with probability 0.70" in words  # level 2: 30 x 2/9
    assert "Posterize to 5 bits" in words and "Color times 0.10 or 1.90" in words
    assert "Solarize from grey level 198.3" in words  # level 2: 255 x 7/9


@pytest.mark.parametrize(
    ("data", "size", "expected"),
    [
        ("svhn:root", (32, 32), "autoaugment:svhn"),
        ("svhn-extra:root", (32, 32), "autoaugment:svhn"),
        ("cifar100:root", (32, 32), "autoaugment:cifar10"),
        ("photos", (64, 64), "autoaugment:cifar10"),
        ("photos", (64, 65), "autoaugment:imagenet"),
    ],
)
def test_autoaugment_alone_goes_by_the_data(tmp_path, monkeypatch, data, size, expected):
    monkeypatch.chdir(tmp_path)
    assert baselines.name_for_data("autoaugment", data, size) == expected
    for given in ("uniform", "autoaugment:imagenet"):
        assert baselines.name_for_data(given, data, size) == given
    Policy(()).save("autoaugment")  # a file of that name goes first, as for every other name
    name = baselines.name_for_data(Path("autoaugment"), data, size)
    assert Policy.load(name) == Policy(())


@pytest.mark.parametrize("name", ["autoaugment:cifar100", "autoaugment:"])
def test_an_autoaugment_that_is_not(name):
    says = f"{name!r}: there are autoaugment:cifar10, autoaugment:svhn, autoaugment:imagenet"
    with pytest.raises(ValueError, match=re.escape(says)):
        Policy.load(name)


# --- TrivialAugment and RandAugment -------------------------------------------------------------


def test_every_op_of_trivialaugment_at_torchvisions_31_levels(photos):
    """At the same value the same bytes; shifts where the value is a whole number of pixels."""
    wide = SPACES["wide"]
    levels = tv.TrivialAugmentWide()._augmentation_space(31)
    assert set(levels) - {"Identity"} == {op.name for op in wide.ops}
    for name, (magnitudes, signed) in levels.items():
        for magnitude in magnitudes.reshape(-1).tolist() if name != "Identity" else []:
            if name.startswith("Translate"):
                magnitude = float(int(magnitude))  # torchvision drops the fraction
            for sign in (1, -1) if signed else (1,):
                op = wide.op(name)
                value = our_sign(name, sign) * magnitude
                value = 1 + value if signed and not op.signed else value
                expected = done_by_torchvision(photos[32][0], name, magnitude * sign)
                got = ops.apply(op, as_batch(photos[32][0]), value)
                assert torch.equal(got, expected), (name, magnitude, sign)


def test_trivialaugment_reaches_torchvisions_strongest():
    levels = tv.TrivialAugmentWide()._augmentation_space(31)
    for op in SPACES["wide"].ops:
        if op.has_strength:
            strongest = float(levels[op.name][0][-1])
            factor = op.two_sided and not op.signed
            ours = SPACES["wide"].value(op, 1.0, 1.0)
            assert ours == pytest.approx(1 + strongest if factor else strongest), op.name


def test_randaugment_does_what_torchvision_does_at_the_same_strength(photos):
    """Magnitude 9 of 31 levels (0..30) is strength 0.3; the list of operations differs."""
    strength = SPACES["strength"]
    levels = tv.RandAugment()._augmentation_space(31, (32, 32))
    shared = set(levels) & {op.name for op in strength.ops}
    assert {op.name for op in strength.ops} - shared == {"Invert", "Cutout"}
    assert set(levels) - shared == {"Identity"}
    for name in sorted(shared - {"TranslateX", "TranslateY", "Solarize", "Posterize"}):
        magnitudes, signed = levels[name]
        magnitude = float(magnitudes[9]) if magnitudes.ndim else 0.0
        for sign in (1, -1) if signed else (1,):
            expected = done_by_torchvision(photos[32][1], name, magnitude * sign)
            got = done_by_us(photos[32][1], strength, name, 0.3, sign)
            assert torch.equal(got, expected), name


# --- none and cutout ----------------------------------------------------------------------------


def test_cutout_is_the_policy_without_operations():
    policy = Policy.load("cutout")
    assert policy == Policy.load("none") and policy.provenance["name"] == "cutout"


@pytest.mark.parametrize(
    ("name", "base", "size", "expected"),
    [
        ("none", BASES["cifar10"], (32, 32), Base(crop=4, flip=True)),
        ("cutout", BASES["cifar10"], (32, 32), Base(crop=4, flip=True, cutout=16)),
        ("cutout", BASES["svhn"], (32, 32), Base(crop=4, flip=True, cutout=20)),
        ("cutout", Base(), (8, 8), Base(cutout=4)),
        ("cutout", Base(flip=True), (48, 64), Base(flip=True, cutout=24)),
        ("cutout", Base(), (1, 9), Base(cutout=1)),
        ("dada-cifar10", BASES["cifar10"], (32, 32), BASES["cifar10"]),
        ("uniform", Base(), (8, 8), Base()),
    ],
)
def test_what_is_done_besides_a_policy(name, base, size, expected):
    assert baselines.base_for(name, base, size) == expected


def test_which_policies_are_free():
    free = ["none", "cutout", "uniform", "randaugment:2,0.5", "autoaugment:svhn", "autoaugment"]
    assert all(map(baselines.is_free, free))
    assert not any(map(baselines.is_free, ["dada-cifar10", "fastaa-svhn", "runs/photos", "p.json"]))
