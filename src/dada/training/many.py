"""Several trainings on one device."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dada.training.epochs import Turns
from dada.training.loop import Job, Slot, TrainResult, take_turns, training_of
from dada.training.stacks import alike, epochs_done, stack_size, stacked_trainings

Results = list[tuple[Job, TrainResult]]


def run_job(job: Job) -> TrainResult:
    """Train a network under a policy.

    With `run`, a log and checkpoints are written, and a training that was killed continues from
    its last checkpoint.
    """
    return next(result for _, result in train_many([job]))


def train_many(jobs: Sequence[Job], at_once: int = 1) -> Iterator[tuple[Job, TrainResult]]:
    """Each job's result, in the order in which they end; `at_once` of them share the device.

    They take turns, a step each, on streams of their own: while the host launches one's step, the
    card works on the others'. Those of one kind that a card has kernels for are trained as stacks
    (stacks.py). A job that is like one that has ended runs in its slot, with its recorded step.
    """
    waiting, free = list(jobs), list[Slot]()
    total = sum(job.length.steps for job in jobs)

    def begun() -> Iterator[tuple[None, Turns[Results]]]:
        while waiting:
            job = waiting.pop(0)
            slot = next((slot for slot in free if slot.suits(job)), None)
            if slot is None:
                slot = Slot(job)
                if at_once > 1 and (more := joining(slot)):
                    taken = {id(other) for other in more}
                    waiting[:] = [other for other in waiting if id(other) not in taken]
                    yield None, stacked_trainings(slot, more, total)
                    continue
            else:
                free.remove(slot)
                slot.restart_with(job)
            yield None, alone(job, slot)

    def joining(slot: Slot) -> list[Job]:
        """Those of the waiting that are trained as one stack with this slot's."""
        same = [other for other in waiting if alike(slot.job, other)]
        if stack_size(slot, 1 + len(same), total) == 1:
            return []
        done = epochs_done(slot.job)
        same = [other for other in same if epochs_done(other) == done]
        return same[: stack_size(slot, 1 + len(same), total) - 1]

    def alone(job: Job, slot: Slot) -> Turns[Results]:
        result = yield from training_of(job, slot, total)
        if any(slot.suits(other) for other in waiting):
            free.append(slot)
            result = replace(result, model=copy.deepcopy(result.model))
        return [(job, result)]

    for _, results in take_turns(begun(), at_once):
        yield from results
