"""What is done to a batch, against slow references of one image at a time.

Shapes: B images, C channels, H height, W width, N sub-policies, K operations in each.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from dada import ops
from dada.config import Base
from dada.policy.augment import Normalise, augment, augment_stages
from dada.policy.draw import Draw, policy_free_noise
from dada.policy.space import SearchSpace
from dada.training.base import before_policy, cover_square, crop_and_flip, turn


def random_images(batch: int, channels: int = 3, height: int = 11, width: int = 9) -> Tensor:
    noise = torch.Generator().manual_seed(3)
    shape = (batch, channels, height, width)
    return torch.randint(0, 256, shape, generator=noise, dtype=torch.uint8)


def random_draw(space: SearchSpace, batch: int, *, magnitudes: bool) -> Draw:
    noise = torch.Generator().manual_seed(5)
    k = space.ops_per_subpolicy
    sign_BK, center_BK2 = policy_free_noise(batch, k, noise, torch.device("cpu"))
    return Draw(
        subpolicy_B=torch.randint(0, space.num_subpolicies, (batch,), generator=noise),
        apply_BK=torch.rand(batch, k, generator=noise) < 0.6,
        sign_BK=sign_BK,
        center_BK2=center_BK2,
        magnitude_BK=torch.rand(batch, k, generator=noise) if magnitudes else None,
    )


# --- the policy's operations --------------------------------------------------------------------


@pytest.mark.parametrize("space_name", ["paper", "strength"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_draw_is_its_operations_one_after_another(space_name, k):
    """Every image by itself, through `ops.apply`, with values from the space's plain numbers."""
    space = SearchSpace.named(space_name, ops_per_subpolicy=k)
    images_BCHW = random_images(60)
    draw = random_draw(space, 60, magnitudes=True)
    done_BCHW = augment(images_BCHW, space, draw)
    height, width = images_BCHW.shape[-2:]
    for i, chosen in enumerate(draw.subpolicy_B.tolist()):
        expected = images_BCHW[i : i + 1]
        for position, name in enumerate(space.subpolicies[chosen]):
            sign = float(draw.sign_BK[i, position])
            magnitude = float(draw.magnitude_BK[i, position])
            value = space.value(space.op(name), magnitude, sign)
            if value is None or not draw.apply_BK[i, position]:
                continue
            center = draw.center_BK2[i, position].double() * torch.tensor([width, height])
            expected = ops.apply(name, expected, value, center_B2=center.unsqueeze(0))
        assert torch.equal(done_BCHW[i : i + 1], expected), (i, space.subpolicies[chosen])


def test_without_magnitudes_of_its_own_a_draw_takes_the_subpolicys():
    space = SearchSpace.named("paper")
    images_BCHW, draw = random_images(40), random_draw(space, 40, magnitudes=False)
    noise = torch.Generator().manual_seed(8)
    magnitude_NK = torch.rand(space.num_subpolicies, 2, generator=noise)
    own = Draw(**{**vars(draw), "magnitude_BK": magnitude_NK[draw.subpolicy_B]})
    done_BCHW = augment(images_BCHW, space, draw, magnitude_NK)
    assert torch.equal(done_BCHW, augment(images_BCHW, space, own))
    # A magnitude that the draw brings goes before the sub-policy's.
    assert torch.equal(done_BCHW, augment(images_BCHW, space, own, 1 - magnitude_NK))
    with pytest.raises(ValueError, match="the draw brings no magnitudes, so magnitude_NK is"):
        augment(images_BCHW, space, draw)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_stages_are_the_images_before_between_and_after(k):
    space = SearchSpace.named("paper", ops_per_subpolicy=k)
    images_BCHW, draw = random_images(80), random_draw(space, 80, magnitudes=True)
    stages = augment_stages(images_BCHW, space, draw)
    assert len(stages) == k + 1
    assert torch.equal(stages[0], images_BCHW)
    assert torch.equal(stages[-1], augment(images_BCHW, space, draw))
    for position in range(k):
        unchanged_B = (stages[position] == stages[position + 1]).all((1, 2, 3))
        assert unchanged_B[~draw.apply_BK[:, position]].all()
        assert not unchanged_B[draw.apply_BK[:, position]].all()


# --- crop and flip ------------------------------------------------------------------------------


def slow_crop_and_flip(images_BCHW: Tensor, crop: int, x: int, y: int, mirrored: bool) -> Tensor:
    """Images laid on black, the window that begins at (x, y) cut out of each, then mirrored."""
    batch, channels, height, width = images_BCHW.shape
    shape = (batch, channels, height + 2 * crop, width + 2 * crop)
    canvas = torch.zeros(shape, dtype=torch.uint8)
    canvas[:, :, crop : crop + height, crop : crop + width] = images_BCHW
    window = canvas[:, :, y : y + height, x : x + width]
    return window.flip(-1) if mirrored else window


@pytest.mark.parametrize(("crop", "flip"), [(2, True), (2, False), (0, True), (7, True)])
@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_flip_equals_a_slow_reference(crop, flip, channels):
    """Every result is one of the windows of its image, and all windows come up equally often."""
    batch, side = 600, 2 * crop + 1
    images_BCHW = random_images(batch, channels, height=5, width=4)
    noise = torch.Generator().manual_seed(1)
    done_BCHW = crop_and_flip(images_BCHW, Base(crop=crop, flip=flip), noise)
    assert done_BCHW.shape == images_BCHW.shape and done_BCHW.dtype == torch.uint8
    places = list(product(range(side), range(side), (False, True) if flip else (False,)))
    fits_BP = torch.stack(
        [
            (slow_crop_and_flip(images_BCHW, crop, *place) == done_BCHW).all((1, 2, 3))
            for place in places
        ],
        dim=1,
    )
    assert fits_BP.any(1).all(), "no window of the image looks like this"
    known_B = fits_BP.sum(1) == 1  # a window wholly outside is black wherever it lies
    place_B3 = torch.tensor(places)[fits_BP[known_B].int().argmax(1)]
    if crop == 2:  # every window shows something, so every place is known
        assert known_B.all()
        for axis in (0, 1):
            share = torch.bincount(place_B3[:, axis], minlength=side) / batch
            assert (share - 1 / side).abs().max() < 5 * (1 / side / batch) ** 0.5
    if flip:
        mirrored = place_B3[:, 2].double()
        assert abs(float(mirrored.mean()) - 0.5) < 5 * (0.25 / len(mirrored)) ** 0.5


def test_crop_and_flip_of_nothing_draws_nothing():
    images_BCHW, noise = random_images(4), torch.Generator().manual_seed(1)
    before = noise.get_state()
    assert crop_and_flip(images_BCHW, Base(), noise) is images_BCHW
    assert torch.equal(noise.get_state(), before)


def test_crop_and_flip_repeats_with_its_generator():
    images_BCHW, base = random_images(50), Base(crop=2, flip=True)

    def once(seed: int) -> Tensor:
        return crop_and_flip(images_BCHW, base, torch.Generator().manual_seed(seed))

    assert torch.equal(once(1), once(1))
    assert not torch.equal(once(1), once(2))


# --- turns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width", "quarters"), [(5, 5, (0, 1, 2, 3)), (5, 4, (0, 2))])
def test_turned_images_are_numpys_and_all_come_up_equally_often(height, width, quarters, channels):
    """Quarter turns of an image and of its mirror image: eight of a square, four of a rectangle."""
    batch = 800
    images_BCHW = random_images(batch, channels, height, width)
    done_BCHW = before_policy(
        images_BCHW, Base(flip=True, turn=True), torch.Generator().manual_seed(1)
    )
    assert done_BCHW.shape == images_BCHW.shape and done_BCHW.dtype == torch.uint8
    pixels = images_BCHW.numpy()
    fits_BP = np.stack(
        [
            (np.rot90(start, quarter, (2, 3)) == done_BCHW.numpy()).all((1, 2, 3))
            for start in (pixels, pixels[..., ::-1])
            for quarter in quarters
        ],
        axis=1,
    )
    assert (fits_BP.sum(1) == 1).all(), "every image is one of them"
    share = 1 / fits_BP.shape[1]
    assert abs(fits_BP.mean(0) - share).max() < 4 * (share * (1 - share) / batch) ** 0.5


@pytest.mark.parametrize("base", [Base(flip=True), Base(crop=2, flip=True), Base(scale=0.5)])
def test_a_turn_draws_after_crop_flip_and_zoom(base):
    """Without it, random numbers are those of before; with it, only more of them follow."""
    images_BCHW = random_images(20)
    noise, counted = (torch.Generator().manual_seed(1) for _ in range(2))
    plain_BCHW = before_policy(images_BCHW, base, noise)
    torch.rand(20, 3 if base.scale == 1 else 4, generator=counted)
    assert torch.equal(noise.get_state(), counted.get_state())
    both = before_policy(images_BCHW, replace(base, turn=True), torch.Generator().manual_seed(1))
    assert torch.equal(both, turn(plain_BCHW, noise))


# --- the covered square -------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, 2, 3, 4, 8, 30])
def test_cover_square_covers_one_square(side):
    """Zero exactly in a square around a centre inside the image, cut off at the border."""
    height, width = 11, 9
    images_BCHW = torch.ones(400, 2, height, width)
    done_BCHW = cover_square(images_BCHW, side, torch.Generator().manual_seed(2))
    assert (images_BCHW == 1).all(), "the input was written to"
    spans: dict[str, set[tuple[int, int]]] = {"x": set(), "y": set()}
    for done_CHW in done_BCHW:
        covered_HW = done_CHW[0] == 0
        assert torch.equal(done_CHW[0], done_CHW[1])
        rows, columns = covered_HW.any(1).nonzero()[:, 0], covered_HW.any(0).nonzero()[:, 0]
        assert torch.equal(covered_HW, covered_HW.any(1)[:, None] & covered_HW.any(0))
        assert torch.equal(rows, torch.arange(rows[0], rows[-1] + 1))
        assert torch.equal(columns, torch.arange(columns[0], columns[-1] + 1))
        spans["y"].add((int(rows[0]), len(rows)))
        spans["x"].add((int(columns[0]), len(columns)))
    for name, extent in (("y", height), ("x", width)):
        # What a centre at each pixel gives.
        expected = set()
        for center in range(extent):
            start, stop = max(0, center - side // 2), min(extent, center - side // 2 + side)
            expected.add((start, stop - start))
        assert spans[name] == expected


def test_cover_square_of_no_side_is_nothing():
    images_BCHW = torch.ones(2, 3, 4, 4)
    assert cover_square(images_BCHW, 0, torch.Generator()) is images_BCHW


# --- normalising --------------------------------------------------------------------------------


def test_normalise_gives_mean_0_and_deviation_1_by_channel():
    images_BCHW = random_images(50)
    pixels_CP = images_BCHW.transpose(0, 1).flatten(1).double() / 255
    mean, std = pixels_CP.mean(1), pixels_CP.std(1, unbiased=False)
    normalise = Normalise(mean.tolist(), std.tolist())
    done_BCHW = normalise(images_BCHW)
    assert done_BCHW.dtype == torch.float32
    done_CP = done_BCHW.transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(done_CP.mean(1), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(done_CP.std(1, unbiased=False), torch.ones(3).double())


def test_normalise_of_known_numbers():
    normalise = Normalise([0.5, 0.2], [0.25, 0.1])
    images_BCHW = torch.tensor([255, 51], dtype=torch.uint8).view(1, 2, 1, 1)
    torch.testing.assert_close(normalise(images_BCHW).flatten(), torch.tensor([2.0, 0.0]))
    assert {name for name, _ in normalise.named_buffers()} == {"mean", "std"}
    assert not list(normalise.parameters())


@pytest.mark.parametrize("settings", [{"crop": -1}, {"cutout": -2}, {"lighting": -0.5}])
def test_a_negative_crop_or_square_is_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"^`{name}` should not be negative, got {value}$"):
        Base(**settings)
