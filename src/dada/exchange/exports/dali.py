"""DALI: a function of operators for a pipeline, with a draw for every sample."""

from __future__ import annotations

from dada.exchange.exports.inline import render
from dada.exchange.exports.physical_policy import PhysicalPolicy

HEADER = [
    "For NVIDIA DALI; needs nvidia-dali (1.23 or newer) and numpy, nothing else.",
    "",
    "    from this_file import dada_policy",
    "    @pipeline_def(enable_conditionals=True)",
    "    def pipeline(): ...; images = dada_policy(images); ...",
    "",
    "RGB images (HWC, uint8, 3 pixels a side or more), on the CPU or the GPU; every sample has its",
    "own draw, from the seed of the pipeline. Tested on DALI's CPU backend only. Equalize is",
    "OpenCV's formula, the rest is Pillow's. Not DALI's auto_aug.Policy: that has neither weights",
    "nor ranges and rounds magnitudes to bins.",
]


def write(policy: PhysicalPolicy) -> str:
    return render("dali_body.py", policy, HEADER)
