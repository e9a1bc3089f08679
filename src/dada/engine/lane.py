"""Precision, and a place on the device for one training or search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from dada.engine.device import few_threads, random_state, seeded, set_random_state

PRECISIONS = {"cpu": "fp32", "cuda": "bf16"}


@dataclass(frozen=True)
class Precision:
    """bf16: passes in bfloat16 where that is safe. tf32: rounded products. fp32: exact ones."""

    name: str
    device: torch.device

    @classmethod
    def of(cls, name: str, device: torch.device) -> Precision:
        return cls(PRECISIONS[device.type] if name == "auto" else name, device)

    def passes(self) -> AbstractContextManager[Any]:
        """Around a forward pass."""
        # Casts are not cached: a graph would keep the first ones.
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.name == "bf16", cache_enabled=False
        )

    @contextmanager
    def products(self) -> Iterator[None]:
        """Around everything: how float32 products are rounded on a GPU."""
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        rounded = self.name != "fp32"
        torch.set_float32_matmul_precision("high" if rounded else "highest")
        torch.backends.cudnn.allow_tf32 = rounded
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


class Lane:
    """A place on the device for one training or search: `with lane:` around each of its turns.

    Inside, its own stream, precision, number of threads and state of torch's global generators
    are set (dropout draws from those, and can be given no others). Outside, all is as it was. So
    several may take turns without affecting each other.
    """

    # CUDA graphs read the state of the global generator from one address on the GPU. The next one
    # that draws from it waits until the last one has read it.
    last_drawn: ClassVar[dict[torch.device, torch.cuda.Event]] = {}

    def __init__(
        self, device: torch.device, precision: Precision, seed: int, elements: int
    ) -> None:
        """`elements` is how many numbers a batch of images holds."""
        self.device, self.precision, self.elements = device, precision, elements
        self.draws = False  # from torch's global generators: known after the first turn
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            # A graph cannot be recorded on the default stream.
            self.stream = torch.cuda.Stream(device)
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        with seeded(seed, self.device):
            self.random = random_state(self.device)

    def __enter__(self) -> None:
        self.turn = ExitStack()
        if self.stream is not None:
            self.turn.enter_context(torch.cuda.stream(self.stream))
        self.turn.enter_context(self.precision.products())
        self.turn.enter_context(few_threads(self.device, self.elements))
        self.outside = random_state(self.device)
        set_random_state(self.random, self.device)
        if self.draws and self.stream is not None and self.device in Lane.last_drawn:
            self.stream.wait_event(Lane.last_drawn[self.device])

    def __exit__(self, *problem: object) -> None:
        before, self.random = self.random, random_state(self.device)
        pairs = zip(before, self.random, strict=True)
        self.draws = self.draws or any(not torch.equal(a, b) for a, b in pairs)
        if self.draws and self.stream is not None:
            Lane.last_drawn[self.device] = self.stream.record_event()
        set_random_state(self.outside, self.device)
        self.turn.close()
