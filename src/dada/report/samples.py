"""A few of the user's own images, kept in the run directory so that a report can show them.

Letters: N images kept, C channels, H height, W width.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dada import tasks
from dada.data import Split
from dada.data.npz import Archive, open_archive
from dada.policy import Policy
from dada.policy.arrays import array_like, tensor_of
from dada.policy.augment import PolicyTables
from dada.policy.space import SPACES
from dada.runlog.files import write
from dada.safe_text import printable

FILE = "samples.npz"
MOST_IMAGES = 32
LONGEST_SIDE = 256
MOST_BYTES = 64 * 2**20  # images, and the names of very many classes


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An image of the data, the name of its class, and what else it should become."""

    image: Image.Image
    label: str = ""
    task: str = "classification"
    target: tuple[Tensor, ...] = ()  # boxes and masks, where they can be drawn
    classes: tuple[str, ...] = ()

    @property
    def picture(self) -> Image.Image:
        """The image with its boxes and masks."""
        task = tasks.named(self.task)
        if not self.target or not task.moves:
            return self.image.copy()
        return task.drawn(self.image, self.target, self.classes)


def on_samples(policy: Policy, seed: int) -> Callable[[Sample], Sample]:
    """The policy for samples to look at, with all that moves along."""
    space = SPACES[policy.space]
    tables = PolicyTables.of(policy, space, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)

    def augmented(sample: Sample) -> Sample:
        image = sample.image
        pixels = np.array(image if image.mode in ("L", "RGB") else image.convert("RGB"))
        done, moves = tables.augment_with_moves(tensor_of(pixels).unsqueeze(0), space, generator)
        made = Image.fromarray(array_like(done[0], pixels))
        task, target = tasks.named(sample.task), sample.target
        if target and task.moves:
            given = [each.unsqueeze(0) for each in target]
            target = tuple(each.squeeze(0) for each in task.moved(given, moves))
        return replace(sample, image=made, target=target)

    return augmented


def save_samples(split: Split, run_path: str | os.PathLike[str]) -> Path:
    """Write up to 32 training images, spread over the classes, to `samples.npz` of a run."""
    index = torch.tensor(_spread(split.train.labels_N.cpu()), dtype=torch.int64)
    images_NCHW, *targets = split.train.batch(index)
    arrays = np.stack([_shrunk(image) for image in images_NCHW.cpu().numpy()])
    content = io.BytesIO()
    drawn: dict[str, Any] = {}
    task = tasks.named(split.task)
    if task.moves:
        height, width = arrays.shape[2:]
        smaller = task.resized(targets, split.image_size, (height, width))
        held = {f"target_{i}": each.cpu().numpy() for i, each in enumerate(smaller)}
        drawn = {"task": np.array([split.task]), **held}
    np.savez_compressed(
        content,
        images=arrays,
        labels=split.train.labels_N.cpu()[index].numpy(),
        classes=np.array(split.classes, dtype=np.str_),
        **drawn,
    )
    target = Path(run_path) / FILE
    write(target, lambda file: file.write(content.getvalue()))
    return target


def _spread(labels_N: torch.Tensor) -> list[int]:
    """Positions of images: class after class in turn, and from all over each class."""
    members = {c: (labels_N == c).nonzero().squeeze(1).tolist() for c in labels_N.unique().tolist()}
    classes = list(members)
    if len(classes) > MOST_IMAGES:
        classes = [classes[i * len(classes) // MOST_IMAGES] for i in range(MOST_IMAGES)]
    rounds = -(-MOST_IMAGES // len(classes))
    chosen = []
    for turn in range(rounds):
        for c in classes:
            own = members[c]
            if turn < len(own):
                chosen.append(own[turn * len(own) // min(rounds, len(own))])
    return chosen[:MOST_IMAGES]


def _shrunk(image_CHW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = image_CHW.shape[1:]
    scale = LONGEST_SIDE / max(height, width)
    if scale >= 1:
        return image_CHW
    size = max(1, round(width * scale)), max(1, round(height * scale))
    planes = [Image.fromarray(p).resize(size, Image.Resampling.LANCZOS) for p in image_CHW]
    return np.stack([np.asarray(plane) for plane in planes])


def read_samples(run_path: Path) -> list[Sample]:
    """What `save_samples` wrote; nothing where there is no such file."""
    file = run_path / FILE
    if not file.is_file():
        return []
    try:
        with open_archive(str(file), wanted=lambda key: True, limit=MOST_BYTES) as content:
            images_NCHW, labels_N = content.read("images"), content.read("labels")
            classes = tuple(str(name) for name in content.read("classes"))
            task, targets = _targets(content, len(images_NCHW), images_NCHW.shape[2:])
        shape = images_NCHW.shape
        if images_NCHW.dtype != np.uint8 or len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape:
            raise ValueError(f"images of shape {shape}, type {images_NCHW.dtype}")
        pictures = [a[0] if len(a) == 1 else a.transpose(1, 2, 0) for a in images_NCHW]
        return [
            Sample(
                image=Image.fromarray(np.ascontiguousarray(picture)),
                label="" if targets else classes[label],
                task=task,
                target=tuple(each[i] for each in targets),
                classes=classes,
            )
            for i, (picture, label) in enumerate(zip(pictures, labels_N.tolist(), strict=True))
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = printable(str(error).removeprefix(f"{file}: "))
        raise ValueError(
            f"{file} cannot be read as sample images ({reason}); remove it and report again"
        ) from None


def _targets(content: Archive, count: int, size: tuple[int, ...]) -> tuple[str, tuple[Tensor, ...]]:
    """The task, and boxes and masks that fit these images; ValueError for others."""
    if "task" not in content.headers:
        return "classification", ()
    task = str(content.read("task")[0])
    found = [content.read(key) for key in ("target_0", "target_1") if key in content.headers]
    maps = found[1:] if task == "detection" else found
    boxes = found[:1] if task == "detection" else []
    whole = all(each.shape == (count, *size) for each in maps) and all(
        each.ndim == 3 and each.shape[::2] == (count, 5) and np.isfinite(each).all()
        for each in boxes
    )
    most = boxes[0].shape[1] if boxes else 255
    if (
        not whole
        or not tasks.named(task).moves
        or any(each.dtype.kind not in "iu" or each.min() < 0 or each.max() > most for each in maps)
    ):
        raise ValueError("boxes or masks that do not belong to the images")
    return task, tuple(torch.from_numpy(each) for each in found)
