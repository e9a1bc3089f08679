"""Albumentations' serialized JSON (`A.save`, `A.to_dict`): known transforms in Compose, Sequential
and OneOf, at least everything the export writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import pairwise, product
from typing import Any

from dada.exchange.exports.albumentations import JUST_BELOW, POINTS
from dada.exchange.exports.physical_policy import PhysicalOp
from dada.exchange.imports.physical import MOST_SUBPOLICIES, Draft, WeightedOps, read_json
from dada.policy import Policy
from dada.safe_text import printable, quoted

Form = tuple[str, float, float]
"""An operation, and the ends of its range."""
Node = dict[str, Any]


def read(file: str, drop: Collection[str] = ()) -> Policy:
    content = read_json(file, "a name: Albumentations has none, give its JSON")
    if not isinstance(content, dict) or not isinstance(content.get("transform"), dict):
        raise ValueError(f'{file}: not Albumentations JSON, "transform" is missing; see A.save')
    try:
        subpolicies = _subpolicies(content["transform"], drop, forced=False)
    except (KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"{file}: not understood: {quoted(error)}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if subpolicies == [(1.0, ())]:
        return Policy((), provenance={"name": file, "imported_from": "albumentations"})
    notes = [f"left out, as asked: {', '.join(drop)}"] if drop else []
    draft = Draft(source="albumentations", name=file, subpolicies=subpolicies, approximations=notes)
    return draft.policy()


def _name(node: Node) -> str:
    return str(node["__class_fullname__"]).rsplit(".", 1)[-1]


def _subpolicies(node: Node, drop: Collection[str], *, forced: bool) -> list[WeightedOps]:
    """What a node may do. A forced one is applied whatever its own probability."""
    name, p = _name(node), 1.0 if forced else float(node.get("p", 1.0))
    if not 0 <= p <= 1:
        raise ValueError(f"{printable(name)} should have p in 0..1, got {p:g}")
    if name in ("Compose", "Sequential"):
        parts = [_subpolicies(child, drop, forced=False) for child in node["transforms"]]
        if math.prod(map(len, parts)) > MOST_SUBPOLICIES:
            raise ValueError(f"{name} gives more than {MOST_SUBPOLICIES} sub-policies")
        inside: list[WeightedOps] = [
            (math.prod(w for w, _ in chosen), tuple(op for _, ops in chosen for op in ops))
            for chosen in product(*parts)
        ]
        return _sometimes(inside, p)
    if name == "OneOf":
        step = _merged(node, p)
        if step is not None:
            return [(1.0, (step,))]
        total = math.fsum(float(child["p"]) for child in node["transforms"])
        return _sometimes(
            [
                (float(child["p"]) / total * weight, ops)
                for child in node["transforms"]
                for weight, ops in _subpolicies(child, drop, forced=True)
            ],
            p,
        )
    if name in drop or (form := _forms(node)) is None:
        return [(1.0, ())]
    op, start, end = form
    return [(1.0, (PhysicalOp(op=op, probability=p, ranges=((start, end),)),))]


def _sometimes(subpolicies: list[WeightedOps], p: float) -> list[WeightedOps]:
    if p >= 1:
        return subpolicies
    return [*((weight * p, ops) for weight, ops in subpolicies), (1 - p, ())]


def _merged(node: Node, p: float) -> PhysicalOp | None:
    """Alternatives that are one operation, in several directions or at several values, as that one;
    None where they are more than one."""
    forms = []
    for child in node["transforms"]:
        if _name(child) in ("Compose", "Sequential", "OneOf"):
            return None
        if (form := _forms(child)) is None:
            return None
        forms.append((float(child["p"]), *form))
    if len({op for _, op, _, _ in forms}) != 1:
        return None
    op = forms[0][1]
    total = math.fsum(share for share, *_ in forms)
    pieces = [(share / total, start, end) for share, _, start, end in forms]
    ranges = (_range_of_bits if op == "Posterize" else _joined)(pieces)
    return None if ranges is None else PhysicalOp(op=op, probability=p, ranges=tuple(ranges))


def _range_of_bits(pieces: list[tuple[float, float, float]]) -> list[tuple[float, float]] | None:
    """The range whose int(value) has these shares; the largest share is of a whole bit."""
    pieces = sorted(pieces, key=lambda piece: piece[1])
    bits = [round(start) for _, start, _ in pieces]
    if bits != list(range(bits[0], bits[0] + len(bits))):
        return None
    length = 1 / max(share for share, _, _ in pieces)
    if any(abs(share * length - 1) > 1e-6 for share, _, _ in pieces[1:-1]):
        return None
    return [(bits[0] + 1 - pieces[0][0] * length, bits[-1] + pieces[-1][0] * length)]


def _joined(pieces: list[tuple[float, float, float]]) -> list[tuple[float, float]] | None:
    """The alternatives as equally likely ranges; None where they are not equally likely.

    POINTS values in equal steps become one range, and so do two ranges that touch.
    """
    single = [piece for piece in pieces if piece[1] == piece[2]]
    joined = [piece for piece in pieces if piece[1] != piece[2]]
    while single:
        run = single[:POINTS]
        steps = [b[1] - a[1] for a, b in pairwise(run)]
        even = len(run) == POINTS and max(steps) - min(steps) < 1e-6
        if not even:
            joined.append(single.pop(0))
            continue
        half = sum(steps) / len(steps) / 2
        share = math.fsum(weight for weight, _, _ in run)
        joined.append((share, run[0][1] - half, run[-1][1] + half))
        single = single[POINTS:]
    joined.sort(key=lambda piece: min(piece[1:]))
    # Two neighbours, as likely as they are long, are one range: Sharpness below 1 and above it.
    if len(joined) == 2 and abs(joined[0][2] - joined[1][1]) < 1e-6:
        (w0, a, b), (w1, c, d) = joined
        if abs(w0 * (d - c) - w1 * (b - a)) < 1e-6:
            return [(a, d)]
    if any(abs(weight * len(joined) - 1) > 1e-6 for weight, _, _ in joined):
        return None
    return [(start, end) for _, start, end in joined]


def _forms(node: Node) -> Form | None:
    """A transform as an operation in Pillow's unit; None when it does nothing."""
    name = _name(node)
    if name not in READINGS:
        raise ValueError(
            f"transform {printable(name)} cannot be imported; known are {', '.join(READINGS)}"
        )
    return READINGS[name](node)


def _pair(value: Any) -> tuple[float, float]:
    if isinstance(value, int | float):
        return float(value), float(value)
    low, high = value
    return float(low), float(high)


def _axes(value: Any) -> dict[str, tuple[float, float]]:
    if isinstance(value, dict):
        return {axis: _pair(value.get(axis, 0.0)) for axis in ("x", "y")}
    return {"x": _pair(value), "y": _pair(value)} if value is not None else {}


def _moves(ends: tuple[float, float]) -> bool:
    return ends != (0.0, 0.0)


def _affine(node: Node) -> Form | None:
    if any(_pair(s) != (1.0, 1.0) for s in _scales(node.get("scale", 1.0))):
        raise ValueError("Affine with a scale cannot be imported")
    if node.get("interpolation", 1) != 0 or node.get("border_mode", 0) != 0 or node.get("fill", 0):
        raise ValueError("Affine should have interpolation 0, border_mode 0 and fill 0")
    rotate = _pair(node.get("rotate", 0.0))
    shear = {a: e for a, e in _axes(node.get("shear", 0.0)).items() if _moves(e)}
    percent = {a: e for a, e in _axes(node.get("translate_percent")).items() if _moves(e)}
    pixels = {a: e for a, e in _axes(node.get("translate_px")).items() if _moves(e)}
    kinds = [bool(part) for part in (_moves(rotate), shear, percent or pixels)]
    if shear and len(shear) == 1 and not _moves(rotate) and not pixels:
        ((axis, (low, high)),) = shear.items()
        value = math.tan(math.radians(low))
        shift = percent.get(axis, (0.0, 0.0))
        if low != high or abs(shift[0] + value / 2) > 1e-6 or len(percent) > 1:
            raise ValueError("Affine shears about the centre: only a value at a time, shifted back")
        return f"Shear{axis.upper()}", value, value
    if sum(kinds) > 1 or len(percent) > 1 or len(pixels) > 1:
        raise ValueError("Affine with several changes at once cannot be imported")
    for moved, suffix in ((percent, ""), (pixels, "Pixels")):
        for axis, (low, high) in moved.items():
            return f"Translate{axis.upper()}{suffix}", -high, -low
    return ("Rotate", *rotate) if _moves(rotate) else None


def _scales(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else [value]


def _jitter(node: Node) -> Form | None:
    names = {"brightness": "Brightness", "contrast": "Contrast", "saturation": "Color"}
    changed = [name for name in names if _pair(node.get(name, 1.0)) != (1.0, 1.0)]
    if _pair(node.get("hue", 0.0)) != (0.0, 0.0) or len(changed) > 1:
        raise ValueError("ColorJitter of the hue, or of several values at once, cannot be imported")
    return (names[changed[0]], *_pair(node[changed[0]])) if changed else None


def _solarize(node: Node) -> Form:
    low, high = _pair(node["threshold_range"])
    return "Solarize", low * 255 + JUST_BELOW, high * 255 + JUST_BELOW


def _posterize(node: Node) -> Form:
    low, high = _pair(node["num_bits"])
    return "Posterize", low, low if low == high else high + 1 - 1e-9


def _sharpen(node: Node) -> Form:
    if _pair(node.get("lightness", 1.0)) != (1.0, 1.0) or node.get("method") != "kernel":
        raise ValueError("Sharpen should have lightness 1 and method 'kernel'")
    low, high = _pair(node["alpha"])
    return "Sharpness", 1 + 13 * low, 1 + 13 * high


def _blur(node: Node) -> Form:
    low, high = _pair(node["sigma_limit"])
    if _pair(node["blur_limit"]) != (3.0, 3.0) or low != high:
        raise ValueError("GaussianBlur should have blur_limit 3 and one sigma")
    side = math.exp(-0.5 / low**2)
    factor = 1 - 13 / 8 * (1 - (1 + 2 * side) ** -2)
    return "Sharpness", factor, factor


def _dropout(node: Node) -> Form:
    height, width = _pair(node["hole_height_range"]), _pair(node["hole_width_range"])
    one = _pair(node.get("num_holes_range", 1)) == (1.0, 1.0)
    if height != width or height[0] != height[1] or not one or node.get("fill") != [125, 123, 114]:
        raise ValueError("CoarseDropout should cover one square of one size with [125, 123, 114]")
    side = 0.0 if height == (1.0, 1.0) else height[0]
    return "Cutout", side, side


def _plain(op: str) -> Callable[[Node], Form]:
    return lambda node: (op, 0.0, 0.0)


READINGS: dict[str, Callable[[Node], Form | None]] = {
    "Affine": _affine,
    "Rotate": lambda node: _affine({**node, "rotate": node["limit"]}),
    "AutoContrast": _plain("AutoContrast"),
    "InvertImg": _plain("Invert"),
    "Equalize": _plain("Equalize"),
    "Solarize": _solarize,
    "Posterize": _posterize,
    "ColorJitter": _jitter,
    "Sharpen": _sharpen,
    "GaussianBlur": _blur,
    "CoarseDropout": _dropout,
    "NoOp": lambda node: None,
}
