"""What each operation means, in Pillow's own calls: (image, value, center in pixels) -> image.

The batched kernels give the same bytes. A single PIL image goes through these, which is faster
than turning it into a tensor and back.
"""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageEnhance, ImageOps

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


CALLS: dict[str, PillowCall] = {
    "ShearX": lambda image, value, center: _affine(image, 1, value, 0, 0, 1, 0),
    "ShearY": lambda image, value, center: _affine(image, 1, 0, 0, value, 1, 0),
    "TranslateX": lambda image, value, center: _affine(image, 1, 0, value * image.width, 0, 1, 0),
    "TranslateY": lambda image, value, center: _affine(image, 1, 0, 0, 0, 1, value * image.height),
    "TranslateXPixels": lambda image, value, center: _affine(image, 1, 0, value, 0, 1, 0),
    "TranslateYPixels": lambda image, value, center: _affine(image, 1, 0, 0, 0, 1, value),
    "Rotate": lambda image, value, center: image.rotate(value),
    "AutoContrast": lambda image, value, center: ImageOps.autocontrast(image),
    "Invert": lambda image, value, center: ImageOps.invert(image),
    "Equalize": lambda image, value, center: ImageOps.equalize(image),
    "Solarize": lambda image, value, center: ImageOps.solarize(image, value),  # type: ignore[arg-type]
    "Posterize": lambda image, value, center: ImageOps.posterize(image, int(value)),
    "Contrast": lambda image, value, center: ImageEnhance.Contrast(image).enhance(value),
    "Color": lambda image, value, center: ImageEnhance.Color(image).enhance(value),
    "Brightness": lambda image, value, center: ImageEnhance.Brightness(image).enhance(value),
    "Sharpness": lambda image, value, center: ImageEnhance.Sharpness(image).enhance(value),
    "Cutout": _cutout,
}
