"""Files that others may have put there: opened only where they are files, of a size that is said.

A pipe blocks whoever opens it, a device never ends, and a link leads where its maker wants: none of
these is read from a stranger's folder as if it were a file, or written through.
"""

from __future__ import annotations

import os
import stat
from typing import IO

# A pipe is opened without waiting for its other end, so that it can be seen to be one.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
_APPEND |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def open_to_read(file: str | os.PathLike[str]) -> IO[bytes]:
    """A regular file, open; ValueError, which does not name it, where it is something else."""
    return _regular(os.open(file, _READ), "rb")


def open_to_append(file: str | os.PathLike[str]) -> IO[bytes]:
    """A regular file, made where there is none; OSError where it is a link."""
    return _regular(os.open(file, _APPEND, 0o666), "ab")


def _regular(opened: int, mode: str) -> IO[bytes]:
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError("not a file, but a folder, a pipe or a device")
    return os.fdopen(opened, mode)


def read_bytes(file: str | os.PathLike[str], *, most: int) -> bytes:
    """All of a regular file of at most so many bytes; the error does not name it."""
    with open_to_read(file) as stream:
        if os.fstat(stream.fileno()).st_size > most:
            raise ValueError(f"more than {most // 2**20:,} MB")
        return stream.read(most)
