"""Whether layers use the kernels of this package or torch's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch

# A layer's kernels take seconds to compile once, and save about a millisecond in a step; to time
# all of cuDNN's takes longer still.
STEPS_WORTH_COMPILING = 2000
STEPS_WORTH_BENCHMARKING = 20_000
# Those of a whole network, some thirty, take longer and save one to two milliseconds a step.
STEPS_WORTH_WHOLE_NETWORKS = 4000
STACKS = "DADA_STACKS"  # 0 in the environment: torch's layers on streams, for comparison

_plain_kernels: ContextVar[bool] = ContextVar("plain_kernels", default=False)
_whole_networks: ContextVar[bool] = ContextVar("whole_networks", default=False)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, layers use torch's own kernels, which support forward-mode differentiation."""
    token = _plain_kernels.set(True)
    try:
        yield
    finally:
        _plain_kernels.reset(token)


@contextmanager
def whole_networks() -> Iterator[None]:
    """Inside, a network that has kernels for all of its layers is trained by them."""
    token = _whole_networks.set(True)
    try:
        yield
    finally:
        _whole_networks.reset(token)


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
    kernels = ExitStack()
    if whole_networks_pay(steps):
        kernels.enter_context(whole_networks())
    if steps >= STEPS_WORTH_BENCHMARKING:
        kernels.enter_context(benchmarked_convolutions())
    return kernels


def whole_networks_pay(steps: int) -> bool:
    """In a run of that many steps, unless the environment says DADA_STACKS=0."""
    return os.environ.get(STACKS) != "0" and steps >= STEPS_WORTH_WHOLE_NETWORKS


def wants_plain_kernels() -> bool:
    return _plain_kernels.get()


def wants_whole_networks() -> bool:
    return _whole_networks.get() and not wants_plain_kernels()
