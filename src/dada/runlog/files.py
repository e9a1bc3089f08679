"""Atomic writes: a file is there complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from torch import Tensor


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file beside, sync it, rename: never partly written, not even on a crash."""
    write(Path(path), lambda file: file.write(text.encode("utf-8")))


def write_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor]) -> None:
    """Weights by name as safetensors: numbers only, nothing that could run when read."""
    from safetensors.torch import save

    # Weights that two layers share are written twice: the format knows no sharing.
    content = save({name: tensor.detach().cpu().clone() for name, tensor in weights.items()})
    write(Path(path), lambda file: file.write(content))


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from None


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Fill a file beside `path`, sync it to disk, then rename it into place."""
    # Two processes that write one file, say a report, each have a file beside it.
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself is durable only once the directory is
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
