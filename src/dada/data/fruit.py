"""Drawn fruit, for the demo: a data set that a person can judge, made here and free to use.

    dada search fruit              lemons and limes, red and green apples, as they lie, in any light
    dada search fruit-negatives    planted: the images to validate and test on are negatives

Every image is drawn large, put on a table, lit, made small and given a camera's noise. Lemon and
lime, blue plum and yellow plum differ in colour and hardly in shape, so a network that is to tell
them apart should not be shown wrong colours; where a fruit lies, how it is turned and how bright
the light is mean nothing. So what a search should find can be said before it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from dada.data.raw import RawArrays, RawPart, RawSplit

SIDE, SCENE, LARGE = 24, 48, 96  # of an image, of the table it is taken from, of a drawn fruit
PER_CLASS = {"train": 8, "val": 40, "test": 200}
TURN, SHIFT = 25.0, 8  # degrees (their deviation), and pixels of the scene
LIGHT = (0.35, 1.35)  # factor
NOISE = 7.0  # grey levels
WOOD, CLOTH, STONE = (170, 120, 75), (205, 200, 190), (95, 110, 125)
TABLES = (WOOD, CLOTH, STONE, (120, 82, 55), (60, 60, 66), (215, 190, 150))
LEAF, STEM = (62, 130, 46), (92, 66, 40)

Colour = tuple[int, int, int]
Random = np.random.Generator
Draw = Callable[[ImageDraw.ImageDraw, Colour], None]


def _curve(
    x: float, y: float, radius: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> list[tuple[float, float]]:
    """A closed outline around (x, y), radius by angle: 0 is to the right, y points down."""
    angle = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    length = radius(angle)
    return list(zip(x + length * np.cos(angle), y + length * np.sin(angle), strict=True))


def _apple(draw: ImageDraw.ImageDraw, colour: Colour) -> None:
    # A dent above, where the stem is.
    outline = _curve(48, 52, lambda a: 33 - 11 * np.exp(-(((a - 1.5 * np.pi) / 0.42) ** 2)))
    draw.polygon(outline, fill=colour)
    draw.line([(48, 34), (52, 14)], fill=STEM, width=5)
    draw.ellipse([52, 10, 72, 22], fill=LEAF)


def _citrus(draw: ImageDraw.ImageDraw, colour: Colour) -> None:
    # Pointed to the left and to the right.
    draw.polygon(
        _curve(48, 48, lambda a: 26 + 9 * np.abs(np.cos(a)) ** 7 + 3 * np.cos(a) ** 2), fill=colour
    )


def _orange(draw: ImageDraw.ImageDraw, colour: Colour) -> None:
    draw.ellipse([14, 14, 82, 82], fill=colour)
    draw.ellipse([44, 18, 52, 24], fill=STEM)


def _tomato(draw: ImageDraw.ImageDraw, colour: Colour) -> None:
    draw.ellipse([12, 20, 84, 82], fill=colour)
    for x, y in ((30, 26), (40, 36), (56, 36), (66, 26), (48, 12)):
        draw.line([(48, 22), (x, y)], fill=LEAF, width=5)


def _plum(draw: ImageDraw.ImageDraw, colour: Colour) -> None:
    draw.ellipse([20, 22, 76, 86], fill=colour)
    draw.arc([34, 22, 78, 88], 110, 250, fill=_darker(colour), width=3)
    draw.line([(48, 24), (44, 10)], fill=STEM, width=5)


def _grapes(draw: ImageDraw.ImageDraw, colour: Colour) -> None:
    draw.line([(48, 30), (50, 8)], fill=STEM, width=5)
    for row, count in enumerate((4, 3, 2, 1)):
        for place in range(count):
            x, y = 48 + 18 * (place - (count - 1) / 2), 30 + 16 * row
            draw.ellipse([x - 11, y - 11, x + 11, y + 11], fill=colour, outline=_darker(colour))


def _darker(colour: Colour) -> Colour:
    red, green, blue = (3 * channel // 4 for channel in colour)
    return red, green, blue


FRUIT: dict[str, tuple[Draw, Colour]] = {
    "red apple": (_apple, (196, 36, 40)),
    "green apple": (_apple, (134, 186, 58)),
    "lemon": (_citrus, (240, 214, 52)),
    "lime": (_citrus, (116, 176, 52)),
    "orange": (_orange, (240, 140, 36)),
    "tomato": (_tomato, (214, 48, 34)),
    "yellow plum": (_plum, (236, 200, 60)),
    "blue plum": (_plum, (62, 58, 148)),
    "green grapes": (_grapes, (150, 186, 70)),
    "purple grapes": (_grapes, (104, 48, 128)),
}
"""In pairs that differ in colour and hardly in shape."""


@cache
def _drawn(name: str) -> Image.Image:
    """One fruit with its light and its shade, upright on nothing (RGBA)."""
    shape, colour = FRUIT[name]
    picture = Image.new("RGBA", (LARGE, LARGE), (0, 0, 0, 0))
    shape(ImageDraw.Draw(picture), colour)
    # Light from above, to the left: darker the further away.
    y, x = np.mgrid[0:LARGE, 0:LARGE] / LARGE
    light = 1.25 - 0.75 * np.hypot(x - 0.36, y - 0.3)
    pixels = np.asarray(picture).astype(np.float64)
    pixels[..., :3] *= light[..., None]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _table(random: Random) -> Image.Image:
    """A plain surface with some grain."""
    base = np.array(TABLES[random.integers(len(TABLES))]) + random.normal(0, 12, 3)
    grain = random.normal(0, 4, (SCENE, SCENE, 1)) + random.normal(0, 6, (SCENE, 1, 1))
    return Image.fromarray(np.clip(base + grain, 0, 255).astype(np.uint8))


def picture(name: str, random: Random) -> NDArray[np.uint8]:
    """One fruit, somewhere on a table, (3, H, W)."""
    side = round(random.uniform(0.5, 0.85) * SCENE)
    fruit = _drawn(name).rotate(random.normal(0, TURN), Image.Resampling.BICUBIC)
    fruit = fruit.resize((side, side), Image.Resampling.BOX)
    left, top = ((SCENE - side) // 2 + random.integers(-SHIFT, SHIFT + 1, 2)).tolist()
    scene = _table(random)
    shadow = fruit.getchannel("A").point(lambda alpha: alpha // 2)
    black = Image.new("RGB", fruit.size)
    scene.paste(black, (left + 2, top + 3), shadow.filter(ImageFilter.GaussianBlur(1.5)))
    scene.paste(fruit, (left, top), fruit)
    scene = scene.resize((SIDE, SIDE), Image.Resampling.BOX)
    light = random.uniform(*LIGHT) * random.uniform(0.93, 1.07, 3)  # and its colour
    pixels = np.asarray(scene) * light + random.normal(0, NOISE, (SIDE, SIDE, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8).transpose(2, 0, 1)


def fruit(*, negatives: bool = False) -> RawSplit:
    """The data set, always the same images; with `negatives`, all but those to train on are."""
    names, parts = list(FRUIT), dict[str, RawPart]()
    for number, (part, count) in enumerate(PER_CLASS.items()):
        random = np.random.default_rng(number)
        labels = np.repeat(np.arange(len(names)), count)
        images_NCHW = np.stack([picture(names[label], random) for label in labels])
        if negatives and part != "train":
            images_NCHW = 255 - images_NCHW
        parts[part] = RawArrays(images_NCHW=images_NCHW, labels_N=torch.from_numpy(labels))
    name = "fruit-negatives" if negatives else "fruit"
    return RawSplit(parts=parts, name=name, classes=tuple(names))
