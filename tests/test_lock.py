"""One process at a time writes to a run directory, and a killed one leaves no lock behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dada
from dada.runlog import RunLog, check_run_path
from dada.runlog.lock import LOCK, DirectoryLock

SOURCE = Path(__file__).parents[1] / "src"
HOLD = """
import sys, time
from pathlib import Path
from dada.runlog.lock import DirectoryLock
held = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("dada.runlog.lock.PATIENCE", 0.05)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_another_process_is_refused_and_told_who_holds_it(tmp_path, holder):
    says = rf"is in use by another process \(process {holder.pid} on {socket.gethostname()}, since "
    for resume in (False, True):
        with pytest.raises(ValueError, match=says):
            RunLog(tmp_path, resume=resume)
        with pytest.raises(ValueError, match=says):  # before data is read, too
            check_run_path(tmp_path, resume=resume)
    assert [file.name for file in tmp_path.iterdir()] == [LOCK]


def test_a_killed_process_leaves_no_lock(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / LOCK).exists()
    RunLog(tmp_path).close()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_fork_does_not_keep_the_lock(tmp_path):
    """A worker that outlives its parent for a moment must not lock others out."""
    reading, writing = os.pipe()
    lock = DirectoryLock(tmp_path)
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.read(reading, 1)
        os._exit(0)
    _, _, (descriptor, _), _ = lock._release.detach()
    os.close(descriptor)  # as when the parent is killed: the file stays
    DirectoryLock(tmp_path).release()
    os.write(writing, b".")
    os.waitpid(child, 0)


def test_the_fork_of_an_owner_ends_without_touching_the_lock(tmp_path, holder):
    lock = DirectoryLock(tmp_path / "..")
    child = os.fork()
    if child == 0:  # pragma: no cover
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path.parent / LOCK).exists()
    lock.release()


def test_a_second_thread_is_refused_and_the_same_one_takes_over(tmp_path):
    first = RunLog(tmp_path)
    refused: list[str] = []

    def attempt() -> None:
        try:
            RunLog(tmp_path, resume=True)
        except ValueError as error:
            refused.append(str(error))

    other = threading.Thread(target=attempt)
    other.start()
    other.join()
    assert "is in use by another process" in refused[0]
    again = RunLog(tmp_path, resume=True)  # the first ended with an error that is still shown
    assert (tmp_path / LOCK).exists() and first is not again


def test_it_is_released_when_a_run_ends_or_fails(tmp_path):
    settings = {"epochs": 1, "device": "cpu", "model": "small"}
    dada.train("digits", out=tmp_path / "whole", **settings)
    with pytest.raises(ZeroDivisionError):
        dada.train("digits", out=tmp_path / "torn", on_epoch=lambda *_: 1 / 0, **settings)
    assert not list(tmp_path.rglob(LOCK))
    lock = DirectoryLock(tmp_path)
    del lock
    gc.collect()
    assert not (tmp_path / LOCK).exists()


def test_what_lies_there_in_a_strangers_directory_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(precious)
    with pytest.raises(ValueError, match="cannot write to"):
        RunLog(run)
    assert precious.read_text() == "precious"
    (run / LOCK).unlink()
    os.mkfifo(run / LOCK)
    RunLog(run).close()


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x1b[31m", '{"process": 1, "host": "\\u001b"}'])
def test_an_unreadable_signature_is_said_to_be_so(tmp_path, holder, text):
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(ValueError, match="which has not signed the lock"):
        RunLog(tmp_path)


def test_the_signature(tmp_path):
    run = RunLog(tmp_path)
    signed = json.loads((tmp_path / LOCK).read_text())
    assert signed.keys() == {"process", "host", "since"} and signed["process"] == os.getpid()
    run.close()
