"""Images that come as arrays: (images, labels), .npz files, the embedded digits.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dada.data.annotations import strata
from dada.data.images import tensor_to_array, to_uint8
from dada.data.npz import Archive, open_archive
from dada.data.raw import PART_NAMES, RawArrays, RawPart, RawSplit
from dada.data.split import apportion
from dada.safe_text import listed, quoted

_IMAGE_WORDS = ("images", "image", "x", "data")
_LABEL_WORDS = ("labels", "label", "y", "targets", "target")

_CLASS_KEYS = ("classes", "class_names")

_DIGITS_TEST = 500


def from_pair(images: Any, labels: Any, name: str = "arrays") -> RawSplit:
    """An (images, labels) pair of tensors, arrays or (labels) a list."""
    part = array_part(images, labels, f"{name}: images", f"{name}: labels")
    return RawSplit(parts={"train": part}, name=name)


def array_part(
    images: Any, labels: Any, images_name: str, labels_name: str, task: str | None = None
) -> RawArrays:
    images_NCHW = image_array(images, images_name)
    labels_NC = _several(labels, task)
    labels_N = label_array(labels, labels_name) if labels_NC is None else strata(labels_NC > 0)
    if len(images_NCHW) != len(labels_N):
        raise ValueError(
            f"{images_name} and {labels_name.rsplit(': ', 1)[-1]} differ in length: "
            f"{len(images_NCHW):,} images, {len(labels_N):,} labels"
        )
    targets = () if labels_NC is None else (torch.from_numpy(labels_NC),)
    return RawArrays(images_NCHW=images_NCHW, labels_N=labels_N, targets=targets)


def _several(labels: Any, task: str | None) -> NDArray[np.uint8] | None:
    """Rows of 0 and 1 for images of several labels; None: one label for each.

    Rows with a single 1 each may be meant as one label: only with `task` are they several.
    """
    if task not in (None, "multilabel") or not isinstance(labels, np.ndarray) or labels.ndim != 2:
        return None
    if labels.shape[1] < 2 or not np.isin(labels, (0, 1)).all():
        return None
    if task is None and (labels.sum(1) == 1).all():
        return None
    return labels.astype(np.uint8)


def image_array(images: Any, where: str) -> NDArray[Any]:
    """(N, C, H, W) in uint8 or uint16, from (N, H, W), (N, H, W, C) or (N, C, H, W).

    Channels are where the length is 1 or 3. Where both ends qualify, a tensor is taken as
    channels first and a numpy array as channels last, as their users do.
    """
    channels_first = isinstance(images, Tensor)
    array = tensor_to_array(images, where) if isinstance(images, Tensor) else np.asarray(images)
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
    try:
        array = tensor_to_array(labels, where) if isinstance(labels, Tensor) else np.asarray(labels)
    except (ValueError, TypeError, OverflowError) as problem:
        if str(problem).startswith(where):
            raise
        raise ValueError(f"{where} must be one whole number per image ({problem})") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(
            f"{where} must be one whole number per image, but got shape {tuple(array.shape)}"
        )
    if array.dtype.kind not in "iub":
        raise ValueError(f"{where} must be whole numbers 0..C-1, but got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))


def from_npz(path: str, task: str | None = None) -> RawSplit:
    """A numpy archive. Keys: images and labels; or x_train, y_train, x_val, ... in any usual order
    of words (train_images, labels_test); optionally classes, an array of names."""
    with open_archive(path, wanted=lambda key: _meaning(key) is not None) as archive:
        found = _keys(path, archive)
        parts: dict[str, RawArrays] = {}
        for part in ("train", "val", "test"):
            images_key, labels_key = found.get((part, "images")), found.get((part, "labels"))
            if images_key is None and labels_key is None and part != "train":
                continue
            if images_key is None or labels_key is None:
                missing = "images" if images_key is None else "labels"
                raise ValueError(
                    f"{path}: no array of {part} {missing}; expected the keys images and labels, "
                    f"or x_train, y_train, ...; found {listed(list(archive.headers)) or 'none'}"
                )
            images_name, labels_name = f"{path}: {images_key}", f"{path}: {labels_key}"
            parts[part] = array_part(
                _images(archive, images_key, images_name),
                archive.read(labels_key),
                images_name,
                labels_name,
                task,
            )
        names_key = next((k for k in _CLASS_KEYS if k in archive.headers), None)
        names = None if names_key is None else archive.read(names_key)
    if names is not None and names.ndim != 1:
        raise ValueError(f"{path}: {names_key} should be a list of names, got shape {names.shape}")
    return RawSplit(
        parts=dict(parts),
        name=os.path.splitext(os.path.basename(path))[0],
        where=path,
        classes=_class_names(parts, None if names is None else names.tolist(), path),
        task="multilabel" if parts["train"].targets else "classification",
    )


def _class_names(
    parts: dict[str, RawArrays], names: list[Any] | None, path: str
) -> tuple[str, ...] | None:
    several = {part.targets[0].shape[1] if part.targets else 0 for part in parts.values()}
    if len(several) > 1:
        raise ValueError(f"{path}: the parts differ in the number of labels of an image")
    count = several.pop()
    if names is None:
        return tuple(map(str, range(count))) if count else None
    if count and len(names) != count:
        raise ValueError(f"{path}: {len(names)} names of classes for rows of {count} labels")
    return tuple(map(str, names))


def _meaning(key: str) -> tuple[str, str] | None:
    """(part, kind) of an array by its key; None where it is none of ours."""
    words = key.lower().replace("-", "_").split("_")
    part = next((PART_NAMES[word] for word in words if word in PART_NAMES), "train")
    if key in _CLASS_KEYS:
        return part, "classes"
    for kind, names in (("images", _IMAGE_WORDS), ("labels", _LABEL_WORDS)):
        if any(word in names for word in words):
            return part, kind
    return None


def _keys(path: str, archive: Archive) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for key in archive.headers:
        if (meaning := _meaning(key)) is None or meaning[1] == "classes":
            continue
        if meaning in found:
            part, kind = meaning
            both = f"{quoted(found[meaning])} and {quoted(key)}"
            raise ValueError(f"{path}: both {both} look like {part} {kind}")
        found[meaning] = key
    return found


def _images(archive: Archive, key: str, where: str) -> NDArray[Any]:
    """As `image_array` gives it, converted piece by piece: never there twice."""
    converted: NDArray[Any] | None = None
    for first, piece in archive.chunks(key):
        images_NCHW = image_array(piece, where)
        if len(images_NCHW) == archive.headers[key].shape[0]:
            return images_NCHW
        if converted is None:
            shape = (archive.headers[key].shape[0], *images_NCHW.shape[1:])
            converted = np.empty(shape, images_NCHW.dtype)
        converted[first : first + len(images_NCHW)] = images_NCHW
    assert converted is not None  # there is a piece, be it empty
    return converted


def digits() -> RawSplit:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey: 1,297 to train on and 500 to test.

    They are stored in the order they were collected, writer after writer, so the test images are
    the last of each class: mostly other hands than the training ones. No seed is involved.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = data.target.astype(np.int64)
    count_C = torch.from_numpy(np.bincount(labels))
    take_C = apportion(count_C, _DIGITS_TEST, lowest_C=0 * count_C, highest_C=count_C)
    is_test = np.zeros(len(labels), bool)
    for label, count in enumerate(take_C.tolist()):
        is_test[np.flatnonzero(labels == label)[-count:]] = True
    parts: dict[str, RawPart] = {
        name: RawArrays(images_NCHW=images[rows], labels_N=torch.from_numpy(labels[rows]))
        for name, rows in (("train", ~is_test), ("test", is_test))
    }
    return RawSplit(parts=parts, name="digits", classes=tuple(map(str, range(10))))
