"""Folders of images with boxes or masks: which form they have, and reading them.

    images/ masks/ [boxes.json]         masks of classes; or of objects, with boxes in COCO's form
    images/ annotations.json            COCO
    images/ labels/                     YOLO
    JPEGImages/ Annotations/            Pascal VOC, divided by ImageSets/Main

Each may also lie in train/, val/ and test/; of YOLO's, these may lie in images/ and labels/.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dada.data.annotations import (
    IGNORED,
    MOST_OBJECTS,
    Annotation,
    Complaints,
    Found,
    presence,
    read_ids,
    strata,
    targets_of,
)
from dada.data.bad_files import file_bytes
from dada.data.coco import read_coco
from dada.data.images import file_info, is_image
from dada.data.npz import check_unpacked
from dada.data.raw import PART_NAMES, RawFiles, RawPart, RawSplit
from dada.data.voc import read_voc
from dada.data.walk import files_beside, names_in, subfolders
from dada.data.yolo import class_names, read_yolo
from dada.safe_text import printable

BACKGROUND = "background"
OBJECTS = ("detection", "segmentation")
COCO_FILES = ("annotations.json", "_annotations.coco.json", "instances.json")
MOST_BYTES = 64 * 2**20  # of a list of images
BYTES_OF_A_BOX = 20


Reader = Callable[[str, Complaints, str], dict[str, Found]]
"""(folder, complaints, task) -> the parts in it"""


def annotated_form(root: str) -> tuple[str, str] | None:
    """The form of a folder, and the task it is plainly for; None: it holds class folders."""
    for place in (root, *_part_folders(root).values()):
        inside = set(names_in(place))
        if "masks" in inside and "images" in inside:
            return "masks", "detection" if "boxes.json" in inside else "segmentation"
        if any(file in inside for file in COCO_FILES):
            return "coco", "detection"
        if "Annotations" in inside and "JPEGImages" in inside:
            return "voc", "detection"
        if "labels" in inside and "images" in inside:
            return "yolo", "detection"
    return None


def from_annotated(root: str, task: str | None) -> RawSplit | None:
    """The folder's data for a task, or the one it is plainly for; None: it is of no such form."""
    form = annotated_form(root)
    if form is None:
        if task in OBJECTS:
            raise ValueError(
                f"{root}: no images with masks, COCO, VOC or YOLO annotations here, which "
                f"{task} needs; docs/data.md shows the forms"
            )
        return None
    wanted = task or form[1]
    if wanted not in OBJECTS:
        return None
    complaints = Complaints()
    folders = _part_folders(root)
    read = READERS[form[0]]
    if "train" in folders:
        found = {p: read(folder, complaints, wanted)["train"] for p, folder in folders.items()}
    else:
        found = read(root, complaints, wanted)
    return _split(root, found, wanted, complaints)


def _split(root: str, found: Mapping[str, Found], task: str, complaints: Complaints) -> RawSplit:
    classes = found["train"].classes
    if task == "segmentation" and len(classes) >= IGNORED:
        raise ValueError(
            f"{root}: {len(classes)} classes; segmentation takes at most {IGNORED - 1}, "
            "merge some or leave some out"
        )
    position = {name: number for number, name in enumerate(classes)}
    parts: dict[str, RawPart] = {}
    for name, part in found.items():
        unknown = sorted(set(part.classes) - set(classes))
        if unknown:
            raise ValueError(
                f"{root}: the {name} class {printable(unknown[0])!r} is not among the training ones"
            )
        number = [position[own] for own in part.classes]
        annotations = tuple(
            replace(each, labels=[number[label] for label in each.labels])
            for each in part.images.values()
        )
        for path, annotation in zip(part.images, annotations, strict=True):
            if not annotation.labels and annotation.mask is None:
                complaints.add("images show no object and were kept", path)
        most = max((len(each.boxes) for each in annotations), default=0)
        check_unpacked(root, len(annotations) * most * BYTES_OF_A_BOX)  # all get as many rows
        bare = [each for each in annotations if each.mask is None and each.objects is None]
        boxes_only = any(each.labels for each in bare)
        nothing = name == "train" and len(bare) == len(annotations)
        if task == "segmentation" and (boxes_only or nothing):
            raise ValueError(f"{root}: boxes only; segmentation needs masks or outlines of objects")
        paths = tuple(part.images)
        has_objects = task == "detection" and not boxes_only
        parts[name] = RawFiles(
            paths=paths,
            labels_N=strata(presence(annotations, len(classes), root)),
            root=root,
            targets_of=targets_of(annotations, paths, partial(_size, paths), task, has_objects),
        )
    if task == "segmentation" and any(a.objects for a in found["train"].images.values()):
        classes = (BACKGROUND, *classes)
    return RawSplit(
        parts=parts,
        name=Path(root).resolve().name,
        where=root,
        classes=classes,
        notes=complaints.notes(),
        task=task,
    )


def _size(paths: tuple[str, ...], position: int) -> tuple[int, int]:
    return file_info(paths[position]).size


def _read_coco(root: str, complaints: Complaints, task: str) -> dict[str, Found]:
    name = next((name for name in COCO_FILES if name in names_in(root)), None)
    if name is None:
        raise ValueError(f"{root}: no {COCO_FILES[0]} here")
    images = os.path.join(root, "images")
    place = images if os.path.isdir(images) else root
    return {"train": read_coco(os.path.join(root, name), place, complaints)}


def _read_voc(root: str, complaints: Complaints, task: str) -> dict[str, Found]:
    images = _images(os.path.join(root, "JPEGImages"))
    voc = read_voc(os.path.join(root, "Annotations"), images, complaints)
    by_stem = {Path(path).stem: path for path in voc.images}
    listed = {
        part: _stems(os.path.join(root, "ImageSets", "Main", f"{part}.txt"))
        for part in ("train", "val", "test")
    }
    if not listed["train"]:
        return {"train": voc}
    parts = {}
    for part, stems in listed.items():
        for stem in stems:
            if stem not in by_stem:
                complaints.add(f"names in {part}.txt have no image and were left out", stem)
        own = [by_stem[stem] for stem in stems if stem in by_stem]
        if own:
            parts[part] = Found({path: voc.images[path] for path in own}, voc.classes)
    return parts


def _stems(file: str) -> list[str]:
    if not os.path.lexists(file):
        return []
    lines = file_bytes(file, most=MOST_BYTES).decode("utf-8", "replace").splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line.split()))


def _read_yolo(root: str, complaints: Complaints, task: str) -> dict[str, Found]:
    images, labels = os.path.join(root, "images"), os.path.join(root, "labels")
    folders = {
        PART_NAMES[name.lower()]: (os.path.join(images, name), os.path.join(labels, name))
        for name in names_in(images)
        if name.lower() in PART_NAMES
    } or {"train": (images, labels)}
    read = {p: read_yolo(texts, _images(own), complaints) for p, (own, texts) in folders.items()}
    most = max(count for _, count in read.values())
    above = os.path.dirname(os.path.abspath(root))
    names = class_names((root, labels, *(f[1] for f in folders.values()), above), most)
    return {part: Found(found, names) for part, (found, _) in read.items()}


def _read_masks(root: str, complaints: Complaints, task: str) -> dict[str, Found]:
    images, masks = os.path.join(root, "images"), os.path.join(root, "masks")
    by_stem = {Path(path).stem: path for path in _images(masks)}
    pairs = {}
    for path in _images(images):
        if Path(path).stem not in by_stem:
            complaints.add("images have no mask and were left out", path)
        else:
            pairs[path] = by_stem[Path(path).stem]
    if not pairs:
        raise ValueError(f"{masks}: no mask here has the name of an image in {images}")
    boxes = os.path.join(root, "boxes.json")
    if os.path.lexists(boxes):
        found, classes = read_coco(boxes, images, complaints, masks=False)
        return {"train": Found(_with_objects(found, pairs, complaints), classes)}
    if task == "detection":
        return {"train": Found(_of_objects(pairs), ("object",))}
    return {"train": _of_classes(root, pairs, complaints)}


def _with_objects(
    found: Mapping[str, Annotation], pairs: Mapping[str, str], complaints: Complaints
) -> dict[str, Annotation]:
    """The n-th box of an image is the object whose pixels hold n in its mask."""
    made = {}
    for path, annotation in found.items():
        if path not in pairs:
            complaints.add("images have no mask and were left out", path)
            continue
        reader = partial(_object_ids, path=pairs[path], most=len(annotation.labels))
        made[path] = replace(annotation, objects=reader)
    return made


def _object_ids(size: tuple[int, int], path: str, most: int) -> NDArray[np.int32]:
    ids = read_ids(path)
    if ids.shape != size:
        raise ValueError(f"{path}: a mask of another size than its image, {size[1]}x{size[0]}")
    return np.where((ids > 0) & (ids <= most), ids, 0).astype(np.int32)


def _of_objects(pairs: Mapping[str, str]) -> dict[str, Annotation]:
    """Every number in a mask but 0 is an object, all of one class."""
    made = {}
    for path, mask in pairs.items():
        ids = read_ids(mask)
        y, x = np.nonzero(ids > 0)
        numbers, object_of = np.unique(ids[y, x], return_inverse=True)
        if len(numbers) > MOST_OBJECTS:
            raise ValueError(
                f"{mask}: {len(numbers):,} objects, more than the {MOST_OBJECTS:,} an image may "
                "have; is it a mask of objects?"
            )
        boxes = np.tile(np.array([np.inf, np.inf, 0, 0]), (len(numbers), 1))
        for column, (edge, at) in enumerate(
            ((np.minimum, x), (np.minimum, y), (np.maximum, x + 1), (np.maximum, y + 1))
        ):
            edge.at(boxes[:, column], object_of, at)
        made[path] = Annotation(
            boxes=[(x0, y0, x1, y1) for x0, y0, x1, y1 in boxes.tolist()],
            labels=[0] * len(numbers),
            objects=partial(_numbered, path=mask, numbers=numbers),
        )
    return made


def _numbered(size: tuple[int, int], path: str, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    ids = _object_ids(size, path, 2**31 - 1)
    return np.where(ids > 0, np.searchsorted(numbers, ids) + 1, 0).astype(np.int32)


def _of_classes(root: str, pairs: Mapping[str, str], complaints: Complaints) -> Found:
    values = {path: _numbers_in(mask) for path, mask in pairs.items()}
    black_and_white = set().union(*values.values()) == {0, IGNORED}
    if black_and_white:
        complaints.add(
            "masks are black and white: 255 was taken for class 1", f"{len(pairs)} masks"
        )
        values = {path: {min(1, value) for value in own} for path, own in values.items()}
    classes = set().union(*values.values()) - {IGNORED}
    if not classes:
        raise ValueError(f"{root}: no pixel of any mask has a class; they hold {IGNORED} only")
    names = class_names((root,), max(2, max(classes) + 1))

    def classes_of(path: str) -> NDArray[np.uint8]:
        ids = read_ids(path)
        return (np.where(ids == IGNORED, 1, ids) if black_and_white else ids).astype(np.uint8)

    made = {}
    for path, mask in pairs.items():
        labels = sorted(values[path] - {IGNORED})
        made[path] = Annotation(labels=labels, mask=partial(classes_of, mask))
    return Found(made, names)


def _numbers_in(mask: str) -> set[int]:
    """The different numbers in a mask of classes."""
    ids = read_ids(mask)
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most > IGNORED:
        raise ValueError(
            f"{mask}: a mask of classes holds 0..254, or {IGNORED} for none, but this one holds "
            f"{least}..{most}; `task='detection'` takes numbers for objects"
        )
    return set(np.unique(ids).tolist())


READERS: dict[str, Reader] = {
    "coco": _read_coco,
    "voc": _read_voc,
    "yolo": _read_yolo,
    "masks": _read_masks,
}


def _part_folders(root: str) -> dict[str, str]:
    named = ((os.path.basename(folder).lower(), folder) for folder in subfolders(root))
    return {PART_NAMES[name]: folder for name, folder in named if name in PART_NAMES}


def _images(folder: str) -> list[str]:
    found = list(filter(is_image, files_beside(folder)))
    if not found:
        raise ValueError(f"{folder}: no image files here")
    return found
