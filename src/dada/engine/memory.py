"""How much memory this machine has, and what is done with memory that is free again."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# glibc's parameters of `mallopt`, and the largest values that it comes to by itself.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
USUAL = {TRIM_THRESHOLD: 2**26, MMAP_THRESHOLD: 2**25}
KEEPS = dict.fromkeys(USUAL, 2**31 - 1)


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
    the end all of it is given back. Where a user has settings of malloc, or there is another libc,
    nothing is done.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    tuned = "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    tuned = tuned or any(name.startswith("MALLOC_") for name in os.environ)
    if device.type != "cpu" or tuned or not hasattr(libc, "mallopt"):
        yield
        return
    assert libc is not None
    try:
        for parameter, value in KEEPS.items():
            libc.mallopt(parameter, value)
        yield
    finally:
        for parameter, value in USUAL.items():
            libc.mallopt(parameter, value)
        libc.malloc_trim(0)
