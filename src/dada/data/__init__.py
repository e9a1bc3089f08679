"""Data: what a user may pass, made into uint8 images of one shape. Start at `load`."""

from __future__ import annotations

from dada.data.images import IMAGE_EXTENSIONS, Preprocessing
from dada.data.parts import (
    Batch,
    DatasetPart,
    FilePart,
    Part,
    TensorPart,
    batches,
    resized_crops,
)
from dada.data.sources import READERS, load, load_with_base
from dada.data.split import (
    IN_MEMORY_LIMIT,
    Split,
    is_grey,
    reduce,
    split_for_scoring,
    split_off_validation,
)

__all__ = [
    "IMAGE_EXTENSIONS",
    "IN_MEMORY_LIMIT",
    "READERS",
    "Batch",
    "DatasetPart",
    "FilePart",
    "Part",
    "Preprocessing",
    "Split",
    "TensorPart",
    "batches",
    "is_grey",
    "load",
    "load_with_base",
    "reduce",
    "resized_crops",
    "split_for_scoring",
    "split_off_validation",
]
