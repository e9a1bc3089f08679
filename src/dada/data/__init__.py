"""Data: what a user may pass, made into uint8 images of one shape. Start at `load`."""

from __future__ import annotations

from dada.data.parts import Batch, DatasetPart, FilePart, Part, TensorPart, batches, resized_crops
from dada.data.sources import READERS, load, load_with_base
from dada.data.split import Split, is_grey, reduce, split_for_scoring, split_off_validation

__all__ = [
    "READERS",
    "Batch",
    "DatasetPart",
    "FilePart",
    "Part",
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
