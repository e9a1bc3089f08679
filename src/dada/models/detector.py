"""A small detector: a map of where objects are, and from every place the four edges of its box.

Trained as Liu et al. (Training-Time-Friendly Network, AAAI 2020) do, which needs few steps: a heat
map with a bump at the middle of every object, and all places under a bump learn its box. Shapes do
not depend on how many objects there are, so a step can be recorded.

Letters: B images, M boxes of an image at most, C classes, h x w places, K boxes found.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.models.initial import initialise
from dada.models.unet import SMALL_SIDE, Trunk

BUMP = 0.54  # of a box's sides: the part under its bump, as in the paper
HEAT_AT_START = -3.0  # logit: nearly all places are empty
BOX_WEIGHT = 5.0
LARGEST_LOGIT = 4.0  # of an edge's distance, as a logarithm
FOUND, LEAST_SCORE, OVERLAP = 150, 0.01, 0.6


class Detector(nn.Module):
    """In evaluation a list of dict(boxes, labels, scores) as torchvision's, labels 1 .. C.

    `losses(images, boxes_BM5)` gives the loss of every image; rows of class -1 are no boxes.
    """

    padded = True

    def __init__(self, num_classes: int, channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.trunk = Trunk(channels, image_size, 2 if min(image_size) <= SMALL_SIDE else 4)
        self.unit = min(image_size) / 10  # of distances, in pixels: about what objects measure
        self.hidden = nn.Conv2d(self.trunk.width, 2 * self.trunk.width, 3, 1, 1)
        self.heat = nn.Conv2d(2 * self.trunk.width, num_classes, 1)
        self.edges = nn.Conv2d(2 * self.trunk.width, 4, 1)
        initialise(self)
        nn.init.normal_(self.heat.weight, std=0.01)
        nn.init.normal_(self.edges.weight, std=0.01)
        nn.init.constant_(self.heat.bias, HEAT_AT_START)  # type: ignore[arg-type]

    def forward(self, images_BCHW: Tensor) -> list[dict[str, Tensor]]:
        from torchvision.ops import batched_nms

        heat_BChw, boxes_B4hw = self._maps(images_BCHW)
        heat_BChw = heat_BChw.sigmoid()
        peak_BChw = F.max_pool2d(heat_BChw, 3, 1, 1) == heat_BChw
        flat_BP = (heat_BChw * peak_BChw).flatten(1)
        score_BK, place_BK = flat_BP.topk(min(FOUND, flat_BP.shape[1]))
        places = boxes_B4hw.shape[2] * boxes_B4hw.shape[3]
        at_BK4 = (place_BK % places).unsqueeze(1).expand(-1, 4, -1)
        boxes_BK4 = boxes_B4hw.flatten(2).gather(2, at_BK4).transpose(1, 2)
        height, width = images_BCHW.shape[-2:]
        most = torch.tensor([width, height] * 2, device=boxes_BK4.device)
        boxes_BK4 = torch.minimum(boxes_BK4.clamp(min=0), most)
        found = []
        for boxes, scores, labels in zip(boxes_BK4, score_BK, place_BK // places + 1, strict=True):
            some = scores >= LEAST_SCORE
            boxes, scores, labels = boxes[some], scores[some], labels[some]
            kept = batched_nms(boxes, scores, labels, OVERLAP)
            found.append({"boxes": boxes[kept], "scores": scores[kept], "labels": labels[kept]})
        return found

    def losses(self, images_BCHW: Tensor, boxes_BM5: Tensor) -> Tensor:
        heat_BChw, found_B4hw = self._maps(images_BCHW)
        there_BM, bump_BMhw = self._bumps(boxes_BM5, heat_BChw.shape[-2:])
        class_BM = boxes_BM5[..., 4].long().clamp(min=0)
        index_BMhw = class_BM.view(*class_BM.shape, 1, 1).expand_as(bump_BMhw)
        wanted_BChw = torch.zeros_like(heat_BChw).scatter_reduce(1, index_BMhw, bump_BMhw, "amax")
        objects_B = there_BM.sum(1).clamp(min=1)
        heat_B = _focal(heat_BChw, wanted_BChw).sum((1, 2, 3)) / objects_B
        # A place under several bumps belongs to the smallest box.
        sides_BM2 = boxes_BM5[..., 2:4] - boxes_BM5[..., :2]
        area_BM11 = sides_BM2.prod(-1).view(*there_BM.shape, 1, 1)
        area_BMhw = torch.where(bump_BMhw > 0, area_BM11, torch.inf)
        owner_B1hw = area_BMhw.argmin(1, keepdim=True)
        share_BMhw = bump_BMhw / bump_BMhw.sum((2, 3), keepdim=True).clamp(min=1e-6)
        weight_Bhw = share_BMhw.gather(1, owner_B1hw).squeeze(1)
        owner_B4P = owner_B1hw.flatten(2).expand(-1, 4, -1)
        box_B4hw = boxes_BM5[..., :4].transpose(1, 2).gather(2, owner_B4P).view_as(found_B4hw)
        box_B = (_distance(found_B4hw, box_B4hw) * weight_Bhw).sum((1, 2)) / objects_B
        return heat_B + BOX_WEIGHT * box_B

    def _maps(self, images_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of an object's middle at every place, and the box seen from there, in pixels."""
        features = F.relu(self.hidden(self.trunk(images_BCHW)))
        reach = self.edges(features).float().clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp() * self.unit
        h, w = reach.shape[-2:]
        x_w = (torch.arange(w, device=reach.device) + 0.5) * self.trunk.stride
        y_h1 = ((torch.arange(h, device=reach.device) + 0.5) * self.trunk.stride).unsqueeze(1)
        left, top, right, bottom = reach.unbind(1)
        boxes_B4hw = torch.stack([x_w - left, y_h1 - top, x_w + right, y_h1 + bottom], 1)
        return self.heat(features).float(), boxes_B4hw

    def _bumps(self, boxes_BM5: Tensor, size: torch.Size) -> tuple[Tensor, Tensor]:
        """Which rows are boxes, and for each a bump that is 1 at the place of its middle."""
        h, w = size
        stride = self.trunk.stride
        there_BM = boxes_BM5[..., 4] >= 0

        def along(axis: int, count: int) -> Tensor:
            start, end = boxes_BM5[..., axis], boxes_BM5[..., axis + 2]
            middle_BM = ((start + end) / 2 / stride).floor().clamp(0, count - 1)
            radius_BM = (end - start) * BUMP / 2 / stride
            away = torch.arange(count, device=boxes_BM5.device) - middle_BM.unsqueeze(-1)
            deviation = (2 * radius_BM.floor() + 1).unsqueeze(-1) / 6
            under = away.abs() <= radius_BM.unsqueeze(-1)
            return torch.exp(-away.square() / (2 * deviation.square())) * under

        bump_BMhw = along(1, h).unsqueeze(-1) * along(0, w).unsqueeze(-2)
        return there_BM, bump_BMhw * there_BM.view(*there_BM.shape, 1, 1)


def _focal(logits: Tensor, wanted: Tensor) -> Tensor:
    """Law and Deng's (CornerNet, 2018): places near a middle are forgiven for being hot."""
    heat = logits.sigmoid()
    middle = -F.logsigmoid(logits) * (1 - heat).square()
    elsewhere = -F.logsigmoid(-logits) * heat.square() * (1 - wanted).pow(4)
    return torch.where(wanted == 1, middle, elsewhere)


def _distance(found_B4hw: Tensor, true_B4hw: Tensor) -> Tensor:
    """1 - generalised overlap (Rezatofighi et al., CVPR 2019) of two boxes at every place."""
    ax0, ay0, ax1, ay1 = found_B4hw.unbind(1)
    bx0, by0, bx1, by1 = true_B4hw.unbind(1)
    inside_x = (torch.minimum(ax1, bx1) - torch.maximum(ax0, bx0)).clamp(min=0)
    inside_y = (torch.minimum(ay1, by1) - torch.maximum(ay0, by0)).clamp(min=0)
    inside = inside_x * inside_y
    both = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - inside
    around_x = torch.maximum(ax1, bx1) - torch.minimum(ax0, bx0)
    around_y = torch.maximum(ay1, by1) - torch.minimum(ay0, by0)
    around = (around_x * around_y).clamp(min=1e-6)
    return 1 - inside / both.clamp(min=1e-6) + (around - both) / around
