"""How much memory this machine has, and what is done with memory that is free again."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

# Of glibc's `mallopt`: how much may stay free at the heap's end, from which size on a block is a
# mapping of its own, and how many of those there may be. A size above 32 MiB older ones refuse.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
KEEPS = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1}
# What glibc begins with, and the largest sizes that it comes to by itself.
USUAL = {MMAP_MAX: 2**16, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26}

_lock = Lock()
_inside: list[torch.device] = []  # one for each block of `memory_kept` that has not ended


def memory_of_machine() -> float:
    """Bytes of main memory; infinite where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf


@contextmanager
def memory_kept(device: torch.device) -> Iterator[None]:
    """On a CPU, large tensors that are freed leave their memory to the next ones.

    Else glibc gives it back to the system and asks for it anew, page by page, at every layer. At
    the end, of the last where there are several, all of it is given back. Where a user has settings
    of malloc, or there is another libc, nothing is done.
    """
    libc = _libc_to_set() if device.type == "cpu" else None
    if libc is None:
        yield
        return
    with _lock:
        if not _inside:
            _set(libc, KEEPS)
        _inside.append(device)
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside:
                _set(libc, USUAL)
                libc.malloc_trim(0)


def _libc_to_set() -> Any:
    """glibc, unless its settings are a user's; `malloc_trim` is what others do not have."""
    tuned = "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    tuned = tuned or any(name.startswith("MALLOC_") for name in os.environ)
    libc = None if tuned or sys.platform != "linux" else ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def _set(libc: Any, parameters: dict[int, int]) -> None:
    for parameter, value in parameters.items():
        libc.mallopt(parameter, value)
