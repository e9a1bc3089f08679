"""Whether layers use the kernels of this package or torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

# A layer's kernels take seconds to compile once, and save about a millisecond in a step.
STEPS_WORTH_COMPILING = 2000

_plain_kernels: ContextVar[bool] = ContextVar("plain_kernels", default=False)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, layers use torch's own kernels, which know forward-mode differentiation."""
    token = _plain_kernels.set(True)
    try:
        yield
    finally:
        _plain_kernels.reset(token)


def kernels_for(steps: int) -> AbstractContextManager[Any]:
    """Around a run of that many steps: our own kernels only where compiling them will pay."""
    return plain_kernels() if steps < STEPS_WORTH_COMPILING else nullcontext()


def wants_plain_kernels() -> bool:
    return _plain_kernels.get()
