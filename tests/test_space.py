"""Spaces: how many sub-policies, what a magnitude means, and that both ways of asking agree."""

from __future__ import annotations

import math
import re

import pytest
import torch

from dada import ops
from dada.ops import Op
from dada.policy import Policy
from dada.policy.augment import PolicyTables, augment
from dada.policy.draw import Draw
from dada.policy.space import SPACES, SearchSpace, register

MAGNITUDES = [0.0, 0.1, 0.25, 0.5, 0.53, 0.9, 1.0]


@pytest.mark.parametrize(("k", "count"), [(1, 15), (2, 105), (3, 455)])
def test_all_combinations(k, count):
    space = SearchSpace.named("paper", ops_per_subpolicy=k)
    assert space.num_subpolicies == count == math.comb(15, k)
    assert len({frozenset(names) for names in space.subpolicies}) == count
    assert space.op_index_NK.shape == (count, k)
    for names, row in zip(space.subpolicies, space.op_index_NK.tolist(), strict=True):
        assert names == tuple(space.ops[i].name for i in row)


def test_the_order_is_fixed():
    """Learned parameters are stored by position: a new order would change what they mean."""
    space = SearchSpace.named("paper")
    assert space.subpolicies[0] == ("ShearX", "ShearY")
    assert space.subpolicies[14] == ("ShearY", "TranslateX")
    assert space.subpolicies[104] == ("Sharpness", "Cutout")


# Each row: op, then its value at magnitude 0, 0.5 and 1 (sign +1).
PAPER_VALUES = {
    "ShearX": (-0.3, 0.0, 0.3),
    "ShearY": (-0.3, 0.0, 0.3),
    "TranslateX": (-0.45, 0.0, 0.45),
    "TranslateY": (-0.45, 0.0, 0.45),
    "Rotate": (-30.0, 0.0, 30.0),
    "Solarize": (0.0, 128.0, 256.0),
    "Posterize": (4.0, 6.0, 8.0),
    "Contrast": (0.1, 1.0, 1.9),
    "Color": (0.1, 1.0, 1.9),
    "Brightness": (0.1, 1.0, 1.9),
    "Sharpness": (0.1, 1.0, 1.9),
    "Cutout": (0.0, 0.1, 0.2),
}
# The same in `strength`, where 0 is nothing.
STRENGTH_VALUES = {
    "ShearX": (None, 0.15, 0.3),
    "ShearY": (None, 0.15, 0.3),
    "TranslateX": (None, 0.225, 0.45),
    "TranslateY": (None, 0.225, 0.45),
    "Rotate": (None, 15.0, 30.0),
    "Solarize": (None, 128.0, 0.0),
    "Posterize": (None, 6.0, 4.0),
    "Contrast": (None, 1.45, 1.9),
    "Color": (None, 1.45, 1.9),
    "Brightness": (None, 1.45, 1.9),
    "Sharpness": (None, 1.45, 1.9),
    "Cutout": (None, 0.1, 0.2),
}


@pytest.mark.parametrize(
    ("space_name", "values"), [("paper", PAPER_VALUES), ("strength", STRENGTH_VALUES)]
)
def test_what_a_magnitude_means(space_name, values):
    space = SearchSpace.named(space_name)
    assert set(values) == {op.name for op in space.ops if op.has_strength}
    for name, expected in values.items():
        at = [space.value(space.op(name), m, 1.0) for m in (0.0, 0.5, 1.0)]
        assert at == pytest.approx(expected), name


def test_which_directions_are_drawn():
    """In `paper` five ops are negated; in `strength` nine go either way about their neutral."""
    turned = {"paper": [], "strength": []}
    for space_name, names in turned.items():
        space = SearchSpace.named(space_name)
        for op in space.ops:
            plus, minus = (space.value(op, 0.8, sign) for sign in (1.0, -1.0))
            if plus != minus:
                names.append(op.name)
                centre = op.neutral
                assert plus - centre == pytest.approx(centre - minus), op.name
    assert turned["paper"] == ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]
    enhancers = ["Contrast", "Color", "Brightness", "Sharpness"]
    assert turned["strength"] == turned["paper"] + enhancers


def test_wide_is_trivialaugments():
    space = SearchSpace.named("wide")
    strongest = {op.name: space.value(op, 1.0, 1.0) for op in space.ops if op.has_strength}
    assert strongest == pytest.approx(
        {
            "ShearX": 0.99,
            "ShearY": 0.99,
            "TranslateX": 32,
            "TranslateY": 32,
            "Rotate": 135,
            "Solarize": 0,
            "Posterize": 2,
            "Contrast": 1.99,
            "Color": 1.99,
            "Brightness": 1.99,
            "Sharpness": 1.99,
        }
    )
    assert "Invert" not in {op.name for op in space.ops}


def test_wide_shifts_by_pixels_whatever_the_size():
    for side in (64, 100):
        images = torch.full((1, 1, side, side), 200, dtype=torch.uint8)
        op = SearchSpace.named("wide").op("TranslateX")
        moved = ops.apply(op, images, 20.0)
        assert (moved[0, 0] == 0).all(0).sum() == 20


@pytest.mark.parametrize("space_name", SPACES)
def test_tensors_and_numbers_agree(space_name):
    """decide() in a batch and value() for one image are the same to the last bit."""
    space = SearchSpace.named(space_name)
    rows = [
        (i, m, sign, fires)
        for i in range(len(space.ops))
        for m in MAGNITUDES
        for sign in (1.0, -1.0)
        for fires in (True, False)
    ]
    index, magnitude, sign, fires = (torch.tensor(column) for column in zip(*rows, strict=True))
    magnitude = torch.tensor([row[1] for row in rows], dtype=torch.float64)
    done, value = space.decide(index, fires, magnitude, sign)
    for row, chosen, number in zip(rows, done.tolist(), value.tolist(), strict=True):
        expected = space.value(space.ops[row[0]], row[1], row[2]) if row[3] else None
        assert chosen == (ops.NO_OP if expected is None else row[0]), row
        if expected is not None:
            assert number == expected, row


def test_no_op_stays_none():
    """Shorter sub-policies are filled up with NO_OP, even where `apply` says yes."""
    for name in SPACES:
        index = torch.full((4,), ops.NO_OP)
        ones = torch.ones(4)
        done, _ = SearchSpace.named(name).decide(index, ones.bool(), ones, ones)
        assert done.tolist() == [ops.NO_OP] * 4


@pytest.mark.parametrize("space_name", ["strength", "wide"])
def test_strength_zero_is_nothing_at_all(space_name, images_BCHW):
    """Even Cutout, whose empty square would be one pixel; one image and a batch."""
    for op in SPACES[space_name].ops:
        if op.has_strength:
            transform = Policy.from_rows([[(op.name, 1.0, 0.0)]], space_name).transform(seed=0)
            assert torch.equal(transform(images_BCHW), images_BCHW), op.name
            assert torch.equal(transform(images_BCHW[0]), images_BCHW[0]), op.name
            strong = Policy.from_rows([[(op.name, 1.0, 1.0)]], space_name).transform(seed=0)
            assert not torch.equal(strong(images_BCHW), images_BCHW), op.name


def test_a_small_strength_is_a_small_change():
    """No op of `strength` or `wide` jumps just above zero, Cutout's one pixel apart."""
    smooth = (
        (torch.arange(40 * 40).view(1, 1, 40, 40) // 8 + 50).to(torch.uint8).expand(1, 3, -1, -1)
    )
    white = torch.full((1, 3, 40, 40), 255, dtype=torch.uint8)
    for space_name in ("strength", "wide"):
        for op in SPACES[space_name].ops:
            if op.has_strength:
                value = SPACES[space_name].value(op, 1e-3, 1.0)
                for images in (smooth, white):
                    change = (ops.apply(op, images, value).int() - images.int()).abs()
                    assert change.float().mean() <= 1.5, (space_name, op.name)


def test_without():
    space = SearchSpace.named("paper", exclude=["Invert", "Cutout"])
    assert [op.name for op in space.ops] == [
        op.name for op in ops.PAPER if op.name not in ("Invert", "Cutout")
    ]
    assert space.num_subpolicies == math.comb(13, 2)
    assert space.without(["Rotate"]).num_subpolicies == math.comb(12, 2)
    assert SearchSpace.named("paper").num_subpolicies == 105


def test_all_but_one_may_be_excluded():
    names = [op.name for op in ops.PAPER[1:]]
    space = SearchSpace.named("paper", ops_per_subpolicy=1, exclude=names)
    assert space.subpolicies == (("ShearX",),)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: SearchSpace.named("papr"), "unknown space 'papr'; the spaces are paper, strength"),
        (lambda: SearchSpace.named(exclude=["Invrt"]), "unknown op 'Invrt'; the ops of space"),
        (
            lambda: SearchSpace.named(exclude=[op.name for op in ops.PAPER[1:]]),
            "ops_per_subpolicy should be between 1 and the 1 ops of the space, got 2",
        ),
        (
            lambda: SearchSpace.named(ops_per_subpolicy=0),
            "ops_per_subpolicy should be between 1 and the 15 ops of the space, got 0",
        ),
        (
            lambda: SearchSpace.named(ops_per_subpolicy=16),
            "ops_per_subpolicy should be between 1 and the 15 ops of the space, got 16",
        ),
        (lambda: SPACES["wide"].op("Invert"), "unknown op 'Invert'; the ops of space 'wide' are"),
        (lambda: register("paper", ops.PAPER), "a space named 'paper' exists already"),
        (
            lambda: register("twice", [ops.PAPER[0], ops.PAPER[0]]),
            "space 'twice' holds an op twice: ShearX, ShearX",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(call, says):
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert "twice" not in SPACES


def test_register():
    darker = Op(name="Darker", kernel=lambda images, value_B, center_B2: images // 2)
    try:
        register("mine", [*ops.PAPER[:3], darker], strengths=False)
        space = SearchSpace.named("mine", ops_per_subpolicy=2)
        assert space.num_subpolicies == 6
        assert ("ShearX", "Darker") in space.subpolicies
        policy = Policy.from_rows([[("Darker", 1.0, 0.3)]], "mine")
        assert "Darker with probability 1.00" in policy.describe()
    finally:
        del SPACES["mine"]


# --- a draw, applied ----------------------------------------------------------------------------


def test_augment_does_what_the_draw_says(images_BCHW):
    space = SearchSpace.named("paper")
    pair = space.subpolicies.index(("Rotate", "Invert"))
    b, device = len(images_BCHW), images_BCHW.device
    magnitude_NK = torch.full((105, 2), 0.5, device=device)
    magnitude_NK[pair] = 0.9
    draw = Draw(
        subpolicy_B=torch.full((b,), pair, device=device),
        apply_BK=torch.tensor(
            [[1, 1], [1, 0], [0, 1], [0, 0], [1, 1], [1, 0]], device=device
        ).bool(),
        sign_BK=torch.tensor([[1, 1]] * 3 + [[-1, -1]] * 3, device=device).float(),
        center_BK2=torch.full((b, 2, 2), 0.5, device=device),
    )
    done = augment(images_BCHW, space, draw, magnitude_NK)
    value = -30 + magnitude_NK[pair, 0].double() * 60
    for i, (rotated, inverted) in enumerate(draw.apply_BK.tolist()):
        expected = images_BCHW[i : i + 1]
        if rotated:
            expected = ops.apply("Rotate", expected, value * draw.sign_BK[i, 0])
        if inverted:
            expected = ops.apply("Invert", expected, 0.0)
        assert torch.equal(done[i : i + 1], expected), i


def test_a_drawn_magnitude_goes_before_the_sub_policys_own(images_BCHW):
    space = SearchSpace.named("strength", ops_per_subpolicy=1)
    b, device = len(images_BCHW), images_BCHW.device
    brightness = space.subpolicies.index(("Brightness",))
    draw = Draw(
        subpolicy_B=torch.full((b,), brightness, device=device),
        apply_BK=torch.ones(b, 1, dtype=torch.bool, device=device),
        sign_BK=-torch.ones(b, 1, device=device),
        center_BK2=torch.zeros(b, 1, 2, device=device),
        magnitude_BK=torch.full((b, 1), 1.0, device=device),
    )
    done = augment(images_BCHW, space, draw, torch.zeros(15, 1, device=device))
    assert torch.equal(done, ops.apply("Brightness", images_BCHW, 0.1))


def test_a_draw_without_magnitudes_needs_them(images_BCHW):
    space = SearchSpace.named("paper")
    draw = Draw(
        subpolicy_B=torch.zeros(6, dtype=torch.int64),
        apply_BK=torch.ones(6, 2, dtype=torch.bool),
        sign_BK=torch.ones(6, 2),
        center_BK2=torch.zeros(6, 2, 2),
    )
    with pytest.raises(ValueError, match="magnitude_NK is needed"):
        augment(images_BCHW.cpu(), space, draw)


def test_tables_are_made_once_per_device(device):
    space = SearchSpace.named("paper")
    assert space.tables_on(device)[0] is space.tables_on(device)[0]
    tables = PolicyTables.of(Policy.from_rows([[("Rotate", 0.5, 0.5)]]), space, device)
    drawn, *never = tables.op_index_NK.tolist()
    assert drawn == [4] and set(map(tuple, never)) == {(ops.NO_OP,)}


def test_reprs_say_what_can_be_done() -> None:
    space = SearchSpace.named("paper", exclude=[op.name for op in ops.PAPER[3:]])
    assert repr(space) == "<SearchSpace paper, 2 in a sub-policy, of ShearX, ShearY, TranslateX>"
    assert repr(space.op("ShearX")) == "<Op ShearX by +-0.00 to 0.30>"
