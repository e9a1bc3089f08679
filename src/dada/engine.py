"""The device: which one, how randomness starts on it, precision, CUDA graphs, other processes.

Nobody else touches these. Letters: B images of a batch.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")

CALLS_BEFORE_GRAPH = 2  # the first compiles, and one shape more may be the last batch of an epoch
SMALL_BATCH_ELEMENTS = 100_000  # 128 images of 16x16 in colour


def resolve_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU where there is one; under `torchrun` every process has its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is not known; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use auto, cpu or cuda")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no CUDA GPU; use cpu")
    card = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if card >= (there := torch.cuda.device_count()):
        problem = f"GPU {card} was asked for, but torch sees {there}, counted from 0"
        raise ValueError(f"{problem}; use another --device or start fewer processes")
    return torch.device("cuda", card)


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch's own generators start from `seed`; outside, they go on as if nothing was.

    Dropout and its like draw from those, and can be given no other.
    """
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards):
        torch.random.default_generator.manual_seed(seed)
        for card in cards:
            with torch.cuda.device(card):
                torch.cuda.manual_seed(seed)
        yield


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Where torch's own generators stand: the host's, and the card's where there is one."""
    card = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *card]


def set_random_state(states: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1].cpu(), device)


class Captured:
    """A function of tensors that runs as a CUDA graph from its third call with the same shapes on.

    The first two calls run as they are: they compile kernels, fill caches, and do real work, so
    nothing needs to be rewound. Then the graph is recorded. It has fixed places for what comes in
    and goes out, so inputs are copied in and outputs out: a few copies in place of hundreds of
    launches. Random numbers, weights and optimiser states go on from replay to replay.

    On a CPU, with `enabled=False`, or inside another capture, it is the function itself.
    """

    def __init__(
        self,
        call: Callable[..., Tensor | tuple[Tensor, ...]],
        *,
        generators: Sequence[torch.Generator] = (),
        enabled: bool = True,
    ) -> None:
        self.call, self.generators, self.enabled = call, generators, enabled
        self.seen: dict[Any, int] = {}
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Sequence[Tensor], Any]] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        if not self.enabled or not tensors[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return self.call(*tensors)
        # Graphs that share places must not overlap, so every stream has its own.
        stream = torch.cuda.current_stream(tensors[0].device).stream_id
        key = (stream, *((t.device, t.shape, t.dtype) for t in tensors))
        if key not in self.graphs:
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] <= CALLS_BEFORE_GRAPH:
                return self.call(*tensors)
            self.graphs[key] = self._record(tensors)
        graph, places, made = self.graphs[key]
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()
        return made.clone() if isinstance(made, Tensor) else tuple(one.clone() for one in made)

    def _record(self, tensors: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, Any, Any]:
        places = [tensor.clone() for tensor in tensors]
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        current = torch.cuda.current_stream(tensors[0].device)
        own = None if current == torch.cuda.default_stream(tensors[0].device) else current
        with torch.cuda.graph(graph, stream=own):
            made = self.call(*places)
        return graph, places, made


def side_by_side(
    first: Callable[[], T], second: Callable[[], T], device: torch.device
) -> tuple[T, T]:
    """Both results. Where a graph is recorded, as two branches that the card runs at a time.

    For two calls that share nothing they write to. Launched one by one they would gain nothing:
    there the host is what is waited for.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    here, branch = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    branch.wait_stream(here)
    with torch.cuda.stream(branch):
        there = second()
    made = first()
    here.wait_stream(branch)
    return made, there


PRECISIONS = {"cpu": "fp32", "cuda": "bf16"}


@dataclass(frozen=True)
class Precision:
    """bf16: passes in bfloat16 where that is safe. tf32: rounded products. fp32: exact ones."""

    name: str
    device: torch.device

    @classmethod
    def of(cls, name: str, device: torch.device) -> Precision:
        return cls(PRECISIONS[device.type] if name == "auto" else name, device)

    def passes(self) -> AbstractContextManager[Any]:
        """Around a forward pass."""
        # Casts are not cached: a graph would keep the first ones.
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.name == "bf16", cache_enabled=False
        )

    @contextmanager
    def products(self) -> Iterator[None]:
        """Around everything: how float32 products are rounded on a card."""
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        rounded = self.name != "fp32"
        torch.set_float32_matmul_precision("high" if rounded else "highest")
        torch.backends.cudnn.allow_tf32 = rounded
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


class Lane:
    """A place on the device for one training or search: `with lane:` around each of its turns.

    Inside hold its own stream, precision, number of threads, and its own position in torch's
    global random numbers (dropout draws from those, and can be given no others). Outside, all is
    as it was. So several may take turns, and none notices the others.
    """

    def __init__(
        self, device: torch.device, precision: Precision, seed: int, elements: int
    ) -> None:
        """`elements` is how many numbers a batch of images holds."""
        self.device, self.precision, self.elements = device, precision, elements
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            # A graph cannot be recorded on the default stream.
            self.stream = torch.cuda.Stream(device)
            self.stream.wait_stream(torch.cuda.current_stream(device))
        with seeded(seed, device):
            self.random = random_state(device)

    def __enter__(self) -> None:
        self.turn = ExitStack()
        if self.stream is not None:
            self.turn.enter_context(torch.cuda.stream(self.stream))
        self.turn.enter_context(self.precision.products())
        self.turn.enter_context(few_threads(self.device, self.elements))
        self.outside = random_state(self.device)
        set_random_state(self.random, self.device)

    def __exit__(self, *problem: object) -> None:
        self.random = random_state(self.device)
        set_random_state(self.outside, self.device)
        self.turn.close()


def channels_last(tensor_or_module: Any, device: torch.device) -> Any:
    """On CUDA, pixels of all channels side by side, the order tensor cores want."""
    if device.type != "cuda":
        return tensor_or_module
    return tensor_or_module.to(memory_format=torch.channels_last)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy that has arrived; over a stream of its own, so the card works meanwhile."""
    if device.type != "cuda":
        return tensor.to(device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        arrived = tensor.pin_memory().to(device, non_blocking=True)
    stream.synchronize()
    return arrived


def used_here(tensors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Their memory is not given to the next copy while the current stream may still read it."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensors


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
                "raise --batch-size or start fewer"
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

    def same(self, thing: Any) -> Any:
        """What the first process has, on every one."""
        if self.world == 1:
            return thing
        box = [thing]
        distributed.broadcast_object_list(box, src=0)
        return box[0]


ALONE = Ranks()


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The other processes that `torchrun` started, or none.

    They stay together to the end: a script may search, then train, and cannot join again.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    card = device if device.type == "cuda" else None
    if card is not None:  # NCCL talks from the current card, which is the first one unless said
        torch.cuda.set_device(card)
    if not distributed.is_initialized():
        distributed.init_process_group("gloo" if card is None else "nccl", device_id=card)
        atexit.register(distributed.destroy_process_group)
    # The first makes the run directory, which the others have to have found missing by then.
    distributed.barrier()
    yield Ranks(distributed.get_rank(), distributed.get_world_size())


@contextmanager
def out_of_memory_named(batch_size: int, image_size: tuple[int, int]) -> Iterator[None]:
    """A full card is the user's to mend: one line that says what to lower."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        height, width = image_size
        raise ValueError(
            f"the GPU's memory is full with batches of {batch_size} images of {width}x{height}; "
            "lower --batch-size (auto finds one that fits), --views or --image-size"
        ) from None


def fitting(batch_size: int, attempt: Callable[[int], None]) -> int:
    """`batch_size`, halved until `attempt(batch_size)` finds room on the card."""
    while True:
        try:
            attempt(batch_size)
            return batch_size
        except torch.cuda.OutOfMemoryError:
            if batch_size == 1:
                raise
        batch_size //= 2
        torch.cuda.empty_cache()


@contextmanager
def few_threads(device: torch.device, elements: int) -> Iterator[None]:
    """On a CPU, one thread for work that is too small to share, or with one other core at most.

    Threads wait for each other by spinning. When another process wants the second core, a search
    with two threads is many times slower than with one.
    """
    before = torch.get_num_threads()
    small = elements < SMALL_BATCH_ELEMENTS or (os.cpu_count() or 1) <= 2
    if device.type == "cpu" and small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_plain_kernels: ContextVar[bool] = ContextVar("plain_kernels", default=False)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, layers use torch's own kernels, which know forward-mode differentiation."""
    token = _plain_kernels.set(True)
    try:
        yield
    finally:
        _plain_kernels.reset(token)


def wants_plain_kernels() -> bool:
    return _plain_kernels.get()
