"""Images that come as arrays: (images, labels), .npz files, the embedded digits.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dada.data.images import to_uint8
from dada.data.raw import PART_NAMES, RawArrays, RawPart, RawSplit

_IMAGE_WORDS = ("images", "image", "x", "data")
_LABEL_WORDS = ("labels", "label", "y", "targets", "target")

_DIGITS_TEST = 500


def from_pair(images: Any, labels: Any, name: str = "arrays") -> RawSplit:
    """An (images, labels) pair of tensors, arrays or (labels) a list."""
    part = array_part(images, labels, f"{name}: images", f"{name}: labels")
    return RawSplit(parts={"train": part}, name=name)


def array_part(images: Any, labels: Any, images_name: str, labels_name: str) -> RawArrays:
    images_NCHW = image_array(images, images_name)
    labels_N = label_array(labels, labels_name)
    if len(images_NCHW) != len(labels_N):
        raise ValueError(
            f"{images_name} and {labels_name.rsplit(': ', 1)[-1]} differ in length: "
            f"{len(images_NCHW):,} images, {len(labels_N):,} labels"
        )
    return RawArrays(images_NCHW=images_NCHW, labels_N=labels_N)


def image_array(images: Any, where: str) -> NDArray[Any]:
    """(N, C, H, W) in uint8 or uint16, from (N, H, W), (N, H, W, C) or (N, C, H, W).

    Channels are where the length is 1 or 3. Where both ends qualify, a tensor is taken as
    channels first and a numpy array as channels last, as their users do.
    """
    channels_first = isinstance(images, Tensor)
    if isinstance(images, Tensor):
        images = images.detach().cpu()
        array = (images.float() if images.dtype == torch.bfloat16 else images).numpy()
    else:
        array = np.asarray(images)
    first = array.ndim == 4 and array.shape[1] in (1, 3)
    last = array.ndim == 4 and array.shape[3] in (1, 3)
    if array.ndim == 3:
        array = array[:, None]
    elif last and not (first and channels_first):
        array = array.transpose(0, 3, 1, 2)
    elif not first:
        raise ValueError(
            f"{where} must have shape (N,H,W), (N,H,W,C) or (N,C,H,W) with 1 or 3 channels, "
            f"but got {tuple(array.shape)}"
        )
    if 0 in array.shape:
        raise ValueError(f"{where} are empty: shape {tuple(array.shape)}")
    return array if array.dtype == np.uint16 else to_uint8(array, where)


def label_array(labels: Any, where: str) -> Tensor:
    """int64 (N,) from whole numbers in a tensor, array or list; (N, 1) is accepted."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(
            f"{where} must be one whole number per image, but got shape {tuple(array.shape)}"
        )
    if array.dtype.kind not in "iub":
        raise ValueError(f"{where} must be whole numbers 0..C-1, but got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))


def from_npz(path: str) -> RawSplit:
    """A numpy archive. Keys: images and labels; or x_train, y_train, x_val, ... in any usual order
    of words (train_images, labels_test); optionally classes, an array of names."""
    try:
        # allow_pickle=False: an archive from a stranger must not be able to run code.
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as problem:
        reason = "it holds Python objects" if "pickle" in str(problem) else str(problem)
        raise ValueError(f"{path}: cannot be read as an .npz archive ({reason})") from problem
    found: dict[tuple[str, str], str] = {}
    for key in arrays:
        words = key.lower().replace("-", "_").split("_")
        part = next((PART_NAMES[word] for word in words if word in PART_NAMES), "train")
        for kind, names in (("images", _IMAGE_WORDS), ("labels", _LABEL_WORDS)):
            if any(word in names for word in words):
                if (part, kind) in found:
                    raise ValueError(
                        f"{path}: both {found[part, kind]!r} and {key!r} look like {part} {kind}"
                    )
                found[part, kind] = key
    parts: dict[str, RawPart] = {}
    for part in ("train", "val", "test"):
        images_key, labels_key = found.get((part, "images")), found.get((part, "labels"))
        if images_key is None and labels_key is None and part != "train":
            continue
        if images_key is None or labels_key is None:
            missing = "images" if images_key is None else "labels"
            raise ValueError(
                f"{path}: no array of {part} {missing}; expected the keys images and labels, or "
                f"x_train, y_train, ...; found {', '.join(arrays) or 'none'}"
            )
        images_name, labels_name = f"{path}: {images_key}", f"{path}: {labels_key}"
        parts[part] = array_part(arrays[images_key], arrays[labels_key], images_name, labels_name)
    class_names = next((arrays[k] for k in ("classes", "class_names") if k in arrays), None)
    return RawSplit(
        parts=parts,
        name=os.path.splitext(os.path.basename(path))[0],
        where=path,
        classes=None if class_names is None else tuple(map(str, class_names.tolist())),
    )


def digits() -> RawSplit:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey: 1,297 to train on and 500 to test.

    They are stored in the order they were collected, writer after writer, so the test images are
    the last of each class: mostly other hands than the training ones. No seed is involved.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError(
            "the embedded digits need scikit-learn; run: pip install scikit-learn"
        ) from None
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = data.target.astype(np.int64)
    counts = np.bincount(labels)
    # Largest remainders: 500 test images, in proportion to the classes.
    quota = counts * _DIGITS_TEST / len(labels)
    take = np.floor(quota).astype(int)
    for label in np.argsort(take - quota, kind="stable")[: _DIGITS_TEST - take.sum()]:
        take[label] += 1
    is_test = np.zeros(len(labels), bool)
    for label, count in enumerate(take):
        is_test[np.flatnonzero(labels == label)[-count:]] = True
    parts: dict[str, RawPart] = {
        name: RawArrays(images_NCHW=images[rows], labels_N=torch.from_numpy(labels[rows]))
        for name, rows in (("train", ~is_test), ("test", is_test))
    }
    return RawSplit(parts=parts, name="digits", classes=tuple(map(str, range(10))))
