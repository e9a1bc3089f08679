"""Runs that are killed at random moments, and what is left of them.

One process has everything imported and makes no step itself. Every run is a fork of it, so that a
start takes milliseconds, and a kill meets the run rather than its imports.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dada
from dada.config import LOOKAHEAD, LookaheadConfig, ShortTraining, VerifyConfig

from .cases import FaultError, Fuzzer, resident_bytes
from .mutations import damaged_bytes

CLOCKS = {"seconds", "images_per_second", "versions", "time", "sessions"}
SHORT = ShortTraining(
    steps=3, least_epochs=2, most_images=40, most_images_of_a_class=4, largest_batch=64
)
AHEAD: LookaheadConfig = LookaheadConfig(
    **{**vars(LOOKAHEAD["cpu"]), "seconds": 1.0, "training": SHORT, "stand_in_images": 40}
)
COMMON: dict[str, Any] = {"device": "cpu", "model": "small", "resume": True, "batch_size": 16}
LIMIT = 60.0  # seconds within which the other rank has to end

RUNS: dict[str, Callable[[Path], object]] = {
    "search": lambda out: dada.search(
        "grey.npz",
        out=out,
        epochs=3,
        lookahead=AHEAD,
        verify=VerifyConfig(seconds=1.5, training=SHORT),
        **COMMON,
    ),
    "train": lambda out: dada.train("grey.npz", "uniform", out=out, epochs=12, **COMMON),
    "compare": lambda out: dada.compare(
        "grey.npz", ["uniform", "none"], seeds=2, at_once=1, out=out, epochs=3, **COMMON
    ),
    "search-ranks": lambda out: dada.search("grey.npz", out=out, epochs=6, lookahead=0, **COMMON),
    "train-ranks": lambda out: dada.train("grey.npz", "uniform", out=out, epochs=8, **COMMON),
}


class Forks(Fuzzer):
    """Runs in forks, compared with a run that nothing happened to."""

    seconds = 600  # a case may resume several runs, on a machine that does other things too

    def prepare(self) -> None:
        torch.set_num_threads(1)
        for slow in ("dada.api", "dada.report.plots", "scipy.stats", "matplotlib.pyplot"):
            importlib.import_module(slow)  # here, and not in every fork

        noise = np.random.default_rng(0)
        images = noise.integers(0, 255, (80, 8, 8)).astype(np.uint8)
        np.savez(self.folder / "grey.npz", images=images, labels=np.arange(80) % 4)
        self.reference: dict[str, tuple[dict[str, Any], float]] = {}
        self.runs = 0

    def expected(self, kind: str) -> tuple[dict[str, Any], float]:
        """The results of an undisturbed run, and how long it took."""
        if kind not in self.reference:
            begun = time.monotonic()
            self.end(kind, self.folder / "undisturbed" / kind)
            took = time.monotonic() - begun
            self.reference[kind] = results(self.folder / "undisturbed" / kind), took
        return self.reference[kind]

    def end(self, kind: str, out: Path) -> None:
        """Resume it until it is complete."""
        forks = self.start(kind, out)
        for fork in forks:
            if (code := wait_for(fork, 300)) != 0:
                kill_all(forks)
                raise FaultError(f"{kind}: resumed, it ended with {code}: {said(out)}")
        check_no_orphan(forks)

    def start(self, kind: str, out: Path, before: Callable[[], None] | None = None) -> list[int]:
        world = 2 if kind.endswith("ranks") else 1
        port = free_port() if world > 1 else 0
        out.parent.mkdir(parents=True, exist_ok=True)
        return [self._fork(kind, out, rank, world, port, before) for rank in range(world)]

    def _fork(
        self,
        kind: str,
        out: Path,
        rank: int,
        world: int,
        port: int,
        before: Callable[[], None] | None,
    ) -> int:
        if child := os.fork():
            return child
        code = 1
        try:
            os.setsid()
            weakref.finalize._registry.clear()  # what the parent will clean up is the parent's
            for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0)
            with open(f"{out}.said", "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(self.folder)
            if world > 1:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world)}
                os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            if before is not None:
                before()
            RUNS[kind](out)
            code = 0
            _at_exit()
        except (ValueError, OSError) as error:
            code = 2
            print(f"dada: {error}", file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def compare(self, kind: str, out: Path) -> None:
        expected, _ = self.expected(kind)
        found = results(out)
        different = sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
        if different:
            raise FaultError(f"{kind}: other results in {', '.join(different[:5])}")
        shutil.rmtree(out)


def _at_exit() -> None:
    """What Python would do at the end of a process: ranks take leave of each other."""
    import atexit

    atexit._run_exitfuncs()


class Kills(Forks):
    name = "kills"
    what = "SIGKILL at a random moment of a run, of one of two ranks or of both; then it is resumed"
    full, quick = 300, 4

    def prepare(self) -> None:
        super().prepare()
        self.open: dict[str, tuple[Path, int]] = {}  # runs in progress, and how often killed

    def case(self, noise: random.Random) -> None:
        kind = noise.choice([*RUNS])
        _, took = self.expected(kind)
        while True:  # until a kill met a run
            out, kills = self.open.get(kind) or (self._fresh(kind), 0)
            self.open[kind] = out, kills + 1
            if self._killed(kind, out, noise.uniform(0, took), noise) and kills < 5:
                return
            self._complete(kind, out)

    def _fresh(self, kind: str) -> Path:
        self.runs += 1
        return self.folder / f"run{self.runs}" / kind

    def _killed(self, kind: str, out: Path, seconds: float, noise: random.Random) -> bool:
        forks = self.start(kind, out)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(map(ended, forks)):
            time.sleep(0.002)
        victims = forks if noise.random() < 0.3 else [noise.choice(forks)]
        met = False
        for fork in victims:
            if not ended(fork):
                met = True
                os.kill(fork, signal.SIGKILL)
        for fork in forks:
            if wait_for(fork, LIMIT) is None:
                kill_all(forks)
                raise FaultError(f"{kind}: the other rank went on for {LIMIT:g} s")
        check_no_orphan(forks)
        return met

    def _complete(self, kind: str, out: Path) -> None:
        del self.open[kind]
        self.end(kind, out)
        self.compare(kind, out)

    def finish(self) -> None:
        for kind, (out, _) in list(self.open.items()):
            self._complete(kind, out)


class Soak(Forks):
    name = "soak"
    what = (
        "a search, training or comparison meets a kill, SIGTERM, a full disk, a clock that jumps "
        "or a damaged checkpoint, and is resumed; or many follow each other in one process"
    )
    full, quick = 300, 5
    troubles = ("kill", "terminate", "full disk", "clock", "damage", "none", "again")

    def case(self, noise: random.Random) -> None:
        kind = noise.choice(["search", "train", "compare"])
        trouble = self.troubles[self.number % len(self.troubles)]
        if trouble == "again":
            self._again_and_again()
            return
        _, took = self.expected(kind)
        self.runs += 1
        out = self.folder / f"soak{self.runs}" / kind
        before = {"full disk": _full_disk, "clock": _clock_jumps}.get(trouble)
        forks = self.start(kind, out, before)
        if trouble in ("kill", "terminate", "damage"):
            time.sleep(noise.uniform(0, took))
            number = signal.SIGTERM if trouble == "terminate" else signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.kill(forks[0], number)
        code = wait_for(forks[0], 300)
        check_no_orphan(forks)
        words = said(out)
        if "Traceback" in words or (trouble == "full disk" and code not in (0, 2)):
            raise FaultError(f"{kind}, {trouble}: {words[-300:]}")
        checkpoint = out / "checkpoint.pt"
        if (
            trouble == "damage"
            and checkpoint.exists()
            and (out / "checkpoint.previous.pt").exists()
        ):
            checkpoint.write_bytes(damaged_bytes(checkpoint.read_bytes(), noise))
        self.end(kind, out)
        self.compare(kind, out)

    def _again_and_again(self) -> None:
        """Ten trainings in one process: neither memory nor open files grow with them."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.chdir(self.folder)
                seen = []
                for _ in range(10):
                    dada.train("grey.npz", "uniform", device="cpu", model="small", epochs=1)
                    seen.append((resident_bytes(), len(os.listdir("/proc/self/fd"))))
                os.write(writing, json.dumps(seen).encode())
            finally:  # nothing of what the parent has to clean up
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            seen = json.loads(pipe.read() or b"[]")
        wait_for(child, 60)
        if len(seen) != 10:
            raise FaultError("ten trainings in one process did not end")
        if seen[-1][0] - seen[3][0] > 20e6 or seen[-1][1] > seen[3][1]:
            raise FaultError(f"memory or open files grow: {seen}")


def _full_disk() -> None:
    """Files of at most 20 kB: a write beyond fails, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def _clock_jumps() -> None:
    real, calls = time.time, iter(range(10**9))
    time.time = lambda: real() + (-1) ** next(calls) * 86400.0


def results(out: Path) -> dict[str, Any]:
    """What a run left, without its clocks: contents by the name of the file."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.suffix == ".safetensors":
            found[name] = {key: value.numpy().tobytes() for key, value in load_file(path).items()}
        elif path.suffix == ".json" and name not in ("run.json", "finished.json"):
            found[name] = without_clocks(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [
                without_clocks(json.loads(line)) for line in path.read_text().splitlines()
            ]
        elif path.is_file():
            found[name] = None  # there or not
    found.pop("checkpoint.previous.pt", None)  # which of the epochs it is depends on the clock
    return found


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if k not in CLOCKS}
    return [without_clocks(each) for each in value] if isinstance(value, list) else value


def said(out: Path) -> str:
    file = Path(f"{out}.said")
    return file.read_text()[-400:] if file.exists() else ""


_codes: dict[int, int] = {}


def ended(child: int) -> bool:
    if child not in _codes:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            _codes[child] = os.waitstatus_to_exitcode(status)
    return child in _codes


def wait_for(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while not ended(child):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)
    return _codes[child]


def kill_all(forks: list[int]) -> None:
    for fork in forks:
        if not ended(fork):
            os.kill(fork, signal.SIGKILL)
            wait_for(fork, 10)


def check_no_orphan(sessions: list[int]) -> None:
    """Nobody of these sessions lives on; each fork began its own."""
    deadline = time.monotonic() + 10
    while True:
        living = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) in sessions and fields[0] != "Z":
                living.append(int(stat.parent.name))
        if not living:
            return
        if time.monotonic() > deadline:
            raise FaultError(f"processes live on: {living}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


__all__ = ["Kills", "Soak"]
