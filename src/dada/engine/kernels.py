"""Whether layers use the kernels of this package or torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch

# A layer's kernels take seconds to compile once, and save about a millisecond in a step; to time
# all of cuDNN's takes longer still.
STEPS_WORTH_COMPILING = 2000
STEPS_WORTH_BENCHMARKING = 20_000

_plain_kernels: ContextVar[bool] = ContextVar("plain_kernels", default=False)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, layers use torch's own kernels, which support forward-mode differentiation."""
    token = _plain_kernels.set(True)
    try:
        yield
    finally:
        _plain_kernels.reset(token)


@contextmanager
def benchmarked_convolutions() -> Iterator[None]:
    """Inside, cuDNN times all ways to do each convolution, once, in place of guessing the best."""
    settings = torch.backends.cudnn
    before = settings.benchmark, settings.benchmark_limit
    settings.benchmark, settings.benchmark_limit = True, 0
    try:
        yield
    finally:
        settings.benchmark, settings.benchmark_limit = before


def kernels_for(steps: int) -> AbstractContextManager[Any]:
    """Around a run of that many steps: the fastest kernels, where preparing them pays.

    WRN-28-10 trains 8% faster with the best convolutions than with those that cuDNN guesses
    (benchmarks/speed/train.py).
    """
    if steps < STEPS_WORTH_COMPILING:
        return plain_kernels()
    return nullcontext() if steps < STEPS_WORTH_BENCHMARKING else benchmarked_convolutions()


def wants_plain_kernels() -> bool:
    return _plain_kernels.get()
