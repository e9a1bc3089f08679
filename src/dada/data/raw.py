"""From what a reader found to a Split: inspect the images, choose the preprocessing, apply it.

A reader (folder, archive, array, dataset) returns a RawSplit. All parts are inspected together, so
that training, validation and test images get the same shape, channels and grey scale.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dada.data.bad_files import report_bad
from dada.data.copies import mark_copies
from dada.data.images import ImageInfo, Preprocessing, file_info, to_uint8
from dada.data.one_size import SIZE_CAP, asked_size, choose_preprocessing
from dada.data.parts import FilePart, Part, TensorPart, pool
from dada.data.split import IN_MEMORY_LIMIT, Split
from dada.engine.memory import memory_of_machine
from dada.safe_text import listed, printable, quoted

InMemory = bool | Literal["auto"]
Fit = Callable[[str, tuple[int, int], int], tuple[int, int]]
"""(task, image size, training images) -> the size that suits the network chosen for them"""

INSPECT_ALL = 20_000
"""Data sets up to this size are inspected image by image, larger ones by a sample."""
INSPECT_SAMPLE = 2_000

PART_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""What folders, columns, keys and splits call a part -> its name here."""


class RawPart(ABC):
    """Images as their source holds them, with labels."""

    labels_N: Tensor
    prepared: ClassVar[bool] = False  # the user made these pixels: a common size is kept

    def __len__(self) -> int:
        return len(self.labels_N)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self):,} images>"

    @abstractmethod
    def inspect(self, generator: torch.Generator) -> list[ImageInfo]: ...
    @abstractmethod
    def convert(self, preprocessing: Preprocessing, labels_N: Tensor, in_memory: bool) -> Part: ...
    @abstractmethod
    def name(self, position: int) -> str:
        """What a note calls the image at this place of the part that `convert` made."""


@dataclass(kw_only=True)
class RawSplit:
    """What a reader returns. `parts` holds "train" and perhaps "val" and "test"."""

    parts: dict[str, RawPart]
    name: str
    where: str = ""
    """What an error names: the path, where there is one."""
    classes: tuple[str, ...] | None = None
    """None: labels are numbers and must be 0..C-1."""
    notes: list[str] = field(default_factory=list)
    image_size: tuple[int, int] | None = None
    """The size this source is known for, when the user names none."""
    margin: float = 1.0
    task: str = "classification"

    def __post_init__(self) -> None:
        self.where = self.where or self.name


def no_targets(preprocessing: Preprocessing, positions: Sequence[int]) -> tuple[Tensor, ...]:
    """Of images that have a label each, and nothing else."""
    return ()


TargetsOf = Callable[[Preprocessing, Sequence[int]], tuple[Tensor, ...]]
"""(what became of the images, the positions of some) -> what those should become"""


@dataclass(frozen=True, kw_only=True, repr=False)
class RawFiles(RawPart):
    """Image files."""

    paths: tuple[str, ...]
    labels_N: Tensor
    root: str
    groups_N: Tensor | None = None
    targets_of: TargetsOf = no_targets
    problems: dict[str, str] = field(default_factory=dict)
    """The files that cannot be read, and why: found by `inspect` and `convert`."""

    def inspect(self, generator: torch.Generator) -> list[ImageInfo]:
        def attempt(path: str) -> ImageInfo | None:
            try:
                return file_info(path)
            except ValueError as problem:
                self.problems[path] = str(problem)
                return None

        chosen = [self.paths[i] for i in positions_to_inspect(len(self), generator)]
        return [info for info in pool().map(attempt, chosen) if info is not None]

    def convert(self, preprocessing: Preprocessing, labels_N: Tensor, in_memory: bool) -> Part:
        """Of the files that can be read; those not held are only looked at by `check`."""
        part: FilePart | TensorPart = FilePart(
            paths=self.paths,
            labels_N=labels_N,
            preprocessing=preprocessing,
            groups_N=self.groups_N,
            root=self.root,
        )
        if self.problems:
            part = part.take(torch.tensor(self._good(), dtype=torch.int64))
        if in_memory:
            assert isinstance(part, FilePart)
            part, problems = part.readable(hold=True)
            self.problems.update(problems)
        return replace(part, targets=self.targets_of(preprocessing, self._good()))

    def check(self, part: FilePart) -> Part:
        """Decode every file once, and leave out what cannot be."""
        kept, problems = part.readable(hold=False)
        self.problems.update(problems)
        return kept

    def name(self, position: int) -> str:
        path = self.paths[self._good()[position] if self.problems else position]
        return os.path.relpath(path, self.root)

    def _good(self) -> list[int]:
        return [i for i, path in enumerate(self.paths) if path not in self.problems]


@dataclass(frozen=True, kw_only=True, repr=False)
class RawArrays(RawPart):
    """Images in one array, uint8 or (deep) uint16; in memory whatever the user says."""

    images_NCHW: NDArray[Any]
    labels_N: Tensor
    targets: tuple[Tensor, ...] = ()
    prepared: ClassVar[bool] = True

    def inspect(self, generator: torch.Generator) -> list[ImageInfo]:
        count, channels, height, width = self.images_NCHW.shape
        deep = self.images_NCHW.dtype == np.uint16
        return [
            ImageInfo(
                size=(height, width),
                grey=channels == 1,
                conversion="16-bit, scaled to 8 bits" if deep else None,
                peak=int(self.images_NCHW.max()) if deep else 0,
                count=count,
            )
        ]

    def convert(self, preprocessing: Preprocessing, labels_N: Tensor, in_memory: bool) -> Part:
        images_NCHW = to_uint8(self.images_NCHW, "images", preprocessing.white_level)
        if images_NCHW.shape[2:] != preprocessing.size:
            size = (len(images_NCHW), preprocessing.channels, *preprocessing.size)
            resized_NCHW = np.empty(size, np.uint8)
            for row, image_CHW in enumerate(images_NCHW):
                pixels = image_CHW[0] if len(image_CHW) == 1 else image_CHW.transpose(1, 2, 0)
                image = Image.fromarray(np.ascontiguousarray(pixels))
                resized_NCHW[row] = preprocessing.pixels(image)
            images_NCHW = resized_NCHW
        elif images_NCHW.shape[1] < preprocessing.channels:
            images_NCHW = np.repeat(images_NCHW, preprocessing.channels, axis=1)
        # Copied where numpy's memory is read-only (torch would warn) or strided (slow to gather).
        held = torch.from_numpy(np.require(images_NCHW, requirements=["C", "W"]))
        return TensorPart(held, labels_N, targets=self.targets)

    def name(self, position: int) -> str:
        return f"image {position}"


def class_names(given: Any) -> tuple[str, ...] | None:
    """What a dataset calls its classes; None where it does not say."""
    named = isinstance(given, Sequence) and not isinstance(given, str)
    return (tuple(map(str, given)) or None) if named else None


def positions_to_inspect(count: int, generator: torch.Generator) -> list[int]:
    """All positions of a set of ordinary size, a random sample of a large one."""
    if count <= INSPECT_ALL:
        return list(range(count))
    return sorted(torch.randperm(count, generator=generator)[:INSPECT_SAMPLE].tolist())


def build_split(
    raw: RawSplit,
    *,
    val: RawSplit | None,
    image_size: int | tuple[int, int] | None,
    seed: int,
    in_memory: InMemory,
    skip_bad: bool = False,
    fit: Fit | None = None,
) -> Split:
    """Check labels, choose the preprocessing for all parts together, and make the parts."""
    if in_memory not in (True, False, "auto"):
        raise ValueError(f"`in_memory` must be True, False or 'auto', but got {quoted(in_memory)}")
    classes, labels = _check_labels(raw)
    notes = list(raw.notes)
    parts = dict(raw.parts)
    if val is not None:
        if "val" in parts:
            notes.append("the validation part of the data was replaced by the one given separately")
        parts["val"], labels["val"] = _match_validation(val, classes, raw.task)
        notes += val.notes
    generator = torch.Generator().manual_seed(seed)
    infos = [info for part in parts.values() for info in part.inspect(generator)]
    if not infos:
        report_bad(*_problems(parts), skip_bad=False)
    size = asked_size(image_size) or raw.image_size
    prepared = all(part.prepared for part in parts.values())
    cap = None if prepared else SIZE_CAP
    preprocessing, conversions = choose_preprocessing(infos, size, raw.margin, cap)
    if fit is not None:
        size = fit(raw.task, preprocessing.size, len(raw.parts["train"]))
        if size != preprocessing.size:
            preprocessing, conversions = choose_preprocessing(infos, size, raw.margin, cap)
    image_bytes = preprocessing.channels * math.prod(preprocessing.size)
    fits = sum(map(len, parts.values())) * image_bytes <= IN_MEMORY_LIMIT
    hold = fits if in_memory == "auto" else in_memory
    held = [part for part in parts.values() if hold or isinstance(part, RawArrays)]
    _check_room(raw.where, sum(map(len, held)) * image_bytes)
    made = {name: part.convert(preprocessing, labels[name], hold) for name, part in parts.items()}
    if skip_bad:
        made |= {
            name: part.check(converted)
            for name, part in parts.items()
            if isinstance(part, RawFiles) and isinstance(converted := made[name], FilePart)
        }
    notes += report_bad(*_problems(parts), skip_bad=skip_bad)
    _check_left(raw.where, labels, made)
    made, about_copies = mark_copies(made, lambda name, i: f"{name}: {parts[name].name(i)}")
    return Split(
        train=made["train"],
        val=made.get("val"),
        test=made.get("test"),
        classes=classes,
        name=raw.name,
        task=raw.task,
        notes=(*notes, *conversions, *about_copies),
    )


def _check_room(where: str, needed: int) -> None:
    if needed > (room := memory_of_machine()) / 2:  # the other half is for what is made of them
        raise ValueError(
            f"{where}: its images would take {needed / 1e9:,.0f} GB, and this machine has "
            f"{room / 1e9:,.0f} in all; lower `image_size`, or keep them in files"
        )


def _problems(parts: Mapping[str, RawPart]) -> tuple[dict[str, str], int]:
    """The files that cannot be read, and how many there are in all."""
    files = [part for part in parts.values() if isinstance(part, RawFiles)]
    problems = {path: why for part in files for path, why in part.problems.items()}
    return problems, sum(map(len, files))


def _check_left(where: str, labels: Mapping[str, Tensor], made: Mapping[str, Part]) -> None:
    """No class may be gone with the files that were left out."""
    for name, part in made.items():
        if len(part) == len(labels[name]):
            continue
        gone = set(labels[name].tolist()) - set(part.labels_N.tolist())
        if (gone and name == "train" and not part.targets) or len(part) == 0:
            raise ValueError(
                f"{where}: of {len(gone)} classes no {name} image can be read; repair some, or "
                "remove these classes"
            )


def _check_labels(raw: RawSplit) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Class names, and labels that have been checked against them."""
    labels = {name: part.labels_N for name, part in raw.parts.items()}
    for name, part in raw.parts.items():
        if len(part) == 0:
            raise ValueError(f"{raw.where}: the {name} part holds no images")
    if raw.task != "classification":
        assert raw.classes is not None  # its reader names them, and labels only divide images
        return raw.classes, labels
    present = sorted(labels["train"].unique().tolist())
    if raw.classes is None:
        if len(present) < 2:
            raise ValueError(
                f"{raw.where}: all training labels are {present[0]}; two classes needed"
            )
        missing = next((c for c, label in enumerate(present) if c != label), None)
        if missing is not None:
            raise ValueError(
                f"{raw.where}: labels must be 0..C-1 with none left out, but training labels run "
                f"{present[0]}..{present[-1]} without {missing}; renumber them, for example by "
                "numpy.unique(labels, return_inverse=True)[1]"
            )
        classes = tuple(str(label) for label in present)
    else:
        classes = raw.classes
        if len(classes) < 2:
            only = ", ".join(map(printable, classes))
            raise ValueError(f"{raw.where}: only one class ({only}); two or more are needed")
        absent = [name for c, name in enumerate(classes) if c not in set(present)]
        if absent:
            raw.notes.append(f"{len(absent)} of {len(classes)} classes have no training images")
    for name, labels_N in labels.items():
        _check_range(labels_N, len(classes), f"{raw.where}: the {name} part")
    return classes, labels


def _check_range(labels_N: Tensor, num_classes: int, where: str) -> None:
    outside = labels_N[(labels_N < 0) | (labels_N >= num_classes)]
    if len(outside):
        raise ValueError(
            f"{where} has the label {int(outside[0])}, but the classes are 0..{num_classes - 1}"
        )


def _match_validation(val: RawSplit, classes: tuple[str, ...], task: str) -> tuple[RawPart, Tensor]:
    """The one part of separately given validation data, labelled as the training data is."""
    if set(val.parts) != {"train"}:
        raise ValueError(
            f"{val.where}: validation data must be one set of images, but this has the parts "
            f"{', '.join(val.parts)}; pass the one to validate on"
        )
    part = val.parts["train"]
    if val.task != task:
        raise ValueError(f"{val.where}: the validation data is for {val.task}, not for {task}")
    if len(part) == 0:
        raise ValueError(f"{val.where}: the validation data holds no images")
    if val.classes is None:
        _check_range(part.labels_N, len(classes), f"{val.where}: the validation data")
        return part, part.labels_N
    unknown = [name for name in val.classes if name not in classes]
    if unknown:
        raise ValueError(
            f"{val.where}: the validation class {quoted(unknown[0])} is not among the training "
            f"classes ({listed(classes)})"
        )
    if task != "classification":
        if val.classes != classes[: len(val.classes)]:
            raise ValueError(
                f"{val.where}: the validation classes ({listed(val.classes)}) should be those of "
                f"the training data, in its order ({listed(classes)})"
            )
        return part, part.labels_N
    renumber_C = torch.tensor([classes.index(name) for name in val.classes])
    return part, renumber_C[part.labels_N]
