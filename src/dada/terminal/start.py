"""Where the `dada` command begins: signals first, then everything that takes time to import."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
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
