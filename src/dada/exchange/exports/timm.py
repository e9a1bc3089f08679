"""timm: a transform made of timm's own operations on PIL images. Exact."""

from __future__ import annotations

from dada.exchange.exports.inline import render
from dada.exchange.exports.physical_policy import PhysicalPolicy

HEADER = [
    "For timm; needs timm and Pillow, nothing else.",
    "",
    "    from this_file import DadaPolicy",
    "    transform = timm.data.create_transform(224, is_training=True, auto_augment=None)",
    "    transform.transforms.insert(2, DadaPolicy())  # after crop and flip, before the tensor",
    "",
    "For PIL images (RGB, L), by timm's own operations; timm has no Cutout, so it is written here.",
    "Byte for byte what Pillow gives. Randomness is Python's `random`, as in timm itself.",
]


def write(policy: PhysicalPolicy) -> str:
    return render("timm_body.py", policy, HEADER)
