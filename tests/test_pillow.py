"""The calls on PIL images give the bytes of Pillow's own, whichever way their tables are made."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from dada.ops.pillow import CALLS

OWN = {
    "AutoContrast": lambda image, value: ImageOps.autocontrast(image),
    "Invert": lambda image, value: ImageOps.invert(image),
    "Equalize": lambda image, value: ImageOps.equalize(image),
    "Solarize": lambda image, value: ImageOps.solarize(image, value),
    "Posterize": lambda image, value: ImageOps.posterize(image, int(value)),
    "Contrast": lambda image, value: ImageEnhance.Contrast(image).enhance(value),
    "Color": lambda image, value: ImageEnhance.Color(image).enhance(value),
    "Brightness": lambda image, value: ImageEnhance.Brightness(image).enhance(value),
    "Sharpness": lambda image, value: ImageEnhance.Sharpness(image).enhance(value),
    "Rotate": lambda image, value: image.rotate(value),
}
VALUES = {
    "Solarize": [0, 0.5, 1, 17.2, 128, 255, 255.5, 256],
    "Posterize": [1, 2.9, 4, 7.99, 8],
    "Rotate": [-30, 0, 12.5],
    **{op: [0.0, 0.1, 0.73, 1, 1.9, 3] for op in ("Contrast", "Color", "Brightness", "Sharpness")},
}


def pictures() -> list[Image.Image]:
    """Noise, few levels, one level, extremes, ramps; odd sizes, one pixel; colour and grey."""
    generator = np.random.default_rng(5)
    arrays = [
        generator.integers(0, 256, (31, 17, 3)),
        generator.integers(90, 110, (8, 8, 3)),
        generator.integers(0, 256, (70, 61, 3)),  # large enough for numpy to be the faster
        generator.integers(0, 2, (64, 64, 3)) * 255,
        np.full((5, 7, 3), 77),
        np.zeros((3, 3, 3)),
        np.full((1, 1, 3), 255),
        np.arange(256 * 3).reshape(16, 16, 3) % 256,
        np.stack([np.full((9, 9), 3), generator.integers(0, 256, (9, 9)), np.eye(9) * 200], 2),
    ]
    colour = [Image.fromarray(array.astype(np.uint8)) for array in arrays]
    return colour + [image.convert("L") for image in colour]


@pytest.mark.parametrize("op", OWN)
def test_the_bytes_are_those_of_pillows_own_call(op):
    for image in pictures():
        for value in VALUES.get(op, [0]):
            before = image.tobytes()
            done, wanted = CALLS[op](image, value, (0.0, 0.0)), OWN[op](image, value)
            assert (done.mode, done.size) == (wanted.mode, wanted.size)
            assert done.tobytes() == wanted.tobytes(), (op, image.size, image.mode, value)
            assert image.tobytes() == before and done is not image


def test_an_image_that_is_read_when_it_is_needed_is_read(tmp_path):
    pictures()[0].save(tmp_path / "lazy.png")
    for op in ("Invert", "Equalize"):
        lazy = Image.open(tmp_path / "lazy.png")
        assert CALLS[op](lazy, 0, (0.0, 0.0)).tobytes() == OWN[op](pictures()[0], 0).tobytes()
