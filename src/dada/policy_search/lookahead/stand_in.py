"""A stand-in for images and a network that are too large to look ahead with.

Looking ahead asks which operations help, not how well a network can do. Shrunken images and a small
network answer that about as well, and sooner (docs/search-study.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dada import models, tasks
from dada.config import Base, LookaheadConfig, TrainConfig
from dada.data import Part, Split, reduce
from dada.data.parts import TensorPart

SMALLEST_SIDE = 4
LARGER_FOR_PLACES = 4  # where targets are places, a thumbnail does not show them
CHUNK = 100  # images that are held at their own size


@dataclass(frozen=True, kw_only=True)
class StandIn:
    split: Split
    base: Base  # what is done to every image, in pixels of the smaller ones
    model: str

    @classmethod
    def of(
        cls,
        split: Split,
        base: Base,
        settings: LookaheadConfig,
        device: torch.device,
        *,
        seed: int,
    ) -> StandIn:
        assert split.val is not None
        height, width = split.image_size
        task = tasks.named(split.task)
        side = settings.stand_in_side * (LARGER_FOR_PLACES if task.moves else 1)
        scale = min(1.0, side / (height * width) ** 0.5)
        size = _scaled(height, scale), _scaled(width, scale)
        of_all_classes = settings.stand_in_images_of_a_class * split.num_classes
        wanted = max(settings.stand_in_images, of_all_classes)

        def shrunk(part: Part) -> TensorPart:
            if len(part) > wanted:
                part = reduce(replace(split, train=part, val=None), wanted, seed).train
            images_NCHW = resized_images(part, size)
            where = images_NCHW.device
            targets = task.resized(part.targets, (height, width), size) if part.targets else ()
            return TensorPart(
                images_NCHW,
                part.labels_N.to(where),
                targets=tuple(each.to(where) for each in targets),
            )

        return cls(
            split=replace(
                split,
                train=shrunk(split.train),
                val=shrunk(split.val),
                test=None,
                normalisation=None,  # it is a network of our own, untrained
            ),
            base=replace(
                base,
                crop=round(base.crop * scale),
                cutout=round(base.cutout * scale),
                resized_crop=False,  # needs the files
            ),
            model=task.default_model(device.type, size) or models.default_model(device.type, size),
        )

    @property
    def build(self) -> Callable[[int], nn.Module]:
        split = self.split
        shape = split.num_classes, split.channels, split.image_size
        return models.untrained(self.model, *shape)

    @property
    def training(self) -> TrainConfig:
        """As that network is trained from scratch for this task."""
        return TrainConfig(**tasks.named(self.split.task).settings_for(self.model))

    @property
    def facts(self) -> dict[str, object]:
        return {"image_size": list(self.split.image_size), "model": self.model}


def resized_images(part: Part, size: tuple[int, int]) -> Tensor:
    """All images of a part at another size, each pixel the mean of what it covers."""
    images = []
    for index_B in torch.arange(len(part)).split(CHUNK):
        images_BCHW = F.interpolate(part.batch(index_B)[0].float(), size, mode="area")
        images.append(images_BCHW.round().to(torch.uint8))
    return torch.cat(images)


def scaled_to(image_size: tuple[int, int], side: int) -> tuple[int, int]:
    """With no more pixels than a square of that side."""
    height, width = image_size
    scale = min(1.0, side / (height * width) ** 0.5)
    return _scaled(height, scale), _scaled(width, scale)


def _scaled(side: int, scale: float) -> int:
    return side if scale == 1 else max(SMALLEST_SIDE, round(side * scale))
