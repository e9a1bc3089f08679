"""COCO's JSON: boxes, polygons and run lengths of objects.

Legend: M objects of an image, H height, W width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dada.data.annotations import (
    Annotation,
    Complaints,
    Map,
    Size,
    clean_boxes,
    image_size_of,
    polygons_to_map,
    under,
)
from dada.safe_text import printable, quoted

Found = tuple[dict[str, Annotation], tuple[str, ...]]
"""Image file -> what it shows; and the names of the classes."""


def read_coco(file: str, images: str, complaints: Complaints, *, masks: bool = True) -> Found:
    """What a COCO file says of the images in a folder; of images it lists twice the first counts.

    With `masks`, objects have pixels where all of them have a segmentation.
    """
    content = _content(file)
    names = _categories(content["categories"], file)
    numbers = {identity: number for number, identity in enumerate(names)}
    paths: dict[Any, str] = {}
    for entry in content["images"]:
        identity, name = _field(entry, "id", file), str(_field(entry, "file_name", file))
        if identity in paths:
            complaints.add("image ids are there twice, the first counts", f"{file}: id {identity}")
            continue
        path = under(images, name)
        size = None if path is None else image_size_of(path)
        if path is None or size is None:
            complaints.add("images of the list are not there or broken, left out", name)
        else:
            paths[identity] = path
    rows: dict[Any, list[Mapping[str, Any]]] = {identity: [] for identity in paths}
    known = {_field(entry, "id", file) for entry in content["images"]}
    for entry in content["annotations"]:
        where = (
            f"{file}: annotation {printable(entry.get('id') if isinstance(entry, dict) else entry)}"
        )
        image = _field(entry, "image_id", file)
        if image not in rows:
            if image not in known:
                complaints.add("annotations belong to no image and were left out", where)
        elif entry.get("category_id") not in numbers:
            complaints.add("annotations are of no category and were left out", where)
        elif entry.get("iscrowd"):
            complaints.add("annotations are crowds, not objects, and were left out", where)
        else:
            rows[image].append(entry)
    if not paths:
        raise ValueError(f"{file}: none of its {len(known)} images is in {images}")
    with_masks = masks and all(e.get("segmentation") for each in rows.values() for e in each)
    found = {
        paths[image]: _annotation(each, numbers, paths[image], complaints, with_masks)
        for image, each in rows.items()
    }
    return found, tuple(names.values())


def _annotation(
    rows: Sequence[Mapping[str, Any]],
    numbers: Mapping[Any, int],
    path: str,
    complaints: Complaints,
    with_masks: bool,
) -> Annotation:
    boxes = []
    for row in rows:
        given = row.get("bbox")
        box = list(given) if isinstance(given, Sequence) else []
        # x, y, width, height to corners; what is not four numbers is complained of below.
        whole = len(box) == 4 and all(isinstance(n, int | float) for n in box)
        boxes.append([box[0], box[1], box[0] + box[2], box[1] + box[3]] if whole else box)
    labels = [numbers[row["category_id"]] for row in rows]
    kept = clean_boxes(boxes, labels, image_size_of(path), path, complaints)
    shapes = [rows[place].get("segmentation") for _, _, place in kept]
    return Annotation(
        boxes=[box for box, _, _ in kept],
        labels=[label for _, label, _ in kept],
        objects=_pixels(shapes, path) if with_masks else None,
    )


def _pixels(shapes: Sequence[Any], path: str) -> Callable[[Size], Map]:
    def drawn(size: Size) -> Map:
        made = np.zeros(size, np.int32)
        for number, shape in enumerate(shapes, 1):
            try:
                if isinstance(shape, dict):
                    covered = _run_lengths(shape, size)
                else:
                    covered = polygons_to_map(size, {1: shape}) > 0
                made[covered] = number
            except (ValueError, TypeError, KeyError, IndexError) as problem:
                reason = printable(problem, 100)
                raise ValueError(f"{path}: a segmentation that cannot be read ({reason})") from None
        return made

    return drawn


def _run_lengths(shape: Mapping[str, Any], size: Size) -> Any:
    """Column by column, zeros first; the packed form is for pycocotools to read."""
    height, width = shape["size"]
    if (height, width) != size:
        raise ValueError(f"run lengths for {width}x{height} pixels, image of {size[1]}x{size[0]}")
    counts = shape["counts"]
    if isinstance(counts, str):
        try:
            from pycocotools import mask
        except ImportError:
            raise ValueError(
                "packed run lengths need pycocotools: pip install 'dada-augment[detection]'"
            ) from None
        return mask.decode({"size": [height, width], "counts": counts.encode()}) > 0
    values = np.arange(len(counts)) % 2
    flat = np.repeat(values, np.asarray(counts, np.int64))
    if flat.size != height * width:
        raise ValueError(f"run lengths of {flat.size:,} pixels in all, not {height * width:,}")
    return flat.reshape(width, height).T > 0


def _content(file: str) -> dict[str, list[Any]]:
    try:
        with open(file, encoding="utf-8") as stream:
            content = json.load(stream)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{file}: cannot be read as JSON ({printable(problem, 100)})") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{file}: not COCO's form: it has no list {key!r}")
    return content


def _categories(rows: Sequence[Any], file: str) -> dict[Any, str]:
    """id -> name, by id; gaps between the ids do not matter."""
    names: dict[Any, str] = {}
    for row in rows:
        identity = _field(row, "id", file)
        if identity in names:
            raise ValueError(f"{file}: the category id {printable(identity)} is there twice")
        names[identity] = str(row.get("name", identity))
    if not names:
        raise ValueError(f"{file}: no categories")
    if len(set(names.values())) < len(names):
        raise ValueError(f"{file}: two categories have the same name")
    return dict(sorted(names.items(), key=lambda item: (str(type(item[0])), item[0])))


def _field(row: Any, name: str, file: str) -> Any:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, int | str):
        raise ValueError(f"{file}: an entry without {name!r}: {quoted(row, 60)}")
    return value
