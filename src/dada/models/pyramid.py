"""torchvision's detectors and a segmentation network on any network of ours as backbone.

Letters: B images, C classes, H height, W width.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.models.fitting import evaluating

MOST_LEVELS = 4
MOST_WIDTH = 256  # of the pyramid's features: no more than the backbone has
FOUND = 300  # objects of an image at most
SIDES = (4, 8)  # of anchors, in strides of their level
RATIOS = (0.5, 1.0, 2.0)


class Features(nn.Module):
    """What a network for classification computes on the way: the last map of each size.

    Which layers these are is seen in one pass, so it works with any network whose features are
    maps. The weights keep their names under `net`, so those of a classifier fit.
    """

    def __init__(self, net: nn.Module, channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.net = net
        seen: list[Seen] = []

        def see(name: str) -> Any:
            def hook(layer: nn.Module, given: Any, made: Any) -> None:
                if isinstance(made, Tensor) and made.dim() == 4 and min(made.shape[2:]) > 1:
                    seen.append((name, tuple(made.shape[1:])))

            return hook

        hooks = [
            layer.register_forward_hook(see(name)) for name, layer in net.named_modules() if name
        ]
        with evaluating(net):
            net(torch.zeros(1, channels, *image_size))
        for hook in hooks:
            hook.remove()
        levels = _last_of_each_height(net, seen)[-MOST_LEVELS:]
        if not levels:
            raise ValueError(
                f"model {type(net).__name__!r} has no maps of features, so it cannot be a backbone"
            )
        self.places = [name for name, _ in levels]
        self.widths = [shape[0] for _, shape in levels]
        self.strides = [max(1, round(image_size[0] / shape[1])) for _, shape in levels]

    def forward(self, images_BCHW: Tensor) -> list[Tensor]:
        # Hooks of this pass only: ones that stay would not survive a copy of the network.
        made: dict[str, Tensor] = {}
        hooks = [
            self.net.get_submodule(place).register_forward_hook(
                lambda layer, given, output, place=place: made.update({place: output})
            )
            for place in self.places
        ]
        try:
            self.net(images_BCHW)
        finally:
            for hook in hooks:
                hook.remove()
        return [made[place] for place in self.places]


Seen = tuple[str, tuple[int, ...]]  # a layer's name, and C H W of the map that it gave


def _last_of_each_height(net: nn.Module, seen: list[Seen]) -> list[Seen]:
    """The highest first. A layer that is called twice has no one output.

    Where there are others, none from inside a block that goes on to make maps smaller: ResNet-50's
    begin with layers that do not, and narrow ones. A row of layers is no block.
    """
    calls, height_of = Counter(name for name, _ in seen), {name: s[1] for name, s in seen}

    def is_inside(name: str, height: int) -> bool:
        parts = name.split(".")
        around = (".".join(parts[:i]) for i in range(1, len(parts)))
        return any(
            height_of.get(each, height) != height
            and type(net.get_submodule(each)) is not nn.Sequential
            for each in around
        )

    once = [(name, shape) for name, shape in seen if calls[name] == 1]
    whole = [(name, shape) for name, shape in once if not is_inside(name, shape[1])]
    last = {shape[1]: (name, shape) for name, shape in (*once, *whole)}
    return sorted(last.values(), key=lambda level: -level[1][1])


class Pyramid(nn.Module):
    """Features of several sizes, as torchvision's detectors want a backbone to give them."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

        self.features = features
        self.out_channels = min(MOST_WIDTH, max(features.widths))
        self.fpn = FeaturePyramidNetwork(features.widths, self.out_channels, LastLevelMaxPool())
        self.names = [str(i) for i in range(len(features.widths))]
        self.passes: tuple[str, torch.dtype] | None = None  # precision of the backbone

    def forward(self, images_BCHW: Tensor) -> dict[str, Tensor]:
        if self.passes is None:
            maps = self.features(images_BCHW)
        else:
            with torch.autocast(self.passes[0], self.passes[1], cache_enabled=False):
                maps = self.features(images_BCHW)
        named = OrderedDict((n, m.float()) for n, m in zip(self.names, maps, strict=True))
        found: dict[str, Tensor] = self.fpn(named)
        return found

    @property
    def strides(self) -> list[int]:
        """Of all levels, with the one that the pyramid adds on top."""
        return [*self.features.strides, 2 * self.features.strides[-1]]


class BoxNetwork(nn.Module):
    """RetinaNet, Faster R-CNN or Mask R-CNN, for images that are normalised and sized already."""

    def __init__(
        self, kind: str, net: nn.Module, num_classes: int, channels: int, size: tuple[int, int]
    ) -> None:
        super().__init__()
        from torchvision.models import detection
        from torchvision.models.detection.anchor_utils import AnchorGenerator
        from torchvision.ops import MultiScaleRoIAlign

        pyramid = Pyramid(Features(net, channels, size))
        sides = tuple(tuple(s * stride for s in SIDES) for stride in pyramid.strides)
        anchors = AnchorGenerator(sides, (RATIOS,) * len(sides))
        as_it_is: dict[str, Any] = {
            "min_size": min(size),
            "max_size": max(size),
            "image_mean": [0.0] * channels,
            "image_std": [1.0] * channels,
            "_skip_resize": True,
        }
        classes = num_classes + 1  # the first is none
        if kind == "retinanet":
            self.network = detection.RetinaNet(
                pyramid, classes, anchor_generator=anchors, detections_per_img=FOUND, **as_it_is
            )
            return
        pool = MultiScaleRoIAlign(pyramid.names, output_size=7, sampling_ratio=2)
        shared = {
            "rpn_anchor_generator": anchors,
            "box_roi_pool": pool,
            "box_detections_per_img": FOUND,
            **as_it_is,
        }
        if kind == "fasterrcnn":
            self.network = detection.FasterRCNN(pyramid, classes, **shared)
        else:
            masks = MultiScaleRoIAlign(pyramid.names, output_size=14, sampling_ratio=2)
            self.network = detection.MaskRCNN(pyramid, classes, mask_roi_pool=masks, **shared)

    @property
    def backbone_net(self) -> nn.Module:
        """What trained weights of a classifier are for."""
        net: nn.Module = self.network.backbone.features.net
        return net

    def forward(self, images: Any, targets: Any = None) -> Any:
        # Boxes in bfloat16 are off by pixels: only the backbone computes in it.
        device = images[0].device.type
        low = torch.is_autocast_enabled(device)
        kind = (device, torch.get_autocast_dtype(device)) if low else None
        self.network.backbone.passes = kind
        with torch.autocast(device, enabled=False):
            return self.network(list(images), targets)


class PixelNetwork(nn.Module):
    """DeepLabV3's head (Chen et al. 2017) on the deepest features of at least 1/16 of the size."""

    def __init__(
        self, net: nn.Module, num_classes: int, channels: int, size: tuple[int, int]
    ) -> None:
        super().__init__()
        from torchvision.models.segmentation.deeplabv3 import DeepLabHead

        self.features = Features(net, channels, size)
        fine = [i for i, stride in enumerate(self.features.strides) if stride <= 16]
        self.level = fine[-1] if fine else 0
        self.head = DeepLabHead(self.features.widths[self.level], num_classes)

    @property
    def backbone_net(self) -> nn.Module:
        return self.features.net

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits = self.head(self.features(images_BCHW)[self.level])
        return F.interpolate(logits, images_BCHW.shape[-2:], mode="bilinear")
