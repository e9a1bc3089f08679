"""The run directory: what a run was asked, what it measured, and how to continue it.

    run.json                what wrote the directory: format, and per session the versions used
    config.toml             the settings; a resumed run must have the same ones
    log.jsonl               one JSON object per line, in the order they were measured
    checkpoint.pt           the newest state; checkpoint.previous.pt is the one before it
    policy.json             the result of a search; until then unfinished-policy.json
    finished.json           written last, so its presence means that nothing is left to do
    .lock                   while a process writes here: which one

A process may be killed at any instant. So files are written beside and renamed, the log, which is
only appended to, may lose part of its last line, and every checkpoint records how many log lines
preceded it, so that a resumed log has no line twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
import tomllib
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dada import safe_json
from dada.runlog.environment import versions
from dada.runlog.files import (
    RUN,
    named_if_unwritable,
    read_stored,
    read_weights,
    write,
    write_text,
    write_weights,
)
from dada.runlog.lock import LOCK, DirectoryLock, check_unlocked
from dada.runlog.toml import flat, read_toml, to_toml
from dada.safe_files import open_to_append, read_bytes
from dada.safe_text import one_line_errors, printable, quoted

__all__ = [
    "POLICY",
    "UNFINISHED_POLICY",
    "RunLog",
    "check_run_path",
    "flat",
    "holds_run",
    "opened_run",
    "read_log",
    "read_summary",
    "read_toml",
    "read_weights",
    "to_toml",
    "versions",
    "write_text",
]

RUN_FORMAT, RUN_VERSION = "dada-run", 1
CHECKPOINT_FORMAT, CHECKPOINT_VERSION = "dada-checkpoint", 1

# What a run leaves behind, and what a search has learned as long as it is not done.
POLICY, UNFINISHED_POLICY = "policy.json", "unfinished-policy.json"

# What runs had that were begun before there was such a setting; else they could not be resumed.
# (On a card pixels were read from TF32, so there a search that reads them is refused by name.)
NOT_IN_OLD_CHECKPOINTS = dict.fromkeys(("search.base.turn", "train.base.turn"), False)
BEFORE = {
    **NOT_IN_OLD_CHECKPOINTS,
    **dict.fromkeys(("search.base.scale", "train.base.scale"), 1.0),
    "train.optimizer": "sgd",
}
BEFORE_ON_CPU = {"search.pixel_precision": "fp32"}
DECIDED = ("chosen_base",)  # what a search adds to what it was asked

MOST_LOG_BYTES = 2**30
CHEAP_SECONDS = 0.03  # a checkpoint that takes no longer to write is always written
CHECKPOINTS_SHARE = 0.02  # others take no more than this of a run's time

_CONFIG, _LOG, _FINISHED = "config.toml", "log.jsonl", "finished.json"
_NEXT, _NEWEST, _PREVIOUS = "checkpoint.next.pt", "checkpoint.pt", "checkpoint.previous.pt"


class RunLog:
    """One run directory, opened for writing by one process.

    A fresh run wants a directory that is missing or empty. With `resume`, a missing or empty one
    starts a run, an unfinished one is continued, and a finished one is left exactly as it is: the
    caller looks at `finished` and does nothing.

        run = RunLog(out, resume=resume)
        run.config(settings)
        if run.finished: return
        state = run.restore()            # None: start from the beginning
        for step in ...: run.log(step=step, loss=loss); run.checkpoint({...})
        run.finish({"seconds": 12.5})
    """

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False) -> None:
        check_run_path(path, resume=resume)
        self.path = Path(path)
        self.log_lines = 0  # whole ones, of all sessions
        self._asked: str | None = None  # a digest of the settings, by which checkpoints are known
        self._next_checkpoint = -math.inf  # by time.perf_counter
        self._lock: DirectoryLock | None = None
        if self.finished:
            return
        with _writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(self.path)
        check_run_path(path, resume=resume)  # another process may have been quicker
        file = self.path / RUN
        earlier = safe_json.read_object(file).get("sessions") if file.exists() else []
        sessions = [*safe_json.sequence(earlier), versions()]
        about = {"format": RUN_FORMAT, "version": RUN_VERSION, "sessions": sessions}
        with _writable(self.path):
            for leftover in self.path.rglob(".*.tmp"):
                leftover.unlink()
            self.save_text(RUN, json.dumps(about, indent=2) + "\n")
        self._keep_log_lines(None)

    @property
    def finished(self) -> bool:
        """Whether `finish` was reached, in this session or an earlier one."""
        return (self.path / _FINISHED).exists()

    def config(self, settings: Mapping[str, Any]) -> None:
        """Write config.toml, or, where there is one already, insist that it says the same."""
        text = to_toml(settings)
        self._asked = _digest(tomllib.loads(text))
        file = self.path / _CONFIG
        if file.exists():
            old, new = flat(read_toml(file)), flat(tomllib.loads(text))
            before = BEFORE | (BEFORE_ON_CPU if new.get("device") == "cpu" else {})
            for key in [*new, *(key for key in old if key not in new)]:
                was, now = old.get(key, before.get(key)), new.get(key)
                if key not in DECIDED and repr(was) != repr(now):  # repr: nan is nan, 1 not True
                    raise ValueError(
                        f"{file} was written with {printable(key)} = {quoted(was)}, this run has "
                        f"{quoted(now)}; "
                        "resume with the same settings or choose another `out`"
                    )
        if not self.finished:
            self.save_text(_CONFIG, text)

    def log(self, **metrics: Any) -> None:
        """Append one line to log.jsonl, and flush it.

        Tensors and numpy scalars become plain numbers. JSON has no NaN or infinity: they are
        written as the strings "nan", "inf" and "-inf", which `float()` reads back.
        """
        line = json.dumps(_plain(metrics), allow_nan=False)
        file = self.path / _LOG
        with named_if_unwritable(file), open_to_append(file) as stream:
            stream.write(line.encode() + b"\n")
        self.log_lines += 1

    def save_text(self, name: str, text: str) -> Path:
        """Write a text file of the run atomically: complete or not at all."""
        assert Path(name).name == name, f"{name!r} should be a file name without a folder"
        write_text(self.path / name, text)
        return self.path / name

    def save_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Write the weights of a network as safetensors."""
        assert Path(name).name == name, f"{name!r} should be a file name without a folder"
        write_weights(self.path / name, weights)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether enough has been done since the last one to be worth another."""
        return time.perf_counter() >= self._next_checkpoint

    def checkpoint(self, state: Mapping[str, Any], *, writers: int = 1) -> None:
        """Save `state` as checkpoint.pt, keeping the one before as checkpoint.previous.pt.

        `writers` runs that are one training of several networks write one after another.

        Only what `restore` can read without unpickling arbitrary objects is accepted: tensors,
        numbers, strings, None, and lists, tuples and dicts of them.
        """
        _check_loadable(state, "state")
        content = {"format": CHECKPOINT_FORMAT, "version": CHECKPOINT_VERSION}
        content |= {"log_lines": self.log_lines, "state": dict(state), "asked": self._asked}
        begun = time.perf_counter()
        # Between any two of these three lines a complete state is on disk under one of the names.
        write(self.path / _NEXT, lambda file: torch.save(content, file))
        if (self.path / _NEWEST).exists():
            os.replace(self.path / _NEWEST, self.path / _PREVIOUS)
        os.replace(self.path / _NEXT, self.path / _NEWEST)
        now = time.perf_counter()
        cost = writers * (now - begun)
        self._next_checkpoint = now + (cost / CHECKPOINTS_SHARE if cost > CHEAP_SECONDS else 0)

    def restore(self) -> dict[str, Any] | None:
        """The newest readable state; None when there is none and the run starts from the beginning.

        Its tensors are on the CPU: generator states have to be there, and load_state_dict accepts
        them. Log lines written after that state are dropped: the run will write them again.
        """
        damaged: list[str] = []
        for name in (_NEXT, _NEWEST, _PREVIOUS):
            file = self.path / name
            if not file.exists():
                continue
            try:
                content = _load(file)
            except Exception as error:  # every way a damaged file fails: zip, pickle, text, i/o
                damaged.append(f"{file} ({type(error).__name__})")
                continue
            _check_version(file, content, CHECKPOINT_VERSION)
            if content.get("asked", self._asked) != self._asked:
                raise ValueError(
                    f"{file} is of a run with other settings; delete it to start from the "
                    "beginning, or choose another `out`"
                )
            if damaged:
                warnings.warn(f"{damaged[0]} is damaged; continuing from {file}", stacklevel=2)
            self._keep_log_lines(content["log_lines"])
            return dict(content["state"])
        if damaged:
            raise ValueError(
                f"no checkpoint can be read: {', '.join(damaged)}; "
                "delete them to start this run from the beginning, or choose another `out`"
            )
        self._keep_log_lines(0)
        return None

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the run as complete. Call it last, when every result is on disk."""
        self.save_text(_FINISHED, json.dumps(_plain(summary or {}), indent=2) + "\n")

    def close(self) -> None:
        """Let another process have the directory; without it, when nobody refers to this."""
        if self._lock is not None:
            self._lock.release()

    def _keep_log_lines(self, count: int | None) -> None:
        """Cut log.jsonl to its first `count` lines (None: all), dropping a half-written last."""
        file = self.path / _LOG
        raw = _read_log(file)
        lines = raw.splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        kept = b"".join(lines[:count])
        self.log_lines = len(lines[:count])
        if kept != raw:
            write(file, lambda beside: beside.write(kept))


@contextmanager
def opened_run(
    out: Path | None, facts: Callable[[], Mapping[str, Any]], *, resume: bool
) -> Iterator[RunLog | None]:
    """The run directory `out`, with its settings written or compared; None where there is none."""
    if out is None:
        yield None
        return
    with closing(RunLog(out, resume=resume)) as run:
        run.config(facts())
        yield run


def check_run_path(path: str | os.PathLike[str], *, resume: bool = False) -> None:
    """Raise the error `RunLog` would raise, touching nothing: call it before slow preparations."""
    path = Path(path)
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file, a run needs a directory; choose another `out`")
    check_unlocked(path)
    names = {entry.name for entry in path.iterdir()} - {LOCK}
    if all(re.fullmatch(r"\..*\.tmp", name) for name in names):
        return  # empty, or a run killed in its first write
    if not resume:
        raise ValueError(
            f"{path} exists; pass `resume=True` to continue it or choose another `out`"
        )
    about = _about_run(path)
    if about.get("format") != RUN_FORMAT:
        problem = f"{path} is not empty and holds no run (no readable {RUN})"
        raise ValueError(f"{problem}; choose another `out`")
    _check_version(path / RUN, about, RUN_VERSION)


def holds_run(path: str | os.PathLike[str]) -> bool:
    """Whether a directory is that of a run, by what is in its run.json and not by the name."""
    return _about_run(path).get("format") == RUN_FORMAT


def _about_run(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    try:
        return safe_json.read_object(Path(path) / RUN)
    except (OSError, ValueError):
        return {}


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"cannot write to {path} ({error.strerror})"
        raise ValueError(f"{problem}; choose another `out`") from None


def _check_version(file: Path, content: Mapping[str, Any], readable: int) -> None:
    if (version := content.get("version")) != readable:
        problem = f"{file} has version {quoted(version)}, this dada reads version {readable}"
        raise ValueError(f"{problem}; resume with the dada that wrote it")


def read_summary(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a finished run's `finish` was given."""
    return safe_json.read_object(Path(path) / _FINISHED)


@one_line_errors
def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's log.jsonl, without a half-written last one; a run may be in progress."""
    file = Path(path) / _LOG
    *lines, _unfinished = _read_log(file).decode("utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = safe_json.parse(line)
        except ValueError as error:
            reason = str(error).removeprefix("not JSON: ")
            raise ValueError(f"{file}, line {number} is not JSON: {reason}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{file}, line {number} is damaged: not a JSON object")
        records.append(record)
    return records


def _read_log(file: Path) -> bytes:
    try:
        return read_bytes(file, most=MOST_LOG_BYTES)
    except FileNotFoundError:
        return b""
    except ValueError as error:
        raise ValueError(f"{file} is no log: {error}") from None


def _digest(settings: Mapping[str, Any]) -> str:
    """What checkpoints are known by; settings added since count only where they change a run."""
    old = NOT_IN_OLD_CHECKPOINTS.items()
    known = sorted(setting for setting in flat(settings).items() if setting not in old)
    return hashlib.sha256(repr(known).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """What json can write: numbers out of tensors and numpy scalars, strings for nan and inf."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


_LOADABLE = {type(None), bool, int, float, str, bytes, torch.Tensor, torch.nn.Parameter}
_LOADABLE |= {torch.dtype, torch.device, torch.Size}


def _check_loadable(value: Any, name: str) -> None:
    """Refuse now what torch.load(weights_only=True) would refuse when the run is resumed."""
    if type(value) in (dict, OrderedDict, Counter):
        for key, item in value.items():
            _check_loadable(key, f"a key of {name}")
            _check_loadable(item, f"{name}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _check_loadable(item, f"{name}[{index}]")
    elif type(value) not in _LOADABLE:  # exactly: numpy.float64 is a float, but pickles as numpy's
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ValueError(f"{name} is a {kind}; use tensors, numbers, strings, lists and dicts")


def _load(file: Path) -> dict[str, Any]:
    content = read_stored(file)
    if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
        raise ValueError("not a dada checkpoint")
    if content.get("version") == CHECKPOINT_VERSION and not (
        isinstance(content.get("state"), dict) and isinstance(content.get("log_lines"), int)
    ):
        raise ValueError("a checkpoint without a state")
    return content
