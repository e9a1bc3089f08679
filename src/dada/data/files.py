"""Image files on disk: folders of classes, ImageNet's folders, and .csv lists."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dada.data.annotations import check_table, strata
from dada.data.images import is_image
from dada.data.raw import PART_NAMES, RawFiles, RawPart, RawSplit
from dada.data.walk import Walk, files_beside, subfolders
from dada.safe_text import listed, printable, quoted


def from_folder(root: str) -> RawSplit:
    """ROOT/<class>/<image>, or ROOT/train/<class>/<image> with val/ and test/ beside train/."""
    part_folders = _part_folders(root)
    if "train" not in part_folders:
        part_folders = {"train": root}
    walks = {part: Walk(root=folder, takes=is_image) for part, folder in part_folders.items()}
    found = {part: _class_folder(part_folders[part], walk) for part, walk in walks.items()}
    classes = tuple(sorted(found["train"]))
    parts: dict[str, RawPart] = {}
    for part, files in found.items():
        unknown = sorted(set(files) - set(classes))
        if unknown:
            raise ValueError(
                f"{part_folders[part]}: class {quoted(unknown[0])} is not among the training "
                f"classes ({listed(classes)})"
            )
        parts[part] = _labelled(files, classes, root)
    return RawSplit(
        parts=parts,
        name=Path(root).resolve().name,
        where=root,
        classes=classes,
        notes=[note for walk in walks.values() for note in walk.notes()],
    )


def from_imagenet(root: str) -> RawSplit:
    """ImageNet as everybody keeps it: ROOT/train/<wnid>/*.JPEG and ROOT/val/<wnid>/*.JPEG.

    Its 50,000 validation images are what the literature tests on, so here they are the test part;
    a search splits its own validation images off the training ones.
    """
    for part in ("train", "val"):
        folder = os.path.join(root, part)
        if not os.path.isdir(folder):
            raise ValueError(f"imagenet: no folder {folder}; expected ROOT/train and ROOT/val")
    val = os.path.join(root, "val")
    if not subfolders(val):
        raise ValueError(
            f"imagenet: {val} has no class folders; sort its images into one folder per class, "
            "named as those of train/"
        )
    walks = [Walk(root=os.path.join(root, part), takes=is_image) for part in ("train", "val")]
    train, test = (_class_folder(walk.root, walk) for walk in walks)
    classes = tuple(sorted(train))
    unknown = sorted(set(test) - set(classes))
    if unknown:
        name = quoted(unknown[0])
        raise ValueError(f"imagenet: {val} has the class {name}, which train/ has not")
    return RawSplit(
        parts={"train": _labelled(train, classes, root), "test": _labelled(test, classes, root)},
        name="imagenet",
        classes=classes,
        notes=[
            "ImageNet's val/ is used as the test part",
            *(note for walk in walks for note in walk.notes()),
        ],
        image_size=(224, 224),
        margin=224 / 256,
    )


def from_csv(path: str) -> RawSplit:
    """Rows of path,label[,split][,group] under a header; paths relative to the .csv file.

    With a column `labels` in place of `label`, images have several or none.
    """
    base = os.path.dirname(os.path.abspath(path))
    rows, columns = _csv_rows(path, base)
    several = "label" not in columns
    classes = tuple(sorted({label for row in rows["train"] for label in row.labels}))
    if several and len(classes) < 2:
        raise ValueError(f"{path}: {len(classes)} labels in all; two or more are needed")
    numbers = {name: number for number, name in enumerate(classes)}
    group_numbers: dict[str, int] = {}
    parts: dict[str, RawPart] = {}
    for part, entries in rows.items():
        unknown = [label for row in entries for label in row.labels if label not in numbers]
        if unknown:
            raise ValueError(
                f"{path}: the {part} label {quoted(unknown[0])} is not among the training labels"
            )
        labels = [[numbers[label] for label in row.labels] for row in entries]
        paths = tuple(row.file for row in entries)
        groups = [
            group_numbers.setdefault(row.group or f"\0{row.file}", len(group_numbers))
            for row in entries
        ]
        groups_N = torch.tensor(groups) if "group" in columns else None
        if several:
            parts[part] = _multilabel(paths, labels, groups_N, len(classes), path, base)
            continue
        parts[part] = RawFiles(
            paths=paths,
            labels_N=torch.tensor([label for (label,) in labels]),
            groups_N=groups_N,
            root=base,
        )
    return RawSplit(
        parts=parts,
        name=Path(path).stem,
        where=path,
        classes=classes,
        notes=_shared_groups(rows),
        task="multilabel" if several else "classification",
    )


class CsvRow(NamedTuple):
    file: str
    labels: list[str]
    group: str


def _csv_rows(path: str, base: str) -> tuple[dict[str, list[CsvRow]], list[str]]:
    """The rows of every part, and the columns that they have."""
    rows: dict[str, list[CsvRow]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            columns = [name.strip().lower() for name in reader.fieldnames or ()]
            several = "labels" in columns and "label" not in columns
            if "path" not in columns or not (several or "label" in columns):
                raise ValueError(
                    f"{path}: the first line must name the columns path,label[,split][,group] (or "
                    "labels in place of label for several, with ; between), "
                    f"but it is {quoted(','.join(reader.fieldnames or ()) or 'empty')}"
                )
            reader.fieldnames = columns
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                rows.setdefault(_row_part(row, where), []).append(_row(row, base, where, several))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"{path}: cannot be read as a UTF-8 .csv ({problem})") from problem
    if "train" not in rows:
        raise ValueError(f"{path}: no row belongs to the training part")
    return rows, columns


def _multilabel(
    paths: tuple[str, ...],
    labels: list[list[int]],
    groups_N: Tensor | None,
    classes: int,
    where: str,
    root: str,
) -> RawFiles:
    check_table(len(paths), classes, where)
    present_NC = np.zeros((len(paths), classes), np.uint8)
    for row, own in zip(present_NC, labels, strict=True):
        row[own] = 1
    labels_NC = torch.from_numpy(present_NC)
    return RawFiles(
        paths=paths,
        labels_N=strata(present_NC > 0, groups_N),
        groups_N=groups_N,
        root=root,
        targets_of=lambda preprocessing, positions: (labels_NC[positions],),
    )


def _row_part(row: dict[str, str], where: str) -> str:
    word = (row.get("split") or "train").strip().lower()
    if word not in PART_NAMES:
        raise ValueError(f"{where}: split must be train, val or test, but is {quoted(word)}")
    return PART_NAMES[word]


def _row(row: dict[str, str], base: str, where: str, several: bool) -> CsvRow:
    """Several labels have ; or | between them, and there may be none."""
    file, label = (row.get("path") or "").strip(), (row.get("label") or "").strip()
    if not file or not (label or several):
        raise ValueError(f"{where}: the {'label' if file else 'path'} is missing")
    file = os.path.join(base, file)
    if not os.path.isfile(file):
        raise ValueError(f"{where}: no such image file {printable(file)}")
    words = (row.get("labels") or "").replace("|", ";").split(";") if several else [label]
    labels = [word.strip() for word in words if word.strip()]
    return CsvRow(file, labels, (row.get("group") or "").strip())


def _shared_groups(rows: dict[str, list[CsvRow]]) -> list[str]:
    groups = {part: {row.group for row in entries if row.group} for part, entries in rows.items()}
    notes = []
    for part in ("val", "test"):
        shared = sorted(groups.get("train", set()) & groups.get(part, set()))
        if shared:
            notes.append(
                f"groups have images in both train and {part} ({listed(shared)}); results on "
                f"{part} may be too good"
            )
    return notes


def _part_folders(root: str) -> dict[str, str]:
    """train/val/test folders under root. A class may be called "train" too (of vehicles, say):
    a part holds folders of classes, a class holds images."""
    parts: dict[str, str] = {}
    for folder in subfolders(root):
        part = PART_NAMES.get(os.path.basename(folder).lower())
        if part is None or not subfolders(folder) or _has_images(folder):
            continue
        if part in parts:
            raise ValueError(f"{root}: both {parts[part]} and {folder} look like the {part} part")
        parts[part] = folder
    return parts


def _class_folder(root: str, walk: Walk) -> dict[str, list[str]]:
    """Class name -> sorted image files, searched for at any depth under the class folder."""
    folders = [folder for folder in subfolders(root) if not walk.leads_back(folder)]
    searched = {folder: walk.files(folder) for folder in folders}
    found = {  # a folder with nothing but run directories is no class
        os.path.basename(folder): files
        for folder, files in searched.items()
        if files or not walk.has_runs(folder)
    }
    if not found:
        if _has_images(root):
            raise ValueError(
                f"{root}: images lie directly in this folder; put each class into a subfolder of "
                "its own, or describe them by a .csv of path,label"
            )
        raise ValueError(f"{root}: no class folders here; expected {root}/<class>/<image>")
    left_out = "".join(f" ({note})" for note in walk.notes()[:1])
    if not any(found.values()):
        raise ValueError(f"{root}: no image files in its {len(found)} folders{left_out}")
    for name, files in found.items():
        where = printable(os.path.join(root, name))
        if not files:
            raise ValueError(
                f"{where}: a class folder without images; add some or remove it{left_out}"
            )
        if any("\ud800" <= sign <= "\udfff" for sign in name):  # bytes that are not UTF-8
            raise ValueError(f"{where}: a class whose name is not UTF-8; rename it")
    for file in files_beside(root):
        walk.pass_over(file)
    return found


def _labelled(files: dict[str, list[str]], classes: tuple[str, ...], root: str) -> RawFiles:
    ordered = [(file, label) for label, name in enumerate(classes) for file in files.get(name, ())]
    return RawFiles(
        paths=tuple(file for file, _ in ordered),
        labels_N=torch.tensor([label for _, label in ordered]),
        root=root,
    )


def _has_images(root: str) -> bool:
    return any(map(is_image, files_beside(root)))
