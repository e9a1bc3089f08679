"""Targets drawn on pictures.

Letters: H height, W width, M boxes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#42d4f4", "#f032e6", "#9a6324")
STRENGTH = 0.45  # of a colour laid over a picture
LEAST_SIDE_NAMED = 200  # of a picture in whose boxes the names have room


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def overlay(picture: Image.Image, map_HW: Tensor) -> Image.Image:
    """The picture with a colour over every number of the map but 0."""
    pixels = np.array(picture.convert("RGB")).astype(np.float32)
    numbers = map_HW.cpu().numpy().astype(int)
    if numbers.shape != pixels.shape[:2]:
        small = Image.fromarray(numbers.astype(np.uint8))
        numbers = np.array(small.resize(picture.size, Image.Resampling.NEAREST)).astype(int)
    table = np.array([_rgb(colour(i)) for i in range(len(COLOURS))], np.float32)
    covered = numbers > 0
    own = table[(numbers[covered] - 1) % len(COLOURS)]
    pixels[covered] = (1 - STRENGTH) * pixels[covered] + STRENGTH * own
    return Image.fromarray(pixels.round().astype(np.uint8))


def boxes(picture: Image.Image, boxes_M5: Tensor, classes: Sequence[str]) -> Image.Image:
    """The picture with a frame around every box, and its class where there is room."""
    drawn = picture.convert("RGB")
    pen = ImageDraw.Draw(drawn)
    for x0, y0, x1, y1, number in boxes_M5.tolist():
        if number < 0:
            continue
        own = colour(int(number))
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=own)
        if min(picture.size) >= LEAST_SIDE_NAMED:
            name = classes[int(number)] if int(number) < len(classes) else str(int(number))
            pen.text((x0 + 2, y0 + 1), name, fill=own, font=ImageFont.load_default(11))
    return drawn


def _rgb(code: str) -> tuple[int, int, int]:
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)
