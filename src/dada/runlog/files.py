"""Atomic writes: a file is there complete or not at all."""

from __future__ import annotations

import errno
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from dada.safe_files import open_to_read
from dada.safe_text import one_line_errors, printable

MOST_STRETCHED = 2**26  # bytes: some networks keep a number once for many places
LONGEST_HEADER = 100_000_000  # bytes: the format's own limit
MOST_LOOKED_AT = 256  # bytes, to see what a file is
# Of protocol 2 and later; and before: an import, a dictionary or a list, as text or as bytes.
PICKLE = re.compile(rb"\x80|\(?c[\w.]+\n[\w.]+\n|\([dl]p\d+\n|[]}]q\x00")
AGAIN = "copy or download it again"
AS_SAFETENSORS = "save the network's state_dict() as safetensors"
RUN = "run.json"  # what a run directory is known by


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file beside, sync it, rename: never partly written, not even on a crash."""
    write(Path(path), lambda file: file.write(text.encode("utf-8")))


def write_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor]) -> None:
    """Weights by name as safetensors: numbers only, nothing that could run when read."""
    from safetensors.torch import save

    # Row after row, also where a card has them channel by channel; and weights that two layers
    # share twice: the format knows neither.
    rows = torch.contiguous_format
    own = {name: each.detach().cpu().clone(memory_format=rows) for name, each in weights.items()}
    content = save(own)
    write(Path(path), lambda file: file.write(content))


@one_line_errors
def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """What `write_weights` wrote; ValueError where the file is something else, or damaged."""
    try:
        return read_safetensors(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {printable(error)}") from None


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """As `read_weights`, but the error does not name the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with open_to_read(path) as file:
        begin, size = file.read(MOST_LOOKED_AT), os.fstat(file.fileno()).st_size
    if not is_safetensors(begin):
        raise ValueError(what_instead(begin))
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        header = int.from_bytes(begin[:8], "little")
        state = "cut off" if size < 8 + header else "cut off or damaged"
        raise ValueError(f"{state}; {AGAIN}") from None


def is_safetensors(begin: bytes) -> bool:
    """By its first bytes: the length of a header, and the brace that opens it.

    To be asked first: a length may begin with the same bytes as a pickle or a zip file.
    """
    return int.from_bytes(begin[:8], "little") <= LONGEST_HEADER and begin[8:9] == b"{"


def what_instead(begin: bytes) -> str:
    """What a file that begins like this is in place of one with weights, and what to do."""
    if not begin:
        return f"an empty file; {AGAIN}"
    if PICKLE.match(begin):
        return f"a pickle, which may hold code and is not read; {AS_SAFETENSORS}"
    return f"neither a safetensors file nor one of torch.save; {AS_SAFETENSORS}"


def read_stored(path: str | os.PathLike[str]) -> Any:
    """What torch.save wrote: numbers in plain containers. A damaged file may raise anything.

    torch stores without compression, so a compressed entry is somebody else's, and may unpack to
    any size. Nor does torch compare the checksums that it wrote: 235 of 327 flipped bytes in a
    small file went unnoticed.
    """
    with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise zipfile.BadZipFile("compressed, which torch does not do")
        if sum(entry.file_size for entry in entries) > os.path.getsize(path):
            raise zipfile.BadZipFile("its entries overlap")
        if archive.testzip() is not None:
            raise zipfile.BadZipFile("checksum mismatch")
    content = torch.load(path, map_location="cpu", weights_only=True)
    check_held(content)
    return content


def check_held(content: Any) -> None:
    """That no tensor is far larger than its numbers: one number can be stretched to any shape."""
    if isinstance(content, Tensor):
        held = content.layout is torch.strided and content.device.type == "cpu"
        if held and content.nbytes > max(content.untyped_storage().nbytes(), MOST_STRETCHED):
            raise ValueError("a tensor that does not hold the numbers of its shape")
    elif isinstance(content, Mapping):
        for value in content.values():
            check_held(value)
    elif isinstance(content, list | tuple):
        for value in content:
            check_held(value)


class CannotWriteError(OSError):
    """A full disk, or one that may not be written to: the file, why, and what to do."""

    def __str__(self) -> str:
        path = Path(str(self.filename))
        full = self.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        in_run = any((folder / RUN).is_file() for folder in (path.parent, path.parent.parent))
        go_on = "then `resume=True` continues the run" if in_run else "then try again"
        advice = f"make room, {go_on}" if full else "choose another place"
        return f"{printable(path)}: cannot be written ({self.strerror}); {advice}"


@contextmanager
def named_if_unwritable(path: Path) -> Iterator[None]:
    """What fails while a file is written, as an error that names it."""
    try:
        yield
    except CannotWriteError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotWriteError(error.errno or errno.EIO, reason, str(path)) from None


class _NeverRaises(io.RawIOBase):
    """A file to hand to torch.save, which ends the whole process when a write raises."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if self.error is None:
            try:
                self.file.write(content)
            except OSError as error:
                self.error = error
        return len(content)


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Fill a file beside `path`, sync it to disk, then rename it into place."""
    with named_if_unwritable(path):
        _write(path, fill)


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    # Two processes that write one file, say a report, each have a file beside it.
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.unlink(missing_ok=True)  # whatever lies there under this name is not written through
        with open(beside, "xb") as file:
            guarded = _NeverRaises(file)
            fill(guarded)  # type: ignore[arg-type]
            if guarded.error is not None:
                raise guarded.error
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself is durable only once the directory is
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
