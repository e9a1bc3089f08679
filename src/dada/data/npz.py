"""Arrays in an .npz archive, whose headers are read before anything is unpacked.

A few kilobytes may unpack to any size, and what a stranger's header promises may be more than
there is memory. numpy unpacks first.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dada.safe_text import printable

LIMIT_VARIABLE = "DADA_UNPACK_GIB"
DEFAULT_LIMIT_GIB = 4.0
CHUNK = 16 * 2**20  # bytes that are converted at a time


def unpack_limit() -> int:
    """Bytes that an archive may unpack to."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = float(text or DEFAULT_LIMIT_GIB)
        return int(limit * 2**30)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{LIMIT_VARIABLE} should be a number of GiB, got {printable(text)!r}"
        ) from None


def check_unpacked(path: str, size: int, limit: int | None = None) -> None:
    """Refuse a file that would take more memory than is allowed."""
    limit = unpack_limit() if limit is None else limit
    if size > limit:
        raise ValueError(
            f"{path}: unpacks to {size / 2**30:,.1f} GiB, more than the {limit / 2**30:.3g} GiB "
            f"allowed; set {LIMIT_VARIABLE} to raise the limit"
        )


@dataclass(frozen=True, kw_only=True)
class Header:
    """What an array says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Archive:
    """An open .npz: its headers, and its arrays when they are asked for."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self.file = file
        self.headers: dict[str, Header] = {}
        for member in file.infolist():
            if member.flag_bits & 1:
                raise ValueError(f"{printable(member.filename)} is encrypted")
            if not member.filename.endswith(".npy"):
                continue  # numpy's own reader gives those as bytes; no array of images is one
            with file.open(member) as stream:
                header = _header(stream)
                if header.size > member.file_size - stream.tell():
                    raise ValueError(f"{printable(member.filename)} ends too early")
            self.headers[member.filename.removesuffix(".npy")] = header

    def read(self, key: str) -> NDArray[Any]:
        with self.file.open(f"{key}.npy") as stream:
            array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)  # type: ignore[no-untyped-call]
            return array

    def chunks(self, key: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """(position, rows from there on), so that a conversion needs no second whole array."""
        header = self.headers[key]
        if header.fortran_order or not header.shape or not header.size:
            yield 0, self.read(key)
            return
        row_size = header.size // header.shape[0]
        rows = max(1, CHUNK // max(1, row_size))
        with self.file.open(f"{key}.npy") as stream:
            _header(stream)
            for first in range(0, header.shape[0], rows):
                count = min(rows, header.shape[0] - first)
                content = _exactly(stream, count * row_size)
                yield first, np.frombuffer(content, header.dtype).reshape(count, *header.shape[1:])


@contextmanager
def open_archive(
    path: str, *, wanted: Callable[[str], bool], limit: int | None = None
) -> Iterator[Archive]:
    """An archive whose wanted arrays unpack to no more than is allowed; else a ValueError."""
    try:
        with zipfile.ZipFile(path) as file:
            archive = Archive(file)
            sizes = [header.size for key, header in archive.headers.items() if wanted(key)]
            check_unpacked(path, sum(sizes), limit)
            yield archive
    except ValueError as problem:
        if str(problem).startswith(path):
            raise
        raise _unreadable(path, str(problem)) from problem
    except Exception as problem:  # zip, zlib, bz2, lzma and numpy each fail in their own ways
        raise _unreadable(path, str(problem) or type(problem).__name__) from problem


def _unreadable(path: str, reason: str) -> ValueError:
    if "pickle" in reason or "Object arrays" in reason:
        reason = "it holds Python objects"
    if _starts_with(path, npy.MAGIC_PREFIX):
        reason = "it is an .npy, one array alone; numpy.savez puts several into an archive"
    return ValueError(f"{path}: cannot be read as an .npz archive ({printable(reason)})")


def _starts_with(path: str, magic: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _header(stream: IO[bytes]) -> Header:
    """Of the array that begins here; the stream then is at its first number."""
    version = npy.read_magic(stream)  # type: ignore[no-untyped-call]
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran_order, dtype = read(stream)  # type: ignore[no-untyped-call]
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if any(side < 0 for side in shape):
        raise ValueError(f"a shape of {shape}")
    return Header(shape=shape, dtype=dtype, fortran_order=fortran_order)


def _exactly(stream: IO[bytes], count: int) -> bytearray:
    content = bytearray(count)
    filled, view = 0, memoryview(content)
    while filled < count:
        piece = stream.read(min(count - filled, 2**20))
        if not piece:
            raise ValueError("it ends too early")
        view[filled : filled + len(piece)] = piece
        filled += len(piece)
    return content
