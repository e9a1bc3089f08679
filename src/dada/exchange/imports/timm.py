"""timm: its configuration strings (`original`, `rand-m9-n2-mstd0.5`, ...), or a list as JSON."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection
from itertools import product

from dada.exchange.exports.physical_policy import PhysicalOp
from dada.exchange.imports.physical import (
    MOST_SUBPOLICIES,
    Draft,
    OpEntry,
    WeightedOps,
    either_sign,
    entries_of,
    one_value,
    read_json,
    without,
)
from dada.policy import Policy
from dada.safe_text import printable, quoted

FORMS = "original, originalr, v0, v0r, 3a, rand-m9-n2, ..."
PIXELS = "timm fills with grey and interpolates; here black and nearest, as in the paper"
MOST_LAYERS = 20
LEVELS = 10.0  # timm's magnitudes run from 0 to 10
UNIFORM_FROM = 100.0  # timm's mstd above which a magnitude is drawn from 0..m

# RandAugment's list; without `inc1` the names lack "Increasing".
_RAND = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing"),
    *("SolarizeAdd", "ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing"),
    *("SharpnessIncreasing", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
)


def _signed(op: str, most: float) -> Callable[[float, float], PhysicalOp]:
    return lambda level, p: either_sign(op, p, level / LEVELS * most)


def _enhanced(op: str) -> Callable[[float, float], PhysicalOp]:
    return lambda level, p: one_value(op, p, level / LEVELS * 1.8 + 0.1)


def _further(op: str) -> Callable[[float, float], PhysicalOp]:
    return lambda level, p: either_sign(op, p, level / LEVELS * 0.9, middle=1.0)


def _plain(op: str) -> Callable[[float, float], PhysicalOp]:
    return lambda level, p: one_value(op, p)


# timm's name -> (level in 0..10, probability) -> the operation in physical units.
READINGS: dict[str, Callable[[float, float], PhysicalOp]] = {
    **{op: _plain(op) for op in ("AutoContrast", "Equalize", "Invert")},
    "ShearX": _signed("ShearX", 0.3),
    "ShearY": _signed("ShearY", 0.3),
    "TranslateXRel": _signed("TranslateX", 0.45),
    "TranslateYRel": _signed("TranslateY", 0.45),
    "TranslateX": _signed("TranslateXPixels", 250.0),
    "TranslateY": _signed("TranslateYPixels", 250.0),
    "Rotate": _signed("Rotate", 30.0),
    "Posterize": lambda level, p: one_value("Posterize", p, int(level / LEVELS * 4)),
    "PosterizeIncreasing": lambda level, p: one_value("Posterize", p, 4 - int(level / LEVELS * 4)),
    "PosterizeOriginal": lambda level, p: one_value("Posterize", p, int(level / LEVELS * 4) + 4),
    "Solarize": lambda level, p: one_value("Solarize", p, min(256, int(level / LEVELS * 256))),
    "SolarizeIncreasing": lambda level, p: one_value(
        "Solarize", p, 256 - min(256, int(level / LEVELS * 256))
    ),
    **{op: _enhanced(op) for op in ("Color", "Contrast", "Brightness", "Sharpness")},
    **{f"{op}Increasing": _further(op) for op in ("Color", "Contrast", "Brightness", "Sharpness")},
}
CONTINUOUS = {name for name in READINGS if not name.startswith(("Posterize", "Solarize"))}


def read(file: str, drop: Collection[str] = ()) -> Policy:
    """FILE is one of timm's strings, or JSON: [[[op, probability, magnitude], ...], ...]."""
    if os.path.isfile(file):
        entries, deviation, notes = entries_of(read_json(file, FORMS), file), 0.0, []
    else:
        kind, *options = file.split("-")
        file = printable(file)  # a name from here on
        settings = _settings(options, file)
        deviation = settings.get("mstd", 0.0)
        if kind == "rand":
            return _rand(file, settings, drop)
        entries = _named(kind, file)
        notes = [PIXELS]
    entries, left_out = without(entries, drop, file)
    spread = _spread(deviation, file, notes)
    subpolicies = [(1.0, tuple(spread(*entry) for entry in ops)) for ops in entries]
    return _policy(file, subpolicies, [*notes, *left_out])


def _policy(file: str, subpolicies: list[WeightedOps], notes: list[str]) -> Policy:
    name = f"timm {file}"
    draft = Draft(source="timm", name=name, subpolicies=subpolicies, approximations=notes)
    return draft.policy()


def _settings(options: list[str], file: str) -> dict[str, float]:
    """m9, n2, mstd0.5, inc1, p0.5 -> numbers by name."""
    settings = {}
    for option in options:
        match = re.fullmatch(r"(m|n|mstd|mmax|inc|p|w|t)([0-9.]+)", option)
        try:
            name, number = match.groups() if match else ("", "")
            settings[name] = float(number)
        except ValueError:
            raise ValueError(
                f"{file}: {quoted(option)} is not understood; known are {FORMS}"
            ) from None
        if name in ("mmax", "w", "t"):
            raise ValueError(f"{file}: {quoted(option)} cannot be imported; leave it out")
    return settings


def _named(kind: str, file: str) -> list[list[OpEntry]]:
    if kind not in ("original", "originalr", "v0", "v0r", "3a"):
        raise ValueError(f"{file}: neither a file nor one of timm's policies: {FORMS}")
    try:
        from timm.data.auto_augment import auto_augment_policy
    except ImportError:
        raise ValueError(f"{file}: its table is in timm; pip install timm") from None
    policy = auto_augment_policy(kind, hparams={})
    return [[(op.name, op.prob, op.magnitude) for op in subpolicy] for subpolicy in policy]


def _rand(file: str, settings: dict[str, float], drop: Collection[str]) -> Policy:
    """timm's RandAugment: n of the list with replacement, each done with probability p (0.5)."""
    increasing = settings.get("inc", 0.0) != 0
    layers, level = settings.get("n", 2.0), settings.get("m", LEVELS)
    if not 1 <= layers <= MOST_LAYERS:
        raise ValueError(f"{file}: n should be 1 to {MOST_LAYERS}, got {layers:g}")
    names = [name if increasing else name.removesuffix("Increasing") for name in _RAND]
    kept = [name for name in names if name not in drop]
    if len(kept) ** int(layers) > MOST_SUBPOLICIES:
        raise ValueError(f"{file}: n{layers:g} gives too many sub-policies, use n1, n2 or n3")
    notes = [PIXELS]
    if len(kept) < len(names):
        notes.append(f"left out, as asked: {', '.join(n for n in names if n in drop)}")
    spread = _spread(settings.get("mstd", 0.0), file, notes)
    ops = [spread(name, settings.get("p", 0.5), level) for name in kept]
    return _policy(file, [(1.0, chosen) for chosen in product(ops, repeat=int(layers))], notes)


def _spread(
    deviation: float, file: str, notes: list[str]
) -> Callable[[str, float, float | None], PhysicalOp]:
    """(name, probability, level) -> the operation, whose magnitude is drawn around the level."""
    if 0 < deviation < UNIFORM_FROM:
        notes.append(
            f"mstd{deviation:g}: timm draws magnitudes from a normal distribution, here from the "
            "uniform one of the same mean and deviation (Posterize and Solarize: the mean)"
        )

    def read_op(name: str, probability: float, level: float | None) -> PhysicalOp:
        if name not in READINGS:
            raise ValueError(
                f"{file}: op {quoted(name)} cannot be imported; `exclude` can leave it out"
            )
        level = LEVELS if level is None else level
        if not 0 <= level <= LEVELS:
            raise ValueError(f"{file}: {name} takes a magnitude of 0..10, got {level:g}")
        half = math.sqrt(3) * deviation
        low, high = max(0.0, level - half), min(LEVELS, level + half)
        if deviation >= UNIFORM_FROM:
            low, high = 0.0, level
        if not deviation or name not in CONTINUOUS:
            return READINGS[name](level, probability)
        ends = READINGS[name](low, probability), READINGS[name](high, probability)
        far = ends[1].ranges
        near = ends[0].ranges * (len(far) // len(ends[0].ranges))
        ranges = tuple((a, b) for (a, _), (b, _) in zip(near, far, strict=True))
        return PhysicalOp(op=ends[1].op, probability=probability, ranges=ranges)

    return read_op
