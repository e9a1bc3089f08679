"""Made pictures of a few objects on a noisy ground, with their boxes and masks.

Shapes: N scenes, M objects, H height, W width.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

SIDE = 48
KINDS = 2


def scene(
    noise: np.random.Generator,
    *,
    side: int = SIDE,
    by_colour: bool = False,
    most: int = 3,
    level: tuple[int, int] = (150, 220),
) -> tuple[np.ndarray, list[tuple[int, int, int, int]], list[int], list[np.ndarray]]:
    """Pixels HWC, boxes, kinds (0 or 1) and masks. Kinds are upright and lying bars, or colours."""
    ground = noise.integers(20, 60)
    pixels = (ground + noise.normal(0, 12, (side, side, 1))).repeat(3, 2)
    boxes, kinds, masks = [], [], []
    for _ in range(noise.integers(1, most + 1)):
        kind = int(noise.integers(KINDS))
        long, short = noise.integers(side // 3, side // 2), noise.integers(side // 8, side // 6)
        width, height = (long, short) if kind == 0 else (short, long)
        if by_colour:
            width = height = int(noise.integers(side // 6, side // 4))
        x, y = noise.integers(1, side - width - 1), noise.integers(1, side - height - 1)
        mask = np.zeros((side, side), bool)
        mask[y : y + height, x : x + width] = True
        if any((mask & other).any() for other in masks):
            continue
        bright = noise.integers(*level)
        colour = np.array([bright, bright, bright], float)
        if by_colour:
            colour[2 if kind else 0] *= 0.45
        pixels[mask] = colour + noise.normal(0, 8, 3)
        boxes.append((x, y, x + width, y + height))
        kinds.append(kind)
        masks.append(mask)
    return pixels.clip(0, 255).astype(np.uint8), boxes, kinds, masks


class Scenes:
    """A dataset in torchvision's form: (CHW uint8, dict(boxes, labels, masks)), labels from 1."""

    classes = ("first", "second")

    def __init__(self, count: int, seed: int, **how: Any) -> None:
        noise = np.random.default_rng(seed)
        self.scenes = [scene(noise, **how) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        pixels, boxes, kinds, masks = self.scenes[i]
        target = {
            "boxes": torch.tensor(boxes, dtype=torch.float32),
            "labels": torch.tensor(kinds) + 1,
            "masks": torch.from_numpy(np.stack(masks).astype(np.uint8)),
        }
        return torch.from_numpy(pixels).permute(2, 0, 1), target


class Boxes(Scenes):
    """The same without masks."""

    def __getitem__(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        image, target = super().__getitem__(i)
        return image, {"boxes": target["boxes"], "labels": target["labels"]}


class Masks(Scenes):
    """(image, mask of classes): 0 is the ground."""

    classes = ("ground", "first", "second")  # type: ignore[assignment]

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        pixels, _, kinds, masks = self.scenes[i]
        mask = np.zeros(pixels.shape[:2], np.uint8)
        for kind, own in zip(kinds, masks, strict=True):
            mask[own] = kind + 1
        return torch.from_numpy(pixels).permute(2, 0, 1), torch.from_numpy(mask)


def write_images(folder: Path, scenes: Scenes) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i:03d}.png" for i in range(len(scenes))]
    for file, (pixels, *_) in zip(files, scenes.scenes, strict=True):
        Image.fromarray(pixels).save(file)
    return files


def write_masks(root: Path, scenes: Scenes) -> None:
    """images/ and masks/ of class numbers."""
    for file in write_images(root / "images", scenes):
        (root / "masks").mkdir(exist_ok=True)
        mask = Masks.__getitem__(scenes, int(file.stem))[1]  # type: ignore[arg-type]
        Image.fromarray(mask.numpy()).save(root / "masks" / file.name)


def coco_of(scenes: Scenes, segmentation: str | None = None) -> dict[str, Any]:
    """COCO's dict; category ids have gaps, as theirs. `segmentation`: polygons or run lengths."""
    images, rows = [], []
    for i, (pixels, boxes, kinds, masks) in enumerate(scenes.scenes):
        height, width = pixels.shape[:2]
        images.append({"id": 10 + i, "file_name": f"{i:03d}.png", "width": width, "height": height})
        for (x0, y0, x1, y1), kind, mask in zip(boxes, kinds, masks, strict=True):
            row: dict[str, Any] = {"id": len(rows) + 1, "image_id": 10 + i, "iscrowd": 0}
            row |= {"category_id": 3 + 4 * kind}
            row["bbox"] = [int(n) for n in (x0, y0, x1 - x0, y1 - y0)]
            if segmentation == "polygons":
                row["segmentation"] = [[int(n) for n in (x0, y0, x1, y0, x1, y1, x0, y1)]]
            elif segmentation == "run lengths":
                flat = mask.T.flatten().astype(int)
                edges = np.flatnonzero(np.diff(flat)) + 1
                counts = np.diff([0, *edges, flat.size]).tolist()
                counts = [0, *counts] if flat[0] else counts
                row["segmentation"] = {"size": [height, width], "counts": counts}
            rows.append(row)
    names = [{"id": 3, "name": "lying"}, {"id": 7, "name": "upright"}]
    return {"images": images, "annotations": rows, "categories": names}


def write_coco(root: Path, scenes: Scenes, segmentation: str | None = None) -> None:
    write_images(root / "images", scenes)
    (root / "annotations.json").write_text(json.dumps(coco_of(scenes, segmentation)))


def write_objects(root: Path, scenes: Scenes) -> None:
    """images/, masks/ of object numbers in 16 bits, and boxes.json."""
    write_images(root / "images", scenes)
    (root / "masks").mkdir()
    for i, (pixels, _, _, masks) in enumerate(scenes.scenes):
        ids = np.zeros(pixels.shape[:2], np.uint16)
        for number, mask in enumerate(masks, 1):
            ids[mask] = number
        Image.fromarray(ids).save(root / "masks" / f"{i:03d}.png")
    (root / "boxes.json").write_text(json.dumps(coco_of(scenes)))


def write_voc(root: Path, scenes: Scenes) -> None:
    files = write_images(root / "JPEGImages", scenes)
    (root / "Annotations").mkdir()
    for file, (_, boxes, kinds, _) in zip(files, scenes.scenes, strict=True):
        objects = "".join(
            f"<object><name>{('lying', 'upright')[kind]}</name><bndbox><xmin>{x0 + 1}</xmin>"
            f"<ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            for (x0, y0, x1, y1), kind in zip(boxes, kinds, strict=True)
        )
        text = f"<annotation><filename>{file.name}</filename>{objects}</annotation>"
        (root / "Annotations" / f"{file.stem}.xml").write_text(text)


def write_yolo(root: Path, scenes: Scenes, part: str = "") -> None:
    files = write_images(root / "images" / part, scenes)
    labels = root / "labels" / part
    labels.mkdir(parents=True)
    for file, (pixels, boxes, kinds, _) in zip(files, scenes.scenes, strict=True):
        height, width = pixels.shape[:2]
        lines = [
            f"{kind} {(x0 + x1) / 2 / width} {(y0 + y1) / 2 / height} "
            f"{(x1 - x0) / width} {(y1 - y0) / height}"
            for (x0, y0, x1, y1), kind in zip(boxes, kinds, strict=True)
        ]
        (labels / f"{file.stem}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text("names:\n  0: lying\n  1: upright\n")


WRITERS: dict[str, Callable[[Path, Scenes], None]] = {
    "coco": write_coco,
    "polygons": partial(write_coco, segmentation="polygons"),
    "run lengths": partial(write_coco, segmentation="run lengths"),
    "objects": write_objects,
    "masks": write_masks,
    "voc": write_voc,
    "yolo": write_yolo,
}
"""The forms in which scenes can lie in a folder."""
