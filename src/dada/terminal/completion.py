"""What a shell offers after the tab key; torch is not loaded for it."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence

from dada.names import (
    EXPORT_TARGETS,
    FREE_POLICIES,
    IMPORT_SOURCES,
    LISTS,
    MODELS,
    found_policies,
    published_policies,
)


def policies(typed: str) -> list[str]:
    """Names, policy files and folders; of a list with commas the last one is completed."""
    done, comma, last = typed.rpartition(",")
    files = glob.glob(f"{glob.escape(last)}*")
    paths = [path for path in files if os.path.isdir(path) or path.endswith(".json")]
    known = (*published_policies(), *found_policies(), *FREE_POLICIES)
    names = [name for name in known if name.startswith(last)]
    return [f"{done}{comma}{found}" for found in (*names, *sorted(paths))]


def models(typed: str) -> list[str]:
    """Of those by prefix the prefix, to which a name is added."""
    names = (name.removesuffix("NAME") for name in MODELS if "factory" not in name)
    return [name for name in names if name.startswith(typed)]


def _among(names: Sequence[str]) -> Callable[[str], list[str]]:
    def offered(typed: str) -> list[str]:
        return [name for name in names if name.startswith(typed)]

    return offered


export_targets, import_sources, lists = map(_among, (EXPORT_TARGETS, IMPORT_SOURCES, LISTS))
