"""Python datasets of (image, label): the user's own, torchvision's and Hugging Face's.

Legend: N images.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dada.data.bad_files import errors_of_item
from dada.data.images import ImageInfo, Preprocessing, from_item, image_info
from dada.data.parts import DatasetPart, Part, TensorPart
from dada.data.raw import (
    INSPECT_ALL,
    PART_NAMES,
    RawPart,
    RawSplit,
    TargetsOf,
    class_names,
    no_targets,
    positions_to_inspect,
)
from dada.data.split import IN_MEMORY_LIMIT
from dada.safe_text import first_line, shell_word


@dataclass(frozen=True, kw_only=True, repr=False)
class RawDataset(RawPart):
    """A dataset that has been read once, wholly or (when large) in a sample."""

    dataset: Any
    labels_N: Tensor
    infos: tuple[ImageInfo, ...]
    where: str
    kept: tuple[Image.Image, ...] | None = None
    """All its images, when they fit in memory."""
    targets_of: TargetsOf = no_targets

    def inspect(self, generator: torch.Generator) -> list[ImageInfo]:
        return list(self.infos)

    def convert(self, preprocessing: Preprocessing, labels_N: Tensor, in_memory: bool) -> Part:
        targets = self.targets_of(preprocessing, range(len(self)))
        if in_memory and self.kept is not None:
            images_NCHW = np.stack([preprocessing.pixels(image) for image in self.kept])
            return TensorPart(torch.from_numpy(images_NCHW), labels_N, targets=targets)
        part = DatasetPart(
            dataset=self.dataset,
            items_N=torch.arange(len(self)),
            labels_N=labels_N,
            preprocessing=preprocessing,
            where=self.where,
            targets=targets,
        )
        return part.load() if in_memory else part

    def name(self, position: int) -> str:
        return f"{self.where}[{position}]"


def from_dataset(dataset: Any, seed: int) -> RawSplit:
    """A map-style dataset the user made; its `classes`, when it has them, name the classes."""
    where = type(dataset).__name__
    random_note = (
        f"{where} returns another image each time it is indexed (a random transform?); each is "
        "read once and kept: better pass it without augmentation"
    )
    return RawSplit(
        parts={"train": _read(dataset, where, seed)},
        name=where,
        classes=class_names(getattr(dataset, "classes", None)),
        notes=[random_note] if _is_random(dataset) else [],
    )


def _read(dataset: Any, where: str, seed: int) -> RawDataset:
    """Read a dataset once: all labels, and all images while they fit in memory.

    A large one that lists its labels (`targets` or `labels`) is only sampled, unless the list
    turns out to differ from what the items carry (a target transform).
    """
    try:
        count = len(dataset)
    except TypeError:
        raise ValueError(
            f"{where}: the data must have a length and be indexable (a map-style dataset)"
        ) from None
    if count == 0:
        raise ValueError(f"{where}: the dataset is empty")
    listed = _listed_labels(dataset, count) if count > INSPECT_ALL else None
    if listed is not None:
        positions = positions_to_inspect(count, torch.Generator().manual_seed(seed))
        items = [_item(dataset, position, where) for position in positions]
        if all(label == listed[p] for p, (_, label) in zip(positions, items, strict=True)):
            seen = tuple(image_info(image) for image, _ in items)
            labels_N = torch.tensor(listed)
            return RawDataset(dataset=dataset, labels_N=labels_N, infos=seen, where=where)
    infos, labels, kept = [], [], []
    held = 0
    for position in range(count):
        image, label = _item(dataset, position, where)
        infos.append(image_info(image))
        labels.append(label)
        held += image.width * image.height * len(image.getbands())
        if held <= IN_MEMORY_LIMIT:
            kept.append(image)
        else:
            kept.clear()
    return RawDataset(
        dataset=dataset,
        labels_N=torch.tensor(labels),
        infos=tuple(infos),
        kept=tuple(kept) if len(kept) == count else None,
        where=where,
    )


def _item(dataset: Any, position: int, where: str) -> tuple[Image.Image, int]:
    where = f"{where}[{position}]"
    with errors_of_item(where):
        item = dataset[position]
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
        raise ValueError(f"{where}: an item must be (image, label), but got {got}")
    image = from_item(item[0], where)
    with errors_of_item(where):
        image.load()  # now, while the dataset's file is surely open
    label = item[1]
    if isinstance(label, Tensor | np.ndarray) and np.prod(label.shape) == 1:
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, int | np.integer):
        raise ValueError(
            f"{where}: a label must be a whole number 0..C-1, but got {type(label).__name__}"
        )
    return image, int(label)


def _listed_labels(dataset: Any, count: int) -> list[int] | None:
    for name in ("targets", "labels"):
        listed = getattr(dataset, name, None)
        if isinstance(listed, Tensor | np.ndarray):
            listed = listed.tolist()
        if (
            isinstance(listed, Sequence)
            and len(listed) == count
            and all(isinstance(label, int) for label in listed)
        ):
            return list(listed)
    return None


def _is_random(dataset: Any) -> bool:
    """Whether reading the first item twice gives two images."""
    try:
        first, second = (from_item(dataset[0][0], "") for _ in range(2))
    except Exception:  # of the user's own code; `_read` will report what is wrong
        return False
    return first.size != second.size or first.tobytes() != second.tobytes()


def from_torchvision(name: str, root: str, seed: int) -> RawSplit:
    """Any class of torchvision.datasets that gives (image, label); nothing is downloaded."""
    from torchvision import datasets

    kind = getattr(datasets, name, None)
    if not (inspect.isclass(kind) and issubclass(kind, datasets.VisionDataset)):
        raise ValueError(
            f"torchvision:{name}: torchvision.datasets has no dataset of this name; "
            "see https://docs.pytorch.org/vision/stable/datasets.html"
        )
    accepted = inspect.signature(kind).parameters
    wanted: dict[str, tuple[dict[str, Any], ...]]
    if "train" in accepted and "split" not in accepted:
        wanted = {"train": ({"train": True},), "test": ({"train": False},)}
    elif "split" in accepted:
        wanted = {
            "train": ({"split": "train"}, {"split": "trainval"}),
            "val": ({"split": "val"}, {"split": "valid"}),
            "test": ({"split": "test"},),
        }
    else:
        wanted = {"train": ({},)}
    parts: dict[str, RawPart] = {}
    classes: tuple[str, ...] | None = None
    for part, choices in wanted.items():
        dataset = _open_torchvision(kind, root, choices, "download" in accepted)
        if dataset is None:
            continue
        parts[part] = _read(dataset, f"torchvision:{name} ({part})", seed)
        if part == "train":
            classes = class_names(getattr(dataset, "classes", None))
    if "train" not in parts:
        raise ValueError(
            f"torchvision:{name}: it needs more than a root and a part; make the dataset in Python "
            "and pass it to dada.search"
        )
    return RawSplit(parts=parts, name=name, classes=classes)


def _open_torchvision(
    kind: Any, root: str, choices: Sequence[dict[str, Any]], can_download: bool
) -> Any | None:
    """The dataset for the first choice of arguments it knows, or None."""
    for choice in choices:
        arguments = {**choice, "download": False} if can_download else choice
        try:
            return kind(root, **arguments)
        except ImportError as problem:
            raise ValueError(f"torchvision:{kind.__name__}: {first_line(problem)}") from problem
        except (RuntimeError, FileNotFoundError) as problem:
            shown = [repr(root), *(f"{k}={v!r}" for k, v in choice.items()), "download=True"]
            call = f"torchvision.datasets.{kind.__name__}({', '.join(shown)})"
            code = shell_word(f"import torchvision; {call}")
            fetch = f"download it with: python -c {code}"
            if not can_download:
                fetch = f"put its files under {root}"
            raise ValueError(
                f"torchvision:{kind.__name__}: its files are not under {root!r} "
                f"({first_line(problem)}); {fetch}"
            ) from problem
        except (ValueError, TypeError):
            continue  # this class has no such part
    return None


def from_hugging_face(name: str, seed: int) -> RawSplit:
    """NAME or NAME:CONFIG in the local Hugging Face cache, or a folder written by save_to_disk."""
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"hf:{name}: this needs the package datasets; run: pip install datasets"
        ) from None
    if os.path.isdir(name):
        try:
            loaded = datasets.load_from_disk(name)
        except Exception as problem:  # its errors come from several packages
            raise ValueError(
                f"hf:{name}: not a folder written by save_to_disk ({first_line(problem)}); for a "
                "folder of images pass its path without hf:"
            ) from problem
    else:
        repository, _, config = name.partition(":")
        arguments = (repository, config) if config else (repository,)
        before = datasets.config.HF_HUB_OFFLINE
        datasets.config.HF_HUB_OFFLINE = True  # never download unasked
        try:
            loaded = datasets.load_dataset(*arguments)
        except Exception as problem:  # its errors come from several packages
            call = ", ".join(map(repr, arguments))
            code = shell_word(f"import datasets; datasets.load_dataset({call})")
            raise ValueError(
                f"hf:{name}: not in the local cache ({first_line(problem)}); download it with: "
                f"python -c {code}"
            ) from problem
        finally:
            datasets.config.HF_HUB_OFFLINE = before
    return hugging_face_parts(loaded, name, seed)


def hugging_face_parts(loaded: Any, name: str, seed: int) -> RawSplit:
    """A DatasetDict (or one Dataset) with an image column and a column of class labels."""
    tables = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    parts: dict[str, RawPart] = {}
    classes: tuple[str, ...] | None = None
    for split, table in tables.items():
        part = PART_NAMES.get(str(split))
        if part is None or part in parts:
            continue
        columns = _HuggingFaceColumns(table, f"hf:{name}")
        parts[part] = _read(columns, f"hf:{name} ({split})", seed)
        classes = columns.classes if part == "train" else classes
    if "train" not in parts:
        raise ValueError(f"hf:{name}: no train split among {', '.join(map(str, tables))}")
    return RawSplit(parts=parts, name=name.rstrip("/").split("/")[-1], classes=classes)


class _HuggingFaceColumns:
    """A Hugging Face table as (image, label) items."""

    def __init__(self, table: Any, where: str) -> None:
        kinds = {column: type(feature).__name__ for column, feature in table.features.items()}
        images = [column for column, kind in kinds.items() if kind == "Image"]
        labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
        labels = labels or [column for column in ("label", "labels") if column in kinds]
        if not images or not labels:
            missing = "column of images" if not images else "column of class labels"
            raise ValueError(f"{where}: no {missing} among {', '.join(kinds)}")
        # Of several label columns the finest is meant: "fine_label" beside "coarse_label".
        label = max(labels, key=lambda column: len(getattr(table.features[column], "names", ())))
        self.table, self.image, self.label = table, images[0], label
        self.classes = class_names(getattr(table.features[label], "names", None))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, position: int) -> tuple[Any, Any]:
        row = self.table[position]
        return row[self.image], row[self.label]

    @property
    def targets(self) -> list[int]:
        return list(self.table[self.label])
