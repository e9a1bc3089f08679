"""Which device, how randomness starts on it, and what it has room for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor

ALLOCATION_REFUSED = re.compile("(can't|could not) allocate")
SMALL_BATCH_ELEMENTS = 100_000  # 128 images of 16x16 in colour

recording = RLock()  # held while this process records a graph
LONGEST_RECORDING = 120.0  # seconds; most take a few


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
        raise ValueError(f"{problem}; use another `device` or start fewer processes")
    return torch.device("cuda", card)


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch's global generators start from `seed`; outside, they are left as they were.

    Dropout and similar layers draw from those, and can be given no other.
    """
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards):
        torch.random.default_generator.manual_seed(seed)
        for card in cards:
            with torch.cuda.device(card):
                torch.cuda.manual_seed(seed)
        yield


def random_state(device: torch.device) -> list[torch.Tensor]:
    """The state of torch's global generators: the CPU's, and the GPU's where there is one."""
    card = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *card]


def set_random_state(states: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1].cpu(), device)


def channels_last(tensor_or_module: Any, device: torch.device) -> Any:
    """On CUDA, pixels of all channels side by side, the order tensor cores want."""
    if device.type != "cuda":
        return tensor_or_module
    return tensor_or_module.to(memory_format=torch.channels_last)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A finished copy; made on a stream of its own, so the GPU works meanwhile.

    Threads that read ahead wait while a graph is recorded (engine/graphs.py): what they ask of the
    card, as memory to copy from, would end the recording with an error.
    """
    if device.type != "cuda":
        return tensor.to(device)
    # Not for ever: a recording may itself wait for this thread, where it clears away its reader.
    held = recording.acquire(timeout=LONGEST_RECORDING)
    try:
        return _copied(tensor, device)
    finally:
        if held:
            recording.release()


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        arrived = tensor.pin_memory().to(device, non_blocking=True)
    stream.synchronize()
    return arrived


def record_use(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Keeps their memory from being reused while the current stream may still read it."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensors


def memory_that_is_full(error: BaseException) -> str | None:
    """Whose memory it is that this error is about; None for another error."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "GPU's"
    # The CPU's allocator has no class of its own: "can't allocate memory: you tried to ...".
    refused = isinstance(error, RuntimeError) and ALLOCATION_REFUSED.search(str(error))
    return "machine's" if refused or isinstance(error, MemoryError) else None


@contextmanager
def out_of_memory_named(
    batch_size: int,
    image_size: tuple[int, int],
    phase: str = "",
    lower: str = "`batch_size` ('auto' finds one that fits), `views` or `image_size`",
) -> Iterator[None]:
    """When memory is full, one line says in which phase, and which settings to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        whose = memory_that_is_full(error)
        if whose is None:
            raise
        height, width = image_size
        raise ValueError(
            f"{phase}{': ' if phase else ''}the {whose} memory is full with batches of "
            f"{batch_size} images of {width}x{height}; lower {lower}"
        ) from None


def fitting(batch_size: int, attempt: Callable[[int], None]) -> int:
    """`batch_size`, halved until `attempt(batch_size)` fits in the GPU's memory."""
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
    """On a CPU, one thread where the work is too small to share or there are at most two cores.

    Threads wait for each other by spinning. When another process uses the second core, a search
    with two threads is many times slower than with one.
    """
    small = elements < SMALL_BATCH_ELEMENTS or (os.cpu_count() or 1) <= 2
    if device.type != "cpu" or not small or torch.compiler.is_compiling():
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
