"""Average precision as COCO defines it, by pycocotools.

Letters: M objects of an image, C classes, H height, W width.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

MOST_FOUND = 300  # of an image: blood cells and nuclei are more than COCO's usual 100
AT_50, AT_75 = 0, 5  # of the overlaps 0.5, 0.55, ... 0.95


@dataclass(frozen=True)
class Objects:
    """What is in an image, or what a network found there."""

    boxes: list[list[float]]  # x, y, width, height
    labels: list[int]  # 1 .. C
    scores: list[float] | None = None
    masks: list[dict[str, Any]] | None = None  # packed, as pycocotools does

    @classmethod
    def of(cls, made: Mapping[str, Tensor]) -> Objects:
        """From torchvision's dict; a mask in 0..1 is cut at one half."""
        corners = made["boxes"].double().cpu()
        sides = corners[:, 2:] - corners[:, :2]
        boxes = [
            [*start, *side]
            for start, side in zip(corners[:, :2].tolist(), sides.tolist(), strict=True)
        ]
        scores = made["scores"].double().cpu().tolist() if "scores" in made else None
        masks = None if "masks" not in made else _packed(made["masks"])
        return cls(boxes, made["labels"].cpu().tolist(), scores, masks)


def _packed(masks: Tensor) -> list[dict[str, Any]]:
    from pycocotools import mask

    masks = masks.squeeze(1) if masks.dim() == 4 else masks
    cut = masks >= 0.5 if masks.is_floating_point() else masks > 0
    return [mask.encode(np.asfortranarray(one)) for one in cut.cpu().numpy().astype(np.uint8)]


@dataclass(frozen=True)
class Precision:
    ap: float
    ap50: float
    ap75: float
    class_ap50_C: list[float | None]  # None: no object of that class


def average_precision(
    true: Sequence[Objects], found: Sequence[Objects], num_classes: int, *, masks: bool = False
) -> Precision:
    """Of all images together. Classes without objects are in no mean; with no object at all, 0."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # it prints as it goes
        truth = COCO()
        # Masks are packed already, but it asks for sides that it does not need.
        truth.dataset = {
            "info": {},
            "images": [{"id": i, "height": 0, "width": 0} for i in range(len(true))],
            "annotations": _rows(true, masks),
            "categories": [{"id": c + 1} for c in range(num_classes)],
        }
        truth.createIndex()
        guesses = COCO()
        guesses.dataset = {**truth.dataset, "annotations": _rows(found, masks)}
        guesses.createIndex()
        judge = COCOeval(truth, guesses, "segm" if masks else "bbox")
        judge.params.maxDets = [MOST_FOUND]
        judge.params.areaRng = judge.params.areaRng[:1]
        judge.params.areaRngLbl = judge.params.areaRngLbl[:1]
        judge.evaluate()
        judge.accumulate()
    precision_TRC = judge.eval["precision"][:, :, :, 0, 0]
    return Precision(
        _mean(precision_TRC),
        _mean(precision_TRC[AT_50]),
        _mean(precision_TRC[AT_75]),
        [float(own_R.mean()) if (own_R > -1).all() else None for own_R in precision_TRC[AT_50].T],
    )


def _mean(precision: Any) -> float:
    known = precision[precision > -1]  # -1: no objects of that class
    return float(known.mean()) if known.size else 0.0


def _rows(images: Sequence[Objects], masks: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for image, objects in enumerate(images):
        for i, (box, label) in enumerate(zip(objects.boxes, objects.labels, strict=True)):
            row = {"id": len(rows) + 1, "image_id": image, "category_id": label, "bbox": box}
            row |= {"area": box[2] * box[3], "iscrowd": 0}
            if objects.scores is not None:
                row["score"] = objects.scores[i]
            if masks:
                assert objects.masks is not None
                row["segmentation"] = objects.masks[i]
            rows.append(row)
    return rows
