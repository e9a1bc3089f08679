"""A step as one CUDA graph: recorded once, then replayed without the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from dada.engine.device import recording

T = TypeVar("T")

CALLS_BEFORE_GRAPH = 2  # the first compiles, and one shape more may be the last batch of an epoch


class Captured:
    """A function of tensors that runs as a CUDA graph from its third call with the same shapes on.

    The first two calls run as they are: they compile kernels, fill caches, and do real work, so
    nothing needs to be undone. Then the graph is recorded. It reads and writes fixed memory, so
    inputs are copied in and outputs out: a few copies in place of hundreds of launches. Random
    numbers, weights and optimiser states carry over from replay to replay.

    On a CPU, with `enabled=False`, or inside another capture, it is the function itself.
    """

    def __init__(
        self,
        call: Callable[..., Tensor | tuple[Tensor, ...]],
        *,
        generators: Sequence[torch.Generator] = (),
        enabled: bool = True,
    ) -> None:
        self.call, self.generators, self.enabled = call, generators, enabled
        self.calls: dict[Any, int] = {}
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Sequence[Tensor], Any]] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        if not self.enabled or not tensors[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return self.call(*tensors)
        # Graphs that share memory must not overlap, so every stream has its own.
        stream = torch.cuda.current_stream(tensors[0].device).stream_id
        key = (stream, *((t.device, t.shape, t.dtype) for t in tensors))
        if key not in self.graphs:
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.calls[key] <= CALLS_BEFORE_GRAPH:
                return self.call(*tensors)
            self.graphs[key] = self._record(tensors)
        graph, places, made = self.graphs[key]
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()
        return made.clone() if isinstance(made, Tensor) else tuple(one.clone() for one in made)

    def _record(self, tensors: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, Any, Any]:
        places = [tensor.clone() for tensor in tensors]
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        current = torch.cuda.current_stream(tensors[0].device)
        own = None if current == torch.cuda.default_stream(tensors[0].device) else current
        try:
            with recording, torch.cuda.graph(graph, stream=own):
                made = self.call(*places)
        except RuntimeError as error:
            # After an error a recording cannot be ended, which is an error as well and hides it.
            if isinstance(error.__context__, torch.cuda.OutOfMemoryError):
                raise error.__context__ from None
            raise
        return graph, places, made


def side_by_side(
    first: Callable[[], T], second: Callable[[], T], device: torch.device
) -> tuple[T, T]:
    """Both results. Where a graph is recorded, as two branches that the GPU runs concurrently.

    For two calls that write to nothing they share. Without a graph nothing would be gained: there
    the time goes into launches.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    here, branch = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    branch.wait_stream(here)
    with torch.cuda.stream(branch):
        there = second()
    made = first()
    here.wait_stream(branch)
    return made, there
