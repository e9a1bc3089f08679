"""Ctrl-C, SIGTERM and SIGHUP at any moment: one line, the shell's exit code, and no one left."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dada.terminal import signals
from dada.terminal.signals import last_words

SOURCE = Path(__file__).parents[1] / "src"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The command in a session of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "dada", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def processes_of(session: int) -> list[int]:
    """The living processes of a session; zombies are dead."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


SEARCH = ["search", "digits", "--epochs", "900", "--device", "cpu", "--out", "a run's"]


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_search_is_stopped_with_a_line_and_continues_with_it(tmp_path, number):
    with start(tmp_path, *SEARCH) as process:
        wait_until((tmp_path / "a run's" / "checkpoint.pt").exists)
        process.send_signal(number)
        _, err = process.communicate(timeout=90)
    assert process.returncode == CODES[number]
    assert err.count("\n") == 1 and err.startswith("dada: stopped by ")
    assert "all up to the last checkpoint is kept in 'a run'" in err
    command = shlex.split(err.partition("continue with: ")[2])
    assert command == ["python", "-m", "dada", *SEARCH, "--resume"]


@pytest.mark.parametrize("seconds", [0.15, 0.4, 0.8, 1.5])
def test_while_it_imports_too(tmp_path, seconds):
    with start(tmp_path, *SEARCH) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert err.count("\n") == 1 and err.startswith("dada: stopped "), err


def compare(folder: Path) -> list[str]:
    noise = np.random.default_rng(0)
    images = noise.integers(0, 255, (400, 12, 12)).astype(np.uint8)
    np.savez(folder / "noise.npz", images=images, labels=np.arange(400) % 4)
    options = ["--policies", "uniform,none", "--epochs", "900", "--device", "cpu"]
    return ["compare", "noise.npz", *options, "--at-once", "2", "--out", "run"]


# After so many seconds the workers import; then they train.
@pytest.mark.parametrize(
    "number, seconds", [(signal.SIGINT, 0.3), (signal.SIGKILL, 0.3), (signal.SIGKILL, 6.0)]
)
def test_no_worker_outlives_a_comparison(tmp_path, number, seconds):
    """Ctrl-C reaches all processes of a terminal; a kill only the first."""
    with start(tmp_path, *compare(tmp_path)) as process:
        wait_until(lambda: len(processes_of(process.pid)) >= 3)  # itself, a tracker and a worker
        time.sleep(seconds)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=90)
        wait_until(lambda: not processes_of(process.pid), 20)
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err.count("\n") == 1 and "0 trainings are kept in run; continue with" in err


def test_what_is_ignored_stays_ignored(tmp_path):
    """nohup dada search ... lives on when the terminal is closed."""
    code = (
        "import signal, os; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "from dada.terminal import signals; signals.install();"
        "os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.stdout == b"alive\n"


def test_a_main_thread_that_does_not_come_back_is_ended(tmp_path):
    """As in a collective call: the handler is never called, and the guard speaks in its place."""
    code = (
        "import os, signal, sys, threading, time; sys.argv = ['dada', 'search', 'digits'];"
        "from dada.terminal import signals; signals.PATIENCE = 0.2; signals._handle = print;"
        "signals.install(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 143
    says = "dada: stopped by SIGTERM; nothing was written yet; again: dada search digits\n"
    assert done.stderr == says


def test_under_torchrun_one_process_answers_ctrl_c(monkeypatch, capfd):
    monkeypatch.setenv("RANK", "1")
    signals._speak(signal.SIGINT)
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    signals._speak(signal.SIGTERM)
    assert capfd.readouterr().err.count("\n") == 1


def test_last_words(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    typed = ["/usr/bin/dada", "search", "my photos", "--out", "x"]
    (tmp_path / "run.json").touch()
    assert last_words(2, typed, tmp_path).endswith("dada search 'my photos' --out x --resume")
    (tmp_path / "finished.json").touch()
    assert last_words(2, typed, tmp_path).endswith("is complete")
    assert "files that were written are whole" in last_words(2, ["dada", "show", "x"], None)
    (tmp_path / "finished.json").unlink()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    words = last_words(15, typed, tmp_path)
    assert words.endswith("continue with: the same torchrun command and --resume")


SPUN = "import os; from dada.terminal.start import main\ntry: main()\nexcept SystemExit: pass\n"


@pytest.mark.parametrize(
    ("chosen", "then"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_threads_do_not_spin_long_unless_somebody_chose(chosen, then):
    """Before torch is imported, which reads it then."""
    others = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    asks = "import sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", SPUN + asks, "--version"],
        env=others | chosen,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines()[-1] == f"{then} False"
