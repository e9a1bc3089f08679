"""YOLO's text files: a line `class x y width height` for every box, in fractions of the image."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dada.data.annotations import (
    MOST_CLASSES,
    Annotation,
    Complaints,
    check_classes,
    clean_boxes,
    image_size_of,
)
from dada.data.bad_files import file_bytes
from dada.data.outlines import objects_map
from dada.safe_text import printable

NAME_FILES = ("classes.txt", "obj.names", "names.txt")
YAML_FILES = ("data.yaml", "dataset.yaml", "data.yml")
MOST_BYTES = 4 * 2**20  # of a file of labels, or of names


def read_yolo(
    folder: str, images: Sequence[str], complaints: Complaints
) -> tuple[dict[str, Annotation], int]:
    """What the text files say of these images, and how many classes they name.

    An image without a file shows nothing: that is how they are written. A line of more than five
    numbers is an outline: its box is the one around it.
    """
    made: dict[str, Annotation] = {}
    most = 0
    for path in images:
        size = image_size_of(path)
        if size is None:
            complaints.add("images cannot be read and were left out", path)
            continue
        try:
            lines = _lines(folder, path, complaints)
        except ValueError as problem:
            complaints.add("label files were left out with their images", str(problem))
            continue
        height, width = size
        labels = [label for label, _ in lines]
        pixels = [
            [p * (width if i % 2 == 0 else height) for i, p in enumerate(points)]
            for _, points in lines
        ]
        kept = clean_boxes(list(map(_box, pixels)), labels, size, path, complaints)
        shapes = [[pixels[place]] for place in kept.places]
        outlined = len(shapes) > 0 and all(len(points) > 4 for (points,) in shapes)
        made[path] = Annotation(
            boxes=kept.boxes,
            labels=kept.labels,
            objects=partial(objects_map, shapes=shapes, where=path) if outlined else None,
        )
        most = max([most, *(label + 1 for label in labels)])
    if not most:
        raise ValueError(f"{folder}: no box in any file for {len(images)} images")
    return made, most


def _box(pixels: list[float]) -> list[float]:
    """The corners of a box or of an outline; none of numbers that no box can have."""
    if not all(map(math.isfinite, pixels)):
        return []
    if len(pixels) == 4:
        x, y, w, h = pixels
        return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    xs, ys = pixels[::2], pixels[1::2]
    return [min(xs), min(ys), max(xs), max(ys)]


def _lines(folder: str, image: str, complaints: Complaints) -> list[tuple[int, list[float]]]:
    file = os.path.join(folder, f"{Path(image).stem}.txt")
    if not os.path.lexists(file):
        return []
    found = []
    try:
        lines = file_bytes(file, most=MOST_BYTES).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: no UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            label, points = int(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            label, points = -1, []
        if label >= MOST_CLASSES:
            complaints.add(
                f"lines name a class above {MOST_CLASSES - 1:,}, left out", f"{file}:{number}"
            )
            continue
        if label < 0 or len(points) < 4 or len(points) % 2:
            complaints.add("lines are not `class x y width height`, left out", f"{file}:{number}")
            continue
        found.append((label, points))
    return found


def class_names(folders: Sequence[str], count: int) -> tuple[str, ...]:
    """Names for the classes, from the files that such data usually comes with; else numbers."""
    names: list[str] = []
    for folder in folders:
        for file in (os.path.join(folder, name) for name in (*NAME_FILES, *YAML_FILES)):
            if not names and os.path.lexists(file):
                text = file_bytes(file, most=MOST_BYTES).decode("utf-8", "replace")
                names = _from_yaml(text) if file.endswith(("yaml", "yml")) else text.splitlines()
                check_classes(len(names), file)
    names = [printable(name.strip()) for name in names if name.strip()]
    if len(names) < count or len(set(names)) < len(names):
        return tuple(map(str, range(count)))
    return tuple(names)


def _from_yaml(text: str) -> list[str]:
    """`names: [a, b]`, or a name a line below it (`- a`, `0: a`): all that such files hold."""
    heading = re.search(r"^names:[ \t]*", text, re.M)
    below = "" if heading is None else text[heading.end() :].lstrip()
    if below.startswith("["):
        return [word.strip().strip("'\"") for word in below[1:].partition("]")[0].split(",")]
    names = []
    for line in below.splitlines():
        item = re.match(r"[ \t]*(?:-|\d+:)(.*)", line)
        if item is None:
            break
        names.append(item[1].strip().strip("'\""))
    return names
