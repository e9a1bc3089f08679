"""Scenes in which the answer is known: does a search for segmentation or detection find it?

Either the validation scenes were changed by an operation and the training scenes were not, so that
learning under this operation helps; or the kinds of objects are told apart by what an operation
destroys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import dada
from dada.config import LOOKAHEAD, ShortTraining
from dada.ops import PAPER
from scenes import Boxes, Masks, Scenes

KINDS = {"segmentation": Masks, "detection": Boxes}
Halves = tuple[Scenes, Scenes]


def darkened(kind: type[Scenes], count: int, **how: int) -> Halves:
    train, val = kind(count, 0, **how), kind(count, 1, **how)
    noise = np.random.default_rng(5)
    val.scenes = [
        ((pixels * noise.uniform(0.15, 0.6)).astype(np.uint8), *rest)
        for pixels, *rest in val.scenes
    ]
    return train, val


def rotated(kind: type[Scenes], count: int, **how: int) -> Halves:
    """Bars are lying or upright; the validation scenes are turned by 15 to 30 degrees."""
    train, val = kind(count, 0, **how), kind(count, 1, **how)
    noise = np.random.default_rng(5)
    turned = []
    for pixels, _, kinds, masks in val.scenes:
        angle = float(noise.uniform(15, 30) * noise.choice([-1, 1]))
        shown = [np.array(Image.fromarray(m.astype(np.uint8)).rotate(angle)) > 0 for m in masks]
        kept = [i for i, mask in enumerate(shown) if mask.sum() > 20]
        boxes = []
        for i in kept:
            y, x = np.nonzero(shown[i])
            boxes.append((x.min(), y.min(), x.max() + 1, y.max() + 1))
        pixels = np.array(Image.fromarray(pixels).rotate(angle))
        if kept:
            turned.append((pixels, boxes, [kinds[i] for i in kept], [shown[i] for i in kept]))
    val.scenes = turned
    return train, val


def told_by_colour(kind: type[Scenes], count: int, **how: int) -> Halves:
    return kind(count, 0, by_colour=True, **how), kind(count, 1, by_colour=True, **how)


def scores_of(found: dada.Result) -> dict[str, float]:
    scores: dict[str, float] = found.policy.provenance["lookahead"]["score"]
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


QUICK = replace(
    LOOKAHEAD["cpu"],
    seconds=60.0,  # nominal: far more than it takes
    most_runs=2,
    most_policy_runs=0,
    training=ShortTraining(steps=80, least_epochs=10, largest_batch=16, smallest_batch=8),
)
FEW = ("Brightness", "Posterize", "Sharpness", "Cutout")


@pytest.mark.parametrize("task", KINDS)
def test_darkness_is_found_among_few_operations(task: str) -> None:
    train, val = darkened(KINDS[task], 24, side=24, most=2)
    found = dada.search(
        train,
        val,
        device="cpu",
        lookahead=QUICK,
        exclude=tuple(op.name for op in PAPER if op.name not in FEW),
    )
    assert found.policy.provenance["task"] == task and found.history == []
    assert next(iter(scores_of(found))) == "Brightness", scores_of(found)


def told_by_side(count: int, seed: int) -> Scenes:
    """Of the two kinds of squares one is dark on the left, the other on the right."""
    made = Masks(count, seed, by_colour=True, side=24, most=2)
    for pixels, boxes, kinds, _ in made.scenes:
        for (x0, y0, x1, y1), number in zip(boxes, kinds, strict=True):
            middle = (x0 + x1) // 2
            pixels[y0:y1, x0:x1] = 220
            pixels[y0:y1, slice(x0, middle) if number else slice(middle, x1)] = 110
    return made


def test_scenes_are_mirrored_unless_that_makes_others_of_them() -> None:
    asked = replace(QUICK, base_share=1.0, training=replace(QUICK.training, steps=160))
    how = {"device": "cpu", "lookahead": asked}
    how["exclude"] = tuple(op.name for op in PAPER if op.name not in ("Brightness", "Sharpness"))
    halves = [told_by_side(48, seed) for seed in (0, 1)]
    facts = dada.search(*halves, **how).policy.provenance["base"]
    assert facts["chosen"] == "none", facts
    upright = [Masks(24, seed, side=24, most=2) for seed in (0, 1)]
    facts = dada.search(*upright, **how).policy.provenance["base"]
    assert facts["chosen"] != "none" and list(facts["loss"])[:2] == ["flip", "none"], facts


def told_by_corners(count: int, seed: int) -> Scenes:
    """Of the two kinds of squares one is dark above, the other in two opposite corners."""
    made = Boxes(count, seed, by_colour=True, side=24, most=2)
    for pixels, boxes, kinds, _ in made.scenes:
        for (x0, y0, x1, y1), number in zip(boxes, kinds, strict=True):
            x, y = (x0 + x1) // 2, (y0 + y1) // 2
            pixels[y0:y1, x0:x1] = 220
            pixels[y0:y, x0:x] = 110
            pixels[slice(y0, y) if number else slice(y, y1), x:x1] = 110
    return made


def test_scenes_that_have_no_up_are_turned() -> None:
    train, val = told_by_corners(48, 0), told_by_corners(48, 1)
    for i, (pixels, boxes, kinds, masks) in enumerate(val.scenes):
        for _ in range(i % 4):  # a quarter turn: what was on the right is above
            pixels = np.rot90(pixels)
            boxes = [(y0, 24 - x1, y1, 24 - x0) for x0, y0, x1, y1 in boxes]
        val.scenes[i] = (pixels.copy(), boxes, kinds, masks)
    asked = replace(QUICK, base_share=1.0, training=replace(QUICK.training, steps=160))
    kept = ("Brightness", "Sharpness", "Posterize")
    exclude = tuple(op.name for op in PAPER if op.name not in kept)
    found = dada.search(train, val, device="cpu", lookahead=asked, exclude=exclude)
    facts = found.policy.provenance["base"]
    assert facts["chosen"] == "turn", facts


MOST_SECONDS = 120.0  # measured: 36 to 50
SLOW: dict[str, tuple[Callable[..., Halves], set[str], set[str]]] = {
    # scenes, what should be among the best three, what should be among the worst half
    "darkened": (darkened, {"Brightness"}, {"Invert", "Equalize"}),
    "rotated": (rotated, {"Rotate"}, {"Invert"}),
    "told by colour": (told_by_colour, set(), {"Invert", "Solarize"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", SLOW)
@pytest.mark.parametrize("task", KINDS)
def test_a_search_with_default_settings_finds_it(task: str, planted: str) -> None:
    make, best, worst = SLOW[planted]
    begun = time.process_time()  # of this process: another's load is not counted
    found = dada.search(*make(KINDS[task], 80), device="cpu")
    assert time.process_time() - begun < MOST_SECONDS
    order = list(scores_of(found))
    assert best <= set(order[:3]), order
    assert worst <= set(order[len(order) // 2 :]), order
