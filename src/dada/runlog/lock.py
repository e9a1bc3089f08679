"""One process at a time writes to a run directory.

The lock is the operating system's, on the file `.lock`: it ends with the process, however that
ends. The file says who holds it, for the others to read. It is removed with the lock; one that a
killed process left behind locks nothing. Where the file system knows no locks, as some network
ones do not, there is none. On Windows a byte of the file is locked in place of the file.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

from dada.safe_text import printable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".lock"
PATIENCE = 1.0  # seconds: another process may be looking who holds it at just this moment
# Neither a link nor a pipe that lies there in a stranger's run directory is followed or waited for.
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
BEYOND = 2**30  # a byte that is not there: Windows lets nobody read a byte that is locked


class DirectoryLock:
    """Held from its making until `release`, or until nobody refers to it.

    In one thread the newest owner takes over: the one before ended with an error, and only its
    traceback still refers to it.
    """

    thread: threading.Thread

    def __init__(self, directory: Path) -> None:
        file = directory.resolve() / LOCK
        before = _HELD.get(file)
        thread = threading.current_thread()
        if before is not None and before.thread is thread:
            before.release()
        self.thread = thread
        self._release = weakref.finalize(self, _release, _locked(file, directory), file)
        _HELD[file] = self

    def release(self) -> None:
        self._release()


_HELD: weakref.WeakValueDictionary[Path, DirectoryLock] = weakref.WeakValueDictionary()
_DESCRIPTORS: dict[int, int] = {}  # of files that are locked, and the process that did


def check_unlocked(directory: Path) -> None:
    """Raise the error that `DirectoryLock` would raise, changing nothing."""
    file = directory.resolve() / LOCK
    held = _HELD.get(file)
    if held is not None and held.thread is threading.current_thread():
        return
    try:
        opened = os.open(file, FLAGS)
    except OSError:
        return  # no lock, or a directory that cannot be written to, which has its own message
    try:
        _wait_for(opened, directory)
    finally:
        os.close(opened)


def _locked(file: Path, directory: Path) -> int:
    """The descriptor that holds the lock; closing it ends the lock."""
    while True:
        opened = os.open(file, FLAGS | os.O_CREAT, 0o644)
        try:
            _wait_for(opened, directory)
            # Whoever held it may have removed the file just before: then this locks no name.
            if os.path.samestat(os.fstat(opened), os.stat(file)):
                _sign(opened)
                _DESCRIPTORS[opened] = os.getpid()
                return opened
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)


def _wait_for(opened: int, directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _try(opened):
        if time.monotonic() > deadline:
            raise ValueError(
                f"{directory} is in use by another process ({_holder(opened)}); "
                "wait for it, stop it, or choose another `out`"
            )
        time.sleep(0.05)


def _try(opened: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(opened, BEYOND, os.SEEK_SET)
            msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # the file system has no locks
        return True
    return True


def _sign(opened: int) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    signed = {"process": os.getpid(), "host": socket.gethostname(), "since": since}
    with suppress(OSError):  # a full disk: the lock holds without a name on it
        os.ftruncate(opened, 0)
        os.lseek(opened, 0, os.SEEK_SET)
        os.write(opened, json.dumps(signed).encode() + b"\n")


def _holder(opened: int) -> str:
    """Who signed, in words; the file may be a stranger's, so it may hold anything."""
    os.lseek(opened, 0, os.SEEK_SET)
    try:
        signed = json.loads(os.read(opened, 1000))
        words = f"process {signed['process']} on {signed['host']}, since {signed['since']}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "which has not signed the lock"
    return printable(words)


def _release(opened: int, file: Path) -> None:
    if _DESCRIPTORS.pop(opened, None) != os.getpid():
        return  # a fork: the lock is its parent's, and the descriptor is closed already
    if sys.platform == "win32":  # where an open file cannot be removed
        os.close(opened)
    with suppress(OSError):
        file.unlink()
    if sys.platform != "win32":
        os.close(opened)


def _forget() -> None:
    """In a fork: a copy of the descriptor would hold the lock beyond the parent's end."""
    for opened in list(_DESCRIPTORS):
        with suppress(OSError):
            os.close(opened)
    _DESCRIPTORS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
