"""A policy as a file that runs in another library, without this package."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dada.exchange.exports.inline import render
from dada.exchange.exports.physical_policy import PhysicalPolicy, in_physical_units
from dada.names import EXPORT_TARGETS, did_you_mean
from dada.policy import Policy
from dada.runlog import write_text
from dada.safe_text import one_line_errors, quoted

BODIES = ("torchvision", "timm", "kornia", "dali")  # files with code of ours: bodies/NAME_body.py


def _writer(name: str) -> Callable[[PhysicalPolicy], str]:
    """The policy in physical units -> the file: a body, or the `write` of a module of that name."""
    if name in BODIES:
        return partial(render, name)
    write: Callable[[PhysicalPolicy], str] = importlib.import_module(f"{__name__}.{name}").write
    return write


TARGETS = {name: _writer(name) for name in EXPORT_TARGETS}
SUFFIXES = {"albumentations": ".json"}  # all others are Python


@one_line_errors
def export(policy: Policy, target: str) -> str:
    """The text of a file that applies the policy in that library; same policy, same bytes."""
    if target not in TARGETS:
        raise ValueError(
            f"no export to {quoted(target)}; the targets are {', '.join(TARGETS)}"
            f"{did_you_mean(target, TARGETS)}"
        )
    return TARGETS[target](in_physical_units(policy, target))


@one_line_errors
def export_file(
    policy: Policy, target: str, out: str | os.PathLike[str] | None = None, *, force: bool = False
) -> Path:
    """Write the export; without `out` to policy_TARGET.py (or .json) in the current directory."""
    text = export(policy, target)
    suffix = SUFFIXES.get(target, ".py")
    path = Path(out) if out is not None else Path(f"policy_{target}{suffix}")
    if path.suffix != suffix:
        raise ValueError(f"{path}: a file for {target} should be named {suffix}")
    if path.exists() and not force:
        raise ValueError(f"{path}: exists already; choose another `out` or pass `force=True`")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
