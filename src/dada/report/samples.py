"""A few of the user's own images, kept in the run directory so that a report can show them.

Letters: N images kept, C channels, H height, W width.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dada.data import Split
from dada.data.npz import open_archive
from dada.runlog.files import write
from dada.safe_text import printable

FILE = "samples.npz"
MOST_IMAGES = 32
LONGEST_SIDE = 256
MOST_BYTES = 64 * 2**20  # images, and the names of very many classes


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An image of the data and the name of its class."""

    image: Image.Image
    label: str


def save_samples(split: Split, run_path: str | os.PathLike[str]) -> Path:
    """Write up to 32 training images, spread over the classes, to `samples.npz` of a run."""
    index = torch.tensor(_spread(split.train.labels_N.cpu()), dtype=torch.int64)
    images_NCHW, labels_N = split.train.batch(index)
    arrays = [_shrunk(image) for image in images_NCHW.cpu().numpy()]
    content = io.BytesIO()
    np.savez_compressed(
        content,
        images=np.stack(arrays),
        labels=labels_N.cpu().numpy(),
        classes=np.array(split.classes, dtype=np.str_),
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
            classes = [str(name) for name in content.read("classes")]
        shape = images_NCHW.shape
        if images_NCHW.dtype != np.uint8 or len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape:
            raise ValueError(f"images of shape {shape}, type {images_NCHW.dtype}")
        pictures = [a[0] if len(a) == 1 else a.transpose(1, 2, 0) for a in images_NCHW]
        return [
            Sample(image=Image.fromarray(np.ascontiguousarray(picture)), label=classes[label])
            for picture, label in zip(pictures, labels_N.tolist(), strict=True)
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = printable(str(error).removeprefix(f"{file}: "))
        raise ValueError(
            f"{file} cannot be read as sample images ({reason}); remove it and report again"
        ) from None
