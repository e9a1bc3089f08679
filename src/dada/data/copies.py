"""Exact copies of an image: found, numbered alike, and said to the user.

A copy on both sides of a division makes the validation images known ones. Where this package
divides, copies stay together (`split.py` reads `copies_N`); where the user did, they are counted.

Legend: N images, L bytes of one.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dada.data.parts import FilePart, Part, TensorPart, pool
from dada.safe_text import printable

MOST_FILES = 20_000
"""Of files that are not held in memory; of more of them only links to one file are found, for files
of one size have to be read."""
_AT_A_TIME = 256

Name = Callable[[str, int], str]
"""(part, position) -> what a note calls the image"""


def mark_copies(parts: Mapping[str, Part], name: Name) -> tuple[dict[str, Part], list[str]]:
    """The parts with `copies_N` where there are copies, and notes about them."""
    places = _same_images(parts)
    if not places:
        return dict(parts), []
    numbers, first = {}, 0
    for part_name, part in parts.items():
        numbers[part_name] = torch.arange(first, first + len(part))
        first += len(part)
    for group in places:
        number = int(numbers[group[0][0]][group[0][1]])
        for part_name, position in group:
            numbers[part_name][position] = number
    marked = {
        part_name: replace(part, copies_N=numbers[part_name])
        if isinstance(part, TensorPart | FilePart)
        else part
        for part_name, part in parts.items()
    }
    return marked, _notes(parts, places, name)


Place = tuple[str, int]
"""(part, position)"""


def _same_images(parts: Mapping[str, Part]) -> list[list[Place]]:
    """Groups of two places or more that hold the same image."""
    by_content: dict[Hashable, list[Place]] = defaultdict(list)
    for name, part in parts.items():
        if isinstance(part, TensorPart):
            for position, key in enumerate(_checksums(part.images_NCHW).tolist()):
                by_content["pixels", key].append((name, position))
    groups = [
        same
        for group in by_content.values()
        if len(group) > 1
        for same in _equal_pixels(group, parts)
    ]
    return groups + _same_files({n: p for n, p in parts.items() if isinstance(p, FilePart)})


def _checksums(images_NCHW: Tensor) -> NDArray[np.int64]:
    """A number for each image, the same for the same pixels (and hardly ever for others)."""
    pixels = images_NCHW.numpy().reshape(len(images_NCHW), -1)
    words = -(-pixels.shape[1] // 8)
    weights = np.random.default_rng(0).integers(-(2**62), 2**62, words) * 2 + 1
    sums = np.empty(len(pixels), np.int64)
    padded = np.zeros((_AT_A_TIME, words * 8), np.uint8)
    for first in range(0, len(pixels), _AT_A_TIME):
        some = pixels[first : first + _AT_A_TIME]
        padded[: len(some), : some.shape[1]] = some
        sums[first : first + len(some)] = (padded[: len(some)].view(np.int64) * weights).sum(1)
    return sums


def _equal_pixels(group: list[Place], parts: Mapping[str, Part]) -> list[list[Place]]:
    """The group divided into images that are equal, pixel by pixel."""
    found: list[list[Place]] = []
    for name, position in group:
        image = _held(parts, name, position)
        for same in found:
            if torch.equal(image, _held(parts, *same[0])):
                same.append((name, position))
                break
        else:
            found.append([(name, position)])
    return [same for same in found if len(same) > 1]


def _held(parts: Mapping[str, Part], name: str, position: int) -> Tensor:
    part = parts[name]
    assert isinstance(part, TensorPart)
    return part.images_NCHW[position]


def _same_files(parts: Mapping[str, FilePart]) -> list[list[Place]]:
    """By what they are (links), and where they are not too many, by what is in them."""
    if not parts:
        return []
    places = [(name, i) for name, part in parts.items() for i in range(len(part))]
    paths = [parts[name].paths[i] for name, i in places]
    few = len(paths) <= MOST_FILES
    if not few and not any(map(os.path.islink, paths)):
        return []
    about = list(map(os.stat, paths))
    keys: list[Hashable] = [(a.st_dev, a.st_ino) for a in about]
    if few:
        sizes: dict[int, list[int]] = defaultdict(list)
        for row, a in enumerate(about):
            sizes[a.st_size].append(row)
        alike = [row for rows in sizes.values() if len(rows) > 1 for row in rows]
        for row, digest in zip(alike, pool().map(_digest, [paths[r] for r in alike]), strict=True):
            keys[row] = digest
    groups: dict[Hashable, list[Place]] = defaultdict(list)
    for place, key in zip(places, keys, strict=True):
        groups[key].append(place)
    return [group for group in groups.values() if len(group) > 1]


def _digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _notes(parts: Mapping[str, Part], groups: list[list[Place]], name: Name) -> list[str]:
    labels = {part_name: part.labels_N.tolist() for part_name, part in parts.items()}
    notes = []
    for other in ("val", "test"):
        shared = [g for g in groups if {"train", other} <= {part for part, _ in g}]
        if shared:
            count = sum(part == other for group in shared for part, _ in group)
            example = next(place for place in shared[0] if place[0] == other)
            notes.append(
                f"{count:,} of {len(parts[other]):,} {other} images are also trained on, so "
                f"results on {other} are too good (the first: {printable(name(*example))})"
            )
    double = [g for g in groups if len({labels[part][i] for part, i in g}) > 1]
    if double:
        first = double[0][0]
        second = next(p for p in double[0] if labels[p[0]][p[1]] != labels[first[0]][first[1]])
        notes.append(
            f"the same image is in two classes, {len(double):,} time{'s' * (len(double) > 1)} "
            f"(the first: {printable(name(*first))} and {printable(name(*second))})"
        )
    inside = sum(max(0, sum(part == "train" for part, _ in g) - 1) for g in groups)
    if inside:
        notes.append(
            f"{inside:,} of {len(parts['train']):,} training images are exact copies of others; "
            "copies stay together where images are split off"
        )
    return notes
