"""The loop of search and training: epochs, learning rates, the log, checkpoints.

Letters: T steps of a run, E epochs, S steps of an epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dada.config import SearchConfig, TrainConfig
from dada.engine import Ranks
from dada.runlog import RunLog
from dada.safe_text import printable
from dada.training.state import RunState

T = TypeVar("T")
Turns = Generator[None, None, T]
"""A generator that stops after every step of a training, so that several can take turns; it
returns a T at its end."""

Metrics = dict[str, Any]  # what an epoch measured
OnEpoch = Callable[[Metrics, int], None]  # is told of every epoch, and how many there are
NUMBERS = {"loss": "training loss", "entropy": "policy's entropy"}  # metrics that must be finite


@dataclass(frozen=True)
class Length:
    """How long a run is. `batch` is that of all processes together."""

    batch: int
    steps_per_epoch: int
    epochs: int

    @classmethod
    def of(cls, config: SearchConfig | TrainConfig, images: int, ranks: Ranks) -> Length:
        batch = ranks.share(config.batch_size, images) * ranks.world
        return cls(batch, images // batch, config.epochs_for(images // batch))

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def rates_ES(self, schedule: TrainConfig) -> Tensor:
        """The learning rate of every step, a row for each epoch."""
        rates_T = learning_rates_T(schedule, self.epochs, self.steps_per_epoch)
        return rates_T.view(self.epochs, self.steps_per_epoch)


def learning_rates_T(config: TrainConfig, epochs: int, steps_per_epoch: int) -> Tensor:
    """The learning rate of every step."""
    total = epochs * steps_per_epoch
    warm = min(config.warmup_epochs * steps_per_epoch, total / 2)
    peak = config.lr * config.warmup_factor
    rates = []
    for step in range(total):
        if step < warm:
            rates.append(config.lr + (peak - config.lr) * step / warm)
        elif config.schedule == "step":
            passed = sum(step >= milestone * total for milestone in config.milestones)
            rates.append(peak * 0.1**passed)
        else:
            done = (step - warm) / (total - warm)
            rates.append(peak * 0.5 * (1 + math.cos(math.pi * done)))
    return torch.tensor(rates)


class Record:
    """What a run has measured, one entry per epoch; it is continued where its checkpoint was."""

    def __init__(self, state: RunState, run: RunLog | None, on_epoch: OnEpoch | None) -> None:
        self.state, self.run, self.on_epoch = state, run, on_epoch
        self.history: list[Metrics] = []
        self.seconds_before = 0.0
        saved = state.ranks.same(run.restore() if run is not None else None)
        if saved is not None:
            try:
                state.restore(saved)
                self.history = [dict(entry) for entry in saved["history"]]
                self.seconds_before = sum(entry["seconds"] for entry in self.history)
            except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
                where = "" if run is None else f" in {run.path}"
                reason = printable(" ".join(str(error).split()))
                raise ValueError(
                    f"the checkpoint{where} is not of this run ({reason}); delete checkpoint*.pt "
                    "to start from the beginning, or choose another `out`"
                ) from None

    def add(self, entry: Metrics) -> None:
        self.history.append(entry)
        if self.run is not None:
            self.run.log(**entry)


def run_epochs(
    state: RunState,
    rates_ES: Tensor,
    epoch: Callable[[int, Tensor], Turns[Metrics]],
    *,
    run: RunLog | None,
    on_epoch: OnEpoch | None,
) -> Turns[Record]:
    """All epochs of a run, or those that are left of one that was interrupted.

    `epoch(number, rates_S)` does all steps of an epoch, at these learning rates. With `run`, every
    epoch is logged, and a checkpoint written as often as costs little.
    """
    record = Record(state, run, on_epoch)

    def alone(number: int, rates_S: Tensor) -> Turns[list[Metrics]]:
        return [(yield from epoch(number, rates_S))]

    yield from run_together([record], rates_ES, alone)
    return record


def run_together(
    records: Sequence[Record],
    rates_ES: Tensor,
    epoch: Callable[[int, Tensor], Turns[list[Metrics]]],
) -> Turns[None]:
    """The epochs that are left of runs that have done equally many.

    `epoch` trains all of them and returns the metrics of each. They write their checkpoints after
    the same epochs, so that they can be continued together.
    """
    (done,) = {len(record.history) for record in records}
    state, runs = records[0].state, [each.run for each in records if each.run is not None]
    rates_ES = rates_ES.to(state.device)
    epochs, lr = len(rates_ES), state.config.lr
    for number in range(done, epochs):
        begun = time.perf_counter()
        measured = yield from epoch(number, rates_ES[number])
        for name, words in NUMBERS.items():
            for each in measured:
                check_finite(words, each.get(name, 0.0), number + 1, lr)
        seconds = round(time.perf_counter() - begun, 3)
        for record, each in zip(records, measured, strict=True):
            record.add({"epoch": number + 1, **each, "seconds": seconds})
        if all(run.wants_checkpoint for run in runs) or number + 1 == epochs:
            for record in records:
                if record.run is not None:
                    saved = record.state.checkpoint(number + 1, record.history)
                    record.run.checkpoint(saved, writers=len(runs))
        for record in records:
            if record.on_epoch is not None:
                record.on_epoch(record.history[-1], epochs)


class DivergedError(ValueError):
    """The loss of a training became infinite or not a number."""


def check_finite(what: str, number: float, epoch: int, lr: float) -> None:
    if not math.isfinite(number):
        raise DivergedError(
            f"the {what} became {number} in epoch {epoch}; lower `lr` (now {lr:g}) "
            "or look for broken images"
        )


def exhaust(turns: Turns[T]) -> T:
    """Does all of it at once, where nobody else takes turns, and returns its result."""
    while True:
        try:
            next(turns)
        except StopIteration as ended:
            result: T = ended.value
            return result
