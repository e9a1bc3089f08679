"""Pascal VOC's XML: a file of boxes for every image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from dada.data.annotations import (
    Annotation,
    Complaints,
    Found,
    check_classes,
    clean_boxes,
    image_size_of,
)
from dada.safe_files import read_bytes
from dada.safe_text import printable

MOST_BYTES = 4 * 2**20  # their elements take a hundred times that


def read_voc(xml_folder: str, images: Sequence[str], complaints: Complaints) -> Found:
    """What the XML files say of these images. An image without one is left out: nobody looked."""
    read: dict[str, list[tuple[str, list[float]]]] = {}
    for path in images:
        file = os.path.join(xml_folder, f"{Path(path).stem}.xml")
        if not os.path.lexists(file):
            complaints.add("images have no XML file and were left out", path)
            continue
        try:
            read[path] = _objects(file)
        except ValueError as problem:
            complaints.add(f"XML files cannot be read ({problem}), left out with images", file)
    if not read:
        raise ValueError(f"{xml_folder}: no XML file here belongs to one of {len(images)} images")
    classes = tuple(sorted({name for found in read.values() for name, _ in found}))
    if not classes:
        raise ValueError(f"{xml_folder}: its {len(read)} XML files hold no object")
    check_classes(len(classes), xml_folder)
    numbers = {name: number for number, name in enumerate(classes)}
    made = {}
    for path, found in read.items():
        boxes, labels = [box for _, box in found], [numbers[name] for name, _ in found]
        kept = clean_boxes(boxes, labels, image_size_of(path), path, complaints)
        made[path] = Annotation(boxes=kept.boxes, labels=kept.labels)
    return Found(made, classes)


def _objects(file: str) -> list[tuple[str, list[float]]]:
    """(class, x0, y0, x1, y1) of every object."""
    found = []
    for entry in _tree(file).iter("object"):
        name = printable((entry.findtext("name") or "").strip())
        box = entry.find("bndbox")
        if not name or box is None:
            raise ValueError("an object without name or bndbox")
        edges = [box.findtext(edge) for edge in ("xmin", "ymin", "xmax", "ymax")]
        try:
            x0, y0, x1, y1 = (float(edge or "") for edge in edges)
        except ValueError:
            raise ValueError("an edge of a box is no number") from None
        # Pixels are counted from 1 there, and the last one belongs to the box.
        found.append((name, [x0 - 1, y0 - 1, x1, y1]))
    return found


def _tree(file: str) -> Element:
    """The elements. A file with declarations is refused: entities may make gigabytes of a line."""
    builder, parser = TreeBuilder(), expat.ParserCreate()

    def refuse(*about: object) -> None:
        raise ValueError("it declares a document type")

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(file, most=MOST_BYTES), True)
        return builder.close()
    except expat.ExpatError as problem:
        raise ValueError(expat.ErrorString(problem.code)) from None
    except OSError as problem:
        raise ValueError(problem.strerror) from None
    except (LookupError, UnicodeError):
        raise ValueError("an encoding that is not known") from None
