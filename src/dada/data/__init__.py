"""Data: what a user may pass, made into uint8 images of one shape. Start at `load`."""

from __future__ import annotations

from dada.data.images import IMAGE_EXTENSIONS, ImagePlan
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
from dada.data.split import IN_MEMORY_LIMIT, Split, judged, reduce, split_off_validation

__all__ = [
    "IMAGE_EXTENSIONS",
    "IN_MEMORY_LIMIT",
    "READERS",
    "Batch",
    "DatasetPart",
    "FilePart",
    "ImagePlan",
    "Part",
    "Split",
    "TensorPart",
    "batches",
    "judged",
    "load",
    "load_with_base",
    "reduce",
    "resized_crops",
    "split_off_validation",
]
