"""numpy arrays go through a policy as tensors and pictures do: the same bytes, in their layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import dada

POLICY = dada.Policy.load("dada-cifar10")


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(11, 9, 3), (11, 9, 1), (11, 9), (5, 11, 9, 3), (5, 11, 9, 1)])
def test_the_bytes_are_those_of_the_tensor(shape: tuple[int, ...]) -> None:
    array = noise(*shape)
    kept = array.copy()
    of_arrays, of_tensors = POLICY.transform(seed=3), POLICY.transform(seed=3)
    changed = False
    for _ in range(12):
        by_channel = array if len(shape) > 2 else array[..., None]
        expected = of_tensors(torch.from_numpy(by_channel).movedim(-1, -3).contiguous())
        done = of_arrays(array)
        assert isinstance(done, np.ndarray) and done.dtype == np.uint8 and done.shape == shape
        assert np.array_equal(done.reshape(by_channel.shape), expected.movedim(-3, -1).numpy())
        changed |= not np.array_equal(done, array)
    assert changed and np.array_equal(array, kept)  # what was passed in stays as it is


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_bytes_are_those_of_pillow(mode: str) -> None:
    picture = Image.fromarray(noise(20, 30, 3)).convert(mode)
    for seed in range(8):
        expected = np.asarray(POLICY.transform(seed=seed)(picture))
        assert np.array_equal(POLICY.transform(seed=seed)(np.asarray(picture)), expected)


@pytest.mark.parametrize(
    "view",
    [lambda a: a[::-1], lambda a: a[:, ::2], lambda a: a[..., ::-1], np.asfortranarray],
    ids=["flipped", "strided", "BGR", "Fortran"],
)
def test_views_of_any_kind(view) -> None:
    array = view(noise(16, 24, 3))
    array.flags.writeable = False
    expected = POLICY.transform(seed=1)(np.ascontiguousarray(array))
    assert np.array_equal(POLICY.transform(seed=1)(array), expected)


def test_floats_stay_floats() -> None:
    array = noise(8, 8, 3).astype(np.float32) / 255
    done = dada.Policy.from_rows([[("Invert", 1.0)]]).transform()(array)
    assert done.dtype == np.float32 and np.allclose(done, 1 - array, atol=1e-6)


def test_an_array_beside_other_things() -> None:
    invert = dada.Policy.from_rows([[("Invert", 1.0)]]).transform()
    array, table = noise(8, 8, 3), np.zeros((2, 4))
    image, label, boxes = invert((array, 7, table))
    assert np.array_equal(image, 255 - array) and label == 7 and boxes is table
    sample = invert({"image": array, "mask": noise(4, 4)})
    assert np.array_equal(sample["image"], 255 - array)
    tensor = torch.zeros(3, 8, 8, dtype=torch.uint8)  # beside a tensor an array is not the image
    left, right = invert((array, tensor))
    assert left is array and int(right.min()) == 255


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (noise(3, 8, 9), "HW, HWC or BHWC.*channels first is for tensors"),
        (noise(8), "holds no image"),
        (noise(1, 2, 8, 8, 3), "HW, HWC or BHWC"),
        (noise(8, 8, 3).astype(object), "got object"),
        (noise(8, 8, 3).astype(np.int32), "int32"),
    ],
)
def test_other_arrays_are_refused(array: np.ndarray, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        POLICY.transform()(array)


@pytest.mark.skipif(
    torch.__version__.startswith("2.8."), reason="compiled, draws differ (docs/integrations.md)"
)
@pytest.mark.parametrize("side", [16, 96])  # by kernels, and otherwise by planes
def test_the_transform_compiles_and_gives_the_same_bytes(side: int) -> None:
    """The compiler takes what it can and leaves the rest: bytes and draws stay."""
    batch = torch.from_numpy(noise(6, 3, side, side))
    plain, inside = POLICY.transform(seed=0), POLICY.transform(seed=0)

    def step(images_BCHW: torch.Tensor) -> torch.Tensor:
        return inside(images_BCHW).float() / 255

    compiled = torch.compile(step, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(batch), plain(batch).float() / 255)
    torch._dynamo.reset()
