"""A policy as a file that runs in another library, without this package."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dada.exchange.exports import albumentations, dali, kornia, mmpretrain, timm, torchvision
from dada.exchange.exports.physical_policy import PhysicalPolicy, in_physical_units
from dada.policy import Policy
from dada.runlog import write_text

# Each writer takes the policy in physical units and returns the file's text.
TARGETS: dict[str, Callable[[PhysicalPolicy], str]] = {
    "torchvision": torchvision.write,
    "timm": timm.write,
    "albumentations": albumentations.write,
    "kornia": kornia.write,
    "dali": dali.write,
    "mmpretrain": mmpretrain.write,
}
SUFFIXES = {"albumentations": ".json"}  # all others are Python


def export(policy: Policy, target: str) -> str:
    """The text of a file that does the policy in that library; the same policy, the same bytes."""
    if target not in TARGETS:
        raise ValueError(f"no export to {target!r}; the targets are {', '.join(TARGETS)}")
    return TARGETS[target](in_physical_units(policy, target))


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
        raise ValueError(f"{path}: exists already; choose another --out or pass --force")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
