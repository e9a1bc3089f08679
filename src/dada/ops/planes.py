"""One image as planes of bytes, on a CPU: lines of numpy, and Pillow where it is the faster.

Letters: C channels, H height, W width.

The bytes are Pillow's. A warp looks places up once for all three channels when they are a colour
picture, so there, and for operations nobody wrote a line for, planes become one and are taken
apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from math import ceil, floor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dada.ops import geometric as geo
from dada.ops import photometric as photo
from dada.ops.pillow import SMALL_PICTURE, equalized, smoothed, stretched
from dada.ops.spec import Op

Planes = NDArray[np.uint8]  # CHW
Center = tuple[float, float]  # in pixels (x, y)
Step = tuple[Op, float, Center]  # an operation and its value
LUMA_RGB = np.array([19595, 38470, 7471], np.uint32)


def do_all(planes_CHW: Planes, steps: Iterable[Step]) -> Planes:
    """The steps one after another. What comes back may be read only, or be what came."""
    for way, some in groupby(steps, lambda step: _way(step[0])):
        planes_CHW = way(planes_CHW, list(some))
    return planes_CHW


def as_tensor(planes_CHW: Planes) -> torch.Tensor:
    """The same bytes; a copy where they are read only, which torch does not know."""
    return torch.from_numpy(planes_CHW if planes_CHW.flags.writeable else planes_CHW.copy())


def _way(op: Op) -> Callable[[Planes, list[Step]], Planes]:
    if op.kernel in LINES or (isinstance(op.kernel, geo.Affine) and op.kernel.only_shifts):
        return _by_lines
    return _by_kernel if op.pillow is None else _as_picture


def _by_lines(planes_CHW: Planes, steps: list[Step]) -> Planes:
    for op, value, center in steps:
        if isinstance(op.kernel, geo.Affine):
            *_, by_x, by_y = op.kernel.motion(*planes_CHW.shape[1:])
            planes_CHW = _shift(planes_CHW, value * by_x, value * by_y)
        else:
            planes_CHW = LINES[op.kernel](planes_CHW, value, center)
    return planes_CHW


def _as_picture(planes_CHW: Planes, steps: list[Step]) -> Planes:
    picture = _picture_of(planes_CHW)
    for op, value, center in steps:
        assert op.pillow is not None
        picture = op.pillow(picture, value, center)
    return _planes_of(picture)


# Between planes and a colour picture the fewest calls are the fastest on small images: all planes
# at once, line by line. On larger ones Pillow joins and parts whole planes faster than lines.


def _picture_of(planes_CHW: Planes) -> Image.Image:
    c, h, w = planes_CHW.shape
    if c == 1:
        return _grey(planes_CHW[0])
    if h * w > SMALL_PICTURE:
        return Image.merge("RGB", [_grey(plane_HW) for plane_HW in planes_CHW])
    lines_HCW = planes_CHW.transpose(1, 0, 2).tobytes()
    return Image.frombytes("RGB", (w, h), lines_HCW, "raw", "RGB;L", 0, 1)


def _planes_of(picture: Image.Image) -> Planes:
    w, h = picture.size
    bands = picture.getbands()
    if len(bands) == 1 or h * w > SMALL_PICTURE:
        planes = b"".join([picture.tobytes("raw", band) for band in bands])
        return np.frombuffer(planes, np.uint8).reshape(-1, h, w)
    lines = np.frombuffer(picture.tobytes("raw", "RGB;L"), np.uint8)
    return np.ascontiguousarray(lines.reshape(h, -1, w).transpose(1, 0, 2))


def _grey(plane_HW: Planes) -> Image.Image:
    """A picture of the same bytes, not a copy."""
    return Image.frombuffer("L", plane_HW.shape[::-1], plane_HW, "raw", "L", 0, 1)


def _by_kernel(planes_CHW: Planes, steps: list[Step]) -> Planes:
    image_1CHW = as_tensor(planes_CHW).unsqueeze(0)
    for op, value, center in steps:
        value_1 = torch.tensor([value], dtype=torch.float64)
        image_1CHW = op.kernel(image_1CHW, value_1, torch.tensor([center], dtype=torch.float64))
    done: Planes = image_1CHW[0].contiguous().numpy()
    return done


def _shift(planes_CHW: Planes, pixels_x: float, pixels_y: float) -> Planes:
    """To the left and upwards, by whole pixels, black behind."""
    h, w = planes_CHW.shape[1:]
    to_y, from_y = _overlap(floor(pixels_y + 0.5), h)
    to_x, from_x = _overlap(floor(pixels_x + 0.5), w)
    shifted = np.zeros_like(planes_CHW)
    shifted[:, to_y, to_x] = planes_CHW[:, from_y, from_x]
    return shifted


def _overlap(shift: int, length: int) -> tuple[slice, slice]:
    """Which places show something, and what they show."""
    near, far = min(length, max(0, shift)), min(length, max(0, -shift))
    return slice(far, length - near), slice(near, length - far)


def _cutout(planes_CHW: Planes, value: float, center: Center) -> Planes:
    c, h, w = planes_CHW.shape
    side = value * w
    x0, y0 = (int(max(0, middle - side / 2)) for middle in center)
    x1, y1 = int(min(w, x0 + side)), int(min(h, y0 + side))
    covered = planes_CHW.copy()
    fill = geo.CUTOUT_FILL if c == 3 else (geo.CUTOUT_GREY,)
    covered[:, y0 : y1 + 1, x0 : x1 + 1] = np.array(fill, np.uint8)[:, None, None]
    return covered


def _solarize(planes_CHW: Planes, value: float, center: Center) -> Planes:
    kept = min(256, max(0, ceil(value)))  # levels below the threshold
    return planes_CHW ^ ((planes_CHW >= kept).view(np.uint8) * np.uint8(255))


def _autocontrast(planes_CHW: Planes, value: float, center: Center) -> Planes:
    return _through(planes_CHW, [stretched(int(p.min()), int(p.max())) for p in planes_CHW])


def _equalize(planes_CHW: Planes, value: float, center: Center) -> Planes:
    histograms = [_grey(plane_HW).histogram() for plane_HW in planes_CHW]
    return _through(planes_CHW, equalized(histograms).astype(np.uint8))


def _through(planes_CHW: Planes, tables: Iterable[Iterable[int]]) -> Planes:
    """Every plane through a table of its own."""
    both = zip(planes_CHW, tables, strict=True)
    done = b"".join([plane_HW.tobytes().translate(bytes(table)) for plane_HW, table in both])
    return np.frombuffer(done, np.uint8).reshape(planes_CHW.shape)


def _luma(planes_CHW: Planes) -> NDArray[np.uint32]:
    """Pillow's RGB to L in 16-bit fixed point, HW; a grey image is its own."""
    if len(planes_CHW) == 1:
        return planes_CHW[0].astype(np.uint32)
    luma_HW = planes_CHW[0] * LUMA_RGB[0]
    luma_HW += planes_CHW[1] * LUMA_RGB[1]
    luma_HW += planes_CHW[2] * LUMA_RGB[2]
    luma_HW += 0x8000
    luma_HW >>= 16
    return luma_HW


def _blend(duller: NDArray[Any] | float, planes_CHW: Planes, value: float) -> Planes:
    """Image.blend: duller + value x (image - duller) in float32, clipped, truncated."""
    mixed = np.subtract(planes_CHW, duller, dtype=np.float32)
    mixed *= np.float32(value)
    mixed += duller
    if not 0 <= value <= 1:
        np.clip(mixed, 0, 255, out=mixed)
    return mixed.astype(np.uint8)


def _contrast(planes_CHW: Planes, value: float, center: Center) -> Planes:
    luma_HW = _luma(planes_CHW)
    return _blend(int(int(luma_HW.sum()) / luma_HW.size + 0.5), planes_CHW, value)


def _sharpness(planes_CHW: Planes, value: float, center: Center) -> Planes:
    smooth_HWC = smoothed(planes_CHW.transpose(1, 2, 0))
    return _blend(smooth_HWC.transpose(2, 0, 1), planes_CHW, value)


LINES: dict[Callable[..., torch.Tensor], Callable[[Planes, float, Center], Planes]] = {
    geo.cutout: _cutout,
    photo.invert: lambda planes, value, center: planes ^ np.uint8(255),
    photo.solarize: _solarize,
    photo.posterize: lambda planes, value, center: planes & np.uint8(256 - 2 ** (8 - int(value))),
    photo.autocontrast: _autocontrast,
    photo.equalize: _equalize,
    photo.brightness: lambda planes, value, center: _blend(0, planes, value),
    photo.contrast: _contrast,
    photo.color: lambda planes, value, center: _blend(
        _luma(planes).astype(np.float32), planes, value
    ),
    photo.sharpness: _sharpness,
}
