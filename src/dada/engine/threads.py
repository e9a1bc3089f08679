"""Work shared among threads of this process, as many as torch has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

Task = TypeVar("Task")
# Each waits for the interpreter between its calls: eight were no faster than four, and with small
# images slower than one (benchmarks/speed/ops.py --threads).
MOST_THREADS = 4


def share(
    work: Callable[[Task], object], tasks: Sequence[Task], threads: int | None = None
) -> None:
    """`work(task)` for every task, in any order, by this thread and by helpers.

    As many threads as torch has, or `threads`. For work that lets go of the interpreter; inside it
    torch has one thread. After an error no task begins any more.
    """
    has = torch.get_num_threads()
    threads = max(1, min(threads or has, len(tasks), MOST_THREADS))
    left = iter(tasks)  # of all threads: the next one takes the next task

    def work_on() -> None:
        torch.set_num_threads(1)
        try:
            for task in left:
                work(task)
        except BaseException:
            for _ in left:
                pass
            raise

    helpers = [_helpers().submit(work_on) for _ in range(threads - 1)]
    try:
        work_on()
    finally:
        for helper in helpers:
            helper.cancel()  # those that have not begun are not needed any more
        wait(helpers)
        # Of this thread, and of threads that start later: helpers have changed both.
        torch.set_num_threads(has)
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    """They start when they are needed; a forked process has none of them and makes its own."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_helpers.cache_clear)
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="dada")
