"""Work shared among threads: all of it is done, errors come through, a fork starts its own."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from dada.engine import share


def test_every_task_is_done_once_by_several_threads(torch_threads):
    torch_threads(3)
    met = threading.Barrier(3)  # three threads have to be at work at once
    done, by, inside = [], set(), set()

    def work(task: int) -> None:
        if task < 3:
            met.wait(30)
        done.append(task)
        by.add(threading.get_ident())
        inside.add(torch.get_num_threads())

    share(work, range(40))
    assert sorted(done) == list(range(40))
    assert len(by) == 3 and threading.get_ident() in by and inside == {1}
    assert torch.get_num_threads() == 3
    seen = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [3]  # helpers have one; a thread of the user's has what it would have had


@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_is_this_one(threads, torch_threads):
    torch_threads(threads)
    by = []
    share(lambda _: by.append((threading.get_ident(), torch.get_num_threads())), "abc", threads=1)
    assert by == [(threading.get_ident(), 1)] * 3
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("fails_in_helper", [False, True])
def test_an_error_comes_through_and_ends_the_work(fails_in_helper, torch_threads):
    torch_threads(2)
    here, met, done = threading.get_ident(), threading.Barrier(2), []

    def work(task: int) -> None:
        if task < 2:
            met.wait(30)
            if (threading.get_ident() != here) == fails_in_helper:
                raise KeyError("no such place")
            time.sleep(0.3)  # meanwhile the other one fails
        done.append(task)

    with pytest.raises(KeyError, match="no such place"):
        share(work, range(100))
    assert len(done) < 50 and torch.get_num_threads() == 2
    share(done.append, range(100, 110))
    assert set(range(100, 110)) <= set(done)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_after_use_has_helpers_of_its_own(torch_threads):
    torch_threads(2)

    def both_at_work() -> bool:
        met = threading.Barrier(2)
        share(lambda task: met.wait(10), range(2))
        return True

    assert both_at_work()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for helpers it does not have should fail, not hang
        code = 1
        try:
            code = 0 if both_at_work() else 1  # without helpers the barrier breaks
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert both_at_work()
