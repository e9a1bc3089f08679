"""CIFAR-10, CIFAR-100 and SVHN in the files their authors publish.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

import math
import os
import pickle
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dada.data.npz import check_unpacked
from dada.data.raw import RawArrays, RawPart, RawSplit
from dada.safe_files import open_to_read
from dada.safe_text import printable, quoted

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images and labels of one file."""

_CIFAR = {
    # folder, training files, test file, key of the labels, file and key of the class names
    "cifar10": (
        "cifar-10-batches-py",
        tuple(f"data_batch_{k}" for k in range(1, 6)),
        "test_batch",
        b"labels",
        ("batches.meta", b"label_names"),
    ),
    "cifar100": (
        "cifar-100-python",
        ("train",),
        "test",
        b"fine_labels",
        ("meta", b"fine_label_names"),
    ),
}
_CIFAR_ARCHIVE = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


class _ArraysOnly(pickle._Unpickler):  # the one in Python: six bytes make the one in C take 34 GB
    """Admits arrays of bytes and plain containers, nothing that could run code.

    torchvision unpickles CIFAR freely after an md5 check; that protects the official files but
    refuses any other of the same format (a subset, another release, CIFAR-10.1 repacked). This
    reads those too, and stays safe without knowing their checksums.
    """

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")
        return _ADMITTED[module_name, global_name]


class _Type:
    """In the place of numpy's: what a stranger says about a type never reaches numpy."""

    def __init__(self, name: object, *_: object) -> None:
        self.is_bytes = name in ("u1", "|u1", b"u1")

    def __setstate__(self, state: object) -> None:
        pass


class _Bytes:
    """In the place of an array: bytes that are in the file, in a shape that holds them."""

    def __init__(self, *_: object) -> None:
        self.array: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, by_column, raw = state
        if not (isinstance(kind, _Type) and kind.is_bytes and isinstance(raw, bytes)):
            raise pickle.UnpicklingError("it holds an array that is not of bytes")
        order: Literal["F", "C"] = "F" if by_column else "C"
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _encoded(text: str, codec: str) -> bytes:
    """Bytes as Python 3 pickles them for Python 2; other codecs could be made to work for hours."""
    if codec not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the codec {quoted(codec)}")
    return text.encode(codec)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Bytes,
    ("numpy._core.multiarray", "_reconstruct"): _Bytes,
    ("numpy", "ndarray"): None,  # only ever passed to the two above
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encoded,
}


def from_cifar(kind: str, root: str) -> RawSplit:
    """`kind` is cifar10 or cifar100; root holds the unpacked folder, or is it."""
    folder_name, train_files, test_file, label_key, (names_file, names_key) = _CIFAR[kind]
    folder = os.path.join(root, folder_name)
    if not os.path.isdir(folder):
        if not os.path.isfile(os.path.join(root, test_file)):
            archive = _CIFAR_ARCHIVE[kind]
            do = f"download and unpack https://www.cs.toronto.edu/~kriz/{archive}"
            if os.path.exists(os.path.join(root, archive)):
                do = "unpack it with tar -xzf"
            raise ValueError(f"{kind}: no folder {folder_name} in {root}; {do}")
        folder = root
    parts: dict[str, RawPart] = {}
    for part, files in (("train", train_files), ("test", (test_file,))):
        read = [_cifar_batch(os.path.join(folder, file), label_key) for file in files]
        parts[part] = _together(read)
    meta = os.path.join(folder, names_file)
    names = _unpickle(meta).get(names_key, [])
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise ValueError(f"{meta}: {names_key.decode()} should be a list of names")
    classes = tuple(n.decode(errors="replace") if isinstance(n, bytes) else n for n in names)
    return RawSplit(parts=parts, name=kind, classes=classes or None)


def _together(read: list[Labelled]) -> RawArrays:
    images, labels = zip(*read, strict=True)
    return RawArrays(
        images_NCHW=np.concatenate(images), labels_N=torch.from_numpy(np.concatenate(labels))
    )


def _cifar_batch(path: str, label_key: bytes) -> Labelled:
    content = _unpickle(path)
    held, labels = content.get(b"data"), content.get(label_key)
    images = held.array if isinstance(held, _Bytes) else np.empty(0, np.uint8)
    if images.ndim != 2 or images.shape[1] != 3072:
        raise ValueError(f"{path}: not a CIFAR batch (no uint8 array of N x 3072 under 'data')")
    if (
        not isinstance(labels, list)
        or len(labels) != len(images)
        or not all(isinstance(label, int) and abs(label) < 2**31 for label in labels)
    ):
        raise ValueError(f"{path}: not a CIFAR batch (no {len(images)} {label_key.decode()})")
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _unpickle(path: str) -> dict[bytes, Any]:
    try:
        check_unpacked(path, os.path.getsize(path))
        with open_to_read(path) as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; the CIFAR folder is incomplete") from None
    except Exception as problem:  # a damaged pickle may raise anything
        raise ValueError(
            f"{path}: cannot be read as a CIFAR file ({printable(problem)})"
        ) from problem
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a CIFAR file (no dictionary in it)")
    # Files written by Python 3 have str keys where the official ones have bytes.
    return {k.encode() if isinstance(k, str) else k: v for k, v in content.items()}


_MAT_BYTES = {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4, "double": 8}


def from_svhn(root: str, *, extra: bool) -> RawSplit:
    """SVHN's cropped digits: train_32x32.mat, test_32x32.mat and, on request, extra_32x32.mat."""
    train = ("train", "extra") if extra else ("train",)
    parts: dict[str, RawPart] = {
        "train": _together([_svhn_file(root, part) for part in train]),
        "test": _together([_svhn_file(root, "test")]),
    }
    return RawSplit(
        parts=parts, name="svhn-extra" if extra else "svhn", classes=tuple(map(str, range(10)))
    )


def _svhn_file(root: str, part: str) -> Labelled:
    path = os.path.join(root, f"{part}_32x32.mat")
    if not os.path.isfile(path):
        raise ValueError(
            f"svhn: no file {path}; download it from "
            f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat"
        )
    from scipy.io import loadmat, whosmat

    try:
        sizes = [
            math.prod(shape) * _MAT_BYTES[kind]  # no other kind is in an SVHN file
            for name, shape, kind in whosmat(path)
            if name in ("X", "y")
        ]
        check_unpacked(path, sum(sizes))
        content = loadmat(path, variable_names=("X", "y"))
    except Exception as problem:  # a damaged .mat may raise anything
        raise ValueError(
            f"{path}: cannot be read as a .mat file ({printable(problem)})"
        ) from problem
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.ndim != 4 or images.shape[2] != 3:
        raise ValueError(f"{path}: not an SVHN file (no X of H x W x 3 x N with y)")
    labels_N = labels.reshape(-1).astype(np.int64) % 10  # the digit 0 is stored as 10
    if len(labels_N) != images.shape[3] or images.dtype != np.uint8:
        raise ValueError(f"{path}: not an SVHN file (X and y differ in length, or X is not uint8)")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels_N
