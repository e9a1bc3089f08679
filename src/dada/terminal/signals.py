"""Ctrl-C, SIGTERM and SIGHUP: one line that says what is kept and how to go on, then the end.

Every file of a run is whole at any instant, so nothing has to be unwound: the process says its line
and ends, wherever it is, also in the middle of an import. Python calls a handler only between two
steps of its main thread, which may wait in a collective call of processes that are gone. So a
thread is told of every signal as well, and ends the process when the handler did not.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dada.safe_text import LONGEST_MESSAGE, printable, shell_word

PATIENCE = 5.0  # seconds that the handler has
NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
SAID: dict[int, str] = {
    int(getattr(signal, name)): said for name, said in NAMES.items() if hasattr(signal, name)
}
RUNS = ("search", "train", "compare")


class Watched:
    """What is known of the run that would be stopped."""

    out: Path | None = None
    clear: Callable[[], None] | None = None  # the progress bars, before the line is said
    close: Callable[[], None] | None = None  # services that track the run, after it


_run = Watched()
_spoken = threading.Lock()


def watch(out: Path, clear: Callable[[], None], close: Callable[[], None]) -> None:
    """From now on a signal stops the run of this directory."""
    _run.out, _run.clear, _run.close = out, clear, close


def install() -> None:
    """Before anything slow is imported. What is ignored already stays so, as under nohup."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in SAID:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_guard, args=(reading,), daemon=True).start()


def _handle(number: int, frame: FrameType | None) -> None:
    if not _spoken.acquire(blocking=False):
        os._exit(128 + number)  # a second one, from somebody who does not want to wait
    _tidy(_run.clear)
    _speak(number)
    _tidy(_end_children)
    _tidy(_run.close)
    os._exit(128 + number)


def _guard(reading: int) -> None:
    while (number := os.read(reading, 1)[0]) not in SAID:
        pass
    threading.Event().wait(PATIENCE)
    if _spoken.acquire(blocking=False):
        _speak(number)
    os._exit(128 + number)


def _tidy(step: Callable[[], None] | None) -> None:
    with suppress(Exception):  # whatever it was in the middle of; the line matters more
        if step is not None:
            step()


def _end_children() -> None:
    if "multiprocessing.process" in sys.modules:
        for child in sys.modules["multiprocessing.process"].active_children():
            child.kill()
            child.join(1)


def _speak(number: int) -> None:
    # Past Python's own buffers, which may be in use by what was interrupted.
    _tidy(sys.stdout.flush)
    if SAID[number] == "Ctrl-C" and os.environ.get("RANK", "0") != "0":
        return  # every process of torchrun is told; one answers
    line = f"dada: {printable(last_words(number, sys.argv, _run.out), LONGEST_MESSAGE)}\n"
    with suppress(OSError):  # the terminal may be gone
        os.write(2, line.encode(errors="replace"))


def last_words(number: int, typed: list[str], out: Path | None) -> str:
    """What is kept, and the command that continues."""
    words = f"stopped by {SAID[number]}"
    command = next((word for word in typed[1:] if not word.startswith("-")), "")
    if command not in RUNS:
        return f"{words}; files that were written are whole; again: {as_typed(typed)}"
    if out is None or not (out / "run.json").exists():
        return f"{words}; nothing was written yet; again: {as_typed(typed)}"
    where = shell_word(out)
    if (out / "finished.json").exists():
        return f"{words}; the run in {where} is complete"
    ended = len(list((out / "trainings").glob("[!.]*.json")))
    kept = f"{ended} trainings are" if command == "compare" else "all up to the last checkpoint is"
    return f"{words}; {kept} kept in {where}; continue with: {as_typed(typed, resume=True)}"


def as_typed(typed: list[str], *, resume: bool = False) -> str:
    """The command, for a shell."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return f"the same torchrun command{' and --resume' if resume else ''}"
    words = ["python", "-m", "dada"] if Path(typed[0]).name == "__main__.py" else ["dada"]
    words += typed[1:]
    if resume and "--resume" not in words:
        words.append("--resume")
    return shlex.join(words)
