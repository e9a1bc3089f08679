"""One shape for all images of a data set, and what it takes to get there."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dada.data.images import ImageInfo, Preprocessing, white_level
from dada.safe_text import quoted

SIZE_CAP = 224
"""Files are not decoded larger than this on the shorter side unless the user names a size."""
MOST_PIXELS_OF_A_SIDE = 16_384


def choose_preprocessing(
    infos: Sequence[ImageInfo], size: tuple[int, int] | None, margin: float, cap: int | None
) -> tuple[Preprocessing, list[str]]:
    """One shape for all images, and a note for each conversion that it takes."""
    total = sum(info.count for info in infos)
    notes = [
        f"{count:,} of {total:,} images were {what}"
        for what, count in sorted(_counted(infos).items())
    ]
    grey = sum(info.count for info in infos if info.grey)
    if 0 < grey < total:
        notes.append(f"{grey:,} of {total:,} images were grey, made RGB like the others")
    peak = max(info.peak for info in infos)
    white = white_level(peak) if peak else 65535
    if peak:
        notes.append(f"deep images were scaled from 0..{white} (the largest value is {peak})")
    sizes = {info.size for info in infos}
    if size is None:
        size, note = _common_size(infos, sizes, cap)
        notes += [note] if note else []
    elif sizes != {size}:
        notes.append(f"images were resized and centre-cropped to {size[1]}x{size[0]}")
    channels = 1 if grey == total else 3
    return Preprocessing(size=size, channels=channels, white_level=white, margin=margin), notes


def _counted(infos: Sequence[ImageInfo]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for info in infos:
        if info.conversion is not None:
            counts[info.conversion] += info.count
    return counts


def _common_size(
    infos: Sequence[ImageInfo], sizes: set[tuple[int, int]], cap: int | None
) -> tuple[tuple[int, int], str | None]:
    if len(sizes) == 1:
        height, width = next(iter(sizes))
        shorter = min(height, width)
        if cap is None or shorter <= cap:
            return (height, width), None
        size = (round(height * cap / shorter), round(width * cap / shorter))
        return size, (
            f"images of {width}x{height} were shrunk to {size[1]}x{size[0]}; "
            "--image-size (image_size in Python) chooses another size"
        )
    shorter_sides = np.repeat([min(info.size) for info in infos], [info.count for info in infos])
    side = min(int(np.median(shorter_sides)), SIZE_CAP)
    heights, widths = zip(*sizes, strict=True)
    return (side, side), (
        f"images differ in size (widths {min(widths)} to {max(widths)}, heights {min(heights)} to "
        f"{max(heights)}): each was resized to {side} pixels on its shorter side and centre-cropped"
        "; --image-size (image_size in Python) chooses another size"
    )


def asked_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    try:
        sides = image_size if isinstance(image_size, tuple | list) else (image_size, image_size)
        height, width = (operator.index(side) for side in sides)
    except (TypeError, ValueError):
        raise ValueError(
            f"`image_size` must be a whole number or (H, W), but got {quoted(image_size)}"
        ) from None
    if not (1 <= height <= MOST_PIXELS_OF_A_SIDE and 1 <= width <= MOST_PIXELS_OF_A_SIDE):
        raise ValueError(
            f"`image_size` must lie in 1..{MOST_PIXELS_OF_A_SIDE:,}, but got {quoted(image_size)}"
        )
    return height, width
