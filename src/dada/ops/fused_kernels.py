"""The two Triton kernels behind `fused`; the formulas are those of geometric and photometric.

Integers are marked as constants because Triton reads only globals marked so.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dada.ops import formulas
from dada.ops.geometric import CUTOUT_FILL, CUTOUT_GREY

NOTHING = tl.constexpr(formulas.NOTHING)
WARP = tl.constexpr(formulas.WARP)
TABLE_AUTOCONTRAST = tl.constexpr(formulas.TABLE_AUTOCONTRAST)
TABLE_EQUALIZE = tl.constexpr(formulas.TABLE_EQUALIZE)
INVERT = tl.constexpr(formulas.INVERT)
SOLARIZE = tl.constexpr(formulas.SOLARIZE)
POSTERIZE = tl.constexpr(formulas.POSTERIZE)
BLEND_BLACK = tl.constexpr(formulas.BLEND_BLACK)
BLEND_MEAN = tl.constexpr(formulas.BLEND_MEAN)
BLEND_GREY = tl.constexpr(formulas.BLEND_GREY)
BLEND_SMOOTH = tl.constexpr(formulas.BLEND_SMOOTH)
COVER = tl.constexpr(formulas.COVER)
FILL_RED, FILL_GREEN, FILL_BLUE = (tl.constexpr(level) for level in CUTOUT_FILL)
FILL_GREY = tl.constexpr(CUTOUT_GREY)


@triton.jit
def formula_of(op_index, formulas, place):
    op = tl.load(op_index + place)
    return tl.load(formulas + op, op >= 0, other=NOTHING)


@triton.jit
def luma(image, offset, mask, pixels, CHANNELS: tl.constexpr):
    red = tl.load(image + offset, mask, other=0).to(tl.int32)
    if CHANNELS == 3:
        green = tl.load(image + pixels + offset, mask, other=0).to(tl.int32)
        blue = tl.load(image + 2 * pixels + offset, mask, other=0).to(tl.int32)
        return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    else:
        return red


@triton.jit(do_not_specialize=["k", "steps", "pixels"])
def statistics(
    images,
    op_index,
    formulas,
    tables,
    means,
    k,
    steps,
    pixels,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The table of one channel (AutoContrast, Equalize), or the mean luma (Contrast)."""
    b, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    formula = formula_of(op_index, formulas, b * steps + k)
    image = images + b * CHANNELS * pixels
    if (formula == BLEND_MEAN) & (c == 0):
        total = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, pixels, BLOCK):
            offset = start + tl.arange(0, BLOCK)
            total += luma(image, offset, offset < pixels, pixels, CHANNELS).to(tl.int64)
        mean = tl.floor(tl.sum(total).to(tl.float64) / pixels + 0.5)
        tl.store(means + b, mean.to(tl.float32))
    if (formula == TABLE_AUTOCONTRAST) | (formula == TABLE_EQUALIZE):
        level = tl.arange(0, 256)
        counts = tl.zeros((256,), tl.int32)
        for start in range(0, pixels, BLOCK):
            offset = start + tl.arange(0, BLOCK)
            values = tl.load(image + c * pixels + offset, offset < pixels, other=0).to(tl.int32)
            counts += tl.histogram(values, 256, mask=offset < pixels)
        lowest = tl.min(tl.where(counts > 0, level, 255))
        highest = tl.max(tl.where(counts > 0, level, 0))
        table = level
        if formula == TABLE_AUTOCONTRAST:
            if highest > lowest:
                span = (highest - lowest).to(tl.float64)
                scale = tl.full((256,), 255.0, tl.float64) / span
                stretched = level.to(tl.float64) * scale - lowest.to(tl.float64) * scale
                stretched = tl.minimum(tl.maximum(stretched, 0.0), 255.0)
                table = stretched.to(tl.int32)
        else:
            below = tl.cumsum(counts, 0) - counts
            step = tl.sum(tl.where(level == highest, below, 0)) // 255
            if step > 0:
                table = tl.minimum((step // 2 + below) // step, 255)
        tl.store(tables + (b * CHANNELS + c) * 256 + level, table.to(tl.uint8))


@triton.jit
def blend(level, duller, factor):
    mixed = duller + factor * (level.to(tl.float32) - duller)
    return tl.minimum(tl.maximum(mixed, 0.0), 255.0).to(tl.int32)


@triton.jit
def fixed(value):
    return tl.floor(value * 65536.0 + 0.5).to(tl.int32)


# A side of 1 would otherwise become a compile-time constant, and a kernel of its own.
@triton.jit(do_not_specialize=["k", "steps", "height", "width"])
def pixels(
    images,
    results,
    op_index,
    values,
    centers,
    formulas,
    motions,
    tables,
    means,
    usual_levels,
    deviations,
    k,
    steps,
    height,
    width,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """One block of pixels; with NORMALISE as a network wants them, all channels side by side."""
    b = tl.program_id(0).to(tl.int64)
    place = b * steps + k
    count = height * width
    offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < count
    y, x = offset // width, offset % width
    formula = formula_of(op_index, formulas, place)
    value = tl.load(values + place)
    factor = value.to(tl.float32)
    image = images + b * CHANNELS * count
    result = results + b * CHANNELS * count

    source, visible = offset, inside
    if formula == WARP:
        motion = motions + tl.load(op_index + place) * 5
        radians = -(value * tl.load(motion) * 0.017453292519943295)
        cos, sin = tl.cos(radians), tl.sin(radians)
        center_x, center_y = width.to(tl.float64) * 0.5, height.to(tl.float64) * 0.5
        offset_x = cos * -center_x + sin * -center_y + center_x
        offset_y = -sin * -center_x + cos * -center_y + center_y
        a1 = sin + value * tl.load(motion + 1)
        a3 = value * tl.load(motion + 2) - sin
        shift_x = tl.floor(value * tl.load(motion + 3) + 0.5).to(tl.int32) * 65536
        shift_y = tl.floor(value * tl.load(motion + 4) + 0.5).to(tl.int32) * 65536
        start_x = fixed(offset_x + cos * 0.5 + a1 * 0.5) + shift_x
        start_y = fixed(offset_y + a3 * 0.5 + cos * 0.5) + shift_y
        source_x = (start_x + fixed(cos) * x + fixed(a1) * y) >> 16
        source_y = (start_y + fixed(a3) * x + fixed(cos) * y) >> 16
        within = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
        visible = inside & within
        source = source_y * width + source_x
    covered = offset < 0
    if formula == COVER:
        side = value * width
        x0 = tl.maximum(tl.load(centers + place * 2) - side * 0.5, 0.0).to(tl.int32)
        y0 = tl.maximum(tl.load(centers + place * 2 + 1) - side * 0.5, 0.0).to(tl.int32)
        x1 = tl.minimum(x0.to(tl.float64) + side, width.to(tl.float64)).to(tl.int32)
        y1 = tl.minimum(y0.to(tl.float64) + side, height.to(tl.float64)).to(tl.int32)
        covered = (x >= x0) & (x <= x1) & (y >= y0) & (y <= y1)
    duller = tl.zeros((BLOCK,), tl.float32)
    if formula == BLEND_MEAN:
        duller += tl.load(means + b)
    if formula == BLEND_GREY:
        duller = luma(image, offset, inside, count, CHANNELS).to(tl.float32)
    interior = inside & (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
    threshold = tl.ceil(value).to(tl.int32)
    keep = 256 - (1 << (8 - value.to(tl.int32)))

    for c in tl.static_range(CHANNELS):
        plane = image + c * count
        level = tl.load(plane + source, visible, other=0).to(tl.int32)
        if (formula == TABLE_AUTOCONTRAST) | (formula == TABLE_EQUALIZE):
            level = tl.load(tables + (b * CHANNELS + c) * 256 + level).to(tl.int32)
        elif formula == INVERT:
            level = 255 - level
        elif formula == SOLARIZE:
            level = tl.where(level >= threshold, 255 - level, level)
        elif formula == POSTERIZE:
            level = level & keep
        elif (formula == BLEND_BLACK) | (formula == BLEND_MEAN) | (formula == BLEND_GREY):
            level = blend(level, duller, factor)
        elif formula == BLEND_SMOOTH:
            total = level * 4
            for dy in tl.static_range(-1, 2):
                for dx in tl.static_range(-1, 2):
                    near = tl.load(plane + offset + dy * width + dx, interior, other=0)
                    total += near.to(tl.int32)
            smoothed = tl.where(interior, (2 * total + 13) // 26, level)
            level = blend(level, smoothed.to(tl.float32), factor)
        elif formula == COVER:
            fill = FILL_GREY
            if CHANNELS == 3:
                fill = FILL_RED if c == 0 else (FILL_GREEN if c == 1 else FILL_BLUE)
            level = tl.where(covered, fill, level)
        if NORMALISE:
            above = level.to(tl.float32) - tl.load(usual_levels + c)
            number = tl.div_rn(above, tl.load(deviations + c))  # `/` is not torch's to the last bit
            tl.store(result + offset * CHANNELS + c, number, inside)
        else:
            tl.store(result + c * count + offset, level.to(tl.uint8), inside)
