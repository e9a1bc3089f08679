"""Augmented copies of a folder of images; the originals are never touched."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from dada.data.images import IMAGE_EXTENSIONS, file_info, image_info, to_eight_bits, white_level
from dada.policy import Policy

SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    ".jpg": {"quality": 95, "subsampling": 0},
    ".jpeg": {"quality": 95, "subsampling": 0},
    ".webp": {"lossless": True},
}


@dataclass(kw_only=True)
class FolderResult:
    """How many images were read and written, and what was skipped or converted, and why."""

    images: int = 0
    written: int = 0
    skipped: list[str] = field(default_factory=list)
    converted: list[str] = field(default_factory=list)


def apply_to_folder(
    policy: Policy, source: Path, target: Path, *, copies: int = 1, seed: int = 0
) -> FolderResult:
    """Write `copies` augmented versions of every image under `source` into `target`.

    `source` is a folder (its subfolders are kept) or one image. What cannot be read is skipped
    and named in the result.
    """
    if copies < 1:
        raise ValueError(f"`copies` should be at least 1, got {copies}")
    files = _files(source)
    _check_target(source, target)
    root = source if source.is_dir() else source.parent
    transform = policy.transform(seed=seed)
    result = FolderResult()
    white = white_level(_peak(files))
    for path in files:
        relative = path.relative_to(root)
        try:
            with Image.open(path) as opened:
                conversion = image_info(opened).conversion
                image = to_eight_bits(ImageOps.exif_transpose(opened), white)
                image.load()
        except Exception as error:  # Pillow raises many kinds, down to struct.error, on bad files
            reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else error
            result.skipped.append(f"{relative}: {reason}")
            continue
        if path.suffix.lower() not in IMAGE_EXTENSIONS:
            kind = f"a {path.suffix} file" if path.suffix else "a file without an ending"
            result.skipped.append(f"{relative}: an image, but {kind}; save it as .png first")
            continue
        if conversion is not None:
            result.converted.append(f"{relative}: {conversion}")
        result.images += 1
        for copy in range(copies):
            name = f"{path.stem}_{copy}{path.suffix}"
            _save(transform(image), target / relative.parent / name)
            result.written += 1
    if not result.images:
        reasons = "; ".join(result.skipped[:3])
        raise ValueError(f"{source}: no image could be read ({reasons or 'the folder is empty'})")
    return result


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise ValueError(f"{source}: no such file or folder")
    return sorted(path for path in source.rglob("*") if path.is_file())


def _peak(files: list[Path]) -> int:
    """The largest value of any image deeper than 8 bits: one white for the whole folder."""
    peaks = [0]
    for path in files:
        with suppress(Exception):  # what cannot be read is named when its turn comes
            peaks.append(file_info(str(path)).peak)
    return max(peaks)


def _check_target(source: Path, target: Path) -> None:
    folder = source.resolve() if source.is_dir() else source.resolve().parent
    if target.resolve() == folder or (source.is_dir() and folder in target.resolve().parents):
        raise ValueError(f"{target}: lies in the input; choose another output folder")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target}: exists and is not an empty folder; choose another")


def _save(image: Image.Image, path: Path) -> None:
    """Write beside, then rename: an interrupted run leaves whole files only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        image.save(beside, **SAVE_OPTIONS.get(path.suffix.lower(), {}))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
