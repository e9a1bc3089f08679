"""Networks by name: the paper's own, and adapters to torchvision, timm and the user's code."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn

from dada.engine import seeded
from dada.models.choice import CPU_SIDE, Choice, default_model, default_network, shrunk
from dada.models.detector import Detector
from dada.models.external import (
    check_detections,
    check_logits,
    from_factory,
    from_timm,
    from_torchvision,
)
from dada.models.fitting import evaluating, fit_weights, head_of, set_training
from dada.models.noise import without_noise
from dada.models.pyramid import BoxNetwork, PixelNetwork
from dada.models.pyramidnet import PyramidNet
from dada.models.shakeshake import ShakeShakeNet
from dada.models.small import Small
from dada.models.unet import UNet
from dada.models.weights import Weights
from dada.models.wideresnet import WideResNet
from dada.names import MODELS, ON_BACKBONES, did_you_mean, is_factory
from dada.safe_text import one_line_errors, quoted

__all__ = [
    "BUILDERS",
    "CPU_SIDE",
    "ON_BACKBONES",
    "Choice",
    "Weights",
    "build",
    "check_detections",
    "check_logits",
    "default_model",
    "default_network",
    "evaluating",
    "fit_weights",
    "head_of",
    "is_factory",
    "set_training",
    "shrunk",
    "untrained",
    "without_noise",
]

Builder = Callable[[re.Match[str], int, int, tuple[int, int]], nn.Module]
"""(match of the name, num_classes, channels, image_size) -> network"""

BUILDERS: dict[str, Builder] = {
    r"small": lambda name, classes, channels, size: Small(classes, channels, size),
    r"wrn(\d+)_(\d+)": lambda name, classes, channels, size: WideResNet(
        int(name[1]), int(name[2]), classes, channels
    ),
    r"shakeshake26_2x(\d+)d": lambda name, classes, channels, size: ShakeShakeNet(
        int(name[1]), classes, channels
    ),
    r"pyramidnet(\d+)_shakedrop": lambda name, classes, channels, size: PyramidNet(
        int(name[1]), classes, channels
    ),
    r"unet": lambda name, classes, channels, size: UNet(classes, channels, size),
    r"detector": lambda name, classes, channels, size: Detector(classes, channels, size),
    r"(retinanet|fasterrcnn|maskrcnn)(:.+)?": lambda name, classes, channels, size: BoxNetwork(
        name[1], _backbone(name[2], channels, size), classes, channels, size
    ),
    r"deeplabv3(:.+)?": lambda name, classes, channels, size: PixelNetwork(
        _backbone(name[1], channels, size), classes, channels, size
    ),
    r"resnet50": lambda name, *rest: from_torchvision("resnet50", *rest),
    r"torchvision:(.+)": lambda name, *rest: from_torchvision(name[1], *rest),
    r"timm:(.+)": lambda name, *rest: from_timm(name[1], *rest),
    # Not where a package of ours is named and the rest of the name is wrong.
    rf"(?!(?:timm|torchvision|{'|'.join(ON_BACKBONES)}):)[^:]*:[^:]*": (
        lambda name, *rest: from_factory(name[0], *rest)
    ),
}
"""Pattern of a name -> what builds it; the first pattern that matches a whole name is used."""

FINDS_OBJECTS = re.compile(r"(detector|retinanet|fasterrcnn|maskrcnn)(:.+)?")
DEFAULT_BACKBONE = "resnet50"


def _backbone(name: str | None, channels: int, image_size: tuple[int, int]) -> nn.Module:
    """What follows the colon: a network for classification, whose last layer is not used."""
    return _unseeded((name or f":{DEFAULT_BACKBONE}")[1:], 2, channels, image_size)


@one_line_errors
def build(
    name: str,
    num_classes: int,
    channels: int = 3,
    image_size: tuple[int, int] = (32, 32),
    *,
    seed: int | None = None,
    weights: Weights | None = None,
) -> nn.Module:
    """A network that maps (B, channels, H, W) to (B, num_classes) logits.

    With `seed` the initial weights depend on nothing else, and the global random state is left
    alone; without it they come from the global random state, as torch does. With `weights` those
    take their place; a head for another number of classes stays as it began.
    """
    with nullcontext() if seed is None else seeded(seed, torch.device("cpu")):
        model = _unseeded(name, num_classes, channels, image_size)
    if weights is not None:
        fit_weights(model, weights, name)
    return model


def _unseeded(name: str, num_classes: int, channels: int, image_size: tuple[int, int]) -> nn.Module:
    least = 1 if FINDS_OBJECTS.fullmatch(name) else 2
    if num_classes < least or channels < 1 or min(image_size) < 1:
        raise ValueError(
            f"model {name!r}: cannot be built for {num_classes} classes, {channels} channels and "
            f"images of {image_size[0]}x{image_size[1]}"
        )
    for pattern, builder in BUILDERS.items():
        if (match := re.fullmatch(pattern, name)) is not None:
            return builder(match, num_classes, channels, image_size)
    raise ValueError(
        f"model {quoted(name)}: no such model; known are {', '.join(MODELS)}"
        f"{did_you_mean(name, MODELS)}"
    )


def untrained(
    model: str | nn.Module,
    num_classes: int,
    channels: int,
    image_size: tuple[int, int],
    weights: Weights | None = None,
) -> Callable[[int], nn.Module]:
    """seed -> a fresh network of that name, or a copy of that network with its weights.

    Fresh is untrained, or as the trained `weights` left it, with a new head.
    """
    if isinstance(model, nn.Module):
        return lambda seed: copy.deepcopy(model)
    return lambda seed: build(model, num_classes, channels, image_size, seed=seed, weights=weights)
