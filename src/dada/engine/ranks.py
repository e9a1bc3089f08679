"""Several processes that share one training or search under `torchrun`.

Letters: B images of a batch.
"""

from __future__ import annotations

import atexit
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from dada.engine.watch import Watch, ends_if_alone

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Ranks:
    """The processes that share one training under `torchrun`; alone by default.

    Every process draws the random numbers of the whole batch and keeps the rows of its own
    images, so what happens to an image does not depend on how many processes there are.
    """

    rank: int = 0
    world: int = 1

    def share(self, batch_size: int, images: int) -> int:
        """How many images of a batch are this process's; the same for all of them."""
        share = min(batch_size, images) // self.world
        if share < 1:
            raise ValueError(
                f"a batch of {min(batch_size, images)} cannot be shared by {self.world} processes; "
                "raise `batch_size` or start fewer"
            )
        return share

    def mine(self, rows_B: Tensor, dim: int = 0) -> Tensor:
        """This process's share of rows that belong to the whole batch."""
        share = rows_B.shape[dim] // self.world
        return rows_B.narrow(dim, self.rank * share, share)

    def uniform(
        self,
        rows: int,
        columns: int,
        device: torch.device,
        generator: torch.Generator | None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Numbers in [0, 1) for this process's `rows` images."""
        return self.mine(
            torch.rand(rows * self.world, columns, generator=generator, device=device, dtype=dtype)
        )

    def gather(self, mine: Tensor, dim: int = 0) -> Tensor:
        """The rows of all processes, in the order of the whole batch."""
        if self.world == 1:
            return mine
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        distributed.all_gather(parts, mine.contiguous())
        return torch.cat(parts, dim)

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its mean over the processes."""
        if self.world == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.world
        for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def spread(
        self,
        items: Sequence[Item],
        do: Callable[[Sequence[Item]], Sequence[Result]],
        at_once: int = 1,
    ) -> Iterator[tuple[Item, Result]]:
        """Every item with its result, in order and on every process, each of which does a share.

        For work that is independent, such as whole trainings: `do(share)` gives a result for each
        of up to `at_once` items. Results go round after each of the shares that all do at the same
        time, so the first process can write what has ended, and a later session go on with what is
        left. What goes wrong in one process is raised in all of them.
        """
        together = self.world * at_once
        for first in range(0, len(items), together):
            some = items[first : first + together]
            mine = some[self.rank :: self.world]
            try:
                done, problem = do(mine) if mine else [], None
            except Exception as error:
                if self.world == 1:
                    raise
                done, problem = [], error
            of_all = self._of_all(done, problem)
            for place, item in enumerate(some):
                yield item, of_all[place % self.world][place // self.world]

    def _of_all(self, done: Sequence[Result], problem: Exception | None) -> list[Sequence[Result]]:
        """What every process has done, unless one of them has a problem."""
        if self.world == 1:
            return [done]
        told = None if problem is None else _that_travels(problem)
        box: list[Any] = [None] * self.world
        distributed.all_gather_object(box, (done, told))
        if problem is not None:
            raise problem
        for _, theirs in box:
            if theirs is not None:
                raise theirs
        return [done for done, _ in box]

    def same(self, thing: Any) -> Any:
        """What the first process has, on every one."""
        if self.world == 1:
            return thing
        box = [thing]
        distributed.broadcast_object_list(box, src=0)
        return box[0]


def _that_travels(error: Exception) -> Exception:
    """Itself where it can be sent to another process, else what it says."""
    try:
        pickle.loads(pickle.dumps(error))  # our own, from a line above
    except Exception:  # whatever a stranger's class raises
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def several_processes() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


ALONE = Ranks()
SECONDS_TO_NOTICE = 2.0  # between a call that failed and the connection that says why


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The other processes that `torchrun` started, or none.

    They stay together to the end: a script may search, then train, and cannot join again. When one
    of them dies, the others end with a line that says so.
    """
    if "RANK" not in os.environ or not several_processes():
        yield ALONE
        return
    watch, ranks = join(device)
    watch.failed = False
    try:
        # The first makes the run directory, which the others have to have found missing by then.
        distributed.barrier()
        yield ranks
    except RuntimeError:
        watch.failed = True
        if not watch.lost.wait(SECONDS_TO_NOTICE):
            raise
        raise ValueError(watch.reason()) from None
    except BaseException:
        watch.failed = True
        raise


def join(device: torch.device) -> tuple[Watch, Ranks]:
    """Early, before data is read: from here on the death of a process is noticed."""
    card = device if device.type == "cuda" else None
    if card is not None:  # NCCL talks from the current card, which is the first one unless said
        torch.cuda.set_device(card)
    with ends_if_alone():
        if not distributed.is_initialized():
            distributed.init_process_group("gloo" if card is None else "nccl", device_id=card)
            atexit.register(distributed.destroy_process_group)
        ranks = Ranks(distributed.get_rank(), distributed.get_world_size())
        return _watching(ranks), ranks


@cache
def _watching(ranks: Ranks) -> Watch:
    """Connects all processes to the first, once."""
    watch = Watch(ranks.rank, ranks.world)
    server = watch.listen() if ranks.rank == 0 else None
    port = ranks.same(None if server is None else server.getsockname()[1])
    if server is not None:
        watch.accept(server)
    else:
        watch.connect(port)
    atexit.register(watch.farewell)
    return watch
