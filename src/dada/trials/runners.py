"""Many trainings that are compared, and the ways to run them: in turn, on one card, in processes.

A trial is one policy with one seed. With the same seed every policy starts from the same weights
and sees the images in the same order. How trials are run does not change what they give: on a CPU
every training has one thread, whether it shares the machine or not.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import nn

from dada import models, tasks
from dada.config import TrainConfig
from dada.data import Split
from dada.engine import memory_kept, memory_that_is_full
from dada.policy import Policy
from dada.tasks import Task
from dada.training.epochs import DivergedError
from dada.training.loop import Job, TrainResult, at_once_for
from dada.training.many import run_job, train_many

SHIPPED_SPACES = ("paper", "strength", "wide")  # others are registered in this process only
MOST_BYTES_COPIED = 2**30
# What a terminal sends to all processes; Windows has no SIGHUP.
FOR_THE_PARENT = [getattr(signal, n) for n in ("SIGINT", "SIGHUP") if hasattr(signal, n)]

DIED = "its process died, most likely for want of memory"

TrialScores = dict[str, Any]
"""What a training was scored at, as plain numbers: see `scores_of`."""


class TrialDiedError(ValueError):
    """The process of a training ended before the training did."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training: which policy, with which settings, from which seed."""

    name: str
    policy: Policy
    config: TrainConfig
    seed: int

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


OnTrialEpoch = Callable[[Trial, int, int], None]
"""Is told of every epoch of every training, and how many it has."""


@dataclass(frozen=True)
class EpochEnded:
    """What a process says of its training before it ends."""

    epoch: int
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trials share."""

    split: Split
    model: str | nn.Module  # a module is copied for every trial
    device: torch.device
    weights: models.Weights | None = None  # trained ones to start from
    graph: bool = True  # record the steps as CUDA graphs
    on_epoch: OnTrialEpoch | None = None

    @property
    def task(self) -> Task:
        return tasks.named(self.split.task)

    def network(self, seed: int) -> nn.Module:
        shape = self.split.num_classes, self.split.channels, self.split.image_size
        return models.untrained(self.model, *shape, self.weights)(seed)

    def split_for(self, trial: Trial) -> Split:
        return self.split

    @property
    def decoded_bytes(self) -> int:
        return self.split.decoded_bytes

    def job(self, trial: Trial) -> Job:
        told = self.on_epoch
        return Job(
            split=self.split_for(trial),
            model=self.network(trial.seed),
            policy=trial.policy,
            config=trial.config,
            seed=trial.seed,
            device=self.device,
            graph=self.graph,
            on_epoch=told and (lambda metrics, epochs: told(trial, metrics["epoch"], epochs)),
        )


def scores_of(result: TrainResult, task: Task) -> TrialScores:
    """Of a training, the numbers that are kept."""
    return {**task.kept(result.scores), "seconds": round(result.seconds, 2)}


def default_at_once(device: torch.device, image_size: tuple[int, int]) -> int:
    """How many trainings run side by side: a few small ones on a card, large ones fill it alone.

    On a CPU one for every core, in processes of their own. Those import the program that started
    them: the command is made for that, a script may not be, so there it is one after another.
    """
    if device.type == "cuda":
        return at_once_for(device, image_size)
    main = getattr(sys.modules.get("__main__"), "main", None)
    if not str(getattr(main, "__module__", "")).startswith("dada."):
        return 1
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_trials(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, TrialScores]]:
    """The scores of every trial, in the order in which they end; the first that fails ends all."""
    for trial, scores in _run(setting, trials, at_once):
        if isinstance(scores, Exception):
            raise scores
        yield trial, scores


def run_all(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, TrialScores | Exception]]:
    """The scores of every trial, or why it failed where that says nothing about the others."""
    left = list(trials)
    try:
        for trial, scores in _run(setting, trials, at_once):
            left.remove(trial)
            yield trial, scores
    except (DivergedError, torch.cuda.OutOfMemoryError):  # of several on one card: which of them?
        torch.cuda.empty_cache()
        yield from in_turn(setting, left)


def _run(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, TrialScores | Exception]]:
    at_once = min(at_once, len(trials))
    if at_once <= 1:
        return in_turn(setting, trials)
    if setting.device.type == "cuda":
        return on_one_card(setting, trials, at_once)
    if _can_travel(setting, trials, at_once):
        return in_processes(setting, trials, at_once)
    return in_turn(setting, trials)


def in_turn(
    setting: Setting, trials: Sequence[Trial]
) -> Iterator[tuple[Trial, TrialScores | Exception]]:
    for trial in trials:
        yield trial, _train(setting, trial)


def on_one_card(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, TrialScores]]:
    jobs = [setting.job(trial) for trial in trials]
    trial_of = {id(job): trial for job, trial in zip(jobs, trials, strict=True)}
    for job, result in train_many(jobs, at_once):
        yield trial_of[id(job)], scores_of(result, setting.task)


def in_processes(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, TrialScores | Exception]]:
    """Each training in a process of its own, with one thread; they end when this one does."""
    waiting, running = list(trials), dict[Connection, tuple[Trial, BaseProcess]]()
    idle: list[tuple[Connection, BaseProcess]] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                connection, worker = idle.pop() if idle else _worker(setting)
                running[connection] = waiting.pop(0), worker
                with suppress(ConnectionError):  # one that died meanwhile is seen below
                    connection.send(running[connection][0])
            for spoke in wait(list(running)):
                assert isinstance(spoke, Connection)
                trial, worker = running[spoke]
                try:
                    said = spoke.recv()
                except (EOFError, ConnectionError):
                    del running[spoke]
                    spoke.close()
                    yield trial, TrialDiedError(f"{trial}: {DIED}")
                    continue
                if isinstance(said, EpochEnded):
                    if setting.on_epoch is not None:
                        setting.on_epoch(trial, said.epoch, said.epochs)
                    continue
                del running[spoke]
                idle.append((spoke, worker))
                scores, mistake = said
                if mistake is not None:
                    raise mistake
                yield trial, scores
    finally:
        for connection, worker in (*idle, *((c, w) for c, (_, w) in running.items())):
            connection.close()
            worker.terminate()
            worker.join()


def _worker(setting: Setting) -> tuple[Connection, BaseProcess]:
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    ours, theirs = spawn.Pipe()
    worker = spawn.Process(target=_work, args=(theirs,), daemon=True)
    with _signals_held_back():
        worker.start()
    theirs.close()  # so that a worker's death ends the connection
    with suppress(ConnectionError):
        ours.send(replace(setting, on_epoch=None))  # which stays here, and is told by the worker
    return ours, worker


def _work(connection: Connection) -> None:
    """In a process of its own: what all trials share, then one trial after another.

    Interrupts are for the parent to handle. When the parent dies, however it dies, so does this.
    """
    for number in FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError):
        setting: Setting = replace(
            connection.recv(), on_epoch=lambda _, *epochs: connection.send(EpochEnded(*epochs))
        )
        with memory_kept(setting.device):
            while True:
                trial: Trial = connection.recv()
                try:
                    connection.send((_train(setting, trial), None))
                except Exception as error:
                    connection.send((None, error))


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """A process that is started here gets no interrupt while it imports; this one gets it later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _train(setting: Setting, trial: Trial) -> TrialScores | Exception:
    """The scores; what failed in a way that says nothing about other trainings is returned."""
    try:
        return scores_of(run_job(setting.job(trial)), setting.task)
    except DivergedError as error:
        return DivergedError(f"{trial}: {error}")
    except ValueError as error:
        raise ValueError(f"{trial}: {error}") from None
    except (RuntimeError, MemoryError) as error:
        if memory_that_is_full(error) is None:
            raise
        error.args = (f"{trial}: {error}",)
        return error


def _can_travel(setting: Setting, trials: Sequence[Trial], at_once: int) -> bool:
    """Whether another process can have all it needs, and memory allows for the copies."""
    if any(trial.policy.space not in SHIPPED_SPACES for trial in trials):
        return False
    if setting.decoded_bytes * at_once > MOST_BYTES_COPIED:
        return False
    # A class written in the script that runs, or at a prompt, cannot be imported elsewhere.
    if isinstance(setting.model, nn.Module) and any(
        type(part).__module__ == "__main__" for part in setting.model.modules()
    ):
        return False
    try:
        pickle.dumps(replace(setting, on_epoch=None))
    except Exception:  # whatever a stranger's object raises when it cannot be pickled
        return False
    return True
