"""The Triton kernels behind `moving` on a card: which rows and columns an object is in, how large
it is, and a map without some of them.

Scattering every pixel to its object takes torch many times as long as moving it: nearly all pixels
of a map write to the same few places (benchmarks/speed/targets.py).
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BITS = 32  # objects of a word
ELEMENTS, PIXELS_COUNTED, PART = 2048, 1024, 16 * 1024


@triton.jit
def either(a, b):
    return a | b


@triton.jit(do_not_specialize=["height", "width"])
def presence(maps, in_columns, in_rows, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Bit i of word v: whether the object of number 32 v + i + 1 has a pixel there."""
    b, word, words = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    x, y = tl.arange(0, COLUMNS)[None, :], tl.arange(0, ROWS)[:, None]
    place = b * words + word
    bits_of_columns = tl.zeros((ROWS, COLUMNS), tl.int32)
    for top in range(0, height, ROWS):
        inside = (x < width) & (top + y < height)
        number = tl.load(maps + (b * height + top + y) * width + x, inside, other=0).to(tl.int32)
        number -= 32 * word + 1
        one = tl.full((ROWS, COLUMNS), 1, tl.int32)
        bits = tl.where((number >= 0) & (number < 32), one << (number & 31), 0)
        bits_of_columns |= bits
        row = top + tl.arange(0, ROWS)
        tl.store(in_rows + place * height + row, tl.reduce(bits, 1, either), row < height)
    column = tl.arange(0, COLUMNS)
    found = tl.reduce(bits_of_columns, 0, either)
    tl.store(in_columns + place * width + column, found, column < width)


@triton.jit(do_not_specialize=["pixels"])
def counts(maps, found, pixels, BINS: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr):
    """How many pixels of a part of an image hold each number."""
    b, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    total = tl.zeros((BINS,), tl.int32)
    for start in range(part * PART, tl.minimum(part * PART + PART, pixels), BLOCK):
        offset = start + tl.arange(0, BLOCK)
        number = tl.load(maps + b * pixels + offset, offset < pixels, other=0).to(tl.int32)
        total += tl.histogram(number, BINS, mask=offset < pixels)
    tl.store(found + (b * parts + part) * BINS + tl.arange(0, BINS), total)


@triton.jit(do_not_specialize=["pixels", "numbers"])
def erase(maps, kept, there, pixels, numbers, BLOCK: tl.constexpr):
    """Only the numbers that are there still; 0 is always."""
    b, offset = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < pixels
    number = tl.load(maps + b * pixels + offset, inside, other=0)
    keep = tl.load(there + b * numbers + number.to(tl.int32), inside, other=0)
    tl.store(kept + b * pixels + offset, tl.where(keep != 0, number, 0), inside)


def without(maps_BHW: Tensor, there_BN: Tensor) -> Tensor:
    """The map without the numbers that are not there, of N that begin with 0."""
    b, count, numbers = len(maps_BHW), maps_BHW[0].numel(), there_BN.shape[1]
    maps_BHW, there_BN = maps_BHW.contiguous(), there_BN.to(torch.uint8)
    kept_BHW = torch.empty_like(maps_BHW)
    erase[(b, -(-count // ELEMENTS))](maps_BHW, kept_BHW, there_BN, count, numbers, BLOCK=ELEMENTS)
    return kept_BHW


def seen(maps_BHW: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Whether an object has a pixel in a column (seen_BMW), and in a row (seen_BMH)."""
    b, h, w = maps_BHW.shape
    device, words = maps_BHW.device, -(-most // BITS)
    columns = torch.empty(b, words, w, dtype=torch.int32, device=device)
    rows = torch.empty(b, words, h, dtype=torch.int32, device=device)
    wide = triton.next_power_of_2(w)
    at_once = max(1, ELEMENTS // wide)
    presence[(b, words)](maps_BHW.contiguous(), columns, rows, h, w, ROWS=at_once, COLUMNS=wide)
    bit_321 = torch.arange(BITS, dtype=torch.int32, device=device).view(BITS, 1)
    return (
        ((columns.unsqueeze(2) >> bit_321) & 1).flatten(1, 2)[:, :most],
        ((rows.unsqueeze(2) >> bit_321) & 1).flatten(1, 2)[:, :most],
    )


def pixels(maps_BHW: Tensor, most: int) -> Tensor:
    """count_BM of the pixels of every object."""
    b, count = len(maps_BHW), maps_BHW[0].numel()
    bins, parts = max(32, triton.next_power_of_2(most + 1)), -(-count // PART)
    found = torch.empty(b, parts, bins, dtype=torch.int32, device=maps_BHW.device)
    sizes = {"BINS": bins, "BLOCK": PIXELS_COUNTED, "PART": PART}
    counts[(b, parts)](maps_BHW.contiguous(), found, count, **sizes)
    return found.sum(1)[:, 1 : most + 1]
