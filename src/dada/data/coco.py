"""COCO's JSON: boxes, polygons and run lengths of objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dada import safe_json
from dada.data.annotations import (
    Annotation,
    Complaints,
    Found,
    check_classes,
    clean_boxes,
    image_size_of,
    under,
)
from dada.data.outlines import objects_map
from dada.safe_text import printable, quoted

MOST_BYTES = 1024 * 2**20  # COCO's own training file has 450 MB


def read_coco(file: str, images: str, complaints: Complaints, *, masks: bool = True) -> Found:
    """What a COCO file says of the images in a folder; of images it lists twice the first counts.

    With `masks`, objects have pixels where all of them have a segmentation.
    """
    content = _content(file)
    names = _categories(content["categories"], file)
    numbers = {identity: number for number, identity in enumerate(names)}
    paths, left_out = _images(content["images"], file, images, complaints)
    rows: dict[Any, list[Mapping[str, Any]]] = {identity: [] for identity in paths}
    for place, entry in enumerate(content["annotations"]):
        image = _identity(entry, "image_id", f"{file}: annotations[{place}]")
        category = entry.get("category_id")
        if image in left_out:
            continue
        if image not in rows:
            problem = "belong to no image"
        elif not _is_identity(category) or category not in numbers:
            problem = "are of no category"
        elif entry.get("iscrowd"):
            problem = "are crowds, not objects,"
        else:
            rows[image].append(entry)
            continue
        where = f"{file}: annotation {printable(entry.get('id', place), 20)}"
        complaints.add(f"annotations {problem} and were left out", where)
    if not paths:
        raise ValueError(f"{file}: none of its {len(left_out)} images is in {images}")
    with_masks = masks and all(e.get("segmentation") for each in rows.values() for e in each)
    found = {
        paths[image]: _annotation(each, numbers, paths[image], complaints, with_masks)
        for image, each in rows.items()
    }
    return Found(found, tuple(names.values()))


def _images(
    entries: Sequence[Any], file: str, folder: str, complaints: Complaints
) -> tuple[dict[Any, str], set[Any]]:
    """The files of the images, and the images that were left out, both by id."""
    paths: dict[Any, str] = {}
    left_out, taken = set[Any](), set[str]()
    for place, entry in enumerate(entries):
        identity = _identity(entry, "id", f"{file}: images[{place}]")
        name = entry.get("file_name")
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"{file}: images[{place}] is without 'file_name': {quoted(entry, 60)}; "
                "repair or remove it"
            )
        if identity in paths or identity in left_out:
            complaints.add("image ids are there twice, the first counts", f"{file}: id {identity}")
            continue
        path = under(folder, name)
        if path is None or image_size_of(path) is None:
            complaints.add("images of the list are not there or broken, left out", name)
            left_out.add(identity)
        elif path in taken:
            complaints.add("files are there under two ids, the first counts", path)
            left_out.add(identity)
        else:
            paths[identity] = path
            taken.add(path)
    return paths, left_out


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
        box = given if isinstance(given, list) else []
        # x, y, width, height to corners; what is not four numbers is complained of below.
        whole = len(box) == 4 and None not in map(safe_json.number, box)
        boxes.append([box[0], box[1], box[0] + box[2], box[1] + box[3]] if whole else box)
    labels = [numbers[row["category_id"]] for row in rows]
    kept = clean_boxes(boxes, labels, image_size_of(path), path, complaints)
    shapes = [rows[place].get("segmentation") for place in kept.places]
    return Annotation(
        boxes=kept.boxes,
        labels=kept.labels,
        objects=partial(objects_map, shapes=shapes, where=path) if with_masks else None,
    )


def _content(file: str) -> dict[str, list[Any]]:
    try:
        content = safe_json.read(file, most=MOST_BYTES, finite=False)
    except (ValueError, OSError) as problem:
        reason = printable(getattr(problem, "strerror", None) or problem, 100)
        raise ValueError(f"{file}: cannot be read as JSON ({reason}); repair it") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{file}: not COCO's form: it has no list {key!r}")
    return content


def _categories(rows: Sequence[Any], file: str) -> dict[Any, str]:
    """id -> name, by id; gaps between the ids do not matter."""
    names: dict[Any, str] = {}
    for place, row in enumerate(rows):
        identity = _identity(row, "id", f"{file}: categories[{place}]")
        if identity in names:
            raise ValueError(f"{file}: the category id {printable(identity)} is there twice")
        name = row.get("name", str(identity))
        if not isinstance(name, str):
            raise ValueError(
                f"{file}: categories[{place}]: its name should be text, but is {quoted(name, 60)}"
            )
        names[identity] = printable(name)
    if not names:
        raise ValueError(f"{file}: no categories")
    check_classes(len(names), file)
    if len(set(names.values())) < len(names):
        raise ValueError(f"{file}: two categories have the same name; rename one")
    return dict(sorted(names.items(), key=lambda item: (str(type(item[0])), item[0])))


def _is_identity(value: Any) -> bool:
    """True is no 1 here, and 1.0 is none either: what else is in such a file would be guesswork."""
    return isinstance(value, int | str) and not isinstance(value, bool)


def _identity(row: Any, name: str, where: str) -> Any:
    value = row.get(name) if isinstance(row, dict) else None
    if not _is_identity(value):
        raise ValueError(
            f"{where}: {name!r} should be a whole number or text, but the entry is "
            f"{quoted(row, 60)}; repair or remove it"
        )
    return value
