"""torchvision's AutoAugment: the names of its enum, or its list of policies as JSON."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dada.exchange.exports.physical_policy import PhysicalOp
from dada.exchange.imports.physical import (
    Draft,
    either_sign,
    entries_of,
    one_value,
    read_json,
    without,
)
from dada.policy import Policy
from dada.safe_text import quoted

NAMES = ("cifar10", "imagenet", "svhn")
BINS = 10  # of magnitudes: bin 0 does nothing, 9 is the strongest
# Of the last bin; the direction is drawn. Shifts are of 331 pixels, as published.
MOVES = {
    "ShearX": 0.3,
    "ShearY": 0.3,
    "TranslateX": 150 / 331,
    "TranslateY": 150 / 331,
    "Rotate": 30.0,
}
ENHANCERS = ("Brightness", "Color", "Contrast", "Sharpness")
PLAIN = ("AutoContrast", "Equalize", "Invert")


def read(file: str, drop: Collection[str] = ()) -> Policy:
    """FILE is cifar10, imagenet or svhn, or JSON: [[[op, probability, bin or null], ...], ...]."""
    name = file.removeprefix("AutoAugmentPolicy.").lower()
    content = _named(name) if name in NAMES else read_json(file, f"one of {', '.join(NAMES)}")
    entries, notes = without(entries_of(content, file), drop, file)
    subpolicies = [
        (1.0, tuple(_op(*entry, where=f"{file}: sub-policy {i}") for entry in ops))
        for i, ops in enumerate(entries)
    ]
    title = f"torchvision AutoAugment {name}" if name in NAMES else file
    draft = Draft(source="torchvision", name=title, subpolicies=subpolicies, approximations=notes)
    return draft.policy()


def _named(name: str) -> list[Any]:
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    policies = AutoAugment(AutoAugmentPolicy[name.upper()]).policies
    return [[list(step) for step in subpolicy] for subpolicy in policies]


def _op(name: str, probability: float, level: float | None, *, where: str) -> PhysicalOp:
    if name in PLAIN:
        return one_value(name, probability)
    known = (*MOVES, *ENHANCERS, "Posterize", "Solarize")
    if name not in known:
        problem = f"{where}: op {quoted(name)} cannot be imported"
        raise ValueError(f"{problem}; known are {', '.join(known)}")
    if level is None or level not in range(BINS):
        raise ValueError(f"{where}: {name} needs a bin of 0..{BINS - 1}, got {quoted(level)}")
    share = level / (BINS - 1)
    if name in MOVES:
        return either_sign(name, probability, share * MOVES[name])
    if name in ENHANCERS:
        return either_sign(name, probability, share * 0.9, middle=1.0)
    if name == "Posterize":
        return one_value(name, probability, 8 - round(level / ((BINS - 1) / 4)))
    return one_value(name, probability, 255.0 * (1 - share))
