"""load(): whatever the user names as data becomes a Split."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import TensorDataset

from dada import renamed
from dada.config import BASES, Base, seed_number
from dada.data.annotated import from_annotated
from dada.data.archives import from_cifar, from_svhn
from dada.data.arrays import digits, from_npz, from_pair
from dada.data.files import from_csv, from_folder, from_imagenet
from dada.data.fruit import fruit
from dada.data.items import from_items
from dada.data.pydatasets import from_dataset, from_hugging_face, from_torchvision
from dada.data.raw import Fit, InMemory, RawSplit, build_split
from dada.data.split import Split
from dada.names import did_you_mean
from dada.safe_text import one_line_errors, quoted

_DEFAULT_TORCHVISION_ROOT = "data"

Reader = Callable[[str, int], RawSplit]
"""(what follows the prefix, seed) -> what was found"""


def _torchvision(rest: str, seed: int) -> RawSplit:
    name, _, root = rest.partition(":")
    return from_torchvision(name, root or _DEFAULT_TORCHVISION_ROOT, seed)


READERS: dict[str, Reader] = {
    "cifar10": lambda root, seed: from_cifar("cifar10", _folder("cifar10", root)),
    "cifar100": lambda root, seed: from_cifar("cifar100", _folder("cifar100", root)),
    "svhn": lambda root, seed: from_svhn(_folder("svhn", root), extra=False),
    "svhn-extra": lambda root, seed: from_svhn(_folder("svhn-extra", root), extra=True),
    "imagenet": lambda root, seed: from_imagenet(_folder("imagenet", root)),
    "hf": from_hugging_face,
    "torchvision": _torchvision,
}
"""The prefixes before a colon. A new data set is a row here."""


EMBEDDED: dict[str, Callable[[], RawSplit]] = {
    "digits": digits,
    "fruit": fruit,
    "fruit-negatives": partial(fruit, negatives=True),
}
"""Data that come with the package."""


def load_with_base(
    source: Any,
    base: Base | None = None,
    *,
    val_data: Any = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    task: str | None = None,
    fit: Fit | None = None,
) -> tuple[Split, Base]:
    """The data, and what is done to every training image of it besides a policy.

    Without `base` that is the paper's for the data sets it used, and nothing for others. Random
    resized crops are cut from image files, so those are then not held in memory. `fit` is asked
    for the size of images before they are decoded. The other arguments are those of `load`.
    """
    if isinstance(source, Split):
        split = load(source, val_data=val_data, image_size=image_size, task=task)
        if fit is not None:
            fit(split.task, split.image_size, len(split.train))
        return split, base or _usual_base(split.name)
    seed = seed_number(seed)
    raw, val = _read_both(source, val_data, seed, task)
    base = base or _usual_base(raw.name)
    split = build_split(
        raw,
        val=val,
        image_size=image_size,
        seed=seed,
        in_memory=False if base.resized_crop else "auto",
        skip_bad=skip_bad,
        fit=fit,
    )
    return split, base


def _usual_base(data_name: str) -> Base:
    return BASES.get(data_name.partition(":")[0], Base())


@one_line_errors
def load(
    source: Any = None,
    *,
    val_data: Any = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
    in_memory: InMemory = "auto",
    skip_bad: bool = False,
    val_source: Any = None,
    task: str | None = None,
) -> Split:
    """Read data of any accepted form (docs/data.md lists them).

    `val_data` is a second set, of any form, to validate on. `image_size` is a side or (H, W).
    `in_memory="auto"` holds the decoded images when they take less than 2 GiB, and otherwise
    decodes them when asked. `seed` chooses which images of a very large set are inspected to
    choose conversions; it moves no image from one part to another. With `skip_bad`, image files
    that cannot be read are left out, with a note, in place of an error. `task` is what the data is
    for, where it is good for several (`dada.tasks`).
    """
    if val_source is not None:
        renamed.warn("val_source", "val_data")
        val_data = val_source
    if isinstance(source, Split) and val_data is None and image_size is None:
        if task not in (None, source.task):
            raise ValueError(f"`task` is {quoted(task)}, but the data is for {source.task}")
        return source
    seed = seed_number(seed)
    raw, val = _read_both(source, val_data, seed, task)
    return build_split(
        raw, val=val, image_size=image_size, seed=seed, in_memory=in_memory, skip_bad=skip_bad
    )


def _read_both(
    source: Any, val_data: Any, seed: int, task: str | None
) -> tuple[RawSplit, RawSplit | None]:
    raw = _read(source, seed, task)
    return raw, None if val_data is None else _read(val_data, seed, raw.task)


def _read(source: Any, seed: int, task: str | None) -> RawSplit:
    raw = _found(source, seed, task)
    if task not in (None, raw.task):
        raise ValueError(
            f"{raw.where}: data for {raw.task}, not for {task}; docs/data.md shows the forms"
        )
    return raw


def _found(source: Any, seed: int, task: str | None) -> RawSplit:
    if source is None:
        return digits()
    if isinstance(source, str | os.PathLike):
        return _read_name(os.fspath(source), seed, task)
    if isinstance(source, Split):
        raise ValueError("a Split that was loaded already takes no `val_data` or `image_size`")
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        source = source.tensors
    indexable = hasattr(source, "__getitem__") and not isinstance(source, Mapping)
    if indexable and (several := from_items(source, task)) is not None:
        return several
    if isinstance(source, Tensor | np.ndarray):
        raise ValueError("images alone are not enough: pass the pair (images, labels)")
    if _is_pair(source):
        return from_pair(*source)
    if not indexable:
        raise ValueError(
            f"cannot read data from {type(source).__name__}: pass a name, a path, a map-style "
            "dataset of (image, label), or the pair (images, labels)"
        )
    return from_dataset(source, seed)


def _is_pair(source: Any) -> bool:
    """(images, labels), as opposed to a list that holds two (image, label) items."""
    return (
        isinstance(source, tuple | list)
        and len(source) == 2
        and isinstance(source[0], Tensor | np.ndarray)
        and isinstance(source[1], Tensor | np.ndarray | list | tuple)
    )


def _read_name(name: str, seed: int, task: str | None) -> RawSplit:
    if name in EMBEDDED:
        return EMBEDDED[name]()
    prefix, colon, rest = name.partition(":")
    if colon and prefix in READERS:
        if not rest:
            raise ValueError(f"data {quoted(name)}: nothing follows the colon; see docs/data.md")
        return READERS[prefix](rest, seed)
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return from_annotated(path, task) or from_folder(path)
    ending = os.path.splitext(path)[1].lower()
    if os.path.isfile(path):
        if ending == ".npz":
            return from_npz(path, task)
        if ending == ".csv":
            return from_csv(path)
        raise ValueError(f"data {quoted(name)}: a file must be an .npz archive or a .csv list")
    if colon and os.sep not in prefix and len(prefix) > 1:  # one letter is a Windows drive
        raise ValueError(
            f"data {quoted(name)}: unknown prefix {quoted(prefix)}; known are {', '.join(READERS)}"
            f"{did_you_mean(prefix, READERS)}"
        )
    hint = f"; did you mean {name}:ROOT?" if name in READERS else did_you_mean(name, EMBEDDED)
    raise ValueError(f"data {quoted(name)}: no such file or folder{hint}")


def _folder(prefix: str, root: str) -> str:
    path = os.path.expanduser(root)
    if not os.path.isdir(path):
        raise ValueError(f"data '{prefix}:{root}': no such folder {path}")
    return path
