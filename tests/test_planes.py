"""One image as planes of bytes: the bytes are those of the row's Pillow call and of its kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import dada
from dada.ops import NO_OP, PAPER, WIDE, Op, run
from dada.ops import batch as batch_module
from dada.ops.geometric import Affine
from dada.ops.planes import do_all

SIZES = [(1, 1), (2, 3), (31, 17), (64, 64), (64, 65), (97, 120)]  # on both sides of "small"


def image_of(channels: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    levels = np.random.default_rng(seed).integers(0, 256, (channels, height, width))
    return (levels // 3 + 40 if seed % 2 else levels).astype(np.uint8)


def by_pillow(planes_CHW: np.ndarray, op: Op, value: float, center: tuple[float, float]) -> bytes:
    assert op.pillow is not None
    by_pixel_HWC = np.ascontiguousarray(planes_CHW.transpose(1, 2, 0))
    picture = Image.fromarray(by_pixel_HWC[..., 0] if len(planes_CHW) == 1 else by_pixel_HWC)
    done_HW = np.asarray(op.pillow(picture, value, center))
    return done_HW.reshape(*done_HW.shape[:2], -1).transpose(2, 0, 1).tobytes()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("op", {*PAPER, *WIDE}, ids=lambda op: f"{op.name}-{op.high}")
def test_the_bytes_are_those_of_the_pillow_call(op, channels):
    for seed, size in enumerate(SIZES):
        planes = image_of(channels, *size, seed)
        before = planes.tobytes()
        for part in (0.0, 0.13, 0.5, 0.77, 1.0):
            value = op.low + part * (op.high - op.low)
            center = part * size[1], (1 - part) * size[0]
            done = do_all(planes, [(op, value, center)])
            assert done.shape == planes.shape and done.dtype == np.uint8
            assert done.tobytes() == by_pillow(planes, op, value, center), (size, value)
        assert planes.tobytes() == before


@pytest.mark.parametrize("kernel", [Affine(degrees=1), Affine(shear_x=1, pixels_y=3)])
def test_a_warp_without_a_pillow_call_is_its_kernel(kernel):
    op = Op(name="Own", kernel=kernel, low=-1, high=1, neutral=0)
    planes, value = image_of(3, 70, 80), 0.4
    one = torch.tensor([value], dtype=torch.float64)
    wanted = kernel(torch.from_numpy(planes)[None], one, torch.zeros(1, 2))[0]
    assert np.array_equal(do_all(planes, [(op, value, (0.0, 0.0))]), wanted.numpy())


def test_an_own_kernel_may_come_after_any_operation():
    """Also where bytes came back that torch must not write to."""
    own = Op(name="Own", kernel=lambda images_BCHW, value_B, center_B2: images_BCHW // 2)
    for op in PAPER:
        first = op, op.high, (3.0, 4.0)
        for size in ((20, 30), (80, 70)):
            planes = image_of(3, *size)
            done = do_all(planes, [first, (own, 0.0, (0.0, 0.0)), first])
            halved = do_all(planes, [first]) // 2
            assert np.array_equal(done, do_all(halved, [first])), op.name


def steps_for(images: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
    """Three operations for each image, some of them none."""
    generator = torch.Generator().manual_seed(3)
    op_index = torch.randint(-1, len(PAPER), (images, 3), generator=generator)
    part = torch.rand(images, 3, generator=generator, dtype=torch.float64)
    low, high = (torch.tensor([getattr(op, end) for op in PAPER]) for end in ("low", "high"))
    value = low[op_index] + part * (high - low)[op_index]
    center = torch.rand(images, 3, 2, generator=generator, dtype=torch.float64)
    return op_index, value, center * torch.tensor([width, height])


@pytest.mark.parametrize("channels", [1, 3])
def test_by_planes_or_by_kernels_and_any_number_of_threads(channels, monkeypatch, torch_threads):
    images = torch.from_numpy(np.stack([image_of(channels, 90, 100, seed) for seed in range(24)]))
    steps = steps_for(24, 90, 100)
    assert (steps[0] == NO_OP).any(1).any() and (steps[0] != NO_OP).all(1).any()
    before = images.clone()
    done = []
    for small, threads in ((10**6, 1), (10**6, 3), (0, 1), (0, 2), (0, 3), (0, 8)):
        monkeypatch.setattr(batch_module, "SMALL_ON_CPU", small)
        monkeypatch.setattr(batch_module, "WORTH_SHARING", 0)
        torch_threads(threads)
        done.append(run(PAPER, images, *steps))
        assert torch.equal(images, before) and done[-1].is_contiguous()
        assert torch.get_num_threads() == threads
    assert all(torch.equal(done[0], other) for other in done[1:])
    assert run(PAPER, images[:0], *(each[:0] for each in steps)).shape == images[:0].shape
    nothing = (each[:, :0] for each in steps)
    assert torch.equal(run(PAPER, images, *nothing), images)


def test_a_seeded_transform_does_not_depend_on_threads(torch_threads):
    batch_BCHW = torch.from_numpy(np.stack([image_of(3, 128, 128, seed) for seed in range(90)]))
    assert batch_BCHW.numel() >= batch_module.WORTH_SHARING
    done = []
    for threads in (1, 4):
        torch_threads(threads)
        transform = dada.Policy.load("dada-cifar10").transform(seed=5)
        done.append([transform(batch_BCHW) for _ in range(2)])
    assert torch.equal(done[0][0], done[1][0]) and torch.equal(done[0][1], done[1][1])
    assert not torch.equal(done[0][0], done[0][1])


def test_a_kernel_of_ones_own_sees_a_copy(monkeypatch):
    monkeypatch.setattr(batch_module, "SMALL_ON_CPU", 0)
    own = Op(name="Own", kernel=lambda images_BCHW, value_B, center_B2: images_BCHW.mul_(2))
    images = torch.full((1, 3, 4, 4), 3, dtype=torch.uint8)
    steps = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1), torch.zeros(1, 1, 2)
    assert (run((own,), images, *steps) == 6).all() and (images == 3).all()
