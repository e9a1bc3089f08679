"""The fifteen operations against Pillow, byte for byte.

Pillow is the oracle and is called here directly, independently of the package.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from dada import ops
from dada.ops import Op
from dada.policy import Policy
from dada.policy.space import SPACES, register

NAMES = [op.name for op in ops.PAPER]
FILL = (125, 123, 114)


def pillow(name: str, image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    """What each name means, in Pillow's own calls."""
    w, h = image.size

    def affine(*matrix: float) -> Image.Image:
        return image.transform((w, h), Image.Transform.AFFINE, matrix)

    def cutout() -> Image.Image:
        side = value * w
        x0, y0 = int(max(0, center[0] - side / 2)), int(max(0, center[1] - side / 2))
        x1, y1 = min(w, x0 + side), min(h, y0 + side)
        fill = FILL
        if image.mode == "L":
            fill = Image.new("RGB", (1, 1), FILL).convert("L").getpixel((0, 0))
        covered = image.copy()
        ImageDraw.Draw(covered).rectangle((x0, y0, x1, y1), fill=fill)
        return covered

    calls = {
        "ShearX": lambda: affine(1, value, 0, 0, 1, 0),
        "ShearY": lambda: affine(1, 0, 0, value, 1, 0),
        "TranslateX": lambda: affine(1, 0, value * w, 0, 1, 0),
        "TranslateY": lambda: affine(1, 0, 0, 0, 1, value * h),
        "Rotate": lambda: image.rotate(value),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Invert": lambda: ImageOps.invert(image),
        "Equalize": lambda: ImageOps.equalize(image),
        "Solarize": lambda: ImageOps.solarize(image, value),
        "Posterize": lambda: ImageOps.posterize(image, int(value)),
        "Contrast": lambda: ImageEnhance.Contrast(image).enhance(value),
        "Color": lambda: ImageEnhance.Color(image).enhance(value),
        "Brightness": lambda: ImageEnhance.Brightness(image).enhance(value),
        "Sharpness": lambda: ImageEnhance.Sharpness(image).enhance(value),
        "Cutout": cutout,
    }
    return calls[name]()


def to_pillow(image_CHW: torch.Tensor) -> Image.Image:
    array = image_CHW.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def from_pillow(image: Image.Image) -> torch.Tensor:
    array = np.asarray(image)
    return torch.from_numpy(array.copy()).view(*array.shape[:2], -1).permute(2, 0, 1)


def images_of(kind: str, batch: int, c: int, h: int, w: int, seed: int) -> torch.Tensor:
    """Noise, few grey levels, a narrow band of levels, one level, or a smooth picture."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (batch, c, h, w), generator=generator, dtype=torch.uint8)
    if kind == "few levels":
        return (noise // 64) * 64
    if kind == "narrow":
        return noise // 8 + 100
    if kind == "flat":
        return noise[..., :1, :1].expand(batch, c, h, w).clone()
    if kind == "smooth":
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        shift = torch.randint(0, 256, (batch, c, 1, 1), generator=generator)
        return ((x * 3 + y * 2 + shift) % 256).to(torch.uint8)
    return noise


KINDS = ["noise", "few levels", "narrow", "flat", "smooth"]


def differing_bytes(name: str, images: torch.Tensor, value_B: torch.Tensor, center_B2) -> int:
    ours = ops.apply(name, images, value_B, center_B2=center_B2)
    theirs = torch.stack(
        [
            from_pillow(
                pillow(name, to_pillow(image), float(value), (float(center[0]), float(center[1])))
            )
            for image, value, center in zip(images, value_B, center_B2, strict=True)
        ]
    )
    return int((ours != theirs).sum())


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=90, deadline=None, derandomize=True)
@given(
    channels=st.sampled_from([1, 3]),
    height=st.one_of(st.integers(1, 40), st.sampled_from([63, 160, 224])),
    width=st.one_of(st.integers(1, 40), st.sampled_from([97, 160, 224])),
    kind=st.sampled_from(KINDS),
    magnitudes=st.lists(
        st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)), min_size=1, max_size=4
    ),
    center=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    seed=st.integers(0, 2**16),
)
def test_equals_pillow(name, channels, height, width, kind, magnitudes, center, seed):
    op = ops.BY_NAME[name]
    images = images_of(kind, len(magnitudes), channels, height, width, seed)
    value_B = op.low + torch.tensor(magnitudes, dtype=torch.float64) * (op.high - op.low)
    center_B2 = torch.tensor([[center[0] * width, center[1] * height]] * len(magnitudes))
    assert differing_bytes(name, images, value_B, center_B2.double()) == 0


SIZES = [(1, 1), (1, 7), (7, 1), (2, 2), (3, 3), (17, 31), (64, 64), (224, 160), (160, 224)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equals_pillow_at_the_ends_of_the_range(name, size):
    """Both ends and the middle, Cutout's centre in the first and the last pixel."""
    op, (h, w) = ops.BY_NAME[name], size
    ends = torch.tensor([op.low, (op.low + op.high) / 2, op.high], dtype=torch.float64)
    value_B = ends.repeat(2)
    center_B2 = torch.tensor([[0.0, 0.0]] * 3 + [[w - 0.001, h - 0.001]] * 3, dtype=torch.float64)
    for channels in (1, 3):
        for kind in ("noise", "smooth"):
            images = images_of(kind, 6, channels, h, w, seed=h * w)
            assert differing_bytes(name, images, value_B, center_B2) == 0, (channels, kind)


@pytest.mark.parametrize("name", ["ShearX", "TranslateX", "Rotate"])
def test_equals_pillow_beyond_32_bits(name):
    """Wider than a 32-bit fixed-point coordinate can go, where the warp turns to 64 bits."""
    op = ops.BY_NAME[name]
    images = images_of("noise", 3, 1, 3, 9001, seed=0)
    value_B = torch.tensor([op.low, 0.3 * op.high, op.high], dtype=torch.float64)
    assert differing_bytes(name, images, value_B, torch.zeros(3, 2).double()) == 0


ROWS = [("paper", op) for op in ops.PAPER] + [("wide", op) for op in ops.WIDE]


@pytest.mark.parametrize(("table", "op"), ROWS, ids=[f"{t}-{op.name}" for t, op in ROWS])
def test_the_pillow_call_of_a_row_is_its_kernel(table, op):
    """A single PIL image goes through `op.pillow`, a batch through `op.kernel`."""
    h, w = 23, 38
    fractions = torch.tensor([0.0, 0.11, 0.37, 0.5, 0.81, 1.0], dtype=torch.float64)
    value_B = op.low + fractions * (op.high - op.low)
    center_B2 = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).double()
    center_B2 *= torch.tensor([w, h])
    for channels in (1, 3):
        images = images_of("smooth", 6, channels, h, w, seed=1)
        ours = ops.apply(op, images, value_B, center_B2=center_B2)
        theirs = torch.stack(
            [
                from_pillow(op.pillow(to_pillow(image), float(v), tuple(center.tolist())))
                for image, v, center in zip(images, value_B, center_B2, strict=True)
            ]
        )
        assert torch.equal(ours, theirs)


def a_value_of(op: Op, batch: int, seed: int = 3) -> torch.Tensor:
    uniform = torch.rand(batch, generator=torch.Generator().manual_seed(seed)).double()
    return op.low + uniform * (op.high - op.low)


# --- what goes in -------------------------------------------------------------------------------


def test_the_sign_multiplies_the_value(images_BCHW):
    sign_B = torch.tensor([1, -1, 1, -1, -1, 1], device=images_BCHW.device)
    for op in ops.PAPER:
        if not op.signed:
            continue
        value_B = a_value_of(op, 6).to(images_BCHW.device)
        signed = ops.apply(op.name, images_BCHW, value_B, sign_B=sign_B)
        assert torch.equal(signed, ops.apply(op.name, images_BCHW, value_B * sign_B))
        assert not torch.equal(signed, ops.apply(op.name, images_BCHW, value_B)), op.name


def test_one_value_serves_all_images(images_BCHW):
    one = ops.apply("Rotate", images_BCHW, 12.5)
    assert torch.equal(one, ops.apply("Rotate", images_BCHW, [12.5] * 6))


def test_cutout_without_a_centre_covers_the_middle(images_BCHW):
    h, w = images_BCHW.shape[-2:]
    middle = torch.tensor([[w / 2, h / 2]] * 6, device=images_BCHW.device)
    given = ops.apply("Cutout", images_BCHW, 0.2, center_B2=middle)
    assert torch.equal(ops.apply("Cutout", images_BCHW, 0.2), given)
    assert not torch.equal(given, images_BCHW)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_float_images_agree_with_bytes(name, dtype, images_BCHW):
    """Floats are rounded to the nearest of the 256 levels, and come back as level / 255."""
    value_B = a_value_of(ops.BY_NAME[name], 6).to(images_BCHW.device)
    of_bytes = ops.apply(name, images_BCHW, value_B)
    done = ops.apply(name, images_BCHW.to(dtype) / 255, value_B)
    assert done.dtype == dtype
    assert torch.equal(done, of_bytes.to(dtype) / 255)
    assert torch.equal((done.float() * 255).round().to(torch.uint8), of_bytes)


def test_floats_between_two_levels_are_rounded():
    levels = torch.linspace(0, 1, 997).view(1, 1, 1, -1)
    rounded = (levels * 255).round().to(torch.uint8)
    assert torch.equal(ops.apply("Invert", levels, 0.0), (255 - rounded).float() / 255)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_images_one_by_one(name, images_BCHW):
    value_B = a_value_of(ops.BY_NAME[name], 6).to(images_BCHW.device)
    together = ops.apply(name, images_BCHW, value_B)
    alone = [ops.apply(name, images_BCHW[i : i + 1], value_B[i : i + 1]) for i in range(6)]
    assert torch.equal(together, torch.cat(alone))


def mixed_steps(
    batch: int, steps: int, h: int, w: int, *, table: tuple[Op, ...] = ops.PAPER, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """op_index_BK (every op and none in turn), value_BK and center_BK2 for `ops.run`."""
    generator = torch.Generator().manual_seed(seed)
    op_index_BK = torch.randint(-1, len(table), (batch, steps), generator=generator)
    op_index_BK[:, 0] = torch.arange(batch) % (len(table) + 1) - 1
    low = torch.tensor([op.low for op in table] + [0.0], dtype=torch.float64)[op_index_BK]
    high = torch.tensor([op.high for op in table] + [0.0], dtype=torch.float64)[op_index_BK]
    uniform = torch.rand(3, batch, steps, generator=generator, dtype=torch.float64)
    center_BK2 = torch.stack([uniform[1] * w, uniform[2] * h], dim=-1)
    return op_index_BK, low + uniform[0] * (high - low), center_BK2


@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_has_its_own_operations(channels):
    """`run` with mixed ops equals `apply`, op after op, image after image."""
    h, w = 13, 18
    images = images_of("smooth", 48, channels, h, w, seed=5)
    op_index_BK, value_BK, center_BK2 = mixed_steps(48, 3, h, w)
    done = ops.run(ops.PAPER, images, op_index_BK, value_BK, center_BK2)
    for b in range(48):
        expected = images[b : b + 1]
        for k in range(3):
            if op_index_BK[b, k] != ops.NO_OP:
                op = ops.PAPER[op_index_BK[b, k]]
                center = center_BK2[b : b + 1, k]
                expected = ops.apply(op, expected, value_BK[b : b + 1, k], center_B2=center)
        assert torch.equal(done[b : b + 1], expected), (b, op_index_BK[b])


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_in_memory_does_not_matter(name):
    op = ops.BY_NAME[name]
    big = images_of("noise", 4, 3, 20, 34, seed=2)
    layouts = {
        "every second pixel": big[..., ::2, ::2],
        "channels last": big.contiguous(memory_format=torch.channels_last),
        "turned": big.transpose(2, 3),
        "one image repeated": big[:1].expand(4, 3, 20, 34),
        "every second image": images_of("noise", 8, 3, 9, 9, seed=4)[::2],
        "channels reversed by a view": big.flip(1),
    }
    for layout, images in layouts.items():
        value_B = a_value_of(op, len(images))
        expected = ops.apply(name, images.clone(memory_format=torch.contiguous_format), value_B)
        assert torch.equal(ops.apply(name, images, value_B), expected), layout


@pytest.mark.parametrize("name", NAMES)
def test_nothing_handed_in_is_changed(name, images_BCHW):
    op = ops.BY_NAME[name]
    value_B = a_value_of(op, 6).to(images_BCHW.device)
    center_B2 = torch.full((6, 2), 4.0, dtype=torch.float64, device=images_BCHW.device)
    given = (images_BCHW, images_BCHW / 255, value_B, center_B2)
    before = [tensor.clone() for tensor in given]
    ops.apply(name, images_BCHW, value_B, center_B2=center_B2)
    ops.apply(name, given[1], value_B, center_B2=center_B2)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))


def test_no_images_are_no_trouble():
    for name in NAMES:
        none = torch.zeros(0, 3, 5, 6, dtype=torch.uint8)
        assert ops.apply(name, none, torch.zeros(0)).shape == (0, 3, 5, 6)


# --- what the rows say --------------------------------------------------------------------------


@pytest.mark.parametrize("table", [ops.PAPER, ops.WIDE], ids=["paper", "wide"])
def test_a_neutral_value_changes_nothing(table):
    images = images_of("smooth", 3, 3, 21, 40, seed=0)
    for op in table:
        if op.has_strength and op.name != "Cutout":
            assert torch.equal(ops.apply(op, images, op.neutral), images), op.name
            assert not torch.equal(ops.apply(op, images, op.low), images), op.name


def test_cutout_of_side_zero_is_one_pixel():
    """Pillow's rectangle includes both of its edges; `docs/operations.md` says so."""
    images = images_of("flat", 1, 3, 10, 12, seed=0)
    center_B2 = torch.tensor([[7.9, 2.1]])
    changed = ops.apply("Cutout", images, 0.0, center_B2=center_B2) != images
    assert changed.any(1).nonzero().tolist() == [[0, 2, 7]]


def test_nine_of_fifteen_do_nothing_in_the_middle():
    images = images_of("smooth", 1, 3, 21, 40, seed=0)
    still = [
        op.name
        for op in ops.PAPER
        if op.has_strength and torch.equal(ops.apply(op, images, (op.low + op.high) / 2), images)
    ]
    assert still == [
        *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
        *("Contrast", "Color", "Brightness", "Sharpness"),
    ]


@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color", "Sharpness"])
def test_the_derivative_of_a_blend(name):
    """Against the slope of the blend itself, taken without truncation in float64."""
    kernel = ops.BY_NAME[name].kernel
    images = images_of("noise", 4, 3, 8, 9, seed=7)
    value_B = torch.tensor([0.3, 0.9, 1.2, 1.8], dtype=torch.float64)
    dull = kernel.degenerate(images).double()

    def blend(value_B: torch.Tensor) -> torch.Tensor:
        return (dull + value_B.view(-1, 1, 1, 1) * (images.double() - dull)).clamp(0, 255)

    slope = (blend(value_B + 1e-5) - blend(value_B - 1e-5)) / 2e-5
    derivative = kernel.derivative(images, value_B).double()
    mixed = dull + value_B.view(-1, 1, 1, 1) * (images.double() - dull)
    at_a_corner = ((mixed - 255).abs() < 1e-2) | (mixed.abs() < 1e-2)  # no slope to speak of
    assert at_a_corner.float().mean() < 0.05
    torch.testing.assert_close(derivative[~at_a_corner], slope[~at_a_corner], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (dict(name="Two words"), "op name should be an identifier such as 'Rotate', got 'Two wor"),
        (dict(low=2.0, high=1.0), "op Mine: low should be below high, got 2.0..1.0"),
        (dict(high=float("nan")), "op Mine: low should be below high"),
        (dict(neutral=3.0), "op Mine: neutral 3.0 lies outside 0.0..1.0"),
        (dict(signed=True, neutral=0.0), "op Mine: a signed op needs a range symmetric about"),
        (dict(signed=True, low=-1.0), "op Mine: a signed op needs a range symmetric about"),
    ],
)
def test_a_row_that_contradicts_itself(row, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Op(**{"name": "Mine", "kernel": lambda images, value, center: images, **row})


# --- a row of one's own -------------------------------------------------------------------------


def swap_channels(images_BCHW, value_B, center_B2):
    """Red and blue change places where the value is above one half."""
    return torch.where(value_B.view(-1, 1, 1, 1) > 0.5, images_BCHW.flip(1), images_BCHW)


@pytest.fixture
def own_space():
    swap = Op(name="SwapChannels", kernel=swap_channels, neutral=0.0, phrase="above {}")
    yield register("with-swap", [*ops.PAPER, swap])
    del SPACES["with-swap"]


def test_an_operation_is_one_row(own_space):
    policy = Policy.from_rows([[("SwapChannels", 1.0, 1.0)]], "with-swap")
    batch = images_of("noise", 5, 3, 6, 8, seed=0)
    transform = policy.transform(seed=0)
    assert torch.equal(transform(batch), batch.flip(1))
    assert torch.equal(transform(batch[0]), batch[0].flip(0))
    picture = transform(to_pillow(batch[0]))
    assert torch.equal(from_pillow(picture), batch[0].flip(0))
    assert Policy.from_json(policy.to_json()) == policy
    assert "SwapChannels above 1.00 with probability 1.00" in policy.describe()
    weak = Policy.from_rows([[("SwapChannels", 1.0, 0.2)]], "with-swap")
    assert torch.equal(weak.transform(seed=0)(batch), batch)


def test_an_own_operation_on_a_grey_picture(own_space):
    grey = to_pillow(images_of("noise", 1, 1, 6, 8, seed=0)[0])
    policy = Policy.from_rows([[("SwapChannels", 1.0, 1.0), ("Invert", 1.0, 0.0)]], "with-swap")
    done = policy.transform(seed=0)(grey)
    assert done.mode == "L" and done.tobytes() == ImageOps.invert(grey).tobytes()


def test_an_own_operation_mixes_with_the_others(own_space):
    table = own_space.ops
    images = images_of("noise", 34, 3, 9, 7, seed=0)
    op_index_BK, value_BK, center_BK2 = mixed_steps(34, 2, 9, 7, table=table)
    done = ops.run(table, images, op_index_BK, value_BK, center_BK2)
    one_by_one = [
        ops.run(
            table, images[b : b + 1], *(t[b : b + 1] for t in (op_index_BK, value_BK, center_BK2))
        )
        for b in range(34)
    ]
    assert torch.equal(done, torch.cat(one_by_one))


def test_a_space_gone_is_named(own_space):
    """As in a worker process that never registered it."""
    transform = Policy.from_rows([[("SwapChannels", 1.0, 1.0)]], "with-swap").transform()
    space = SPACES.pop("with-swap")
    with pytest.raises(ValueError, match="'with-swap' is not registered in this process"):
        transform(torch.zeros(3, 4, 4, dtype=torch.uint8))
    SPACES["with-swap"] = space


# --- mistakes -----------------------------------------------------------------------------------

GOOD = torch.zeros(2, 3, 4, 5, dtype=torch.uint8)
WIDE_IMAGE = torch.zeros(1, 1, 1, 32768, dtype=torch.uint8)
NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "images", "says"),
    [
        ("Rotat", GOOD, "unknown op 'Rotat'; the ops are ShearX, ShearY, TranslateX"),
        ("Invert", GOOD.numpy(), "images should be a torch tensor, got ndarray"),
        ("Invert", GOOD[0], "(batch, 1 or 3 channels, height, width), got (3, 4, 5)"),
        ("Invert", GOOD[:, :2], "(batch, 1 or 3 channels, height, width), got (2, 2, 4, 5)"),
        ("Invert", GOOD[..., :0], "(batch, 1 or 3 channels, height, width), got (2, 3, 4, 0)"),
        ("Invert", WIDE_IMAGE, "32767 pixels a side at most, got (1, 1, 1, 32768)"),
        ("Invert", GOOD.int(), "should be uint8, or float in 0..1, got torch.int32"),
        ("Invert", GOOD.bool(), "should be uint8, or float in 0..1, got torch.bool"),
        ("Invert", GOOD + 2.5, "float images should lie in 0..1, got 2.5..2.5"),
        ("Invert", GOOD - 0.5, "float images should lie in 0..1, got -0.5..-0.5"),
        ("Invert", GOOD * NAN, "float images should lie in 0..1, got nan..nan"),
    ],
)
def test_images_that_are_none(name, images, says):
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        ops.apply(name, images, 0.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "more", "says"),
    [
        ("Rotate", [1.0], {}, "value_B should hold one number for each of the 2 images"),
        ("Rotate", torch.zeros(2, 1), {}, "for each of the 2 images, got shape (2, 1)"),
        ("Rotate", 31.0, {}, "Rotate takes a value in -30..30, got 31"),
        ("Rotate", [0.0, -30.1], {}, "Rotate takes a value in -30..30, got -30.1"),
        ("Rotate", NAN, {}, "Rotate takes a value in -30..30, got nan"),
        ("Color", 0.0, {}, "Color takes a value in 0.1..1.9, got 0"),
        ("Color", 1.0, {"sign_B": [1, -1]}, "Color takes a value in 0.1..1.9, got -1"),
        ("Rotate", 1.0, {"sign_B": [1, 0]}, "sign_B should hold +1 or -1, got [1.0, 0.0]"),
        ("Rotate", 1.0, {"sign_B": [1, 1, 1]}, "sign_B should hold one number for each of the 2"),
        ("Cutout", 0.1, {"center_B2": [1, 1]}, "center_B2 should have shape (2, 2)"),
    ],
)
def test_values_that_are_wrong(name, value, more, says):
    more = {key: torch.tensor(numbers) for key, numbers in more.items()}
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        ops.apply(name, GOOD, value, **more)
    assert "\n" not in str(caught.value)


def test_the_ends_of_a_range_may_be_float32():
    """0.45 as float32 lies 1e-8 beyond 0.45."""
    for op in ops.PAPER:
        ops.apply(op.name, GOOD, torch.tensor([op.low, op.high], dtype=torch.float32))


# --- the page -----------------------------------------------------------------------------------


def numbers_in(cell: str) -> tuple[float, ...]:
    return tuple(float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", cell))


def test_the_page_says_what_the_table_says():
    """docs/operations.md, every row: range, random sign, neutral value, wide range."""
    page = Path(__file__).parents[1] / "docs" / "operations.md"
    rows = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] in NAMES:
            rows.setdefault(cells[0], cells[1:])
    assert list(rows) == NAMES
    wide = {op.name: op for op in ops.WIDE}
    for op in ops.PAPER:
        range_cell, sign_cell, neutral_cell, wide_cell = rows[op.name][:4]
        assert numbers_in(range_cell) == ((op.low, op.high) if op.has_strength else ()), op.name
        assert sign_cell == ("yes" if op.signed else "no"), op.name
        assert numbers_in(neutral_cell)[:1] == ((op.neutral,) if op.has_strength else ()), op.name
        if op.name not in wide:
            assert wide_cell == "not in it", op.name
        else:
            ends = (wide[op.name].low, wide[op.name].high) if op.has_strength else ()
            assert numbers_in(wide_cell) == ends, op.name
