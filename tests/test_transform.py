"""A policy as a transform: what it takes, what it draws and how often, and what moves along.

Letters: B images, C channels, H height, W width.
"""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from dada import ops
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.policy.space import SPACES
from test_fused import synchronising_is_an_error

BOX_FORMATS = ["XYXY", "XYWH", "CXCYWH"]
GEOMETRIC = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]


def always(op: str, magnitude=1.0, space: str = "strength") -> Policy:
    return Policy.from_rows([[(op, 1.0, magnitude)]], space)


def as_pil(image_CHW: torch.Tensor) -> Image.Image:
    array = image_CHW.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def from_pil(image: Image.Image) -> torch.Tensor:
    array = np.array(image)
    return torch.from_numpy(array).view(*array.shape[:2], -1).permute(2, 0, 1)


def a_picture(channels: int = 3, h: int = 20, w: int = 31) -> torch.Tensor:
    generator = torch.Generator().manual_seed(h + w)
    return torch.randint(0, 256, (channels, h, w), generator=generator, dtype=torch.uint8)


MIXED = Policy.load("trivialaugment")


# --- what it takes ------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_all_kinds_of_one_image_agree(channels):
    """The same seed draws the same for a PIL image, a tensor, a tv_tensor and floats."""
    image = a_picture(channels)
    kinds = {
        "PIL": as_pil(image),
        "CHW": image,
        "tv": tv_tensors.Image(image),
        "float": image.float() / 255,
        "half": image.half() / 255,
    }
    done = {}
    for kind, given in kinds.items():
        transform = MIXED.transform(seed=7)
        done[kind] = [transform(given) for _ in range(60)]
    assert all(isinstance(one, Image.Image) for one in done["PIL"])
    assert {one.mode for one in done["PIL"]} == {"L" if channels == 1 else "RGB"}
    assert all(isinstance(one, tv_tensors.Image) for one in done["tv"])
    assert {one.dtype for one in done["half"]} == {torch.float16}
    for i, expected in enumerate(done["CHW"]):
        assert expected.shape == image.shape and expected.dtype == torch.uint8
        assert torch.equal(from_pil(done["PIL"][i]), expected)
        assert torch.equal(done["tv"][i], expected)
        for kind in ("float", "half"):
            assert torch.equal((done[kind][i].float() * 255).round().byte(), expected)
    assert sum(not torch.equal(one, image) for one in done["CHW"]) > 40


@pytest.mark.parametrize("kind", ["uint8", "float32", "tv"])
def test_a_batch_keeps_its_kind(kind):
    batch = a_picture().expand(8, -1, -1, -1)
    given = {"uint8": batch, "float32": batch / 255, "tv": tv_tensors.Image(batch)}[kind]
    done = MIXED.transform(seed=0)(given)
    assert type(done) is type(given) and done.dtype == given.dtype and done.shape == given.shape
    plain = MIXED.transform(seed=0)(batch)
    expected = plain.float() / 255 if kind == "float32" else plain
    assert torch.equal(done, expected)


def test_the_input_is_not_changed():
    image, picture = a_picture(), as_pil(a_picture())
    batch = image.repeat(8, 1, 1, 1)
    before = picture.tobytes()
    transform = Policy.load("randaugment:2,1").transform(seed=0)
    for _ in range(30):
        transform(image), transform(picture), transform(batch)
    assert torch.equal(image, a_picture()) and picture.tobytes() == before
    assert all(torch.equal(one, a_picture()) for one in batch)


def test_labels_pass_through_a_compose():
    compose = v2.Compose(
        [MIXED.transform(seed=0), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    )
    image, label = compose(as_pil(a_picture()), 3)
    assert image.shape == (3, 20, 31) and image.dtype == torch.float32 and label == 3
    image, label = compose((as_pil(a_picture()), 3))
    assert image.shape == (3, 20, 31) and label == 3


def test_a_batch_with_its_labels():
    batch, labels = a_picture().expand(4, -1, -1, -1), torch.arange(4)
    done, passed = always("Invert").transform()(batch, labels)
    assert torch.equal(done, 255 - batch) and passed is labels


def test_a_sample_may_be_a_dict():
    sample = {"image": as_pil(a_picture()), "id": "x", "more": [1, None]}
    done = always("Invert").transform()(sample)
    assert torch.equal(from_pil(done["image"]), 255 - a_picture())
    assert done["id"] == "x" and done["more"] == [1, None]


def test_all_images_of_a_sample_share_one_draw():
    transform = MIXED.transform(seed=0)
    for _ in range(20):
        left, right = transform(as_pil(a_picture()), tv_tensors.Image(a_picture()))
        assert torch.equal(from_pil(left), right)


@pytest.mark.parametrize("policy", [Policy(()), Policy((SubPolicy(1.0, ()),))], ids=["no", "empty"])
def test_an_empty_policy_leaves_the_input(policy):
    transform = policy.transform()
    for given in (a_picture(), a_picture().expand(2, -1, -1, -1), a_picture() / 255):
        assert torch.equal(transform(given), given)
    picture = as_pil(a_picture())
    assert transform(picture).tobytes() == picture.tobytes()


BATCH = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
BOXES = tv_tensors.BoundingBoxes([[1, 1, 4, 4]], format="XYXY", canvas_size=(8, 8))
ROTATED = tv_tensors.BoundingBoxes([[1.0, 1, 4, 4, 30]], format="XYWHR", canvas_size=(8, 8))
LARGE_MASK = tv_tensors.Mask(torch.zeros(9, 8))


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ((Image.new("RGBA", (4, 4)),), "PIL image of mode 'RGBA': convert it first with image.con"),
        ((Image.new("P", (4, 4)),), "PIL image of mode 'P': convert it first"),
        ((torch.zeros(4, 4),), "the sample holds no image"),
        (({"label": 3},), "the sample holds no image"),
        ((BOXES,), "the sample holds no image"),
        ((), "the sample holds no image"),
        ((torch.zeros(1, 1, 3, 4, 4),), "should be CHW or BCHW, got shape (1, 1, 3, 4, 4)"),
        ((torch.zeros(4, 8, 8),), "1 or 3 channels, height, width), got (1, 4, 8, 8)"),
        ((torch.zeros(3, 8, 8, dtype=torch.int64),), "uint8, or float in 0..1, got torch.int64"),
        ((torch.full((3, 8, 8), 2.0),), "float images should lie in 0..1, got 2..2"),
        ((tv_tensors.Image(BATCH), BOXES), "a batch comes alone: boxes, masks, key points"),
        ((Image.new("RGB", (8, 8)), tv_tensors.Image(BATCH)), "a batch comes alone"),
        ((BATCH[0], LARGE_MASK), "Mask is for a (height, width) of (9, 8), image is (8, 8)"),
        ((Image.new("RGB", (9, 8)), BOXES), "BoundingBoxes is for a (height, width) of (8, 8), im"),
        (
            (BATCH[0], ROTATED),
            "boxes of format XYWHR cannot be moved along; convert them to one of",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(sample, says):
    """Said every time, also when the op drawn would not have needed to know."""
    for policy in (always("Invert"), always("Rotate")):
        with pytest.raises(ValueError, match=re.escape(says)) as caught:
            policy.transform()(*sample)
        assert "\n" not in str(caught.value)


def test_what_it_is_called():
    text = repr(Policy.load("dada-cifar10").transform(seed=3))
    assert text == "PolicyTransform(dada-cifar10, space=paper, seed=3)"


# --- what it draws ------------------------------------------------------------------------------

RAMP = (60 + torch.arange(64).view(1, 1, 64).expand(1, 6, 64)).to(torch.uint8)
# Weight x probability: Invert 0.15, TranslateX 0.4, Brightness 0.2, nothing 0.25.
WATCHED = Policy(
    (
        SubPolicy(0.3, (PolicyOp("Invert", 0.5, 0.0),)),
        SubPolicy(0.5, (PolicyOp("TranslateX", 0.8, (0.5, 1.0)),)),
        SubPolicy(0.2, (PolicyOp("Brightness", 1.0, (0.25, 0.75)),)),
    ),
    "strength",
    "weighted",
)
SHARES = {"Invert": 0.15, "TranslateX": 0.4, "Brightness": 0.2, "nothing": 0.25}


def what_was_done(image_CHW: torch.Tensor) -> tuple[str, float]:
    """Read off the ramp: the op, and the shift in pixels or the factor."""
    row = image_CHW[0, 0].int()
    if torch.equal(row, RAMP[0, 0].int()):
        return "nothing", 0.0
    if torch.equal(row, 255 - RAMP[0, 0].int()):
        return "Invert", 0.0
    if (row == 0).any():
        shift = int((row == 0).sum())
        return "TranslateX", float(shift if row[-1] == 0 else -shift)
    return "Brightness", float(row.sum() / RAMP[0, 0].sum())


def draws(way: str, count: int, policy: Policy = WATCHED, seed: int = 0) -> list[torch.Tensor]:
    transform = policy.transform(seed=seed)
    if way == "batch":
        return list(transform(RAMP.expand(count, 1, 6, 64)))
    if way == "PIL":
        picture = as_pil(RAMP)
        return [from_pil(transform(picture)) for _ in range(count)]
    return [transform(RAMP) for _ in range(count)]


def five_sigma(share: float, count: int) -> float:
    return 5 * math.sqrt(share * (1 - share) / count)


@pytest.mark.parametrize("way", ["batch", "PIL", "CHW"])
def test_every_op_is_done_as_often_as_the_policy_says(way):
    count = 3000
    done = [what_was_done(image) for image in draws(way, count)]
    for name, share in SHARES.items():
        seen = sum(op == name for op, _ in done) / count
        assert abs(seen - share) < five_sigma(share, count), name
    shifts = torch.tensor([value for op, value in done if op == "TranslateX"])
    factors = torch.tensor([value for op, value in done if op == "Brightness"])
    # Strength 0.5 to 1 is 14.4 to 28.8 of 64 pixels; 0.25 to 0.75 a factor 1 -+ 0.225 to 0.675.
    assert 14 <= shifts.abs().min() <= 15 and 28 <= shifts.abs().max() <= 29
    assert abs(shifts.abs().mean() - 21.6) < 5 * 4.2 / math.sqrt(len(shifts))
    away = (factors - 1).abs()
    assert 0.22 < away.min() < 0.24 and 0.66 < away.max() < 0.69
    assert abs(away.mean() - 0.45) < 5 * 0.13 / math.sqrt(len(away)) + 0.005
    for signed in (shifts, factors - 1):
        positive = (signed > 0).float().mean()
        assert abs(positive - 0.5) < five_sigma(0.5, len(signed))


@pytest.mark.parametrize("way", ["batch", "CHW"])
def test_the_ops_of_a_sub_policy_fire_on_their_own(way):
    policy = Policy.from_rows([[("Invert", 0.3, 0.0), ("TranslateX", 0.6, 1.0)]], "strength")
    both = invert = translate = 0
    count = 2000
    for image in draws(way, count, policy):
        inverted = bool((image > 130).any())
        translated = bool((image == 0).any())
        both += inverted and translated
        invert += inverted
        translate += translated
    for seen, share in ((invert, 0.3), (translate, 0.6), (both, 0.18)):
        assert abs(seen / count - share) < five_sigma(share, count)


def test_ops_are_done_in_their_order():
    """Invert then shift leaves black where nothing is; shift then Invert leaves white."""
    for steps, level in ((["Invert", "TranslateX"], 0), (["TranslateX", "Invert"], 255)):
        policy = Policy.from_rows([[(op, 1.0, 1.0) for op in steps]], "strength")
        for way in ("batch", "CHW", "PIL"):
            row = draws(way, 1, policy)[0][0, 0]
            assert level in (row[0], row[-1]), (steps, way)


def test_cutouts_fall_everywhere():
    image = torch.zeros(1, 10, 20, dtype=torch.uint8)
    transform = always("Cutout", 0.5).transform(seed=0)
    covered = (transform(image.expand(600, 1, 10, 20)) != 0).float().mean((0, 1))
    assert covered.min() > 0
    one_by_one = torch.stack([transform(image) for _ in range(600)])
    assert (one_by_one != 0).float().mean((0, 1)).min() > 0


def test_every_image_of_a_batch_has_its_own_draw():
    batch = a_picture().expand(64, -1, -1, -1)
    done = always("Rotate", (0.0, 1.0)).transform(seed=0)(batch)
    assert len({image.numpy().tobytes() for image in done}) > 55


# --- seeds --------------------------------------------------------------------------------------


def stream(transform, count: int = 5) -> list[bytes]:
    """Of one image and of a batch, alternately."""
    given = (a_picture(), a_picture().expand(3, -1, -1, -1))
    return [transform(given[i % 2]).numpy().tobytes() for i in range(count)]


MOVING = always("Rotate", (0.1, 1.0))


def test_a_seed_repeats_and_another_differs():
    assert stream(MOVING.transform(seed=1)) == stream(MOVING.transform(seed=1))
    assert stream(MOVING.transform(seed=1)) != stream(MOVING.transform(seed=2))
    transform = MOVING.transform(seed=1)
    assert stream(transform) != stream(transform)


@pytest.mark.parametrize(
    ("name", "digest"),
    [("dada-cifar10", "e7d29c74b9d1b5fe"), ("trivialaugment", "92f09c05c93ce06f")],
)
def test_what_a_seed_gave_it_gives(name, digest):
    """Pictures, tensors, and batches of large and small images, as the first release made them."""
    y, x = np.mgrid[0:96, 0:128]
    picture = np.stack([x * 2 % 256, y * 2, (x * y) % 251], -1).astype(np.uint8)
    image = from_pil(Image.fromarray(picture)).contiguous()
    transform, seen = Policy.load(name).transform(seed=7), hashlib.sha256()
    for _ in range(20):
        seen.update(transform(Image.fromarray(picture)).tobytes())
    for _ in range(20):
        seen.update(transform(image).numpy().tobytes())
    for batch in (image.expand(20, -1, -1, -1), image[:, :40, :40].expand(20, -1, -1, -1)):
        seen.update(transform(batch.contiguous()).numpy().tobytes())
    assert seen.hexdigest()[:16] == digest


def test_a_seeded_transform_leaves_torchs_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    stream(MOVING.transform(seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_torchs_generator_decides():
    transform = MOVING.transform()
    torch.manual_seed(0)
    first = stream(transform)
    assert stream(transform) != first
    torch.manual_seed(0)
    assert stream(transform) == first


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
@pytest.mark.parametrize("used", [0, 3])
def test_a_copy_goes_on_where_the_original_stands(duplicate, used):
    transform = MOVING.transform(seed=1)
    stream(transform, used)
    twin = duplicate(transform)
    assert twin.policy == transform.policy and twin.seed == 1
    expected = stream(transform)
    assert stream(twin) == expected
    assert stream(twin) == stream(transform)


# --- in a DataLoader ----------------------------------------------------------------------------


class SameImage(Dataset):
    """The transform of one and the same image, over and over."""

    def __init__(self, transform) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(a_picture(1, 24, 31))


def epochs(
    seed: int | None, *, context: str, torch_seed: int, persistent: bool
) -> list[list[bytes]]:
    """Two epochs of eight draws each; items 0, 2, 4, 6 come from worker 0, the others from 1."""
    torch.manual_seed(torch_seed)
    loader = DataLoader(
        SameImage(MOVING.transform(seed=seed)),
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=persistent,
        batch_size=1,
    )
    return [[item.numpy().tobytes() for item in loader] for _ in range(2)]


# Python 3.12 warns of every fork of a process with threads; a DataLoader forks by default.
# The loader warns of more workers than cores.
forks = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork:DeprecationWarning",
    "ignore:This DataLoader will create 2 worker processes:UserWarning",
)


@forks
@pytest.mark.parametrize("seed", [1, None])
def test_workers_and_epochs_differ_and_a_run_repeats(seed):
    run = epochs(seed, context="fork", torch_seed=0, persistent=False)
    assert run == epochs(seed, context="fork", torch_seed=0, persistent=False)
    assert run[0] != run[1]
    assert run[0][0::2] != run[0][1::2]
    assert len(set(run[0] + run[1])) > 12
    assert run != epochs(seed, context="fork", torch_seed=1, persistent=False)


@forks
def test_the_seed_counts_in_workers():
    run = epochs(1, context="fork", torch_seed=0, persistent=False)
    assert run != epochs(2, context="fork", torch_seed=0, persistent=False)


@forks
def test_spawned_workers_draw_as_forked_ones():
    """The transform travels by pickle there; workers that stay go on in the second epoch."""
    spawned = epochs(1, context="spawn", torch_seed=0, persistent=True)
    assert spawned == epochs(1, context="fork", torch_seed=0, persistent=True)
    assert spawned[0] != spawned[1]
    assert spawned[0][0::2] != spawned[0][1::2]


# --- what moves along ---------------------------------------------------------------------------


def a_sample(box: tuple[int, int, int, int], h: int, w: int):
    x0, y0, x1, y1 = box
    filled = torch.zeros(h, w, dtype=torch.uint8)
    filled[y0:y1, x0:x1] = 1
    return (
        tv_tensors.Image(torch.zeros(3, h, w, dtype=torch.uint8)),
        tv_tensors.BoundingBoxes(
            torch.tensor([box], dtype=torch.float32), format="XYXY", canvas_size=(h, w)
        ),
        tv_tensors.Mask(filled),
    )


@pytest.mark.parametrize("space", ["strength", "wide"])
@pytest.mark.parametrize("op", GEOMETRIC)
def test_a_filled_box_stays_inside_its_moved_box(op, space):
    """And the moved box is tight to 2 pixels wherever no border cuts it."""
    h, w = 60, 80
    whole = cut = 0
    for seed, box in enumerate(
        [(30, 20, 50, 40), (10, 5, 70, 25), (0, 0, 9, 60), (60, 44, 80, 58)]
    ):
        for magnitude in (0.1, 0.35, 0.6, 0.85, 1.0):
            transform = always(op, magnitude, space).transform(seed=seed)
            for _ in range(4):  # both directions come up
                _, moved, mask = transform(*a_sample(box, h, w))
                x0, y0, x1, y1 = moved[0].tolist()
                assert 0 <= x0 <= x1 <= w and 0 <= y0 <= y1 <= h
                ys, xs = mask.nonzero(as_tuple=True)
                if len(xs) == 0:
                    continue
                centers = xs.min() + 0.5, ys.min() + 0.5, xs.max() + 0.5, ys.max() + 0.5
                slack = 0.01  # 16.16 fixed point
                assert centers[0] >= x0 - slack and centers[2] <= x1 + slack
                assert centers[1] >= y0 - slack and centers[3] <= y1 + slack
                if x0 > 0 and x1 < w and y0 > 0 and y1 < h:
                    whole += 1
                    gaps = (xs.min() - x0, ys.min() - y0, x1 - 1 - xs.max(), y1 - 1 - ys.max())
                    assert max(abs(float(gap)) for gap in gaps) <= 2
                else:
                    cut += 1
    assert whole >= 5 and cut >= 5


@pytest.mark.parametrize("op", GEOMETRIC)
def test_box_formats_and_dtypes_agree(op):
    corners = torch.tensor(
        [[10.0, 8.0, 30.0, 28.0], [0.0, 0.0, 50.0, 40.0], [40.0, 4.0, 48.0, 38.0]]
    )
    reference = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(40, 50))
    image = tv_tensors.Image(torch.zeros(3, 40, 50, dtype=torch.uint8))
    expected = always(op, 0.7).transform(seed=4)(image, reference)[1]
    for box_format in BOX_FORMATS:
        for dtype, allowed in ((torch.float32, 1e-3), (torch.float64, 1e-3), (torch.int64, 1.5)):
            given = v2.functional.convert_bounding_box_format(reference, new_format=box_format)
            given = tv_tensors.wrap(given.to(dtype), like=given)
            before = given.clone()
            moved = always(op, 0.7).transform(seed=4)(image, given)[1]
            assert isinstance(moved, tv_tensors.BoundingBoxes)
            assert moved.format.name == box_format and moved.dtype == dtype
            assert tuple(moved.canvas_size) == (40, 50)
            back = v2.functional.convert_bounding_box_format(moved, new_format="XYXY")
            assert (back.double() - expected.double()).abs().max() <= allowed
            assert torch.equal(given, before)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(20, 31), (2, 20, 31), (0, 20, 31)], ids=str)
def test_a_mask_moves_as_its_image_does(shape, dtype):
    """Pixel for pixel, whatever the op; photometric ops and Cutout leave it."""
    levels = a_picture(1)[0] if len(shape) == 2 else a_picture(3)[: shape[0]]
    mask = tv_tensors.Mask((levels > 128) if dtype == torch.bool else levels.to(dtype))
    for op in SPACES["strength"].ops:
        image = a_picture(3)
        moved = always(op.name, 0.8).transform(seed=2)(tv_tensors.Image(image), mask)[1]
        assert isinstance(moved, tv_tensors.Mask)
        assert moved.dtype == dtype and moved.shape == mask.shape
        if op.name not in GEOMETRIC:
            assert torch.equal(moved, mask), op.name
        elif shape[0] != 0:
            as_images = mask.as_subclass(torch.Tensor).to(torch.uint8).view(-1, 1, 20, 31)
            transform = always(op.name, 0.8).transform
            done = [transform(seed=2)(one) for one in as_images]
            assert torch.equal(torch.stack(done).view(mask.shape).to(dtype), moved), op.name
            assert not torch.equal(moved, mask), op.name


@pytest.mark.parametrize("op", GEOMETRIC)
def test_key_points_go_where_their_pixel_goes(op):
    h, w = 40, 50
    places = [(20, 15), (25, 30), (10, 20), (35, 12)]
    image = torch.zeros(1, h, w, dtype=torch.uint8)
    for level, (x, y) in enumerate(places, 1):
        image[0, y - 1 : y + 2, x - 1 : x + 2] = level * 50  # 3 x 3, or a shear might lose it
    points = tv_tensors.KeyPoints([[x + 0.5, y + 0.5] for x, y in places], canvas_size=(h, w))
    seen = 0
    for seed in range(6):
        shown, moved = always(op, 0.5).transform(seed=seed)(tv_tensors.Image(image), points)
        assert isinstance(moved, tv_tensors.KeyPoints) and tuple(moved.canvas_size) == (h, w)
        for level, (x, y) in enumerate(moved.tolist(), 1):
            ys, xs = (shown[0] == level * 50).nonzero(as_tuple=True)
            if len(xs) >= 7:
                seen += 1
                assert abs(xs.float().mean() + 0.5 - x) < 0.6
                assert abs(ys.float().mean() + 0.5 - y) < 0.6
    assert seen >= 12


def test_integer_key_points_stay_integers():
    points = tv_tensors.KeyPoints([[20, 15]], canvas_size=(40, 50))
    image = tv_tensors.Image(torch.zeros(3, 40, 50, dtype=torch.uint8))
    moved = always("TranslateX", 1.0).transform(seed=0)(image, points)[1]
    assert moved.dtype == torch.int64 and abs(moved[0, 0] - 20) in (22, 23) and moved[0, 1] == 15


def test_no_boxes_is_no_trouble():
    boxes = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYWH", canvas_size=(8, 8))
    for op in GEOMETRIC:
        assert always(op).transform()(BATCH[0], boxes)[1].shape == (0, 4)


def test_photometric_ops_leave_boxes_and_points():
    points = tv_tensors.KeyPoints([[2.0, 3.0]], canvas_size=(8, 8))
    for op in ops.PAPER:
        if op.name not in GEOMETRIC:
            _, boxes, moved = always(op.name).transform()(BATCH[0], BOXES, points)
            assert torch.equal(boxes, BOXES) and torch.equal(moved, points), op.name


# --- on a card ----------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_batch_on_a_card_stays_there_and_never_waits():
    batch = a_picture(3, 32, 32).repeat(256, 1, 1, 1).cuda()
    policy = Policy.load("dada-cifar10")
    expected = policy.transform(seed=0)(batch)
    warm = policy.transform(seed=1)
    warm(batch)
    with synchronising_is_an_error():
        done = warm(batch)
    assert done.is_cuda and done.shape == batch.shape
    assert torch.equal(policy.transform(seed=0)(batch), expected)
    assert not torch.equal(done, expected)
