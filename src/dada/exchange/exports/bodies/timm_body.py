"""For timm; needs timm and Pillow, nothing else.

    from this_file import DadaPolicy
    transform = timm.data.create_transform(224, is_training=True, auto_augment=None)
    transform.transforms.insert(2, DadaPolicy())  # after crop and flip, before the tensor

For PIL images (RGB, L), by timm's own operations; timm has no Cutout, so it is written here.
Byte for byte what Pillow gives. Randomness is Python's `random`, as in timm itself.
"""

from __future__ import annotations

import random
from bisect import bisect
from itertools import accumulate

from PIL import Image, ImageDraw
from timm.data import auto_augment as aa

# (weight, [(operation, probability, ranges), ...]): one sub-policy is drawn for every image; of the
# ranges one is taken, and a value drawn between its ends.
SUBPOLICIES: list = []

CUTOUT_FILL, CUTOUT_GREY = (125, 123, 114), 123
AFFINE = {"resample": Image.Resampling.NEAREST, "fillcolor": None}


def cutout(image: Image.Image, value: float) -> Image.Image:
    """Cover a square whose side is value x width, its centre anywhere in the image."""
    side = value * image.width
    x0 = int(max(0, random.random() * image.width - side / 2))
    y0 = int(max(0, random.random() * image.height - side / 2))
    x1, y1 = min(image.width, x0 + side), min(image.height, y0 + side)
    covered = image.copy()
    fill = CUTOUT_GREY if image.mode == "L" else CUTOUT_FILL
    ImageDraw.Draw(covered).rectangle((x0, y0, x1, y1), fill=fill)
    return covered


OPERATIONS = {
    "ShearX": lambda image, value: aa.shear_x(image, value, **AFFINE),
    "ShearY": lambda image, value: aa.shear_y(image, value, **AFFINE),
    "TranslateX": lambda image, value: aa.translate_x_rel(image, value, **AFFINE),
    "TranslateY": lambda image, value: aa.translate_y_rel(image, value, **AFFINE),
    "TranslateXPixels": lambda image, value: aa.translate_x_abs(image, value, **AFFINE),
    "TranslateYPixels": lambda image, value: aa.translate_y_abs(image, value, **AFFINE),
    "Rotate": lambda image, value: aa.rotate(image, value, **AFFINE),
    "AutoContrast": lambda image, value: aa.auto_contrast(image),
    "Invert": lambda image, value: aa.invert(image),
    "Equalize": lambda image, value: aa.equalize(image),
    "Solarize": lambda image, value: aa.solarize(image, value),
    "Posterize": lambda image, value: aa.posterize(image, int(value)),
    "Contrast": lambda image, value: aa.contrast(image, value),
    "Color": lambda image, value: aa.color(image, value),
    "Brightness": lambda image, value: aa.brightness(image, value),
    "Sharpness": lambda image, value: aa.sharpness(image, value),
    "Cutout": cutout,
}


class DadaPolicy:
    """Draws a sub-policy for every PIL image and does its operations in their order."""

    def __init__(self) -> None:
        self.cumulative = list(accumulate(weight for weight, _ in SUBPOLICIES))

    def draw(self) -> list[tuple[str, float]]:
        """What is done to one image: (operation, value), ..."""
        if not SUBPOLICIES:
            return []
        position = bisect(self.cumulative, random.random() * self.cumulative[-1])
        _, steps = SUBPOLICIES[min(position, len(SUBPOLICIES) - 1)]
        done = []
        for name, probability, ranges in steps:
            if random.random() < probability:
                start, end = random.choice(ranges)
                done.append((name, start + random.random() * (end - start)))
        return done

    def __call__(self, image: Image.Image) -> Image.Image:
        if image.mode not in ("L", "RGB"):
            raise ValueError(f"PIL image of mode {image.mode!r}: convert it to RGB first")
        for name, value in self.draw():
            image = OPERATIONS[name](image, value)
        return image

    def __repr__(self) -> str:
        return f"DadaPolicy({len(SUBPOLICIES)} sub-policies)"
