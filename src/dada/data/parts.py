"""The images a search or a training reads: in memory, or decoded when asked for.

Legend: N images of a part, B of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dada.data.bad_files import errors_of_item, naming
from dada.data.images import Preprocessing, crop_box, from_item, open_file
from dada.engine import ALONE, Ranks, record_use, to_device
from dada.safe_text import printable

BATCHES_AHEAD = 2  # that are decoded before their turn
THREADS = min(16, (os.cpu_count() or 1) + 1)
# At a time, of many: the more, the less threads wait for each other, and the longer for Ctrl-C.
IMAGES_OF_A_THREAD = 4
_CPU = torch.device("cpu")

Batch = tuple[Tensor, ...]
"""(images_BCHW uint8, labels_B int64); or images and the targets of another task."""


class Part(ABC):
    """What the rest of the package asks of the training, validation or test images."""

    labels_N: Tensor
    """The class of every image; where it has boxes, masks or several labels, a class by which
    images are divided evenly."""
    groups_N: Tensor | None
    """Images with the same number must not be divided between training and validation."""
    copies_N: Tensor | None
    """Exact copies have the same number; None: no image is there twice, or nobody looked."""
    targets: tuple[Tensor, ...]
    """What takes the labels' place in a batch, a row for each image; none: the labels."""

    def __len__(self) -> int:
        return len(self.labels_N)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self):,} images, {self.form}, {self.place}>"

    @property
    def form(self) -> str:
        """What one image is like, e.g. "32x32 RGB": width, height, colour."""
        height, width = self.image_size
        return f"{width}x{height} {'grey' if self.channels == 1 else 'RGB'}"

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the images are, in words."""

    @property
    @abstractmethod
    def channels(self) -> int: ...

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int]:
        """(H, W)"""

    @abstractmethod
    def batch(self, index_B: Tensor) -> Batch:
        """Images and what they should become, on the part's device."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self: ...

    @abstractmethod
    def take(self, index_N: Tensor) -> Self:
        """The same kind of part with these images only, in this order."""

    @abstractmethod
    def load(self) -> TensorPart:
        """All images in memory."""

    @abstractmethod
    def digest(self) -> bytes:
        """sha256 of labels, and of pixels or of file names and sizes."""

    def _taken(self, index_N: Tensor) -> dict[str, Any]:
        """What of a taken part does not depend on where its images are."""
        there_N, index_N = index_N.to(self.labels_N.device), index_N.cpu()
        return {
            "labels_N": self.labels_N[there_N],
            "groups_N": None if self.groups_N is None else self.groups_N[index_N],
            "copies_N": None if self.copies_N is None else self.copies_N[index_N],
            "targets": tuple(each[there_N] for each in self.targets),
        }


@dataclass(frozen=True, repr=False)
class TensorPart(Part):
    """Images held as one uint8 tensor, on any device."""

    images_NCHW: Tensor
    labels_N: Tensor
    groups_N: Tensor | None = None
    copies_N: Tensor | None = None
    targets: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        assert self.images_NCHW.dtype == torch.uint8 and self.images_NCHW.ndim == 4
        assert self.labels_N.dtype == torch.int64
        assert len(self.labels_N) == len(self.images_NCHW)

    @property
    def place(self) -> str:
        return f"in memory ({self.images_NCHW.device})"

    @property
    def channels(self) -> int:
        return self.images_NCHW.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        return self.images_NCHW.shape[2], self.images_NCHW.shape[3]

    def batch(self, index_B: Tensor) -> Batch:
        # index_select with an index already on the device copies nothing and waits for nothing,
        # so a batch may be gathered inside a CUDA graph.
        index_B = index_B.to(self.images_NCHW.device, non_blocking=True)
        held = self.targets or (self.labels_N,)
        return (
            self.images_NCHW.index_select(0, index_B),
            *(each.index_select(0, index_B) for each in held),
        )

    def to(self, device: torch.device | str) -> TensorPart:
        return replace(
            self,
            images_NCHW=self.images_NCHW.to(device),
            labels_N=self.labels_N.to(device),
            targets=tuple(each.to(device) for each in self.targets),
        )

    def take(self, index_N: Tensor) -> TensorPart:
        images_NCHW = self.images_NCHW.index_select(0, index_N.to(self.images_NCHW.device))
        return replace(self, images_NCHW=images_NCHW, **self._taken(index_N))

    def load(self) -> TensorPart:
        return self

    def digest(self) -> bytes:
        hasher = hashlib.sha256(repr(tuple(self.images_NCHW.shape)).encode())
        hasher.update(self.labels_N.cpu().numpy().tobytes())
        for target in self.targets:
            hasher.update(target.cpu().contiguous().numpy().tobytes())
        for chunk in self.images_NCHW.split(1024):
            hasher.update(memoryview(chunk.cpu().contiguous().numpy()))
        return hasher.digest()


@dataclass(frozen=True, kw_only=True, repr=False)
class _LazyPart(Part):
    """What file and dataset parts share: preprocessing, labels, and decoding on request."""

    labels_N: Tensor
    preprocessing: Preprocessing
    groups_N: Tensor | None = None
    copies_N: Tensor | None = None
    targets: tuple[Tensor, ...] = ()
    device: torch.device = _CPU

    @property
    def channels(self) -> int:
        return self.preprocessing.channels

    @property
    def image_size(self) -> tuple[int, int]:
        return self.preprocessing.size

    @abstractmethod
    def _decode(self, positions: list[int]) -> NDArray[np.uint8]: ...

    @abstractmethod
    def _identities(self) -> Iterable[bytes]:
        """What a digest knows the images by."""

    def _to_device(self, images_BCHW: NDArray[np.uint8], index_B: Tensor) -> Batch:
        index_B = index_B.to(self.labels_N.device)
        held = self.targets or (self.labels_N,)
        return (
            to_device(torch.from_numpy(images_BCHW), self.device),
            *(to_device(each[index_B], self.device) for each in held),
        )

    def batch(self, index_B: Tensor) -> Batch:
        return self._to_device(self._decode(index_B.tolist()), index_B)

    def load(self) -> TensorPart:
        images = torch.from_numpy(self._decode(list(range(len(self)))))
        held = TensorPart(images, self.labels_N, self.groups_N, self.copies_N, self.targets)
        return held.to(self.device)

    def to(self, device: torch.device | str) -> Self:
        return replace(self, device=torch.device(device))

    def digest(self) -> bytes:
        hasher = hashlib.sha256(self.preprocessing.identity.encode())
        for held in (self.labels_N, *self.targets):
            hasher.update(held.contiguous().numpy().tobytes())
        for identity in self._identities():
            hasher.update(identity)
        return hasher.digest()


@dataclass(frozen=True, kw_only=True, repr=False)
class FilePart(_LazyPart):
    """Image files, decoded by a pool of threads whenever a batch is asked for."""

    paths: tuple[str, ...]
    root: str = ""
    """File names are remembered relative to it, so a moved folder keeps its fingerprint."""

    @property
    def place(self) -> str:
        return f"files in {printable(self.root)}"

    def _decode(self, positions: list[int]) -> NDArray[np.uint8]:
        return self._stack(self._pixels, positions)

    def _pixels(self, position: int) -> NDArray[np.uint8]:
        path = self.paths[position]
        with naming(path):
            image = open_file(path, draft=self.preprocessing.draft_size())
            return self.preprocessing.pixels(image)

    def readable(self, *, hold: bool) -> tuple[TensorPart | FilePart, dict[str, str]]:
        """The images that can be decoded, each tried once; and why the others cannot, by path.

        With `hold` their pixels stay in memory.
        """
        images_NCHW = np.empty((len(self) * hold, self.channels, *self.image_size), np.uint8)

        def attempt(position: int) -> NDArray[np.uint8] | str:
            try:
                return self._pixels(position)
            except ValueError as problem:
                return str(problem)

        problems: dict[str, str] = {}
        good: list[int] = []
        for position, pixels in enumerate(pool().map(attempt, range(len(self)))):
            if isinstance(pixels, str):
                problems[self.paths[position]] = pixels
                continue
            if hold:
                images_NCHW[len(good)] = pixels
            good.append(position)
        kept = self.take(torch.tensor(good, dtype=torch.int64)) if problems else self
        if not hold:
            return kept, problems
        images = torch.from_numpy(images_NCHW[: len(good)])
        return TensorPart(images, kept.labels_N, kept.groups_N), problems

    def _stack(
        self, decode: Callable[[int], NDArray[np.uint8]], keys: list[int]
    ) -> NDArray[np.uint8]:
        out = np.empty((len(keys), self.channels, *self.image_size), np.uint8)
        at_once = max(1, min(IMAGES_OF_A_THREAD, len(keys) // THREADS))

        def some(first: int) -> None:
            for row in range(first, min(first + at_once, len(keys))):
                out[row] = decode(keys[row])

        list(pool().map(some, range(0, len(keys), at_once)))
        return out

    def resized_crops(
        self,
        index_B: Tensor,
        generator: torch.Generator,
        *,
        ranks: Ranks = ALONE,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> Batch:
        """ImageNet's training crop, cut from the whole original and not from a shrunken copy.

        Area uniform in `scale`, width/height log-uniform in `ratio`; of ten draws the first that
        fits is used, else the largest centre crop within `ratio`.
        """
        draws_B10x4 = ranks.uniform(len(index_B), 40, _CPU, generator).view(-1, 10, 4).tolist()
        positions = index_B.tolist()

        def decode(row: int) -> NDArray[np.uint8]:
            path = self.paths[positions[row]]
            with naming(path):
                image = open_file(path)
                box = crop_box(image.width, image.height, draws_B10x4[row], scale, ratio)
                return self.preprocessing.crop(image, box)

        return self._to_device(self._stack(decode, list(range(len(positions)))), index_B)

    def take(self, index_N: Tensor) -> FilePart:
        paths = tuple(self.paths[i] for i in index_N.tolist())
        return replace(self, paths=paths, **self._taken(index_N))

    def _identities(self) -> Iterator[bytes]:
        for path in self.paths:
            name = path.removeprefix(self.root).replace(os.sep, "/").lstrip("/")
            about = f"{name}\0{os.path.getsize(path)}\0"
            yield about.encode("utf-8", "surrogateescape")  # a name need not be UTF-8


@dataclass(frozen=True, kw_only=True, repr=False)
class DatasetPart(_LazyPart):
    """A map-style Python dataset too large to hold; items are read in the calling thread only.

    Other people's datasets (HDF5 handles, random transforms) are seldom safe to share by threads.
    """

    dataset: Any
    items_N: Tensor
    """Position of each image in `dataset`."""
    where: str

    @property
    def place(self) -> str:
        return f"read from {printable(self.where)}"

    def _decode(self, positions: list[int]) -> NDArray[np.uint8]:
        out = np.empty((len(positions), self.channels, *self.image_size), np.uint8)
        for row, position in enumerate(positions):
            item = int(self.items_N[position])
            where = f"{self.where}[{item}]"
            with errors_of_item(where):
                image = self.dataset[item][0]
            with naming(where):
                out[row] = self.preprocessing.pixels(from_item(image, where))
        return out

    def take(self, index_N: Tensor) -> DatasetPart:
        return replace(self, items_N=self.items_N[index_N.cpu()], **self._taken(index_N))

    def _identities(self) -> Iterator[bytes]:
        yield self.items_N.numpy().tobytes()
        # A dataset has neither file names nor sizes: 64 images spread over it represent the rest.
        probe = np.linspace(0, len(self) - 1, num=min(len(self), 64)).astype(int)
        yield self._decode(probe.tolist()).tobytes()


def batches(part: Part, index_batches: Iterable[Tensor]) -> Iterator[Batch]:
    """`part.batch` for each index, lazy parts decoding some batches before their turn."""
    if isinstance(part, TensorPart):
        return (part.batch(index_B) for index_B in index_batches)
    return _read_ahead(part.batch, index_batches)


def resized_crops(
    part: Part, index_batches: Iterable[Tensor], generator: torch.Generator, ranks: Ranks = ALONE
) -> Iterator[Batch]:
    """`FilePart.resized_crops` for each index, decoded ahead; `generator` is read meanwhile."""
    if not isinstance(part, FilePart):
        raise ValueError(
            "random resized crops are cut from image files, and these images come from elsewhere "
            "at one size; use a folder of images, or settings without resized_crop"
        )

    def read(index_B: Tensor) -> Batch:
        return part.resized_crops(index_B, generator, ranks=ranks)

    return _read_ahead(read, index_batches)


def _read_ahead(
    read: Callable[[Tensor], Batch], index_batches: Iterable[Tensor]
) -> Iterator[Batch]:
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting: list[Future[Batch]] = []
        for index_B in index_batches:
            waiting.append(reader.submit(read, index_B))
            if len(waiting) > BATCHES_AHEAD:
                yield record_use(waiting.pop(0).result())
        yield from (record_use(future.result()) for future in waiting)


def pool() -> ThreadPoolExecutor:
    """The decoding threads of this process; Pillow releases the GIL while it decodes."""
    return _pool(os.getpid())  # threads do not survive a fork


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="dada-decode")
