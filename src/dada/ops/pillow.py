"""What each operation does to one PIL image: (image, value, center in pixels) -> image.

The bytes are those of the Pillow call of that name, and the batched kernels give the same. Where
Pillow makes a table of 256 entries in Python and rounds it once more, which takes longer than a
small image does, the table is made here (tests/test_pillow.py compares the bytes).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from dada.ops.geometric import CUTOUT_FILL, CUTOUT_GREY
from dada.ops.spec import PillowCall


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def _cutout(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    side = value * image.width
    x0, y0 = (int(max(0, middle - side / 2)) for middle in center)
    x1, y1 = min(image.width, x0 + side), min(image.height, y0 + side)
    covered = image.copy()
    fill = CUTOUT_GREY if image.mode == "L" else CUTOUT_FILL
    ImageDraw.Draw(covered).rectangle((x0, y0, x1, y1), fill=fill)
    return covered


LEVELS = list(range(256))
INVERTED = LEVELS[::-1]
ALL_LEVELS = Image.frombytes("L", (256, 1), bytes(LEVELS))
SMALL_PICTURE = 64 * 64  # pixels


def _is_small(image: Image.Image) -> bool:
    """Whether Pillow is done with all pixels before another way has begun."""
    return image.width * image.height <= SMALL_PICTURE


def _through(image: Image.Image, table: list[int]) -> Image.Image:
    """Every pixel through a table for each band."""
    image.load()
    return image._new(image.im.point(table, None))


def _same_for_all_bands(image: Image.Image, table: list[int]) -> Image.Image:
    return _through(image, table if image.mode == "L" else table * 3)


def _solarize(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    kept = min(256, max(0, ceil(value)))  # levels below the threshold
    return _same_for_all_bands(image, LEVELS[:kept] + INVERTED[kept:])


@lru_cache(maxsize=16)
def _posterized(bits: int) -> list[int]:
    return [level & ~(2 ** (8 - bits) - 1) for level in LEVELS]


def stretched(low_P: NDArray[Any], high_P: NDArray[Any]) -> NDArray[np.uint8]:
    """The tables of AutoContrast, a row for each band: low..high to all levels; a band of one level
    stays as it is."""
    span_P1 = high_P[:, None].astype(np.float64) - low_P[:, None]
    scale_P1 = 255.0 / np.maximum(span_P1, 1)
    tables_P256 = (np.arange(256) * scale_P1 - low_P[:, None] * scale_P1).clip(0, 255)
    return np.where(span_P1 > 0, tables_P256, np.arange(256)).astype(np.uint8)


def _autocontrast(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    ends = np.array(image.getextrema()).reshape(-1, 2)
    return _through(image, stretched(ends[:, 0], ends[:, 1]).ravel().tolist())


def equalized(counts_P256: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tables of Equalize, a row for each band: as many pixels in every part of the levels."""
    below = counts_P256.cumsum(1)
    below -= counts_P256
    brightest = 255 - (counts_P256[:, ::-1] > 0).argmax(1)
    step = below[range(len(below)), brightest, None] // 255
    table = (step // 2 + below) // np.maximum(step, 1)
    return np.where(step > 0, table.clip(max=255), np.arange(256))


def _equalize(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    return _through(image, equalized(np.array(image.histogram()).reshape(-1, 256)).ravel().tolist())


def _away_from(level: int, image: Image.Image, value: float) -> Image.Image:
    """Blended with a picture of one level: what Pillow makes of all 256 levels is the table."""
    blended = Image.blend(Image.new("L", ALL_LEVELS.size, level), ALL_LEVELS, value)
    return _same_for_all_bands(image, list(blended.tobytes()))


def _brightness(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    if _is_small(image):
        return Image.blend(Image.new(image.mode, image.size), image, value)
    return _away_from(0, image, value)


def _contrast(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    grey = image.convert("L").histogram()
    return _away_from(int(sum(map(mul, LEVELS, grey)) / sum(grey) + 0.5), image, value)


def _color(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    return Image.blend(image.convert("L").convert(image.mode), image, value)


def _sharpness(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    return Image.blend(_smooth(image), image, value)


def _smooth(image: Image.Image) -> Image.Image:
    if _is_small(image):
        return image.filter(ImageFilter.SMOOTH)
    return Image.fromarray(smoothed(np.asarray(image)))


def smoothed(image_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ImageFilter.SMOOTH, 3x3 with weight 5 in the middle, over 13; the border stays.

    Pillow multiplies nine floats for every byte; whole rows added up take a fifth of the time on
    large images. Axes after the first two are channels.
    """
    levels = image_HW.astype(np.uint16)
    rows = levels[:-2] + levels[1:-1]
    rows += levels[2:]
    total = rows[:, :-2] + rows[:, 1:-1]
    total += rows[:, 2:]
    total += levels[1:-1, 1:-1] * np.uint16(4)
    total += 6  # rounds: the remainder of an integer by 13 is never a half
    result = image_HW.copy(order="K")
    result[1:-1, 1:-1] = total // 13
    return result


CALLS: dict[str, PillowCall] = {
    "ShearX": lambda image, value, center: _affine(image, 1, value, 0, 0, 1, 0),
    "ShearY": lambda image, value, center: _affine(image, 1, 0, 0, value, 1, 0),
    "TranslateX": lambda image, value, center: _affine(image, 1, 0, value * image.width, 0, 1, 0),
    "TranslateY": lambda image, value, center: _affine(image, 1, 0, 0, 0, 1, value * image.height),
    "TranslateXPixels": lambda image, value, center: _affine(image, 1, 0, value, 0, 1, 0),
    "TranslateYPixels": lambda image, value, center: _affine(image, 1, 0, 0, 0, 1, value),
    "Rotate": lambda image, value, center: image.rotate(value),
    "AutoContrast": _autocontrast,
    "Invert": lambda image, value, center: _same_for_all_bands(image, INVERTED),
    "Equalize": _equalize,
    "Solarize": _solarize,
    "Posterize": lambda image, value, center: _same_for_all_bands(image, _posterized(int(value))),
    "Contrast": _contrast,
    "Color": _color,
    "Brightness": _brightness,
    "Sharpness": _sharpness,
    "Cutout": _cutout,
}
