"""One image file, or one image of a Python dataset, converted to 8-bit pixels of a given shape.

Legend: C channels, H height, W width. Everything passes through Pillow, so a folder, a Hugging
Face column and a list of arrays are converted by the same code and mean the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dada.safe_files import open_to_read
from dada.safe_text import printable

# fmt: off
IMAGE_EXTENSIONS = frozenset((
    ".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm",
    ".pbm", ".pnm", ".jp2", ".avif",
))
# fmt: on
"""Files with another ending are passed over; a file with one of these must be an image."""


def is_image(name: str) -> bool:
    """By its ending."""
    return os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS


# Of Pillow's formats, whatever a file's ending says: an EPS, for one, would start Ghostscript.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")

_BIT_DEPTHS = (8, 10, 12, 14, 16)
_AT_A_TIME = 256
_RESAMPLE = Image.Resampling.BICUBIC


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """What is read of an image to choose the preprocessing of a whole data set."""

    size: tuple[int, int]
    """(H, W), upright."""
    grey: bool
    conversion: str | None = None
    """Text of a note to the user when the pixels have to be converted."""
    peak: int = 0
    """Largest value of an image deeper than 8 bits, else 0."""
    count: int = 1
    """How many images this describes (an array of many is described once)."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How every image of a data set becomes uint8 pixels of one shape."""

    size: tuple[int, int]
    channels: int
    white_level: int = 65535
    """The value of a deep (more than 8 bit) image that becomes 255."""
    margin: float = 1.0
    """The crop takes this fraction of the resized image (ImageNet's 224 of 256 is 0.875)."""

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """uint8 (C, H, W): scaled until it covers `size`, then cropped at the centre."""
        image = self._right_mode(image)
        scale, left, top = self.placed((image.height, image.width))
        height, width = self.size
        return self.crop(image, (left, top, left + width / scale, top + height / scale))

    def placed(self, size: tuple[int, int]) -> tuple[float, float, float]:
        """Of an image of that size: by how much it is scaled, and the corner of the crop in it."""
        height, width = self.size
        scale = max(height / size[0], width / size[1]) / self.margin
        return scale, (size[1] - width / scale) / 2, (size[0] - height / scale) / 2

    def crop(self, image: Image.Image, box: tuple[float, float, float, float]) -> NDArray[np.uint8]:
        """uint8 (C, H, W) of the box (left, top, right, bottom), resized to `size`."""
        image = self._right_mode(image)
        height, width = self.size
        if box != (0, 0, width, height) or image.size != (width, height):
            left, top, right, bottom = box
            # Rounding may push an edge past the image by 1e-13, which Pillow refuses.
            inside = (
                max(left, 0.0),
                max(top, 0.0),
                min(right, float(image.width)),
                min(bottom, float(image.height)),
            )
            image = image.resize((width, height), _RESAMPLE, box=inside)
        array = np.asarray(image)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

    def draft_size(self) -> tuple[int, int]:
        """(W, H) a JPEG decoder may shrink to: twice what is needed, so nothing visible is lost."""
        height, width = self.size
        return int(2 * width / self.margin), int(2 * height / self.margin)

    @property
    def identity(self) -> str:
        """Its part of a data set's fingerprint. Fixed, for run directories hold fingerprints."""
        named = ("size", "channels", "white_level", "margin")
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in named)
        return f"ImagePlan({fields})"

    def _right_mode(self, image: Image.Image) -> Image.Image:
        image = to_eight_bits(image, self.white_level)
        mode = "L" if self.channels == 1 else "RGB"
        return image if image.mode == mode else image.convert(mode)


@cache
def _formats() -> tuple[str, ...]:
    """Those that this Pillow was built with."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """A file of one of our formats; ValueError where it is none (a pipe would block)."""
    with open_to_read(path) as stream, Image.open(stream, formats=_formats()) as image:
        yield image


def open_file(
    path: str, *, draft: tuple[int, int] | None = None, longest: int | None = None
) -> Image.Image:
    """Open, decode and turn upright one image file; ValueError names a file that is not one.

    A JPEG may be decoded smaller, down to `draft`. `longest` is for images that are only looked
    at: of a larger one every n-th pixel is taken, before anything is made of it.
    """
    with _errors_naming(path), opened(path) as image:
        if draft is not None and image.format == "JPEG":
            image.draft(None, draft)
        image.load()
        if longest is not None and max(image.size) > longest:
            scale = longest / max(image.size)
            small = max(1, round(image.width * scale)), max(1, round(image.height * scale))
            turned = image.getexif()
            image = image.resize(small, Image.Resampling.NEAREST)
            image.getexif().update(turned)
        ImageOps.exif_transpose(image, in_place=True)  # else it copies those that are upright
        return image


def file_info(path: str) -> ImageInfo:
    """Read the header only (all pixels only when deeper than 8 bits)."""
    with _errors_naming(path), opened(path) as image:
        # A PNG's late EXIF block would force a full decode; only a JPEG's, WebP's or TIFF's
        # orientation is common enough to look for here (decoding turns all of them upright).
        early = image.format != "PNG" or "exif" in image.info
        exif = image.getexif() if early else {}
        turned = exif.get(0x0112) in (5, 6, 7, 8)
        if image.format == "TIFF":  # Pillow 11 and later say the size that it has when it is turned
            turned = turned and image.width == exif.get(0x0100)
        return image_info(image, turned=turned)


@contextmanager
def _errors_naming(path: str) -> Iterator[None]:
    """Every error as a ValueError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: no such image file") from None
    except Exception as problem:  # damaged files make Pillow raise anything, from struct to zlib
        empty = os.path.isfile(path) and os.path.getsize(path) == 0
        # Without the name that an error of the system, or of Pillow, puts behind its words.
        words = getattr(problem, "strerror", None) or str(problem).split(" '")[0].split(" <")[0]
        reason = "the file is empty" if empty else words
        message = f"{path}: cannot be read as an image ({printable(reason)}); repair or remove it"
        raise ValueError(message) from problem


def image_info(image: Image.Image, *, turned: bool = False) -> ImageInfo:
    """What must be known of an image before the preprocessing is chosen."""
    size = (image.width, image.height) if turned else (image.height, image.width)
    deep = _is_deep(image)
    peak = int(np.asarray(image).max()) if deep and image.mode != "F" else 0
    return ImageInfo(size=size, grey=_is_grey(image), conversion=_conversion(image), peak=peak)


def _is_deep(image: Image.Image) -> bool:
    return image.mode[0] in "IF"


def _is_grey(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        colours = np.array(image.getpalette("RGB") or [0, 0, 0], np.uint8).reshape(-1, 3)
        return bool((colours == colours[:, :1]).all())
    return image.mode in ("1", "L", "LA", "La") or _is_deep(image)


def _conversion(image: Image.Image) -> str | None:
    if image.mode == "F":
        return "floating-point grey, scaled to 8 bits"
    if _is_deep(image):
        return "16-bit grey, scaled to 8 bits"
    if image.has_transparency_data:
        return "transparent, laid on white"
    if image.mode in ("1", "L", "RGB"):
        return None
    names = {"P": "palette", "PA": "palette", "RGBX": "padded RGB"}
    name = names.get(image.mode, image.mode)
    return f"{name}, made {'grey' if _is_grey(image) else 'RGB'}"


def to_eight_bits(image: Image.Image, white_level: int = 65535) -> Image.Image:
    """Any Pillow image as mode L (grey) or RGB.

    Deep grey v becomes round(255 v / white_level): Pillow's own `convert("L")` would clip it.
    Transparency is laid on white, which is what a viewer shows.
    """
    if _is_deep(image):
        return _deep_to_eight_bits(image, white_level)
    if image.has_transparency_data:
        over = image.convert("RGBA")
        flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), over)
        return flat.convert("L" if _is_grey(image) else "RGB")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if _is_grey(image) else "RGB")


def _deep_to_eight_bits(image: Image.Image, white_level: int) -> Image.Image:
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode == "F":
        if not (low >= 0 and high <= 1):  # also true of NaN
            raise ValueError(
                f"floating-point pixels must lie in 0..1, but these span {low:g}..{high:g}"
            )
        return Image.fromarray(np.rint(values * 255).astype(np.uint8))
    if low < 0 or high > 65535:
        raise ValueError(f"integer pixels must lie in 0..65535, but these span {low}..{high}")
    scaled = (values.astype(np.uint32) * 255 + white_level // 2) // white_level
    return Image.fromarray(np.minimum(scaled, 255).astype(np.uint8))


def white_level(peak: int) -> int:
    """The white level of images whose largest value is `peak`.

    Scanners and microscopes store 10, 12 or 14 bits in 16-bit files. Taking 65535 for white would
    leave 12-bit data 15 grey levels, so white is the largest value of the smallest usual depth that
    holds every value.
    """
    return next(2**bits - 1 for bits in _BIT_DEPTHS if peak < 2**bits or bits == 16)


def from_item(item: Any, where: str) -> Image.Image:
    """One image of a Python dataset (Pillow, CHW/HW tensor, HWC/HW array) as a Pillow image."""
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, torch.Tensor):
        array, channels_first = tensor_to_array(item, where), True
    elif isinstance(item, np.ndarray):
        array, channels_first = item, False
    else:
        raise ValueError(
            f"{where}: an image must be a Pillow image, a tensor (C,H,W) or an array (H,W,C), "
            f"but got {type(item).__name__}"
        )
    if array.ndim == 3:
        if channels_first:
            array = array.transpose(1, 2, 0)
        if array.shape[2] == 1:
            array = array[:, :, 0]
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] != 3):
        order = "(C,H,W) or (H,W)" if channels_first else "(H,W,C) or (H,W)"
        raise ValueError(
            f"{where}: an image must have shape {order} with 1 or 3 channels, "
            f"but got {tuple(item.shape)}"
        )
    if array.dtype == np.uint16 and array.ndim == 2:
        return Image.fromarray(np.ascontiguousarray(array))
    return Image.fromarray(np.ascontiguousarray(to_uint8(array, where)))


def tensor_to_array(tensor: torch.Tensor, where: str) -> NDArray[Any]:
    """Its values on the CPU; sparse, quantised and other tensors that numpy has not are refused."""
    try:
        values = tensor.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    except (TypeError, RuntimeError, NotImplementedError):
        kind = f"{tensor.layout} of {tensor.dtype} on {tensor.device}".replace("torch.", "")
        raise ValueError(
            f"{where}: a tensor must be dense and of a usual type, but this is {kind}; convert it "
            "first, for example by .to_dense()"
        ) from None


def to_uint8(array: NDArray[Any], where: str, white: int = 65535) -> NDArray[np.uint8]:
    """Pixels of any usual dtype as uint8; ValueError says what does not fit and how to fix it.

    `white` is the uint16 value that becomes 255. Many images are converted some at a time, for
    what lies between would take several times their memory.
    """
    if array.dtype == np.uint8:
        return array
    if array.ndim == 4 and len(array) > _AT_A_TIME:
        converted = np.empty(array.shape, np.uint8)
        for first in range(0, len(array), _AT_A_TIME):
            some = slice(first, first + _AT_A_TIME)
            converted[some] = to_uint8(array[some], where, white)
        return converted
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind not in "iuf":
        raise ValueError(
            f"{where}: pixels must be uint8 in 0..255 or floats in 0..1, but got {array.dtype}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{where}: pixels hold NaN or infinity; clean the data first")
    low, high = array.min(), array.max()
    if array.dtype.kind == "f":
        if low < 0 or high > 1:
            raise ValueError(
                f"{where}: floating-point pixels must lie in 0..1, but these span "
                f"{low:.4g}..{high:.4g}; pass them before any normalisation, or as uint8"
            )
        return np.rint(array * 255).astype(np.uint8)
    if array.dtype == np.uint16:
        scaled = (array.astype(np.uint32) * 255 + white // 2) // white
        return np.minimum(scaled, 255).astype(np.uint8)
    if low < 0 or high > 255:
        raise ValueError(
            f"{where}: {array.dtype} pixels must lie in 0..255, but these span {low}..{high}"
        )
    return array.astype(np.uint8)


def crop_box(
    width: int,
    height: int,
    draws: list[list[float]],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) in whole pixels from ten uniform draws of (area, shape, x, y)."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area_draw, shape_draw, x_draw, y_draw in draws:
        area = width * height * (scale[0] + area_draw * (scale[1] - scale[0]))
        shape = math.exp(low + shape_draw * (high - low))
        crop_width, crop_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = int(x_draw * (width - crop_width + 1))
            top = int(y_draw * (height - crop_height + 1))
            return left, top, left + crop_width, top + crop_height
    crop_width = min(width, round(height * ratio[1]))
    crop_height = min(height, round(width / ratio[0]))
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return left, top, left + crop_width, top + crop_height
