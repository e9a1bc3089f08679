"""Albumentations: the JSON that `A.load` and `A.from_dict` read, of its own transforms only.

Its transforms are near Pillow's, not the same; `NOTES` says how, and docs/export.md by how much.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from dada.exchange.exports.physical_policy import PhysicalOp, PhysicalPolicy, shares_of_bits, spread

VERSION = "2.0.8"  # whose transforms and argument names these are
POINTS = 10  # values that represent a range where two arguments have to be drawn together
JUST_BELOW = 1e-6  # of a threshold: whole grey levels compare as they do in Pillow

Transform = dict[str, Any]

READ = "A.from_dict(json.load(open(FILE))) or A.load(FILE). RGB, uint8."
NOTES = [
    "Nearest neighbour and black outside, as in Pillow; Affine truncates shifts to whole pixels.",
    "Shears turn about the same corner as Pillow's on square images; on others they are shifted.",
    f"A range of a shear, of Cutout or of a Sharpness below 1 is {POINTS} equally likely values.",
    "Cutout: the square lies inside the image; on images that are not square it is a rectangle.",
    "Sharpness below 1 is a 3x3 Gaussian blur with Pillow's weight on the pixel in the middle.",
]

# Where a trainer puts them together, and says nothing of how much of a box has to be visible.
TARGETS_LOST = [
    "A box stays while any of it is visible; this package drops it below a quarter.",
    "Cutout cuts off a side of a box that it covers, and drops one that it covers whole.",
]


def write(policy: PhysicalPolicy) -> str:
    content = {
        "__version__": VERSION,
        "about": [policy.title, f"For Albumentations {VERSION}: {READ}", *NOTES],
        "transform": _node("Compose", 1.0, transforms=[chosen(policy)]),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def chosen(policy: PhysicalPolicy) -> Transform:
    """The whole policy as one transform: one of its sub-policies, by their weights."""
    subpolicies = [
        _node("Sequential", weight, transforms=[_step(step) for step in steps] or [_nothing()])
        for weight, steps in zip(policy.weights, policy.subpolicies, strict=True)
    ]
    return _node("OneOf", 1.0, transforms=subpolicies) if subpolicies else _nothing()


def _step(step: PhysicalOp) -> Transform:
    """One transform with the step's probability, or one of several, equally likely."""
    if step.does_nothing:
        return _nothing()
    forms: list[Transform] = []
    for start, end in step.ranges:
        for share, form in FORMS[step.op](start, end):
            forms.append({**form, "p": share / len(step.ranges)})
    if len(forms) == 1:
        return {**forms[0], "p": step.probability}
    return _node("OneOf", step.probability, transforms=forms)


def _node(name: str, p: float, **arguments: Any) -> Transform:
    return {"__class_fullname__": name, **arguments, "p": p}


def _nothing() -> Transform:
    return _node("NoOp", 1.0)


Forms = list[tuple[float, Transform]]  # (share, transform): one of them is taken


def _affine(**arguments: Any) -> Transform:
    pixels = {"interpolation": 0, "border_mode": 0, "fill": 0}
    return _node("Affine", 1.0, **arguments, **pixels)


def _equally_likely(form: Callable[[float], Transform]) -> Callable[[float, float], Forms]:
    """A range as some values of it."""

    def forms(start: float, end: float) -> Forms:
        values = spread(start, end, POINTS)
        return [(1 / len(values), form(value)) for value in values]

    return forms


def _shear(axis: str) -> Callable[[float, float], Forms]:
    other = "y" if axis == "x" else "x"

    def form(value: float) -> Transform:
        degrees = math.degrees(math.atan(value))
        # About the centre, then back to where Pillow has it: the corner stays.
        return _affine(
            shear={axis: [degrees, degrees], other: [0.0, 0.0]},
            translate_percent={axis: [-value / 2, -value / 2], other: [0.0, 0.0]},
        )

    return _equally_likely(form)


def _translate(axis: str, argument: str) -> Callable[[float, float], Forms]:
    other = "y" if axis == "x" else "x"

    def forms(start: float, end: float) -> Forms:
        low, high = sorted((-start, -end))  # Pillow's shift is of the view, not of the content
        if argument == "translate_px":
            low, high = (-math.floor(-end + 0.5) for end in (low, high))
        return [(1.0, _affine(**{argument: {axis: [low, high], other: [0, 0]}}))]

    return forms


def _rotate(start: float, end: float) -> Forms:
    return [(1.0, _affine(rotate=sorted((start, end))))]


def _plain(name: str, **arguments: Any) -> Callable[[float, float], Forms]:
    return lambda start, end: [(1.0, _node(name, 1.0, **arguments))]


def _solarize(start: float, end: float) -> Forms:
    low, high = sorted((start, end))
    if low == high > 255:  # no grey level reaches it
        return [(1.0, _nothing())]
    thresholds = [min(1.0, max(0.0, (value - JUST_BELOW) / 255)) for value in (low, high)]
    return [(1.0, _node("Solarize", 1.0, threshold_range=thresholds))]


def _posterize(start: float, end: float) -> Forms:
    return [
        (share, _nothing() if bits >= 8 else _node("Posterize", 1.0, num_bits=[bits, bits]))
        for bits, share in shares_of_bits(start, end).items()
    ]


def _jitter(argument: str) -> Callable[[float, float], Forms]:
    still: dict[str, Any] = {name: [1.0, 1.0] for name in ("brightness", "contrast", "saturation")}

    def forms(start: float, end: float) -> Forms:
        arguments = {**still, argument: sorted((start, end)), "hue": [0.0, 0.0]}
        return [(1.0, _node("ColorJitter", 1.0, **arguments))]

    return forms


def sharpen_alpha(factor: float) -> float:
    """Pillow's kernel for a factor above 1 is A.Sharpen's with this alpha and lightness 1."""
    return (factor - 1) / 13


def blur_sigma(factor: float) -> float:
    """The Gaussian whose 3x3 kernel has Pillow's weight 1 - 8 (1 - factor) / 13 in the middle."""
    side = ((1 - 8 * (1 - factor) / 13) ** -0.5 - 1) / 2
    return math.sqrt(-0.5 / math.log(side))


def _sharpness(start: float, end: float) -> Forms:
    low, high = sorted((start, end))
    if low == high and abs(low - 1) < 1e-9:
        return [(1.0, _nothing())]
    forms: Forms = []
    total = high - low or 1.0
    if high > 1:
        alphas = [sharpen_alpha(max(low, 1.0)), sharpen_alpha(high)]
        sharper = _node("Sharpen", 1.0, alpha=alphas, lightness=[1.0, 1.0], method="kernel")
        forms.append(((high - max(low, 1.0)) / total if low < high else 1.0, sharper))
    if low < 1:
        factors = spread(low, min(high, 1.0), POINTS)
        share = ((min(high, 1.0) - low) / total if low < high else 1.0) / len(factors)
        for factor in factors:
            sigma = blur_sigma(factor)
            blur = _node("GaussianBlur", 1.0, blur_limit=[3, 3], sigma_limit=[sigma, sigma])
            forms.append((share, blur))
    return forms


def _cutout(side: float) -> Transform:
    hole: list[float] = [side, side] if side > 0 else [1, 1]  # Pillow draws one pixel at 0
    arguments = {"hole_height_range": hole, "hole_width_range": hole, "num_holes_range": [1, 1]}
    return _node("CoarseDropout", 1.0, **arguments, fill=[125, 123, 114])


FORMS: dict[str, Callable[[float, float], Forms]] = {
    "ShearX": _shear("x"),
    "ShearY": _shear("y"),
    "TranslateX": _translate("x", "translate_percent"),
    "TranslateY": _translate("y", "translate_percent"),
    "TranslateXPixels": _translate("x", "translate_px"),
    "TranslateYPixels": _translate("y", "translate_px"),
    "Rotate": _rotate,
    "AutoContrast": _plain("AutoContrast", cutoff=0, ignore=None, method="pil"),
    "Invert": _plain("InvertImg"),
    "Equalize": _plain("Equalize", mode="pil", by_channels=True),
    "Solarize": _solarize,
    "Posterize": _posterize,
    "Contrast": _jitter("contrast"),
    "Color": _jitter("saturation"),
    "Brightness": _jitter("brightness"),
    "Sharpness": _sharpness,
    "Cutout": _equally_likely(_cutout),
}
