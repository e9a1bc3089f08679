"""Some images as planes of bytes, on a CPU: lines of numpy, and Pillow where it is the faster.

Letters: N images that have the same done to them, C channels, H height, W width.

The bytes are Pillow's. A warp looks places up once for all three channels when they are a colour
picture, so there, and for operations nobody wrote a line for, planes become one and are taken
apart again. Threads do this side by side, so what takes long should let go of the interpreter:
numpy's arithmetic and Pillow's loops do, `bytes.translate` and `Image.merge` do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
Images = NDArray[np.uint8]  # NCHW
Center = tuple[float, float]  # in pixels (x, y)
Step = tuple[Op, float, Center]  # an operation and its value
Values = list[float]
Centers = list[Center]
LUMA_RGB = np.array([19595, 38470, 7471], np.uint32)


def do_all(planes_CHW: Planes, steps: Iterable[Step]) -> Planes:
    """The steps one after another. What comes back may be read only, or be what came."""
    image_1CHW = planes_CHW[None]
    for op, value, center in steps:
        image_1CHW = do(op, image_1CHW, [value], [center])
    return image_1CHW[0]


def do(op: Op, images_NCHW: Images, values: Values, centers: Centers) -> Images:
    """One operation to each of the images, with a value and a center of its own."""
    if op.kernel in LINES:
        return LINES[op.kernel](images_NCHW, values, centers)
    if isinstance(op.kernel, geo.Affine) and op.kernel.only_shifts:
        return _shift(images_NCHW, values, op.kernel)
    return (_by_kernel if op.pillow is None else _as_pictures)(op, images_NCHW, values, centers)


def as_tensor(planes_CHW: Planes) -> torch.Tensor:
    """The same bytes; a copy where they are read only, which torch does not know."""
    return torch.from_numpy(planes_CHW if planes_CHW.flags.writeable else planes_CHW.copy())


def _as_pictures(op: Op, images_NCHW: Images, values: Values, centers: Centers) -> Images:
    assert op.pillow is not None
    warps = isinstance(op.kernel, geo.Affine)
    done = np.empty_like(images_NCHW)
    each = zip(images_NCHW, values, centers, done, strict=True)
    for planes_CHW, value, center, done_CHW in each:
        c, h, w = planes_CHW.shape
        if warps and c == 3 and h * w > SMALL_PICTURE:
            pixels_HW = _packed(planes_CHW)
            four = Image.frombuffer("CMYK", (w, h), pixels_HW, "raw", "CMYK", 0, 1)
            _put(op.pillow(four, value, center).im, pixels_HW, "CMYK")
            _unpack(pixels_HW, done_CHW)
        else:
            done_CHW[:] = _planes_of(op.pillow(_picture_of(planes_CHW), value, center))
    return done


# Between planes and a colour picture the fewest calls are the fastest on small images: all planes
# at once, line by line. For a warp of a larger one three bytes become a number, which numpy does
# without holding the interpreter, and the picture is one of four bands, whatever they are called.


def _picture_of(planes_CHW: Planes) -> Image.Image:
    c, h, w = planes_CHW.shape
    if c == 1:
        return _grey(planes_CHW[0])
    lines_HCW = planes_CHW.transpose(1, 0, 2).tobytes()
    return Image.frombytes("RGB", (w, h), lines_HCW, "raw", "RGB;L", 0, 1)


def _planes_of(picture: Image.Image) -> Planes:
    w, h = picture.size
    if picture.mode == "L":
        return np.frombuffer(picture.tobytes(), np.uint8).reshape(1, h, w)
    lines = np.frombuffer(picture.tobytes("raw", "RGB;L"), np.uint8)
    return lines.reshape(h, -1, w).transpose(1, 0, 2)


def _packed(planes_CHW: Planes) -> NDArray[np.uint32]:
    pixels_HW = planes_CHW[2].astype(np.uint32)
    for plane_HW in (planes_CHW[1], planes_CHW[0]):
        pixels_HW <<= 8
        pixels_HW |= plane_HW
    return pixels_HW


def _unpack(pixels_HW: NDArray[np.uint32], planes_CHW: Planes) -> None:
    for plane_HW in planes_CHW:
        np.copyto(plane_HW, pixels_HW, casting="unsafe")  # the lowest byte
        pixels_HW >>= 8


def _grey(plane_HW: Planes) -> Image.Image:
    """A picture of the same bytes, not a copy."""
    return Image.frombuffer("L", plane_HW.shape[::-1], plane_HW, "raw", "L", 0, 1)


def _inside(mode: str, pixels_HW: NDArray[Any]) -> Any:
    """What is inside a picture of the same bytes: a third of the time of the picture itself."""
    return Image.core.map_buffer(pixels_HW, pixels_HW.shape[::-1], "raw", 0, (mode, 0, 1))


def _put(inside: Any, pixels_HW: NDArray[Any], mode: str) -> None:
    """What is inside a picture, copied into these bytes."""
    _inside(mode, pixels_HW).paste(inside, (0, 0, *pixels_HW.shape[::-1]))


def _by_kernel(op: Op, images_NCHW: Images, values: Values, centers: Centers) -> Images:
    value_N = torch.tensor(values, dtype=torch.float64)
    center_N2 = torch.tensor(centers, dtype=torch.float64)
    done: Images = (
        op.kernel(torch.from_numpy(images_NCHW.copy()), value_N, center_N2).contiguous().numpy()
    )
    return done


def _shift(images_NCHW: Images, values: Values, kernel: geo.Affine) -> Images:
    """To the left and upwards, by whole pixels, black behind."""
    h, w = images_NCHW.shape[2:]
    *_, by_x, by_y = kernel.motion(h, w)
    shifted = np.zeros_like(images_NCHW)
    for image_CHW, shifted_CHW, value in zip(images_NCHW, shifted, values, strict=True):
        to_y, from_y = _overlap(floor(value * by_y + 0.5), h)
        to_x, from_x = _overlap(floor(value * by_x + 0.5), w)
        shifted_CHW[:, to_y, to_x] = image_CHW[:, from_y, from_x]
    return shifted


def _overlap(shift: int, length: int) -> tuple[slice, slice]:
    """Which places show something, and what they show."""
    near, far = min(length, max(0, shift)), min(length, max(0, -shift))
    return slice(far, length - near), slice(near, length - far)


def _cutout(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    c, h, w = images_NCHW.shape[1:]
    covered = images_NCHW.copy()
    fill_C11 = np.array(geo.CUTOUT_FILL if c == 3 else (geo.CUTOUT_GREY,), np.uint8)[:, None, None]
    for covered_CHW, value, center in zip(covered, values, centers, strict=True):
        side = value * w
        x0, y0 = (int(max(0, middle - side / 2)) for middle in center)
        x1, y1 = int(min(w, x0 + side)), int(min(h, y0 + side))
        covered_CHW[:, y0 : y1 + 1, x0 : x1 + 1] = fill_C11
    return covered


def _invert(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    return images_NCHW ^ np.uint8(255)


def _posterize(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    return images_NCHW & _each([256 - 2 ** (8 - int(value)) for value in values], np.uint8)


def _solarize(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    kept = _each([min(256, max(0, ceil(value))) for value in values], np.uint16)
    flipped = _each([255 * (value <= 255) for value in values], np.uint8)
    reached = images_NCHW >= np.minimum(kept, 255).astype(np.uint8)
    return images_NCHW ^ (reached.view(np.uint8) * flipped)


def _autocontrast(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    planes_PHW = _planes(images_NCHW)
    return _through(images_NCHW, stretched(planes_PHW.min((1, 2)), planes_PHW.max((1, 2))))


def _equalize(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    planes_PHW = as_tensor(_planes(images_NCHW))
    counts = [torch.bincount(plane_HW.view(-1), minlength=256) for plane_HW in planes_PHW]
    return _through(images_NCHW, equalized(torch.stack(counts).numpy()))


def _through(images_NCHW: Images, tables_P256: NDArray[Any]) -> Images:
    """Every plane through a table of its own; large ones by Pillow, beside other threads."""
    h, w = images_NCHW.shape[2:]
    if h * w <= SMALL_PICTURE:
        both = zip(_planes(images_NCHW), tables_P256.astype(np.uint8), strict=True)
        small = [plane.tobytes().translate(table) for plane, table in both]
        return np.frombuffer(b"".join(small), np.uint8).reshape(images_NCHW.shape)
    done = np.empty_like(images_NCHW)
    each = zip(_planes(images_NCHW), tables_P256.tolist(), _planes(done), strict=True)
    for plane_HW, table, done_HW in each:
        _put(_inside("L", plane_HW).point(table, None), done_HW, "L")
    return done


def _each(numbers: list[int] | list[float], dtype: type[np.generic]) -> NDArray[Any]:
    """A number for every image, numbers_N111."""
    return np.array(numbers, dtype).reshape(-1, 1, 1, 1)


def _planes(images_NCHW: Images) -> Images:
    return images_NCHW.reshape(-1, *images_NCHW.shape[2:])


def _luma(images_NCHW: Images) -> NDArray[np.uint32]:
    """Pillow's RGB to L in 16-bit fixed point, luma_NHW; a grey image is its own."""
    if images_NCHW.shape[1] == 1:
        return images_NCHW[:, 0].astype(np.uint32)
    luma_NHW = images_NCHW[:, 0] * LUMA_RGB[0]
    luma_NHW += images_NCHW[:, 1] * LUMA_RGB[1]
    luma_NHW += images_NCHW[:, 2] * LUMA_RGB[2]
    luma_NHW += 0x8000
    luma_NHW >>= 16
    return luma_NHW


def _blend(duller: NDArray[Any] | None, images_NCHW: Images, values: Values) -> Images:
    """Image.blend: duller + value x (image - duller) in float32, clipped, truncated."""
    mixed = images_NCHW.astype(np.float32)
    if duller is not None:
        mixed -= duller
    mixed *= _each(values, np.float32)
    if duller is not None:
        mixed += duller
    if not all(0 <= value <= 1 for value in values):
        np.clip(mixed, 0, 255, out=mixed)
    return mixed.astype(np.uint8)


def _brightness(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    return _blend(None, images_NCHW, values)


def _contrast(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    luma_NHW = _luma(images_NCHW)
    totals = luma_NHW.sum((1, 2), dtype=np.uint64).tolist()
    means = [int(total / luma_NHW[0].size + 0.5) for total in totals]
    return _blend(_each(means, np.float32), images_NCHW, values)


def _color(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    return _blend(_luma(images_NCHW).astype(np.float32)[:, None], images_NCHW, values)


def _sharpness(images_NCHW: Images, values: Values, centers: Centers) -> Images:
    # One by one: 16-bit copies of several would leave the cache.
    done_NCHW = np.empty_like(images_NCHW)
    for n, value in enumerate(values):
        smooth_HWC = smoothed(images_NCHW[n].transpose(1, 2, 0))
        done_NCHW[n] = _blend(smooth_HWC.transpose(2, 0, 1), images_NCHW[n : n + 1], [value])[0]
    return done_NCHW


LINES: dict[Callable[..., torch.Tensor], Callable[[Images, Values, Centers], Images]] = {
    geo.cutout: _cutout,
    photo.invert: _invert,
    photo.solarize: _solarize,
    photo.posterize: _posterize,
    photo.autocontrast: _autocontrast,
    photo.equalize: _equalize,
    photo.brightness: _brightness,
    photo.contrast: _contrast,
    photo.color: _color,
    photo.sharpness: _sharpness,
}
