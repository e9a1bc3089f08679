"""Made pictures of a few objects on a noisy ground, with their boxes and masks.

Shapes: N scenes, M objects, H height, W width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
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
