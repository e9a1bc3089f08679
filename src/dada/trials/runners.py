"""The trainings of a comparison, and the ways to run them: in turn, on one card, in processes.

A trial is one policy with one seed. With the same seed every policy starts from the same weights
and sees the images in the same order. How trials are run does not change what they give: on a CPU
every training has one thread, whether it shares the machine or not.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dada import models
from dada.config import TrainConfig
from dada.data import Split
from dada.policy import Policy

if TYPE_CHECKING:
    from dada.training.loop import Job, TrainResult

SHIPPED_SPACES = ("paper", "strength", "wide")  # others are registered in this process only
MOST_BYTES_COPIED = 2**30


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training: which policy, with which settings, from which seed."""

    name: str
    policy: Policy
    config: TrainConfig
    seed: int

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trials share."""

    split: Split
    model: str | nn.Module  # a module is copied for every trial
    device: torch.device

    def network(self, seed: int) -> nn.Module:
        shape = self.split.num_classes, self.split.channels, self.split.image_size
        return models.untrained(self.model, *shape)(seed)

    def split_for(self, trial: Trial) -> Split:
        return self.split

    @property
    def decoded_bytes(self) -> int:
        return self.split.decoded_bytes

    def job(self, trial: Trial) -> Job:
        from dada.training.loop import Job

        return Job(
            split=self.split_for(trial),
            model=self.network(trial.seed),
            policy=trial.policy,
            config=trial.config,
            seed=trial.seed,
            device=self.device,
        )


Outcome = dict[str, Any]
Runner = Callable[[Setting, Sequence[Trial], int], Iterator[tuple[Trial, Outcome]]]
"""(setting, trials, at once) -> (trial, outcome) in the order in which they end"""


def judgement(result: TrainResult) -> Outcome:
    """Of a training, the numbers that are kept."""
    scores = result.scores
    return {
        "accuracy": scores.accuracy,
        "top5": scores.top5,
        "balanced_accuracy": scores.balanced_accuracy,
        "loss": scores.loss if math.isfinite(scores.loss) else None,
        "images": scores.images,
        "class_error_C": list(scores.class_error_C),
        "seconds": round(result.seconds, 2),
    }


def default_at_once(device: torch.device, image_size: tuple[int, int]) -> int:
    """A core for every training; a few small ones on a card, large ones fill it alone."""
    if device.type == "cpu":
        if hasattr(os, "sched_getaffinity"):  # a container may have fewer than the machine
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    from dada.training.loop import at_once_for

    return at_once_for(device, image_size)


def run_trials(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, Outcome]]:
    """Every trial's outcome, in the order in which they end."""
    at_once = min(at_once, len(trials))
    if at_once <= 1:
        return in_turn(setting, trials, 1)
    if setting.device.type == "cuda":
        return on_one_card(setting, trials, at_once)
    runner = in_processes if _can_travel(setting, trials, at_once) else in_turn
    return runner(setting, trials, at_once)


def in_turn(
    setting: Setting, trials: Sequence[Trial], at_once: int = 1
) -> Iterator[tuple[Trial, Outcome]]:
    for trial in trials:
        yield trial, _train(setting, trial)


def on_one_card(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, Outcome]]:
    from dada.training.loop import train_many

    jobs = [setting.job(trial) for trial in trials]
    trial_of = {id(job): trial for job, trial in zip(jobs, trials, strict=True)}
    for job, result in train_many(jobs, at_once):
        yield trial_of[id(job)], judgement(result)


def in_processes(
    setting: Setting, trials: Sequence[Trial], at_once: int
) -> Iterator[tuple[Trial, Outcome]]:
    """Each training in a process of its own, with one thread; they end when this one does."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        at_once,
        mp_context=multiprocessing.get_context("spawn"),  # torch's threads do not survive a fork
        initializer=_begin,
        initargs=(pickle.dumps(setting),),
    )
    try:
        waiting = {pool.submit(_train_here, trial): trial for trial in trials}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    except BaseException as problem:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        if isinstance(problem, BrokenProcessPool):
            raise ValueError(
                "a training process died, most likely for want of memory; "
                "use `at_once=1`, or `resume=True` to go on"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _train(setting: Setting, trial: Trial) -> Outcome:
    from dada.training.loop import train_many

    try:
        return next(judgement(result) for _, result in train_many([setting.job(trial)]))
    except ValueError as error:
        raise ValueError(f"{trial}: {error}") from None


def _can_travel(setting: Setting, trials: Sequence[Trial], at_once: int) -> bool:
    """Whether another process can have all it needs, and memory allows for the copies."""
    if any(trial.policy.space not in SHIPPED_SPACES for trial in trials):
        return False
    if setting.decoded_bytes * at_once > MOST_BYTES_COPIED:
        return False
    # A class written in the script that runs, or at a prompt, cannot be imported elsewhere.
    if any(type(part).__module__ == "__main__" for part in _modules(setting.model)):
        return False
    try:
        pickle.dumps(setting)
    except Exception:  # whatever a stranger's object raises when it cannot be pickled
        return False
    return True


def _modules(model: str | nn.Module) -> Iterator[nn.Module]:
    return model.modules() if isinstance(model, nn.Module) else iter(())


_setting: Setting | None = None


def _begin(content: bytes) -> None:
    """In a new process: what all its trials share. An interrupt is for the parent to handle."""
    global _setting
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _setting = pickle.loads(content)  # our parent's own, by way of its arguments


def _train_here(trial: Trial) -> Outcome:
    assert _setting is not None
    return _train(_setting, trial)
