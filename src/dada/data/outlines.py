"""Pixels of objects out of what files say of them: polygons, and COCO's run lengths.

What a stranger declares is compared with the image before memory is taken for it, and the work that
one image may ask for has an end.

Legend: P points, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.safe_text import printable

Size = tuple[int, int]
"""(H, W)"""
Map = NDArray[np.int32]

MOST_WORK = 2 * 10**9  # pixels and points looked at for one image: seconds
ROW_COST = 200  # pixels that could be written while a row of a polygon is prepared
FAR = 1e9  # pixels beyond which points may as well be here: products of them are finite

UNREADABLE = (ValueError, TypeError, KeyError, IndexError, OverflowError)
"""What these functions raise of content that has not the form they expect."""


class Drawing:
    """A map of an image's size, into which one object after another is drawn."""

    def __init__(self, size: Size) -> None:
        self.columns = np.zeros((size[1], size[0]), np.int32)  # run lengths go down columns
        self.ids: Map = self.columns.T
        self.work = 0

    def add(self, number: int, shape: Any) -> None:
        """`shape`: polygons, each x, y, x, y, ..., or a dict of run lengths."""
        if isinstance(shape, dict):
            self._add_runs(number, shape)
            return
        for points in shape:
            points_P2 = np.asarray(points, np.float64).reshape(-1, 2)
            if not np.isfinite(points_P2).all():
                raise ValueError("an outline with numbers that are not finite")
            self._add_polygon(number, points_P2.clip(-FAR, FAR))

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > MOST_WORK:
            raise ValueError("more objects and points than can be drawn in seconds")

    def _add_polygon(self, number: int, points_P2: NDArray[np.float64]) -> None:
        """Every pixel whose centre lies inside; Pillow's take those on the edge as well."""
        height, width = self.ids.shape
        (x0, y0), (x1, y1) = points_P2.T, np.roll(points_P2, -1, axis=0).T
        rows = range(max(0, int(y0.min())), min(height, int(np.ceil(y0.max()))))
        self._spend(len(rows) * (ROW_COST + width + len(points_P2)))
        for row in rows:
            crosses = (y0 <= row + 0.5) != (y1 <= row + 0.5)
            share = (row + 0.5 - y0[crosses]) / (y1[crosses] - y0[crosses])
            at = np.sort(x0[crosses] + share * (x1[crosses] - x0[crosses]))
            edges = np.ceil(at - 0.5).clip(0, width).astype(int)
            for start, end in zip(edges[::2], edges[1::2], strict=True):
                self.ids[row, start:end] = number

    def _add_runs(self, number: int, shape: Mapping[str, Any]) -> None:
        """Column by column, zeros first."""
        (height, width), size = shape["size"], self.ids.shape
        if (height, width) != size:
            raise ValueError(
                f"run lengths for {width}x{height} pixels, image of {size[1]}x{size[0]}"
            )
        counts = shape["counts"]
        runs = np.asarray(_unpacked(counts) if isinstance(counts, str) else counts)
        pixels = self.columns.size
        if runs.ndim != 1 or runs.dtype.kind not in "iu" or ((runs < 0) | (runs > pixels)).any():
            raise ValueError(f"run lengths that are not whole numbers from 0 to {pixels:,}")
        if runs.sum() != pixels:
            raise ValueError(f"run lengths of {runs.sum():,} pixels in all, not {pixels:,}")
        self._spend(int(runs[1::2].sum()) + ROW_COST * len(runs))
        flat = self.columns.reshape(-1)
        for start, end in list(pairwise(runs.cumsum().tolist()))[::2]:
            flat[start:end] = number


def _unpacked(text: str) -> list[int]:
    """Run lengths out of their packed form: five bits a character, the lowest first, a sixth where
    more follow. From the fourth on they are differences from the last but one."""
    counts: list[int] = []
    value = shift = 0
    for code in text.encode("ascii"):
        bits = code - ord("0")
        if not 0 <= bits < 64 or shift > 50:
            raise ValueError("packed run lengths that are damaged")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("packed run lengths that end too early")
    return counts


def objects_map(size: Size, shapes: Sequence[Any], where: str) -> Map:
    """The pixels of the n-th shape hold n, from 1; later ones cover earlier ones."""
    drawing = Drawing(size)
    for number, shape in enumerate(shapes, 1):
        try:
            drawing.add(number, shape)
        except UNREADABLE as problem:
            raise ValueError(
                f"{where}: the segmentation of its object {number} cannot be read "
                f"({printable(problem, 100)}); repair or remove it"
            ) from None
    return drawing.ids
