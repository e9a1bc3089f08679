"""The network and the image size for a user who names none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

from dada.models.weights import published

SMALL_SIDE = 64  # photographs are larger
MANY_IMAGES = 20_000  # enough to train a large network from scratch
LIGHT = ("timm:tf_efficientnet_lite0", "timm:mobilenetv3_large_100", "torchvision:resnet18")
LARGER = ("timm:resnet50", "torchvision:resnet50", "torchvision:efficientnet_b0", "timm:resnet18")
"""Pretrained networks to look for on this machine, the first first; a CPU takes light ones only."""

CPU_SIDE, SCRATCH_SIDE = 96, 128


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A network by name, and the shorter side its images should have at most."""

    name: str
    pretrained: bool = False
    side: int | None = None
    why: str | None = None  # for the user, where it is not the obvious choice
    damaged: tuple[str, ...] = ()  # weights that are on this machine, but cannot be used

    def image_size(self, size: tuple[int, int]) -> tuple[int, int]:
        return shrunk(size, self.side)


def shrunk(size: tuple[int, int], side: int | None) -> tuple[int, int]:
    """(H, W) with a shorter side of `side`, where it is longer; None: as it is."""
    if side is None or min(size) <= side:
        return size
    height, width = (round(each * side / min(size)) for each in size)
    return height, width


def default_model(device_type: str, image_size: tuple[int, int]) -> str:
    """The untrained network for images of that size."""
    if device_type == "cpu":
        return "small"
    return "wrn40_2" if max(image_size) <= SMALL_SIDE else "resnet50"


def has_weights(name: str) -> bool:
    """Whether trained weights of a network lie on this machine already; ValueError: damaged ones.

    They are read for that. Who asked for nothing pretrained should not meet an error later.
    """
    if name.startswith("timm:") and find_spec("timm") is None:
        return False
    weights = published(name)
    if weights.cached is None:
        return False
    weights.read(lambda line: None)
    return True


def default_network(
    device_type: str,
    image_size: tuple[int, int],
    images: int,
    *,
    at_hand: Callable[[str], bool] = has_weights,
) -> Choice:
    """For photographs a pretrained network, if its weights are there: nothing is downloaded.

    Else one that learns from some hundred images: ResNet-50 from scratch needs many more.
    """
    usual = default_model(device_type, image_size)
    if max(image_size) <= SMALL_SIDE:
        return Choice(name=usual)
    cpu = device_type == "cpu"
    damaged: list[str] = []
    for name in LIGHT if cpu else (*LIGHT, *LARGER):
        try:
            found = at_hand(name)
        except ValueError as error:
            damaged.append(str(error))
            continue
        if found:
            side = CPU_SIDE if cpu else None
            at = f" at {side} pixels" if side is not None and min(image_size) > side else ""
            why = f"{name}{at}, whose pretrained weights are on this machine"
            choice = Choice(name=name, pretrained=True, side=side, why=why)
            break
    else:
        choice = _from_scratch(usual, images, cpu=cpu)
    return replace(choice, damaged=tuple(damaged))


def _from_scratch(usual: str, images: int, *, cpu: bool) -> Choice:
    tip = (
        "a pretrained network usually does better: --model timm:tf_efficientnet_lite0 --pretrained"
    )
    if cpu:
        return Choice(name=usual, why=f"{usual} from scratch; {tip}")
    if images >= MANY_IMAGES:
        return Choice(name=usual, why=f"{usual} from scratch on {images:,} images")
    why = f"torchvision:resnet18 from scratch, up to {SCRATCH_SIDE} pixels, as {images:,} images"
    return Choice(
        name="torchvision:resnet18",
        side=SCRATCH_SIDE,
        why=f"{why} are few for a larger one; {tip}",
    )
