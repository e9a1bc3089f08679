"""How much memory this machine has."""

from __future__ import annotations

import math
import os


def memory_of_machine() -> float:
    """Bytes of main memory; infinite where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
