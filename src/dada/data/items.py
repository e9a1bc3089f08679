"""Python data with boxes, masks or several labels for an image: datasets, lists and arrays.

(image, dict(boxes, labels[, masks])) is detection, as torchvision's detectors take it: boxes are
x0, y0, x1, y1, labels begin with 1. (image, mask) is segmentation, (image, row of 0 and 1) several
labels.

Legend: N images, M objects of an image, C classes, H height, W width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dada.data.annotations import (
    IGNORED,
    Annotation,
    Complaints,
    check_classes,
    clean_boxes,
    label_rows,
    presence,
    strata,
    targets_of,
)
from dada.data.bad_files import errors_of_item
from dada.data.images import from_item, image_info
from dada.data.pydatasets import RawDataset
from dada.data.raw import RawSplit, TargetsOf, class_names
from dada.data.split import IN_MEMORY_LIMIT
from dada.safe_json import number
from dada.safe_text import quoted

MULTILABEL, SEGMENTATION, DETECTION = "multilabel", "segmentation", "detection"


def task_of_item(target: Any) -> str | None:
    """What the first item's target is plainly for; None: a single label."""
    if isinstance(target, Mapping):
        return DETECTION if {"boxes", "labels"} <= set(target) else None
    if isinstance(target, Image.Image):
        return SEGMENTATION
    if isinstance(target, Tensor | np.ndarray):
        shape = tuple(np.squeeze(np.asarray(target)).shape)
        if len(shape) == 2:
            return SEGMENTATION
        return MULTILABEL if len(shape) == 1 and shape[0] > 1 else None
    return None


def from_items(source: Any, task: str | None) -> RawSplit | None:
    """A dataset or list of (image, target), or a pair of as many images as targets."""
    pair = isinstance(source, tuple) and len(source) == 2 and len(source[0]) == len(source[1])
    items: Any = list(zip(*source, strict=True)) if pair else source
    where = "arrays" if pair else type(source).__name__
    try:
        _, target = items[0]
    except Exception:
        return None  # whatever it is, the reader of single labels says what is wrong with it
    found = task_of_item(target)
    if found is None or task == "classification":
        return None
    if task is None and found == MULTILABEL and pair and _single(source[1]):
        return None  # rows with a single 1 may be meant as one label each: that has to be said
    read = _Items(*_read(items, where), getattr(source, "classes", None), where)
    labels_N, classes, targets = _TARGETS[found](read)
    part = RawDataset(
        dataset=items,
        labels_N=labels_N,
        infos=tuple(map(image_info, read.images)),
        where=where,
        kept=read.images,
        targets_of=targets,
    )
    return RawSplit(
        parts={"train": part},
        name=where,
        classes=classes,
        notes=read.complaints.notes(),
        task=found,
    )


def _single(targets: Any) -> bool:
    """Whether rows of numbers are one label each, or no rows of 0 and 1 at all."""
    try:
        rows = np.asarray(targets)
    except ValueError:
        return False  # of different lengths, which is said where they are read
    return bool((rows.sum(1) == 1).all()) or not np.isin(rows, (0, 1)).all()


def _read(items: Any, where: str) -> tuple[tuple[Image.Image, ...], list[Any]]:
    images, targets, held = [], [], 0
    for position in range(len(items)):
        name = f"{where}[{position}]"
        with errors_of_item(name):
            image, target = items[position]
        images.append(from_item(image, name))
        targets.append(target)
        held += images[-1].width * images[-1].height * len(images[-1].getbands())
        if held > IN_MEMORY_LIMIT:
            raise ValueError(f"{where}: more than 2 GB of images; keep them in files")
    return tuple(images), targets


@dataclass(frozen=True)
class _Items:
    """What a dataset holds, as it gave it."""

    images: tuple[Image.Image, ...]
    targets: list[Any]
    names: Any  # of classes, if it has some
    where: str
    complaints: Complaints = field(default_factory=Complaints)

    def classes(self, count: int, *, exactly: bool = False, background: bool = False) -> Classes:
        """Its names for so many classes, else numbers."""
        names = class_names(self.names) or ()
        if background and len(names) == count + 1:
            return names[1:]
        fit = len(names) == count if exactly else len(names) >= count
        return names if fit else tuple(map(str, range(count)))

    def targets_of(
        self, annotations: Sequence[Annotation], task: str, has_objects: bool
    ) -> TargetsOf:
        names = [f"{self.where}[{i}]" for i in range(len(self.images))]
        sizes = [(image.height, image.width) for image in self.images]
        return targets_of(annotations, names, sizes.__getitem__, task, has_objects)

    def array(self, i: int, name: str) -> NDArray[Any]:
        """What the i-th target holds under a name."""
        target, where = self.targets[i], f"{self.where}[{i}]"
        if not isinstance(target, Mapping) or not isinstance(target.get(name), Tensor | Iterable):
            raise ValueError(f"{where}: every target must be a dict with boxes and labels")
        value = target[name]
        if isinstance(value, Tensor):
            return value.detach().cpu().numpy()
        try:
            return np.asarray(value)
        except ValueError:
            raise ValueError(f"{where}: rows of {name} differ in length") from None

    def labels(self, i: int) -> list[int]:
        """Also of floats that are whole: a dataset may hold all its numbers in one kind."""
        found: list[Any] = self.array(i, "labels").reshape(-1).tolist()
        for value in found:
            if number(value) is None or value != int(value):
                problem = f"labels must be whole numbers, got {quoted(value)}"
                raise ValueError(f"{self.where}[{i}]: {problem}")
        return [int(value) for value in found]


Classes = tuple[str, ...]
Made = tuple[Tensor, Classes, TargetsOf]
"""Labels to divide images by, the classes, and what images should become."""


def _detection(items: _Items) -> Made:
    where, complaints = items.where, items.complaints
    labels = [items.labels(i) for i in range(len(items.targets))]
    every = {label for each in labels for label in each}
    if not every:
        raise ValueError(f"{where}: no image has a box")
    first = 0 if 0 in every else 1
    if not first:
        complaints.add("data set whose labels begin with 0, taken for the first class", where)
    if min(every) < 0:
        raise ValueError(f"{where}: labels of boxes must begin with 1, but one is {min(every)}")
    check_classes(max(every), where)
    annotations = []
    for i, (image, target, own) in enumerate(zip(items.images, items.targets, labels, strict=True)):
        here, array = f"{where}[{i}]", items.array(i, "boxes")
        if array.size % 4:
            raise ValueError(f"{here}: boxes must be rows of x0, y0, x1, y1, got {array.shape}")
        boxes = array.reshape(-1, 4).tolist()
        masks = items.array(i, "masks") if "masks" in target else None
        for others, what in ((own, "labels"), (masks, "masks")):
            if others is not None and len(boxes) != len(others):
                raise ValueError(f"{here}: {len(boxes)} boxes, but {len(others)} {what}")
        numbers = [label - first for label in own]
        kept = clean_boxes(boxes, numbers, (image.height, image.width), here, complaints)
        objects = None if masks is None else _Masks(masks, kept.places, here)
        annotations.append(Annotation(boxes=kept.boxes, labels=kept.labels, objects=objects))
    classes = items.classes(max(every) - first + 1, background=True)
    labels_N = strata(presence(annotations, len(classes), where))
    has_objects = all(each.objects is not None for each in annotations)
    return labels_N, classes, items.targets_of(annotations, DETECTION, has_objects)


@dataclass(frozen=True)
class _Masks:
    """Masks of objects, one on top of the other, as a map of numbers."""

    masks_MHW: NDArray[Any]
    places: list[int]
    where: str

    def __call__(self, size: tuple[int, int]) -> NDArray[np.int32]:
        ids = np.zeros(size, np.int32)
        if self.places and self.masks_MHW.shape[1:] != size:
            raise ValueError(f"{self.where}: masks of {self.masks_MHW.shape[1:]}, image of {size}")
        for own, place in enumerate(self.places, 1):
            ids[self.masks_MHW[place] > 0] = own
        return ids


def _segmentation(items: _Items) -> Made:
    where = items.where
    masks = [np.squeeze(np.asarray(target)) for target in items.targets]
    for i, mask in enumerate(masks):
        if mask.dtype.kind not in "iub":
            raise ValueError(
                f"{where}[{i}]: masks must hold whole numbers 0..254, or 255 for no class; "
                f"got {mask.dtype}"
            )
    classes_of = [{int(value) for value in np.unique(mask)} - {IGNORED} for mask in masks]
    known = set().union(*classes_of)
    if not known or min(known) < 0:
        raise ValueError(f"{where}: masks must hold whole numbers 0..254, or 255 for no class")
    if max(known) >= IGNORED:
        raise ValueError(f"{where}: masks must hold 0..254, or 255 for no class; got {max(known)}")
    classes = items.classes(max(2, max(known) + 1))
    annotations = tuple(
        Annotation(
            labels=sorted(there),
            mask=partial(np.asarray, mask.astype(np.uint8)),
        )
        for mask, there in zip(masks, classes_of, strict=True)
    )
    labels_N = strata(presence(annotations, len(classes), where))
    return labels_N, classes, items.targets_of(annotations, SEGMENTATION, False)


def _multilabel(items: _Items) -> Made:
    try:
        rows_NC = np.stack([np.asarray(target) for target in items.targets])
    except ValueError:
        raise ValueError(f"{items.where}: rows of labels differ in length") from None
    labels_NC = label_rows(rows_NC, items.where)
    classes = items.classes(labels_NC.shape[1], exactly=True)
    return strata(labels_NC.numpy() > 0), classes, lambda _, positions: (labels_NC[positions],)


_TARGETS = {DETECTION: _detection, SEGMENTATION: _segmentation, MULTILABEL: _multilabel}
