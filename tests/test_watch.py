"""A process that dies is noticed by the others; one that says farewell has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dada.engine.watch import Watch, ends_if_alone

SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture
def pair(monkeypatch):
    """The first process and the second of two, in one."""
    monkeypatch.setattr(Watch, "_end", lambda self: None)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    before = threading.enumerate()
    first, second = Watch(0, 2), Watch(1, 2)
    server = first.listen()
    accepting = threading.Thread(target=first.accept, args=(server,))
    accepting.start()
    stranger = socket.create_connection(("localhost", server.getsockname()[1]))
    stranger.sendall(b"GET / HT")
    second.connect(server.getsockname()[1])
    accepting.join(10)
    yield first, second
    stranger.close()
    # A thread that notices the end only once `_end` is the real one ends the process of all tests.
    for watch in (first, second):
        hang_up(watch)
    for looking in set(threading.enumerate()) - set(before):
        looking.join(10)
        assert not looking.is_alive()
    for watch in (first, second):
        for peer in watch._peers:
            peer.close()


def hang_up(watch: Watch) -> None:
    """As the system does for a process that ended."""
    for peer in watch._peers:
        with suppress(OSError):  # the other side may have hung up
            peer.shutdown(socket.SHUT_RDWR)


def test_a_death_is_noticed_and_named(pair):
    first, second = pair
    hang_up(second)
    assert first.lost.wait(5)
    says = "process 1 of 2 has ended, killed or out of memory; what was done is kept: "
    assert first.reason() == f"{says}start all of them again with `resume=True`"


def test_a_farewell_is_no_death(pair):
    first, second = pair
    second.farewell()
    hang_up(second)
    assert not first.lost.wait(0.3)


def test_who_fails_says_no_farewell(pair):
    first, second = pair
    first.failed = True
    first.farewell()
    hang_up(first)
    assert second.lost.wait(5) and second.who == 0


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("command", ["train", "search", "compare"])
def test_without_torchrun_the_others_end_with_a_line(tmp_path, command, victim):
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    arguments = {
        "train": ["--policy", "uniform"],
        "search": ["--lookahead", "0"],
        "compare": ["--policies", "uniform,none"],
    }
    line = [sys.executable, "-m", "dada", command, "digits", *arguments[command], "--epochs", "900"]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    environment = {**os.environ, **shared, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*line, "--device", "cpu", "--out", "run"],
            cwd=tmp_path,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        deadline = time.monotonic() + 120
        begun = tmp_path / "run" / ("trainings" if command == "compare" else "log.jsonl")
        while not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        _, err = processes[1 - victim].communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
    assert err.count("\n") == 1 and err.startswith(f"dada: process {victim} of 2 has ended"), err
    assert time.monotonic() - killed < 60 and processes[1 - victim].returncode in (1, 2)


@pytest.mark.parametrize("given", ["soon", "nan", "-1", "0", "inf"])
def test_how_long_to_wait_is_a_number(given, monkeypatch):
    monkeypatch.setenv("DADA_JOIN_SECONDS", given)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(ValueError, match="should be a number of seconds, but is"), ends_if_alone():
        pass


def test_who_never_comes_is_not_waited_for():
    """The other process was killed before it had joined, and no torchrun sees it."""
    code = "import torch; from dada.engine.ranks import join; join(torch.device('cpu'))"
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    several = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **several, "PYTHONPATH": str(SOURCE), "DADA_JOIN_SECONDS": "0.5"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("dada: not all 2 processes came within 0.5 s; start all of them")
    assert len(done.stderr.splitlines()) == 1
