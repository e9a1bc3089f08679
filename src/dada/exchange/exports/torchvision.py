"""torchvision: a v2.Transform for PIL images, tensors, batches and tv_tensors. Exact."""

from __future__ import annotations

from dada.exchange.exports.inline import render
from dada.exchange.exports.physical_policy import PhysicalPolicy

HEADER = [
    "For torchvision's transforms v2; needs torch, torchvision and Pillow, nothing else.",
    "",
    "    from this_file import DadaPolicy",
    "    transform = v2.Compose([v2.RandomCrop(32, 4), DadaPolicy(), v2.ToImage(), ...])",
    "",
    "PIL images (RGB, L), CHW tensors and BCHW batches of uint8 or of float in 0..1 (rounded to 8",
    "bits), with boxes, masks and key points moved along. In a batch every image has its own draw.",
    "Byte for byte what Pillow gives. Randomness is torch's: torch.manual_seed repeats it.",
]


def write(policy: PhysicalPolicy) -> str:
    return render("torchvision_body.py", policy, HEADER)
