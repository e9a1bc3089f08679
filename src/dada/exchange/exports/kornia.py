"""Kornia: an augmentation module that draws for every image of a batch. Exact on 8 bits."""

from __future__ import annotations

from dada.exchange.exports.inline import render
from dada.exchange.exports.physical_policy import PhysicalPolicy

HEADER = [
    "For Kornia; needs torch and kornia, nothing else.",
    "",
    "    from this_file import DadaPolicy",
    "    augment = kornia.augmentation.AugmentationSequential(DadaPolicy(), data_keys=['input'])",
    "",
    "An augmentation of Kornia's for BCHW batches of float in 0..1, alone or in a container; every",
    "image has its own draw. Masks, boxes and key points are moved along by the containers.",
    "Images are rounded to 8 bits and changed byte for byte as by Pillow, which Kornia's own",
    "operations do not do: no gradient flows through. Randomness is torch's.",
]


def write(policy: PhysicalPolicy) -> str:
    return render("kornia_body.py", policy, HEADER)
