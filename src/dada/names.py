"""The names that a person may type, and what they stand for; nothing here takes time to import.

So a shell can complete them, `dada list` can show them, and a slip of the hand is answered with
the name that was meant.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

EXPORT_TARGETS = (
    "torchvision",
    "timm",
    "albumentations",
    "kornia",
    "dali",
    "mmpretrain",
    "ultralytics",
    "rfdetr",
)
IMPORT_SOURCES = ("torchvision", "timm", "albumentations")
LISTS = ("policies", "models", "ops", "spaces", "recipes")  # what `dada list` knows

FREE_POLICIES = {
    "none": "no augmentation",
    "cutout": "a square of every image is covered, nothing else",
    "uniform": "every pair of operations, each half of the time, at any strength",
    "init": "every pair of operations at the middle of its range: where the paper starts",
    "trivialaugment": "one operation for every image, at any strength of wide ranges",
    "randaugment:n,m": "n operations at strength m in 0..1, such as randaugment:2,0.5",
    "autoaugment:cifar10": "AutoAugment's 25 sub-policies for CIFAR-10",
    "autoaugment:svhn": "AutoAugment's 25 sub-policies for SVHN",
    "autoaugment:imagenet": "AutoAugment's 25 sub-policies for ImageNet",
}
"""Policies that cost no search."""

MODELS = {
    "small": "a few convolutions; fast on a CPU",
    "wrn40_2": "Wide ResNet, 40 layers; any wrnDEPTH_WIDTH",
    "wrn28_10": "Wide ResNet, 28 layers, ten times as wide",
    "shakeshake26_2x32d": "Shake-Shake; any width",
    "shakeshake26_2x96d": "Shake-Shake, wider",
    "shakeshake26_2x112d": "Shake-Shake, widest of the paper's",
    "pyramidnet272_shakedrop": "PyramidNet with ShakeDrop",
    "resnet50": "ResNet-50 of torchvision",
    "unet": "a small U-Net, for segmentation; fast on a CPU",
    "detector": "a small detector; fast on a CPU",
    "retinanet:BACKBONE": "RetinaNet of torchvision on any of these networks",
    "fasterrcnn:BACKBONE": "Faster R-CNN of torchvision, likewise",
    "maskrcnn:BACKBONE": "Mask R-CNN of torchvision, for data with masks of objects",
    "deeplabv3:BACKBONE": "DeepLabV3 of torchvision, for segmentation",
    "torchvision:NAME": "a classification network of torchvision, such as torchvision:resnet18",
    "timm:NAME": "a network of timm, such as timm:tf_efficientnet_lite0",
    "package.module:factory": "your own: a function that takes num_classes and returns a network",
}
"""What may be given as a model."""


def published_policies() -> dict[str, Any]:
    """The rows of every policy that ships and that others have published, by name."""
    return _shipped("published.json")


def found_policies() -> dict[str, Any]:
    """The content of every policy file that ships and that was found by this project, by name."""
    return _shipped("found.json")


def _shipped(name: str) -> dict[str, Any]:
    file = resources.files("dada") / "policy" / name
    return dict(json.loads(file.read_text(encoding="utf-8")))


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The nearest names, to be put behind a message that says which there are; "" for none."""
    by_folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(str(name)[:100].casefold(), by_folded, n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(by_folded[each] for each in close)}?" if close else ""


ON_BACKBONES = ("fasterrcnn", "retinanet", "maskrcnn", "deeplabv3")
"""Networks that take another one as BACKBONE, after a colon."""


def is_factory(name: str) -> bool:
    """Whether a network of this name may be code of the user's, which building it imports and
    runs: it is none of ours, of timm or of torchvision, or no name that one of them could have."""
    *kinds, last = name.split(":")
    while kinds and kinds[0] in ON_BACKBONES:
        del kinds[0]
    whole = name.isprintable() and last != ""
    return not whole or (kinds != [] and kinds not in (["timm"], ["torchvision"]))
