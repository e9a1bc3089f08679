"""MMPretrain: a config of its own transforms, to be put into a `train_pipeline`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dada.exchange.exports.inline import heading
from dada.exchange.exports.physical_policy import (
    PhysicalOp,
    PhysicalPolicy,
    Ranges,
    shares_of_bits,
    spread,
)

POINTS = 10  # values that represent a range of Cutout, whose area MMPretrain draws, not its side
SCOPE = "mmpretrain."  # found from any registry, whatever the config's default_scope
SHARES_IN = 1 << 30  # MMCV wants probabilities whose float sum is exactly 1: multiples of 2 ** -30

HEADER = [
    "For MMPretrain 1.x (config); needs mmpretrain and mmcv 2.x, nothing else.",
    "",
    "    _base_ = ['this_file.py']",
    "    train_pipeline = [dict(type='LoadImageFromFile'), dict(type='RandomResizedCrop', ...),",
    "                      *_base_.dada_policy, dict(type='PackInputs')]",
    "",
    "BGR images of 3 channels, as MMPretrain loads them. Nearest neighbour, black outside.",
    "Shears turn about the centre of the corner pixel, Pillow's about the corner: half a pixel.",
    "Cutout: the square lies inside the image; it has the right area where images are not square.",
    f"A range of Cutout is {POINTS} equally likely values.",
]

Transform = dict[str, Any]


def write(policy: PhysicalPolicy) -> str:
    lines = [*heading(policy, HEADER), ""]
    if not policy.subpolicies:
        return "\n".join([*lines, "dada_policy = []"]) + "\n"
    shares = dyadic(policy.weights)
    lines += [
        "dada_policy = [",
        "    dict(",
        "        type='RandomChoice',",
        "        transforms=[",
    ]
    for steps in policy.subpolicies:
        written = ", ".join(_literal(_step(step)) for step in steps)
        lines.append(f"            [{written}],")
    probabilities = ", ".join(repr(share) for share in shares)
    return "\n".join([*lines, "        ],", f"        prob=[{probabilities}]),", "]"]) + "\n"


def dyadic(weights: tuple[float, ...]) -> list[float]:
    """The weights as multiples of 2^-30 that sum to exactly 1 however they are added up."""
    total = math.fsum(weights)
    counts = [int(weight / total * SHARES_IN) for weight in weights]
    largest = max(range(len(counts)), key=counts.__getitem__)
    counts[largest] += SHARES_IN - sum(counts)
    return [count / SHARES_IN for count in counts]


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "dict(" + ", ".join(f"{key}={_literal(item)}" for key, item in value.items()) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)


def _step(step: PhysicalOp) -> Transform:
    signed = _both_directions(step)
    if signed is not None:
        return signed
    forms: list[tuple[float, Transform]] = []
    for start, end in step.ranges:
        forms += [(share / len(step.ranges), form) for share, form in _forms(step.op, start, end)]
    if len(forms) == 1:
        form = forms[0][1]
        probability = "erase_prob" if form["type"].endswith("RandomErasing") else "prob"
        return {**form, probability: step.probability}
    shares = dyadic(tuple(share for share, _ in forms))
    choice = {"type": "RandomChoice", "transforms": [[form] for _, form in forms], "prob": shares}
    return {"type": "RandomApply", "transforms": [choice], "prob": step.probability}


# (type, argument, how a value of Pillow's becomes the argument, further arguments)
TransformSpec = tuple[str, str, Callable[[float], float], dict[str, Any]]
_MOVED = {"pad_val": 0, "interpolation": "nearest"}


def _minus(value: float) -> float:
    return 0.0 - value  # the content moves, not the view; without a -0.0


def _from_one(value: float) -> float:
    return value - 1


TWO_SIDED: dict[str, TransformSpec] = {
    "ShearX": ("Shear", "magnitude", _minus, {"direction": "horizontal", **_MOVED}),
    "ShearY": ("Shear", "magnitude", _minus, {"direction": "vertical", **_MOVED}),
    "TranslateX": ("Translate", "magnitude", _minus, {"direction": "horizontal", **_MOVED}),
    "TranslateY": ("Translate", "magnitude", _minus, {"direction": "vertical", **_MOVED}),
    "Rotate": ("Rotate", "angle", _minus, _MOVED),
    "Contrast": ("Contrast", "magnitude", _from_one, {}),
    "Color": ("ColorTransform", "magnitude", _from_one, {}),
    "Brightness": ("Brightness", "magnitude", _from_one, {}),
    "Sharpness": ("Sharpness", "magnitude", _from_one, {}),
}
WITHOUT_STRENGTH = ("AutoContrast", "Invert", "Equalize")


def _both_directions(step: PhysicalOp) -> Transform | None:
    """Two ranges that mirror each other are MMPretrain's own random sign."""
    if step.op not in TWO_SIDED or len(step.ranges) != 2:
        return None
    kind, argument, convert, further = TWO_SIDED[step.op]
    ends: Ranges = tuple((convert(start), convert(end)) for start, end in step.ranges)
    (first, second), (mirrored_first, mirrored_second) = ends
    if max(abs(first + mirrored_first), abs(second + mirrored_second)) > 1e-12:
        return None
    drawn = _drawn(argument, first, second)
    sign = {"random_negative_prob": 0.5, "prob": step.probability}
    return {"type": SCOPE + kind, **drawn, **further, **sign}


def _drawn(argument: str, start: float, end: float) -> dict[str, Any]:
    """A value, or one drawn uniformly between two: level 10 of 10 with deviation "inf"."""
    if start == end:
        return {argument: start}
    return {"magnitude_range": [start, end], "magnitude_level": 10, "magnitude_std": "inf"}


def _forms(op: str, start: float, end: float) -> list[tuple[float, Transform]]:
    """(share, transform) that together do one range; one of them is taken."""
    if op in TWO_SIDED:
        kind, argument, convert, further = TWO_SIDED[op]
        drawn = _drawn(argument, convert(start), convert(end))
        always = {"random_negative_prob": 0.0, "prob": 1.0}
        return [(1.0, {"type": SCOPE + kind, **drawn, **further, **always})]
    if op in WITHOUT_STRENGTH:
        return [(1.0, {"type": SCOPE + op, "prob": 1.0})]
    if op == "Solarize":
        return [(1.0, {"type": SCOPE + "Solarize", **_drawn("thr", start, end), "prob": 1.0})]
    if op == "Posterize":
        bits = shares_of_bits(start, end).items()
        return [(share, {"type": SCOPE + "Posterize", "bits": n, "prob": 1.0}) for n, share in bits]
    if op == "Cutout":
        sides = spread(start, end, POINTS)
        return [(1 / len(sides), _erase(side)) for side in sides]
    raise ValueError(
        f"op {op} cannot be exported to mmpretrain, which shifts by a part of the image, not by "
        "pixels; use a policy of space 'paper' or 'strength', as of dada search --space strength"
    )


def _erase(side: float) -> Transform:
    area = side * side
    square = {"min_area_ratio": area, "max_area_ratio": area, "aspect_range": [1.0, 1.0]}
    return {
        "type": SCOPE + "RandomErasing",
        **square,
        "fill_color": [114, 123, 125],
        "erase_prob": 1.0,
    }
