"""Ultralytics: a Python file with the list of Albumentations' transforms that its trainer takes.

Ultralytics is under AGPL and no dependency of this package; the file needs Albumentations only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pprint import pformat

from dada.exchange.exports import albumentations
from dada.exchange.exports.inline import heading
from dada.exchange.exports.physical_policy import PhysicalOp, PhysicalPolicy

HEADER = [
    "For Ultralytics, tried with 8.3.240 and 8.4.190, through Albumentations 2.0.8.",
    "",
    "    from this_file import augmentations",
    "    YOLO('yolo11n.yaml').train(data='cells.yaml', augmentations=augmentations)",
    "",
    "Its own mosaic, scale, flips and colours (hsv_h, hsv_s, hsv_v) come on top: set to 0 those",
    "that the policy is to take the place of. Pass `augmentations` again when a run is resumed:",
    "8.4.190 keeps them, 8.3.240 warns that it may not.",
    "Images are BGR there: Color, Contrast and Cutout's grey take red for blue.",
    *albumentations.TARGETS_LOST,
    "An image all of whose boxes would leave it is not augmented.",
    *albumentations.NOTES,
]
# 8.3 looks only at the outermost transforms to see whether boxes have to move, and a choice between
# sub-policies is none of those that it knows.
MOVES_BOXES = "A.Affine(p=0.0)"


def write(policy: PhysicalPolicy) -> str:
    chosen = albumentations.chosen(decided_at_once(policy))
    node = {"__version__": albumentations.VERSION, "transform": chosen}
    lines = [
        *heading(policy, HEADER),
        "",
        "import albumentations as A",
        "",
        f"POLICY = {pformat(node, width=100, compact=True, sort_dicts=False)}",
        "# The last one does nothing; Ultralytics 8.3 moves boxes only where it sees such a one.",
        f"augmentations = [A.from_dict(POLICY), {MOVES_BOXES}]",
    ]
    return "\n".join(lines) + "\n"


def decided_at_once(policy: PhysicalPolicy) -> PhysicalPolicy:
    """The same policy with certain steps only: which of them fire is part of the choice.

    Ultralytics gives all transforms one seed, so that each draws the same numbers in turn. If each
    decided by itself whether it fires, all would do so at their first image, or none.
    """
    shares: dict[tuple[PhysicalOp, ...], float] = {}
    for weight, steps in zip(policy.weights, policy.subpolicies, strict=True):
        for fires in product((True, False), repeat=len(steps)):
            pairs = list(zip(steps, fires, strict=True))
            share = weight * math.prod(s.probability if f else 1 - s.probability for s, f in pairs)
            done = tuple(replace(step, probability=1.0) for step, fired in pairs if fired)
            if share > 0:
                shares[done] = shares.get(done, 0.0) + share
    return replace(policy, weights=tuple(shares.values()), subpolicies=tuple(shares))
