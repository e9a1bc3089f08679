"""From what a reader found to a Split: inspect the images, choose the preprocessing, apply it.

A reader (folder, archive, array, dataset) returns a RawSplit. All parts are inspected together, so
that training, validation and test images get the same shape, channels and grey scale.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dada.data.images import ImageInfo, Preprocessing, file_info, to_uint8, white_level
from dada.data.parts import FilePart, Part, TensorPart, pool
from dada.data.split import IN_MEMORY_LIMIT, Split, listed

InMemory = bool | Literal["auto"]

SIZE_CAP = 224
"""Files are not decoded larger than this on the shorter side unless the user names a size."""
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


class RawPart(Protocol):
    """Images as their source holds them, with labels."""

    @property
    def labels_N(self) -> Tensor: ...
    @property
    def prepared(self) -> bool:
        """The user made these pixels: a common size is kept, however large."""
        ...

    def __len__(self) -> int: ...
    def inspect(self, generator: torch.Generator) -> list[ImageInfo]: ...
    def convert(self, preprocessing: Preprocessing, labels_N: Tensor, in_memory: bool) -> Part: ...


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

    def __post_init__(self) -> None:
        self.where = self.where or self.name


@dataclass(frozen=True, kw_only=True)
class RawFiles:
    """Image files."""

    paths: tuple[str, ...]
    labels_N: Tensor
    root: str
    groups_N: Tensor | None = None
    prepared: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def inspect(self, generator: torch.Generator) -> list[ImageInfo]:
        chosen = [self.paths[i] for i in positions_to_inspect(len(self), generator)]
        return list(pool().map(file_info, chosen))

    def convert(self, preprocessing: Preprocessing, labels_N: Tensor, in_memory: bool) -> Part:
        part = FilePart(
            paths=self.paths,
            labels_N=labels_N,
            preprocessing=preprocessing,
            groups_N=self.groups_N,
            root=self.root,
        )
        return part.load() if in_memory else part


@dataclass(frozen=True, kw_only=True)
class RawArrays:
    """Images in one array, uint8 or (deep) uint16; in memory whatever the user says."""

    images_NCHW: NDArray[Any]
    labels_N: Tensor
    prepared: bool = True

    def __len__(self) -> int:
        return len(self.images_NCHW)

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
            images_NHWC = images_NCHW.transpose(0, 2, 3, 1)
            squeezed = images_NHWC[..., 0] if images_NHWC.shape[3] == 1 else images_NHWC
            resized = [
                preprocessing.pixels(Image.fromarray(i)) for i in np.ascontiguousarray(squeezed)
            ]
            images_NCHW = np.stack(resized)
        elif images_NCHW.shape[1] < preprocessing.channels:
            images_NCHW = np.repeat(images_NCHW, preprocessing.channels, axis=1)
        # Copied where numpy's memory is read-only (torch would warn) or strided (slow to gather).
        return TensorPart(
            torch.from_numpy(np.require(images_NCHW, requirements=["C", "W"])), labels_N
        )


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
) -> Split:
    """Check labels, choose the preprocessing for all parts together, and make the parts."""
    if in_memory not in (True, False, "auto"):
        raise ValueError(f"`in_memory` must be True, False or 'auto', but got {in_memory!r}")
    classes, labels = _check_labels(raw)
    notes = list(raw.notes)
    parts = dict(raw.parts)
    if val is not None:
        if "val" in parts:
            notes.append("the validation part of the data was replaced by the one given separately")
        parts["val"], labels["val"] = _match_validation(val, classes)
        notes += val.notes
    generator = torch.Generator().manual_seed(seed)
    infos = [info for part in parts.values() for info in part.inspect(generator)]
    size = _asked_size(image_size) or raw.image_size
    prepared = all(part.prepared for part in parts.values())
    cap = None if prepared else SIZE_CAP
    preprocessing, conversions = choose_preprocessing(infos, size, raw.margin, cap)
    image_bytes = preprocessing.channels * math.prod(preprocessing.size)
    fits = sum(map(len, parts.values())) * image_bytes <= IN_MEMORY_LIMIT
    hold = fits if in_memory == "auto" else in_memory
    made = {name: part.convert(preprocessing, labels[name], hold) for name, part in parts.items()}
    return Split(
        train=made["train"],
        val=made.get("val"),
        test=made.get("test"),
        classes=classes,
        name=raw.name,
        notes=(*notes, *conversions),
    )


def choose_preprocessing(
    infos: Sequence[ImageInfo], size: tuple[int, int] | None, margin: float, cap: int | None
) -> tuple[Preprocessing, list[str]]:
    """One shape for all images, and a note for each conversion that it takes."""
    total = sum(info.count for info in infos)
    notes = [
        f"{count:,} of {total:,} images were {what}"
        for what, count in sorted(_counted(infos).items())
    ]
    grey = sum(info.count for info in infos if info.grey)
    if 0 < grey < total:
        notes.append(f"{grey:,} of {total:,} images were grey, made RGB like the others")
    peak = max(info.peak for info in infos)
    white = white_level(peak) if peak else 65535
    if peak:
        notes.append(f"deep images were scaled from 0..{white} (the largest value is {peak})")
    sizes = {info.size for info in infos}
    if size is None:
        size, note = _common_size(infos, sizes, cap)
        notes += [note] if note else []
    elif sizes != {size}:
        notes.append(f"images were resized and centre-cropped to {size[1]}x{size[0]}")
    channels = 1 if grey == total else 3
    return Preprocessing(size=size, channels=channels, white_level=white, margin=margin), notes


def _counted(infos: Sequence[ImageInfo]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for info in infos:
        if info.conversion is not None:
            counts[info.conversion] += info.count
    return counts


def _common_size(
    infos: Sequence[ImageInfo], sizes: set[tuple[int, int]], cap: int | None
) -> tuple[tuple[int, int], str | None]:
    if len(sizes) == 1:
        height, width = next(iter(sizes))
        shorter = min(height, width)
        if cap is None or shorter <= cap:
            return (height, width), None
        size = (round(height * cap / shorter), round(width * cap / shorter))
        return size, (
            f"images of {width}x{height} were shrunk to {size[1]}x{size[0]}; "
            "pass image_size to choose"
        )
    shorter_sides = np.repeat([min(info.size) for info in infos], [info.count for info in infos])
    side = min(int(np.median(shorter_sides)), SIZE_CAP)
    heights, widths = zip(*sizes, strict=True)
    return (side, side), (
        f"images differ in size (widths {min(widths)} to {max(widths)}, heights {min(heights)} to "
        f"{max(heights)}): each was resized to {side} pixels on its shorter side and centre-cropped"
        "; pass image_size to choose"
    )


def _asked_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(size) != 2 or not all(isinstance(side, int) and side >= 1 for side in size):
        raise ValueError(f"`image_size` must be a whole number or (H, W), but got {image_size!r}")
    return size[0], size[1]


def _check_labels(raw: RawSplit) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Class names, and labels that have been checked against them."""
    labels = {name: part.labels_N for name, part in raw.parts.items()}
    for name, part in raw.parts.items():
        if len(part) == 0:
            raise ValueError(f"{raw.where}: the {name} part holds no images")
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
            raise ValueError(
                f"{raw.where}: only one class ({', '.join(classes)}); two or more are needed"
            )
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


def _match_validation(val: RawSplit, classes: tuple[str, ...]) -> tuple[RawPart, Tensor]:
    """The one part of separately given validation data, labelled as the training data is."""
    if set(val.parts) != {"train"}:
        raise ValueError(
            f"{val.where}: validation data must be one set of images, but this has the parts "
            f"{', '.join(val.parts)}; pass the one to validate on"
        )
    part = val.parts["train"]
    if len(part) == 0:
        raise ValueError(f"{val.where}: the validation data holds no images")
    if val.classes is None:
        _check_range(part.labels_N, len(classes), f"{val.where}: the validation data")
        return part, part.labels_N
    unknown = [name for name in val.classes if name not in classes]
    if unknown:
        raise ValueError(
            f"{val.where}: the validation class {unknown[0]!r} is not among the training classes "
            f"({listed(classes)})"
        )
    renumber_C = torch.tensor([classes.index(name) for name in val.classes])
    return part, renumber_C[part.labels_N]
