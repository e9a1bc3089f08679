"""The device: which one, and how randomness starts on it."""

from __future__ import annotations

import torch


def resolve_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is not known; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no CUDA GPU; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use auto, cpu or cuda")
    return device


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)
