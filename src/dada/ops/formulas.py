"""The formulas that a program of the fused kernels can follow, and which operation has which."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dada.ops import geometric as geo
from dada.ops import photometric as photo
from dada.ops.spec import Op

NOTHING, WARP, TABLE_AUTOCONTRAST, TABLE_EQUALIZE, INVERT, SOLARIZE, POSTERIZE = range(7)
BLEND_BLACK, BLEND_MEAN, BLEND_GREY, BLEND_SMOOTH, COVER, OTHER = range(7, 13)
FORMULAS: dict[Callable[..., Tensor], int] = {
    photo.autocontrast: TABLE_AUTOCONTRAST,
    photo.equalize: TABLE_EQUALIZE,
    photo.invert: INVERT,
    photo.solarize: SOLARIZE,
    photo.posterize: POSTERIZE,
    photo.brightness: BLEND_BLACK,
    photo.contrast: BLEND_MEAN,
    photo.color: BLEND_GREY,
    photo.sharpness: BLEND_SMOOTH,
    geo.cutout: COVER,
}


def formula_of(op: Op) -> int:
    return WARP if isinstance(op.kernel, geo.Affine) else FORMULAS.get(op.kernel, OTHER)
