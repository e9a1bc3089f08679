"""Targets go where the pixels go: against Pillow, which moves every pixel of a mask.

Shapes: B images, M boxes, H height, W width.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dada.config import Base
from dada.ops import NO_OP, fused
from dada.ops.geometric import Affine, warp
from dada.policy import Policy, moving
from dada.policy.augment import PolicyTables
from dada.policy.moving import LEAST_VISIBLE, Moves, extents, pixels_of
from dada.policy.space import SPACES
from dada.training.base import before_policy

PAPER = SPACES["paper"]
GEOMETRIC = [op for op in PAPER.ops if isinstance(op.kernel, Affine)]
H, W = 30, 41


def moves_of(steps: list[list[tuple[str, float]]], device: torch.device) -> Moves:
    """The same number of (operation, value) for every image; "" is nothing."""
    names = [op.name for op in PAPER.ops]
    index = [[names.index(name) if name else NO_OP for name, _ in row] for row in steps]
    value = [[value for _, value in row] for row in steps]
    return Moves(
        size=(H, W),
        before=(),
        space=PAPER,
        op_index_BK=torch.tensor(index, device=device),
        value_BK=torch.tensor(value, dtype=torch.float64, device=device),
    )


def maps(count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (count, H, W)).astype(np.uint8)
    )


def by_pillow(map_HW: Tensor, steps: list[tuple[str, float]]) -> np.ndarray:
    image = Image.fromarray(map_HW.numpy())
    for name, value in steps:
        op = next((op for op in GEOMETRIC if op.name == name), None)
        if op is not None:
            assert op.pillow is not None
            image = op.pillow(image, value, (0, 0))
    return np.asarray(image)


def test_every_pixel_of_a_map_goes_where_pillow_puts_it(device: torch.device) -> None:
    noise = np.random.default_rng(3)
    steps = []
    for i in range(60):
        pair = []
        for _ in range(2):
            op = GEOMETRIC[int(noise.integers(len(GEOMETRIC)))]
            pair.append((op.name, float(noise.uniform(op.low, op.high))))
        steps.append([*pair[: i % 3], *[("", 0.0)] * (2 - i % 3)])
    given = maps(len(steps))
    moved = moves_of(steps, device).of_maps(given.to(device)).cpu()
    for one, row, found in zip(given, steps, moved, strict=True):
        np.testing.assert_array_equal(found.numpy(), by_pillow(one, row))


def test_cutout_and_colours_leave_targets(device: torch.device) -> None:
    steps = [[("Cutout", 0.2), ("Invert", 0.0)], [("Brightness", 0.1), ("Equalize", 0.0)]]
    moves, given = moves_of(steps, device), maps(2).to(device)
    boxes_BM5 = torch.tensor([[[3.0, 4, 20, 15, 1]], [[0.0, 0, 41, 30, 0]]], device=device)
    assert torch.equal(moves.of_maps(given), given)
    assert torch.equal(moves.of_boxes(boxes_BM5), boxes_BM5)


def test_sixteen_bits_move_as_eight_do(device: torch.device) -> None:
    moves = moves_of([[("Rotate", 20.0), ("ShearX", 0.2)]], device)
    small = maps(1).to(device)
    large = small.to(torch.int16) * 100
    assert torch.equal(moves.of_maps(large), moves.of_maps(small).to(torch.int16) * 100)


@pytest.mark.parametrize("op", GEOMETRIC, ids=lambda op: op.name)
def test_a_box_holds_the_moved_pixels_of_its_object(op, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    """By its corners never too small; around the pixels exactly."""
    boxes_BM5 = torch.tensor([[[15.0, 10, 24, 21, 1], [2, 2, 9, 8, 0]]], device=device)
    map_1HW = torch.zeros(1, H, W, dtype=torch.int16)
    map_1HW[0, 10:21, 15:24], map_1HW[0, 2:8, 2:9] = 1, 2
    for part in (-0.8, 0.35, 1.0):
        moves = moves_of([[(op.name, part * op.high)]], device)
        by_corners = moves.of_boxes(boxes_BM5)[0].cpu()
        by_pixels, moved = (
            each[0].cpu() for each in moves.of_objects(boxes_BM5, map_1HW.to(device))
        )
        for m in range(2):
            if by_pixels[m, 4] < 0:
                continue
            y, x = np.nonzero(moved.numpy() == m + 1)
            around = [x.min(), y.min(), x.max() + 1, y.max() + 1]
            assert by_pixels[m].tolist() == [*around, float(boxes_BM5[0, m, 4])]
            if by_corners[m, 4] >= 0:
                outside = torch.maximum(by_corners[m, :2] - by_pixels[m, :2], torch.zeros(2))
                outside += (by_pixels[m, 2:4] - by_corners[m, 2:4]).clamp(min=0)
                assert float(outside.max()) <= 1.0  # nearest neighbours round by half a pixel


def test_what_is_hardly_visible_is_dropped(device: torch.device) -> None:
    """A box of 10 pixels at the right edge, shifted out by 7 keeps three tenths; by 8, a fifth."""
    boxes_BM5 = torch.tensor([[[W - 10.0, 5, W, 15, 1]]], device=device)
    map_1HW = torch.zeros(1, H, W, dtype=torch.int16, device=device)
    map_1HW[0, 5:15, W - 10 :] = 1
    assert LEAST_VISIBLE == 0.25
    for shift, kept in ((7, True), (8, False)):
        moves = moves_of([[("TranslateX", -shift / W)]], device)
        found_BM5, moved = moves.of_objects(boxes_BM5, map_1HW)
        for found in (found_BM5, moves.of_boxes(boxes_BM5)):
            assert (float(found[0, 0, 4]) == 1) is kept
            wanted = [W - 10 + shift, 5, W, 15] if kept else [0, 0, 0, 0]
            assert found[0, 0, :4].tolist() == pytest.approx(wanted, abs=0.51)
        assert bool(moved.any()) is kept


def test_rows_that_are_no_box_stay_so(device: torch.device) -> None:
    boxes_BM5 = torch.tensor([[[0.0, 0, 0, 0, -1], [5, 5, 15, 15, 0]]], device=device)
    found = moves_of([[("Rotate", 10.0)]], device).of_boxes(boxes_BM5)[0]
    assert found[0].tolist() == [0, 0, 0, 0, -1] and float(found[1, 4]) == 0


def test_extents_and_counts(device: torch.device) -> None:
    map_1HW = torch.zeros(1, 4, 6, dtype=torch.int16, device=device)
    map_1HW[0, 1:3, 2:5] = 2
    assert extents(map_1HW, 2)[0].tolist() == [[0, 0, 0, 0], [2, 1, 5, 3]]
    assert pixels_of(map_1HW, 2)[0].tolist() == [0, 6]


@pytest.mark.parametrize(
    "base",
    [
        Base(crop=5, flip=True),
        Base(flip=True),
        Base(scale=0.3),
        Base(crop=5, turn=True),
        Base(scale=0.3, turn=True),
    ],
    ids=str,
)
def test_what_every_image_gets_moves_targets_too(base: Base, device: torch.device) -> None:
    """A blob is looked for in the picture itself, after it moved there."""
    images = torch.zeros(24, 1, 40, 40, dtype=torch.uint8)
    images[:, 0, 12:22, 16:30] = 200
    moves: list[Tensor] = []
    generator = torch.Generator(device).manual_seed(1)
    done = before_policy(images.to(device), base, generator, moves=moves)
    maps_BHW = (images[:, 0] > 0).to(torch.uint8).to(device)
    for matrix_B6 in moves:
        maps_BHW = warp(maps_BHW.unsqueeze(1), matrix_B6).squeeze(1)
    seen = done[:, 0] > 100
    wrong = (seen != (maps_BHW > 0)).sum((1, 2))
    # A zoomed picture is interpolated: its edges differ by a pixel from the nearest.
    assert int(wrong.max()) <= (90 if base.scale < 1 else 0)
    boxes_BM5 = torch.tensor([16.0, 12, 30, 22, 0], device=device).expand(24, 1, 5)
    none_B0 = torch.zeros(24, 0, dtype=torch.int64, device=device)
    around = Moves(
        size=(40, 40), before=moves, space=PAPER, op_index_BK=none_B0, value_BK=none_B0.double()
    ).of_boxes(boxes_BM5)
    exact = extents(maps_BHW, 1)[:, 0]
    kept = around[:, 0, 4] >= 0
    assert bool(kept.any())
    assert float((around[kept, 0, :4] - exact[kept]).abs().max()) <= 1.0


@pytest.mark.parametrize("size", [(30, 41), (40, 40)])
def test_masks_and_boxes_turn_with_their_images(
    size: tuple[int, int], device: torch.device
) -> None:
    """Exactly: nothing is interpolated, nothing leaves the image."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (32, 3, *size), generator=generator, dtype=torch.uint8)
    before: list[Tensor] = []
    base, noise = Base(flip=True, turn=True), torch.Generator(device).manual_seed(1)
    done = before_policy(images.to(device), base, noise, moves=before)
    none_B0 = torch.zeros(32, 0, dtype=torch.int64, device=device)
    moves = Moves(
        size=size, before=before, space=PAPER, op_index_BK=none_B0, value_BK=none_B0.double()
    )
    for channel in range(3):
        assert torch.equal(moves.of_maps(images[:, channel].to(device)), done[:, channel])
    boxes_BM5 = torch.tensor([[2.0, 3, 9, 17, 1], [12, 4, 25, 10, 0]], device=device)
    boxes_BM5 = boxes_BM5.expand(32, 2, 5)
    maps_BHW = torch.zeros(32, *size, dtype=torch.int16, device=device)
    maps_BHW[:, 3:17, 2:9], maps_BHW[:, 4:10, 12:25] = 1, 2
    by_pixels_BM5, moved_BHW = moves.of_objects(boxes_BM5, maps_BHW)
    assert torch.equal(moved_BHW, moves.of_maps(maps_BHW))
    assert torch.equal(by_pixels_BM5[..., :4], extents(moved_BHW, 2).float())
    assert torch.equal(by_pixels_BM5, moves.of_boxes(boxes_BM5))
    places = len(by_pixels_BM5.unique(dim=0))
    assert places == (8 if size[0] == size[1] else 4)


def test_images_are_the_same_with_and_without_targets(device: torch.device) -> None:
    images = torch.randint(0, 256, (16, 3, 20, 20), dtype=torch.uint8).to(device)
    for name in ("uniform", "none", "trivialaugment"):
        policy = Policy.load(name)
        space = SPACES[policy.space]
        tables = PolicyTables.of(policy, space, device)
        alone = tables.augment(images, space, torch.Generator(device).manual_seed(2))
        generator = torch.Generator(device).manual_seed(2)
        together, moves = tables.augment_with_moves(images, space, generator)
        assert torch.equal(alone, together)
        # What the policy's geometric operations did to a picture, they do to a map.
        assert moves.of_maps(images[:, 0]).shape == (16, 20, 20)


# --- on a card ----------------------------------------------------------------------------------

OBJECT_MAPS = [  # images, height, width, objects, kind of number
    (2, 33, 40, 5, torch.uint8),
    (1, 7, 300, 40, torch.int16),
    (2, 1, 1, 1, torch.uint8),
    (3, 17, 5, 300, torch.int16),
]


def object_maps() -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randint(0, most + 1, (b, h, w), generator=generator).to(kind), most)
        for b, h, w, most, kind in OBJECT_MAPS
    ]


def kernels_agree() -> None:
    """In a process with TRITON_INTERPRET=1: the kernels on CPU tensors."""
    from dada.policy import moving_kernels

    for map_BHW, most in object_maps():
        assert torch.equal(pixels_of(map_BHW, most), moving_kernels.pixels(map_BHW, most).long())
        pairs = zip(moving._seen(map_BHW, most), moving_kernels.seen(map_BHW, most), strict=True)
        assert all(torch.equal(one.bool(), other.bool()) for one, other in pairs)
        boxes_BM5 = torch.full((len(map_BHW), most, 5), 1.0)
        boxes_BM5[:, ::2, 4] = moving.NO_BOX
        there_BN = torch.nn.functional.pad((boxes_BM5[..., 4] >= 0).long(), (1, 0), value=1)
        kept_BHW = moving.without_dropped(map_BHW, boxes_BM5)
        assert torch.equal(kept_BHW, moving_kernels.without(map_BHW, there_BN))
    assert type(moving_kernels.presence).__name__ == "InterpretedFunction"


@pytest.mark.skipif(not fused.is_available(), reason="triton is not installed")
def test_the_interpreted_kernels_count_alike() -> None:
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests.parent / "src"), str(tests)])
    done = subprocess.run(
        [sys.executable, "-c", "import test_moving; test_moving.kernels_agree()"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "only 0-dimensional arrays can be converted to Python scalars" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this numpy")
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("triton", [True, False], ids=["fused", "torch"])
def test_targets_move_on_a_card_as_on_a_cpu(triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes, maps of classes and of objects under every operation, and what waits for nothing."""
    if not triton:
        monkeypatch.setattr(moving, "has_triton", lambda: False)
        monkeypatch.setattr(fused, "is_available", lambda: False)
    for map_BHW, most in object_maps():
        assert torch.equal(extents(map_BHW.cuda(), most).cpu(), extents(map_BHW, most))
        assert torch.equal(pixels_of(map_BHW.cuda(), most).cpu().long(), pixels_of(map_BHW, most))
    noise = np.random.default_rng(0)
    for name in ("uniform", "trivialaugment"):
        policy = Policy.load(name)
        space = SPACES[policy.space]
        tables = PolicyTables.of(policy, space, torch.device("cpu"))
        steps = tables.draw(200, torch.Generator().manual_seed(1))
        done_BK, value_BK = space.decide(*steps[:4])
        map_BHW = torch.from_numpy(noise.integers(0, 9, (200, H, W)).astype(np.uint8))
        start = torch.from_numpy(noise.uniform(0, 18, (200, 8, 2))).float()
        ends = start + torch.from_numpy(noise.uniform(1, 20, (200, 8, 2))).float()
        kind = torch.from_numpy(noise.integers(-1, 3, (200, 8, 1))).float()
        boxes_BM5 = torch.cat([start, ends, kind], -1)
        found = []
        for device in ("cpu", "cuda"):
            moves = Moves(
                size=(H, W),
                before=(),
                space=space,
                op_index_BK=done_BK.to(device),
                value_BK=value_BK.to(device),
            )
            given = boxes_BM5.to(device), map_BHW.to(device)
            found.append([moves.of_maps(given[1]), moves.of_boxes(given[0])])
            found[-1] += moves.of_objects(*given)
        for here, there in zip(*found, strict=True):
            if here.is_floating_point():  # a sum of products may be rounded once less
                assert torch.allclose(here, there.cpu(), atol=1e-4)
            else:
                assert torch.equal(here, there.cpu())
