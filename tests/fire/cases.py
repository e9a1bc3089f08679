"""What a fuzzer is, and what counts as a fault."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dada.safe_text import LONGEST_MESSAGE


class FaultError(Exception):
    """Something that must not happen."""


class SlowError(BaseException):
    """A case that does not end. Not an Exception, so that no reader mistakes it for damage."""


class Fuzzer:
    """Cases by number: `prepare` once, then `case` again and again."""

    name = ""
    what = ""  # a case in words, for the page
    full = quick = 0  # cases
    seconds = 60  # that a case may take

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0  # of the case that runs

    def prepare(self) -> None:
        """Whatever all cases share."""

    def case(self, noise: random.Random) -> None:
        """Raises `FaultError` when something is wrong."""
        raise NotImplementedError

    def finish(self) -> None:
        """What is left to look at when the last case has ended."""

    def run(self, number: int, seed: int = 0) -> str | None:
        """The fault of one case, or None."""
        self.number = number
        noise = random.Random(f"{self.name} {seed} {number}")
        try:
            with bounded(self.seconds), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.case(noise)
        except FaultError as fault:
            return str(fault)
        except SlowError:
            return f"it took more than {self.seconds} s"
        return None


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise SlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def accepted(call: Callable[[], Any], *refusals: type[Exception]) -> tuple[bool, Any]:
    """Whether the call returned, and what; a refusal has to be one line of bounded length."""
    try:
        return True, call()
    except (ValueError, *refusals) as error:
        check_line(str(error))
        return False, None
    except Exception as error:
        raise FaultError(f"{type(error).__name__}: {error}"[:300]) from error


def check_line(message: str) -> None:
    if len(message) > LONGEST_MESSAGE:
        raise FaultError(f"a message of {len(message)} characters: {message[:100]!r}")
    if not message.isprintable() or not message:
        raise FaultError(f"a message that is not one printable line: {message[:200]!r}")


def command(*arguments: str) -> tuple[int, str]:
    """The command in this process: its exit code and what it said on stderr."""
    from dada.terminal.commands import main

    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["dada", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except Exception as error:
        raise FaultError(f"{type(error).__name__}: {error}"[:300]) from error
    finally:
        sys.argv = before
    return check_said(code, err.getvalue())


def check_said(code: Any, err: str) -> tuple[int, str]:
    """A mistake is exit code 2 and one line; what the parser of options says has its own form."""
    if code not in (0, 2):
        raise FaultError(f"exit code {code}: {err[-300:]!r}")
    lines = [line for line in err.splitlines() if line.startswith("dada:")]
    if code == 2 and "Usage:" not in err and len(lines) != 1:
        raise FaultError(f"{len(lines)} lines of ours on stderr: {err[:300]!r}")
    for line in lines:
        check_line(line.removeprefix("dada: "))
    return int(code), err


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
