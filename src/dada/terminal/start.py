"""Where the `dada` command begins: signals first, then everything that takes time to import."""

from __future__ import annotations

import os
import signal
from types import FrameType

# Threads of torch that wait for each other spin 300,000 times. Beside a program of another session
# that made a step forty times as long. So many are enough: an idle machine is as fast with them
# (benchmarks/speed/waiting.py).
SPINS = "10000"


def main() -> None:
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = SPINS  # read when torch is imported
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # SIGHUP is not everywhere
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stopped_early)
    from dada.terminal import signals

    signals.install()
    from dada.terminal.commands import main as command

    command()


def _stopped_early(number: int, frame: FrameType | None) -> None:
    os.write(2, b"dada: stopped before it began; nothing was written yet\n")
    os._exit(128 + number)
