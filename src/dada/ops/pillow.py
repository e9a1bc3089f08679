"""What each operation does to one PIL image: (image, value, center in pixels) -> image.

The bytes are those of the Pillow call of that name, and the batched kernels give the same. Where
Pillow makes a table of 256 entries in Python and rounds it once more, which takes longer than a
small image does, the table is made here (tests/test_pillow.py compares the bytes).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import ceil
from operator import mul

from PIL import Image, ImageDraw, ImageEnhance

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


@lru_cache(maxsize=4096)
def _stretched(low: int, high: int) -> list[int]:
    """From low..high to all levels; an image of one level stays as it is."""
    if high <= low:
        return LEVELS
    scale = 255.0 / (high - low)
    offset = -low * scale
    return [min(255, max(0, int(level * scale + offset))) for level in LEVELS]


def _autocontrast(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    histogram = image.histogram()
    table: list[int] = []
    for first in range(0, len(histogram), 256):
        used = [level for level in LEVELS if histogram[first + level]]
        table += _stretched(used[0], used[-1])
    return _through(image, table)


def _equalize(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    histogram = image.histogram()
    table: list[int] = []
    for first in range(0, len(histogram), 256):
        counts = histogram[first : first + 256]
        last_used = next(count for count in reversed(counts) if count)
        step = (sum(counts) - last_used) // 255
        if step:
            below = accumulate(counts[:-1], initial=step // 2)
            table += [min(255, pixels // step) for pixels in below]
        else:
            table += LEVELS
    return _through(image, table)


def _contrast(image: Image.Image, value: float, center: tuple[float, float]) -> Image.Image:
    grey = image.convert("L").histogram()
    mean = int(sum(map(mul, LEVELS, grey)) / sum(grey) + 0.5)
    return Image.blend(Image.new("L", image.size, mean).convert(image.mode), image, value)


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
    "Color": lambda image, value, center: ImageEnhance.Color(image).enhance(value),
    "Brightness": lambda image, value, center: ImageEnhance.Brightness(image).enhance(value),
    "Sharpness": lambda image, value, center: ImageEnhance.Sharpness(image).enhance(value),
    "Cutout": _cutout,
}
