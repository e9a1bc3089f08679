"""For NVIDIA DALI; needs nvidia-dali (1.23 or newer) and numpy, nothing else.

    from this_file import dada_policy
    @pipeline_def(enable_conditionals=True)
    def pipeline(): ...; images = dada_policy(images); ...

RGB images (HWC, uint8, 3 pixels a side or more), on the CPU or the GPU; every sample has its
own draw, from the seed of the pipeline. Tested on DALI's CPU backend only. Equalize is
OpenCV's formula, the rest is Pillow's. Not DALI's auto_aug.Policy: that has neither weights
nor ranges and rounds magnitudes to bins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from nvidia.dali import fn, types

# (weight, [(operation, probability, ranges), ...]): one sub-policy is drawn for every image; of the
# ranges one is taken, and a value drawn between its ends.
SUBPOLICIES: list = []

CUTOUT_FILL = (125, 123, 114)
LUMA = np.array([19595, 38470, 7471], dtype=np.float32) / 65536  # Pillow's, exact in float32
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], dtype=np.float32) / 13
convolve = fn.filter if hasattr(fn, "filter") else fn.experimental.filter
equalized = fn.equalize if hasattr(fn, "equalize") else fn.experimental.equalize


def _size(images: Any) -> tuple[Any, Any]:
    shape = images.shape(dtype=types.FLOAT)
    return shape[0], shape[1]


def _levels(values: Any) -> Any:
    """Clip to 0..255 and truncate, as Pillow does; a cast of DALI's rounds."""
    return fn.cast(values - 0.49999, dtype=types.UINT8)


def _whole(values: Any) -> Any:
    """Round to whole numbers, halves up."""
    return fn.cast(fn.cast(values, dtype=types.INT32), dtype=types.FLOAT)


def _truncated(value: Any) -> Any:
    """The whole part of a number that is not negative."""
    return fn.cast(value - 0.49999, dtype=types.INT32)


def _warp(images: Any, *matrix: Any) -> Any:
    """Output pixel (x, y) shows (a x + b y + c, d x + e y + f), nearest, black outside."""
    zero = matrix[1] * 0.0
    numbers = [entry + zero for entry in matrix]
    matrix_23 = fn.stack(fn.stack(*numbers[:3]), fn.stack(*numbers[3:]))
    nearest = types.INTERP_NN
    return fn.warp_affine(
        images, matrix=matrix_23, inverse_map=True, interp_type=nearest, fill_value=0
    )


def _shift(images: Any, x: Any, y: Any) -> Any:
    """By whole pixels, halves up."""
    zero = (x + y) * 0.0
    return _warp(images, 1.0, zero, _floor(x + 0.5), zero, 1.0, _floor(y + 0.5))


def _floor(value: Any) -> Any:
    return _truncated(value + 32768.0) - 32768.0


def shear_x(images: Any, value: Any, center: Any) -> Any:
    return _warp(images, 1.0, value, 0.0, 0.0, 1.0, 0.0)


def shear_y(images: Any, value: Any, center: Any) -> Any:
    return _warp(images, 1.0, value * 0.0, 0.0, value, 1.0, 0.0)


def translate_x(images: Any, value: Any, center: Any) -> Any:
    return _shift(images, value * _size(images)[1], value * 0.0)


def translate_y(images: Any, value: Any, center: Any) -> Any:
    return _shift(images, value * 0.0, value * _size(images)[0])


def translate_x_pixels(images: Any, value: Any, center: Any) -> Any:
    return _shift(images, value, value * 0.0)


def translate_y_pixels(images: Any, value: Any, center: Any) -> Any:
    return _shift(images, value * 0.0, value)


def rotate(images: Any, value: Any, center: Any) -> Any:
    nearest = types.INTERP_NN
    return fn.rotate(images, angle=value, keep_size=True, interp_type=nearest, fill_value=0)


def auto_contrast(images: Any, value: Any, center: Any) -> Any:
    low = fn.cast(fn.reductions.min(images, axis_names="HW", keep_dims=True), dtype=types.FLOAT)
    high = fn.cast(fn.reductions.max(images, axis_names="HW", keep_dims=True), dtype=types.FLOAT)
    flat = fn.cast(high <= low, dtype=types.FLOAT)  # a channel of one level stays
    scale = (255.0 * (1.0 - flat) + flat) / (high - low + flat)
    return _levels((images - low * (1.0 - flat)) * scale)


def invert(images: Any, value: Any, center: Any) -> Any:
    return types.Constant(255, dtype=types.UINT8) - images


def equalize(images: Any, value: Any, center: Any) -> Any:
    return equalized(images)


def solarize(images: Any, value: Any, center: Any) -> Any:
    below = images < value
    return below * images + (below ^ True) * (types.Constant(255, dtype=types.UINT8) - images)


def posterize(images: Any, value: Any, center: Any) -> Any:
    masks = np.array([(256 - (1 << (8 - bits))) % 256 for bits in range(9)], dtype=np.uint8)
    return images & types.Constant(masks, device="cpu")[_truncated(value)]


def contrast(images: Any, value: Any, center: Any) -> Any:
    grey = _whole(fn.reductions.mean(_luma(images), axes=[0, 1, 2], keep_dims=True))
    return _levels(grey + (images - grey) * value)


def color(images: Any, value: Any, center: Any) -> Any:
    grey = _luma(images)
    return _levels(grey + (images - grey) * value)


def brightness(images: Any, value: Any, center: Any) -> Any:
    return _levels(images * value)


def sharpness(images: Any, value: Any, center: Any) -> Any:
    duller = _whole(convolve(images, types.Constant(SMOOTH), dtype=types.FLOAT))
    inside = _inside(images)  # Pillow leaves the border as it is
    duller = duller * inside + images * (1.0 - inside)
    return _levels(duller + (images - duller) * value)


def cutout(images: Any, value: Any, center: Any) -> Any:
    height, width = _size(images)
    side = value * width
    x0 = _truncated(_at_least_0(center[0] * width - side / 2.0))
    y0 = _truncated(_at_least_0(center[1] * height - side / 2.0))
    shape = [_truncated(y0 + side) - y0 + 1, _truncated(x0 + side) - x0 + 1]
    anchor = fn.stack(fn.cast(y0, dtype=types.FLOAT), fn.cast(x0, dtype=types.FLOAT))
    covered = fn.stack(*(fn.cast(length, dtype=types.FLOAT) for length in shape))
    return fn.erase(
        images, anchor=anchor, shape=covered, axis_names="HW", fill_value=list(CUTOUT_FILL)
    )


def _at_least_0(value: Any) -> Any:
    return value * fn.cast(value > 0.0, dtype=types.FLOAT)


def _luma(images: Any) -> Any:
    return _whole(fn.reductions.sum(images * types.Constant(LUMA), axes=[2], keep_dims=True))


def _inside(images: Any) -> Any:
    """1 where all eight neighbours exist, else 0."""
    inner = images[1:-1, 1:-1] * 0.0 + 1.0
    size = images.shape(dtype=types.INT32)[0:2]
    pad = {"out_of_bounds_policy": "pad", "fill_values": 0.0}
    return fn.slice(inner, start=[-1, -1], shape=size, axes=[0, 1], **pad)


FUNCTIONS = (
    *(shear_x, shear_y, translate_x, translate_y, translate_x_pixels, translate_y_pixels, rotate),
    *(auto_contrast, invert, equalize, solarize, posterize),
    *(contrast, color, brightness, sharpness, cutout),
)
# Under their names in SUBPOLICIES: translate_x_pixels is TranslateXPixels there.
OPERATIONS = {do.__name__.title().replace("_", ""): do for do in FUNCTIONS}


def _one_of(names: list[str], which: Any, images: Any, value: Any, center: Any) -> Any:
    """The operation names[which], by halves."""
    if len(names) == 1:
        return OPERATIONS[names[0]](images, value, center)
    half = len(names) // 2
    if which < half:
        images = _one_of(names[:half], which, images, value, center)
    else:
        images = _one_of(names[half:], which - half, images, value, center)
    return images


def dada_policy(images: Any) -> Any:
    """A sub-policy is drawn for every sample and its operations are done in their order."""
    longest = max([len(steps) for _, steps in SUBPOLICIES], default=0)
    if longest == 0:
        return images
    weights = np.array([weight for weight, _ in SUBPOLICIES])
    chosen = fn.random.choice(len(weights), p=(weights / weights.sum()).tolist())
    for k in range(longest):
        names = sorted({steps[k][0] for _, steps in SUBPOLICIES if len(steps) > k})
        rows = np.zeros((len(SUBPOLICIES), 7), dtype=np.float32)
        for i, (_, steps) in enumerate(SUBPOLICIES):
            if len(steps) > k:
                name, probability, ranges = steps[k]
                rows[i] = [names.index(name), probability, len(ranges), *ranges[0], *ranges[-1]]
        row = types.Constant(rows, device="cpu")[chosen]
        numbers = fn.random.uniform(range=[0.0, 1.0], shape=[5])
        second = fn.cast(numbers[1] * row[2] >= 1.0, dtype=types.FLOAT)
        start = row[3] + second * (row[5] - row[3])
        end = row[4] + second * (row[6] - row[4])
        value = start + numbers[2] * (end - start)
        if numbers[0] < row[1]:
            images = _one_of(names, row[0], images, value, [numbers[3], numbers[4]])
    return images
