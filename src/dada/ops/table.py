"""THE table: the paper's fifteen operations and their ranges, one row each.

Nothing else knows a range. To add an operation, write a row and make a space of it
(`docs/operations.md` shows how).
"""

from __future__ import annotations

from dataclasses import replace

from dada.ops import photometric as photo
from dada.ops.geometric import Affine, cutout
from dada.ops.pillow import CALLS
from dada.ops.spec import Op


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _one_digit(value: float) -> str:
    return f"{value:.1f}"


def _whole(value: float) -> str:
    return str(int(value))  # Posterize drops the fraction too


# fmt: off
PAPER: tuple[Op, ...] = (
    Op(name="ShearX", kernel=Affine(shear_x=1), pillow=CALLS["ShearX"], low=-0.3, high=0.3, signed=True, neutral=0.0, phrase="by {}"),
    Op(name="ShearY", kernel=Affine(shear_y=1), pillow=CALLS["ShearY"], low=-0.3, high=0.3, signed=True, neutral=0.0, phrase="by {}"),
    Op(name="TranslateX", kernel=Affine(widths=1), pillow=CALLS["TranslateX"], low=-0.45, high=0.45, signed=True, neutral=0.0, phrase="by {} of the width", number=_percent),
    Op(name="TranslateY", kernel=Affine(heights=1), pillow=CALLS["TranslateY"], low=-0.45, high=0.45, signed=True, neutral=0.0, phrase="by {} of the height", number=_percent),
    Op(name="Rotate", kernel=Affine(degrees=1), pillow=CALLS["Rotate"], low=-30.0, high=30.0, signed=True, neutral=0.0, phrase="by {} degrees", number=_one_digit),
    Op(name="AutoContrast", kernel=photo.autocontrast, pillow=CALLS["AutoContrast"]),
    Op(name="Invert", kernel=photo.invert, pillow=CALLS["Invert"]),
    Op(name="Equalize", kernel=photo.equalize, pillow=CALLS["Equalize"]),
    Op(name="Solarize", kernel=photo.solarize, pillow=CALLS["Solarize"], low=0.0, high=256.0, neutral=256.0, phrase="from grey level {}", number=_one_digit),
    Op(name="Posterize", kernel=photo.posterize, pillow=CALLS["Posterize"], low=4.0, high=8.0, neutral=8.0, phrase="to {} bits", number=_whole),
    Op(name="Contrast", kernel=photo.contrast, pillow=CALLS["Contrast"], low=0.1, high=1.9, neutral=1.0, phrase="times {}"),
    Op(name="Color", kernel=photo.color, pillow=CALLS["Color"], low=0.1, high=1.9, neutral=1.0, phrase="times {}"),
    Op(name="Brightness", kernel=photo.brightness, pillow=CALLS["Brightness"], low=0.1, high=1.9, neutral=1.0, phrase="times {}"),
    Op(name="Sharpness", kernel=photo.sharpness, pillow=CALLS["Sharpness"], low=0.1, high=1.9, neutral=1.0, phrase="times {}"),
    Op(name="Cutout", kernel=cutout, pillow=CALLS["Cutout"], low=0.0, high=0.2, neutral=0.0, phrase="a square of {} of the width", number=_percent),
)
# fmt: on

BY_NAME: dict[str, Op] = {op.name: op for op in PAPER}


def _widened(name: str, **changes: object) -> Op:
    return replace(BY_NAME[name], **changes)  # type: ignore[arg-type]


# TrivialAugment's wide ranges; its shifts are in pixels, whatever the image's size.
WIDE: tuple[Op, ...] = (
    _widened("ShearX", low=-0.99, high=0.99),
    _widened("ShearY", low=-0.99, high=0.99),
    _widened(
        "TranslateX",
        kernel=Affine(pixels_x=1),
        pillow=CALLS["TranslateXPixels"],
        low=-32.0,
        high=32.0,
        phrase="by {} pixels",
        number=_one_digit,
    ),
    _widened(
        "TranslateY",
        kernel=Affine(pixels_y=1),
        pillow=CALLS["TranslateYPixels"],
        low=-32.0,
        high=32.0,
        phrase="by {} pixels",
        number=_one_digit,
    ),
    _widened("Rotate", low=-135.0, high=135.0),
    BY_NAME["AutoContrast"],
    BY_NAME["Equalize"],
    BY_NAME["Solarize"],
    _widened("Posterize", low=2.0),
    _widened("Contrast", low=0.01, high=1.99),
    _widened("Color", low=0.01, high=1.99),
    _widened("Brightness", low=0.01, high=1.99),
    _widened("Sharpness", low=0.01, high=1.99),
)
