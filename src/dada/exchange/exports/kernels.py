"""The batched kernel of every exported operation, under the names of `dada.ops.pillow.CALLS`.

(images_BCHW uint8, value_B float64, center_B2 float64 in pixels) -> images_BCHW uint8
"""

from __future__ import annotations

from typing import Any

from dada.ops.geometric import Affine, cutout
from dada.ops.photometric import (
    autocontrast,
    brightness,
    color,
    contrast,
    equalize,
    invert,
    posterize,
    sharpness,
    solarize,
)

KERNELS: dict[str, Any] = {
    "ShearX": Affine(shear_x=1),
    "ShearY": Affine(shear_y=1),
    "TranslateX": Affine(widths=1),
    "TranslateY": Affine(heights=1),
    "TranslateXPixels": Affine(pixels_x=1),
    "TranslateYPixels": Affine(pixels_y=1),
    "Rotate": Affine(degrees=1),
    "AutoContrast": autocontrast,
    "Invert": invert,
    "Equalize": equalize,
    "Solarize": solarize,
    "Posterize": posterize,
    "Contrast": contrast,
    "Color": color,
    "Brightness": brightness,
    "Sharpness": sharpness,
    "Cutout": cutout,
}
