"""Images with boxes, masks of objects, or a mask of classes: as files hold them, and as tensors.

Legend: N images, M objects of an image, C classes, H height, W width.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dada.data.bad_files import naming
from dada.data.images import Preprocessing, file_info, open_file
from dada.data.npz import check_unpacked
from dada.data.outlines import Map, Size
from dada.data.parts import pool
from dada.data.raw import TargetsOf
from dada.policy.moving import LEAST_SIDE, LEAST_VISIBLE, NO_BOX, extents, pixels_of
from dada.safe_json import number
from dada.safe_text import printable

IGNORED = 255  # a pixel of no class, in a mask of classes
MOST_OBJECTS = 10_000  # of an image; a map in 16 bits can tell them apart
MOST_CLASSES = 10_000
SHOWN = 3
FEW_HOMES = 4  # images apart, or groups of them


class Complaints:
    """What was wrong with annotations that could be mended or left out: counted, and named."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.places: dict[str, list[str]] = {}  # the first of each kind

    def add(self, what: str, where: str) -> None:
        self.counts[what] += 1
        if self.counts[what] <= SHOWN:
            self.places.setdefault(what, []).append(printable(where, 60))

    def notes(self) -> list[str]:
        found = []
        for what, count in self.counts.items():
            named = ", ".join(dict.fromkeys(self.places[what]))
            found.append(f"{count:,} {what}: {named}{', ...' if count > SHOWN else ''}")
        return found


Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in an image's pixels"""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What one image shows; labels begin with 0."""

    boxes: Sequence[Box] = ()
    labels: Sequence[int] = ()
    objects: Callable[[Size], Map] | None = None
    """A map of the image's size in which the pixels of the m-th object hold m + 1."""
    mask: Callable[[], NDArray[np.uint8]] | None = None
    """A map of class numbers."""


class Found(NamedTuple):
    """What a reader found of one part."""

    images: Mapping[str, Annotation]  # by their files
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Annotations as the tensors of a task, after their images became pixels of one shape."""

    task: str
    preprocessing: Preprocessing
    has_objects: bool  # whether all have masks of their objects

    def of(self, annotation: Annotation, size: Size) -> tuple[NDArray[Any], ...]:
        """Of an image that has this size in its file."""
        if self.task == "segmentation":
            return (self._mask(annotation, size),)
        boxes_M5 = self._boxes(annotation, size)
        if not self.has_objects:
            return (boxes_M5[boxes_M5[:, 4] >= 0],)
        return self._objects(boxes_M5, self._ids(annotation, size))

    def together(self, rows: Sequence[tuple[NDArray[Any], ...]]) -> tuple[Tensor, ...]:
        if self.task == "segmentation":
            return (torch.from_numpy(np.stack([mask for (mask,) in rows])),)
        most = max([1, *(len(row[0]) for row in rows)])
        boxes_NM5 = np.full((len(rows), most, 5), [0, 0, 0, 0, NO_BOX], np.float32)
        for boxes_M5, row in zip(boxes_NM5, rows, strict=True):
            boxes_M5[: len(row[0])] = row[0]
        held = [torch.from_numpy(boxes_NM5)]
        if self.has_objects:
            maps_NHW = np.stack([row[1] for row in rows])
            # Bytes, where they can tell all objects apart, move in half the time.
            held.append(torch.from_numpy(maps_NHW.astype(np.uint8 if most < 256 else np.int16)))
        return tuple(held)

    def _ids(self, annotation: Annotation, size: Size) -> Map:
        """The map of its objects, as far as the image's pixels show it; zeros where it has none."""
        ids = np.zeros(size) if annotation.objects is None else annotation.objects(size)
        return self._shown(ids.astype(np.int32), size)

    def _shown(self, ids: Map, size: Size) -> Map:
        """The part of a map that the image's pixels show, every one by its nearest."""
        height, width = self.preprocessing.size
        scale, left, top = self.preprocessing.placed(size)
        x = (left + (np.arange(width) + 0.5) / scale).astype(int).clip(0, size[1] - 1)
        y = (top + (np.arange(height) + 0.5) / scale).astype(int).clip(0, size[0] - 1)
        shown: Map = ids[y[:, None], x]
        return shown

    def _mask(self, annotation: Annotation, size: Size) -> NDArray[np.uint8]:
        if annotation.mask is not None:
            classes = annotation.mask()
            if classes.shape != size:
                raise ValueError(
                    f"a mask of {classes.shape[1]}x{classes.shape[0]} pixels belongs to an image "
                    f"of {size[1]}x{size[0]}"
                )
            return self._shown(classes.astype(np.int32), size).astype(np.uint8)
        # Class 0 is the background.
        table = np.array([0, *(label + 1 for label in annotation.labels)], np.uint8)
        classes_HW: NDArray[np.uint8] = table[self._ids(annotation, size)]
        return classes_HW

    def _boxes(self, annotation: Annotation, size: Size) -> NDArray[np.float32]:
        """All of them, clipped; those of which too little is left have no class."""
        height, width = self.preprocessing.size
        scale, left, top = self.preprocessing.placed(size)
        rows = []
        for (x0, y0, x1, y1), label in zip(annotation.boxes, annotation.labels, strict=True):
            whole = np.array([x0 - left, y0 - top, x1 - left, y1 - top]) * scale
            part = whole.clip(0, [width, height, width, height])
            sides = part[2:] - part[:2]
            visible = sides.prod() / max(1e-9, (whole[2:] - whole[:2]).prod())
            kept = visible >= LEAST_VISIBLE and sides.min() >= LEAST_SIDE
            rows.append([*part, label if kept else NO_BOX])
        return np.array(rows, np.float32).reshape(-1, 5)

    def _objects(
        self, boxes_M5: NDArray[np.float32], ids: Map
    ) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        """Boxes around the pixels of each, and the map renumbered without those that are gone."""
        most = len(boxes_M5)
        map_1HW = torch.from_numpy(ids).unsqueeze(0)
        count_M = pixels_of(map_1HW, most)[0].numpy()
        around_M4 = extents(map_1HW, most)[0].numpy()
        boxes_M5[count_M > 0, :4] = around_M4[count_M > 0]
        kept_M = (boxes_M5[:, 4] >= 0) & (count_M > 0)
        number = np.concatenate([[0], np.where(kept_M, kept_M.cumsum(), 0)])
        return boxes_M5[kept_M], number[ids].astype(np.int16)


def targets_of(
    annotations: Sequence[Annotation],
    names: Sequence[str],
    size_of: Callable[[int], Size],
    task: str,
    has_objects: bool,
) -> TargetsOf:
    """Of images by their names and their sizes before they became pixels of one shape."""

    def made(preprocessing: Preprocessing, positions: Sequence[int]) -> tuple[Tensor, ...]:
        make = Targets(task=task, preprocessing=preprocessing, has_objects=has_objects)

        def of_one(position: int) -> tuple[NDArray[Any], ...]:
            with naming(names[position]):
                return make.of(annotations[position], size_of(position))

        return make.together(list(pool().map(of_one, positions)))

    return made


def label_rows(rows_NC: NDArray[Any], where: str) -> Tensor:
    """A number 0 or 1 for every image and class, as bytes."""
    if rows_NC.ndim != 2 or rows_NC.shape[1] < 2 or not np.isin(rows_NC, (0, 1)).all():
        raise ValueError(f"{where}: several labels must be rows of 0 and 1, one for each class")
    return torch.from_numpy(rows_NC.astype(np.uint8))


def strata(present_NC: NDArray[np.bool_], groups_N: Tensor | None = None) -> Tensor:
    """For every image the rarest class in it, so that dividing by it gives both sides all classes.

    An image without any, or whose class hardly any other has, counts as one of the largest class.
    Images of one group count once, for they stay together.
    """
    count_C = present_NC.sum(0)
    rarest_N = np.where(present_NC, count_C, np.inf).argmin(1)
    named_N = present_NC.any(1)
    apart_N = np.arange(len(present_NC)) if groups_N is None else groups_N.numpy()
    pairs = np.unique(np.stack([rarest_N[named_N], apart_N[named_N]]), axis=1)
    homes_C = np.bincount(pairs[0], minlength=len(count_C))
    few_N = ~named_N | (homes_C[rarest_N] < FEW_HOMES)
    label_N = np.where(few_N, homes_C.argmax(), rarest_N)
    return torch.from_numpy(label_N.astype(np.int64))


def presence(annotations: Sequence[Annotation], num_classes: int, where: str) -> NDArray[np.bool_]:
    check_table(len(annotations), num_classes, where)
    present_NC = np.zeros((len(annotations), num_classes), bool)
    for row, annotation in zip(present_NC, annotations, strict=True):
        row[list(annotation.labels)] = True
    return present_NC


def check_table(images: int, num_classes: int, where: str) -> None:
    """Refuse what would make a table of images and classes that is larger than memory."""
    check_unpacked(where, images * num_classes * np.dtype(np.float64).itemsize)


def check_classes(count: int, where: str) -> None:
    if count > MOST_CLASSES:
        raise ValueError(
            f"{where}: {count:,} classes, more than the {MOST_CLASSES:,} that are taken; "
            "merge some or leave some out"
        )


class KeptBoxes(NamedTuple):
    boxes: list[Box]
    labels: list[int]
    places: list[int]  # in the file


def clean_boxes(
    boxes: Sequence[Sequence[float]],
    labels: Sequence[int],
    size: Size | None,
    where: str,
    complaints: Complaints,
) -> KeptBoxes:
    """Those that can be kept, each clipped to the image."""
    if len(boxes) > MOST_OBJECTS:
        raise ValueError(
            f"{where}: {len(boxes):,} objects, more than the {MOST_OBJECTS:,} an image may have; "
            "cut it into smaller images"
        )
    kept = KeptBoxes([], [], [])
    for place, (box, label) in enumerate(zip(boxes, labels, strict=True)):
        numbers = tuple(box)
        if len(numbers) != 4 or None in map(number, numbers):
            complaints.add("boxes are not four numbers and were left out", where)
            continue
        x0, y0, x1, y1 = map(float, numbers)
        if size is not None:
            height, width = size
            inside = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))
            if x1 > x0 and y1 > y0 and (inside[2] <= inside[0] or inside[3] <= inside[1]):
                complaints.add("boxes lie outside their image and were left out", where)
                continue
            if max(abs(a - b) for a, b in zip(inside, (x0, y0, x1, y1), strict=True)) > 1:
                complaints.add("boxes reach beyond their image and were clipped", where)
            x0, y0, x1, y1 = inside
        if x1 <= x0 or y1 <= y0:
            complaints.add("boxes have no size and were left out", where)
            continue
        kept.boxes.append((x0, y0, x1, y1))
        kept.labels.append(label)
        kept.places.append(place)
    return kept


def read_ids(path: str) -> Map:
    """A mask file as whole numbers; ValueError where it is a picture."""
    image = open_file(path)
    if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
        raise ValueError(
            f"{path}: a mask must hold one whole number for each pixel, but this is "
            f"{image.mode}; save it as 8 or 16 bit grey"
        )
    return np.asarray(image).astype(np.int32)


def image_size_of(path: str) -> Size | None:
    """None for a file that cannot be read, which is said later with all others."""
    try:
        return file_info(path).size
    except ValueError:
        return None


def under(root: str, name: str) -> str | None:
    """The file of that name below a folder; None where the name leads elsewhere."""
    inside = os.path.normpath(name.replace("\\", "/"))
    leads_out = inside.split(os.sep)[0] in (os.pardir, os.curdir)
    if leads_out or os.path.isabs(inside) or os.path.splitdrive(inside)[0]:
        return None
    return os.path.join(root, inside)
