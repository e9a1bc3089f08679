"""A policy in fastai: an item transform of the training set.

    pip install fastai
    python examples/integrations/fastai_learner.py --policy runs/photos

It comes after the resize and before the image becomes a tensor. `split_idx = 0` is fastai's way to
say: training images only.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from fastai.vision.all import (
    ImageDataLoaders,
    Learner,
    PILImage,
    Resize,
    Transform,
    accuracy,
    set_seed,
)
from PIL import Image

import dada


class Augment(Transform):
    """The policy for one picture at a time, in fastai's workers."""

    split_idx = 0

    def __init__(self, policy: dada.Policy) -> None:
        self.transform = policy.transform()

    def encodes(self, image: PILImage) -> PILImage:
        return type(image).create(np.asarray(self.transform(image)))


def write_pictures(folder: Path) -> None:
    """Digits as RGB files, a folder for each class: stands for your own images."""
    digits = dada.data.load("digits")
    assert digits.test is not None
    for name, part, count in (("train", digits.train, 640), ("valid", digits.test, 200)):
        images_NCHW, labels_N = part.batch(torch.arange(count))
        for i, (image_CHW, label) in enumerate(zip(images_NCHW, labels_N.tolist(), strict=True)):
            place = folder / name / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image_CHW[0].numpy()).convert("RGB").save(place / f"{i}.png")


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="trivialaugment")
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder))
        loaders = ImageDataLoaders.from_folder(
            folder,
            valid="valid",
            bs=64,
            num_workers=0,
            item_tfms=[Resize(8), Augment(dada.Policy.load(options.policy))],
        )
        model = dada.models.build("small", 10, 3, (8, 8), seed=0)
        learner = Learner(loaders, model, metrics=accuracy)
        with learner.no_bar(), learner.no_logging():
            learner.fit_one_cycle(6 if options.quick else 30, 1e-2)
            score = float(learner.validate()[1])
    print(f"{score:.1%} of the validation images")
    return score


if __name__ == "__main__":
    main()
