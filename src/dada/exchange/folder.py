"""Augmented copies of a folder of images; the originals are never touched."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from dada.config import whole_number
from dada.data.images import (
    IMAGE_EXTENSIONS,
    file_info,
    image_info,
    opened,
    to_eight_bits,
    white_level,
)
from dada.data.walk import Walk
from dada.policy import Policy
from dada.runlog.files import CannotWriteError, named_if_unwritable
from dada.safe_text import one_line_errors, printable, quoted

FAILS_FOR_ALL = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
LONGEST_FILE_NAME = 255  # bytes, on the disks of all usual systems

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


@one_line_errors
def apply_to_folder(
    policy: Policy, source: Path, target: Path, *, copies: int = 1, seed: int = 0
) -> FolderResult:
    """Write `copies` augmented versions of every image under `source` into `target`.

    `source` is a folder (its subfolders are kept) or one image. What cannot be read is skipped
    and named in the result.
    """
    if whole_number("copies", copies) < 1:
        raise ValueError(f"`copies` should be at least 1, got {quoted(copies)}")
    result = FolderResult()
    files = _files(source, result)
    _check_target(source, target)
    root = source if source.is_dir() else source.parent
    transform = policy.transform(seed=seed)
    white = white_level(_peak(files))
    for path in files:
        relative = path.relative_to(root)
        try:
            with opened(path) as stored:
                conversion = image_info(stored).conversion
                image = to_eight_bits(ImageOps.exif_transpose(stored), white)
                image.load()
        except Exception as error:  # Pillow raises many kinds, down to struct.error, on bad files
            unknown = isinstance(error, Image.UnidentifiedImageError)
            reason = "not an image" if unknown else printable(error) or type(error).__name__
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
            name = _name(path.stem, f"_{copy}{path.suffix}")
            try:
                _save(transform(image), target / relative.parent / name)
            except CannotWriteError as error:
                if error.errno in FAILS_FOR_ALL:
                    raise  # the next will fail as this one did
                result.skipped.append(f"{relative}: {error.strerror}")
                break
            result.written += 1
    reasons = "; ".join(printable(line) for line in result.skipped[:3])
    if not result.images:
        raise ValueError(f"{source}: no image could be read ({reasons or 'the folder is empty'})")
    if not result.written:
        where = printable(target)
        raise ValueError(f"{where}: nothing could be written ({reasons}); choose another place")
    return result


def _files(source: Path, result: FolderResult) -> list[Path]:
    if os.path.isfile(source):
        return [source]
    if not os.path.isdir(source):
        raise ValueError(f"{printable(source)}: no such file or folder")
    walk = Walk(root=str(source), takes=lambda name: True, skips_hidden=False)
    files = [Path(path) for path in walk.files(str(source))]
    for path in walk.not_files:
        result.skipped.append(f"{Path(path).relative_to(source)}: neither a file nor a folder")
    for path in walk.not_followed:
        result.skipped.append(f"{Path(path).relative_to(source)}: a link that leads back")
    for path in walk.runs:
        result.skipped.append(f"{Path(path).relative_to(source)}: a run directory")
    return sorted(files)


def _name(stem: str, ending: str) -> str:
    """The stem and the ending; a stem that would make the name too long for a disk is cut, and
    told from others that begin alike by a digest."""
    room = LONGEST_FILE_NAME - len(os.fsencode(ending))
    whole = os.fsencode(stem)
    if len(whole) <= room:
        return stem + ending
    mark = hashlib.sha256(whole).hexdigest()[:10]
    kept = whole[: room - len(mark) - 1].decode("utf-8", "ignore")
    return f"{kept}~{mark}{ending}"


def _peak(files: list[Path]) -> int:
    """The largest value of any image deeper than 8 bits: one white for the whole folder."""
    peaks = [0]
    for path in files:
        with suppress(Exception):  # what cannot be read is named when its turn comes
            peaks.append(file_info(str(path)).peak)
    return max(peaks)


def _check_target(source: Path, target: Path) -> None:
    folder = source.resolve() if source.is_dir() else source.resolve().parent
    place = Path(os.path.realpath(target))  # `resolve` raises of a link that leads to itself
    if place == folder or (source.is_dir() and folder in place.parents):
        raise ValueError(f"{target}: lies in the input; choose another output folder")
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target}: exists and is not an empty folder; choose another")


def _save(image: Image.Image, path: Path) -> None:
    """Write beside, then rename: an interrupted run leaves whole files only."""
    beside = path.with_name(f".{os.getpid()}{path.suffix}")
    with named_if_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            image.save(beside, **SAVE_OPTIONS.get(path.suffix.lower(), {}))
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
