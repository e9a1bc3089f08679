"""The device: which one, how randomness starts on it, and CUDA graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

SMALL_BATCH_ELEMENTS = 100_000  # 128 images of 16x16 in colour


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


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch's own generators start from `seed`; outside, they go on as if nothing was.

    Dropout and its like draw from those, and can be given no other.
    """
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards):
        torch.random.default_generator.manual_seed(seed)
        for card in cards:
            with torch.cuda.device(card):
                torch.cuda.manual_seed(seed)
        yield


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Where torch's own generators stand: the host's, and the card's where there is one."""
    card = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *card]


def set_random_state(states: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1].cpu(), device)


class Replayed:
    """A function of one CUDA tensor, captured once as a CUDA graph and replayed ever after.

    A graph has fixed places for its input and output, so the input is copied in and the output
    out: two copies instead of dozens of launches. Random numbers go on from replay to replay.
    """

    def __init__(
        self,
        call: Callable[[Tensor], Tensor],
        example: Tensor,
        generator: torch.Generator | None = None,
    ) -> None:
        self.given = example.clone()
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            self.made = call(self.given)

    def __call__(self, tensor: Tensor) -> Tensor:
        self.given.copy_(tensor)
        self.graph.replay()
        return self.made.clone()


@contextmanager
def few_threads(device: torch.device, elements: int) -> Iterator[None]:
    """On a CPU, one thread for work that is too small to share, or with one other core at most.

    Threads wait for each other by spinning. When another process wants the second core, a search
    with two threads is many times slower than with one.
    """
    before = torch.get_num_threads()
    small = elements < SMALL_BATCH_ELEMENTS or (os.cpu_count() or 1) <= 2
    if device.type == "cpu" and small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
