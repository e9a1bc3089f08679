"""The device, randomness on it, turns, graphs, other processes, and memory that is full.

Shapes: B images of a batch.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, distributed, nn

import dada
from dada.config import Base, TrainConfig, search_config
from dada.data import Split, load, split_off_validation
from dada.engine import (
    ALONE,
    Captured,
    Lane,
    Precision,
    Ranks,
    few_threads,
    fitting,
    generator_on,
    joined,
    memory_kept,
    out_of_memory_named,
    resolve_device,
    seeded,
    side_by_side,
)
from dada.engine.memory import KEEPS, MMAP_THRESHOLD
from dada.models import build
from dada.policy.baselines import uniform
from dada.training import loop
from dada.training import many as training
from dada.training.base import change_lighting, cover_square, crop_and_flip, jitter_colours, turn
from quick import search_job

# The function has the name of its module.
searching = importlib.import_module("dada.policy_search.measuring")

CPU = torch.device("cpu")
FULL = torch.cuda.OutOfMemoryError("CUDA out of memory")


# --- which device -------------------------------------------------------------------------------


def pretend_cards(monkeypatch: pytest.MonkeyPatch, cards: int, local_rank: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)


@pytest.mark.parametrize(
    ("name", "cards", "local_rank", "wanted"),
    [
        ("auto", 0, None, "cpu"),
        ("auto", 2, None, "cuda:0"),
        ("auto", 2, "1", "cuda:1"),
        ("cuda", 2, "1", "cuda:1"),
        ("cuda:0", 2, "1", "cuda:0"),
        ("cpu", 2, "1", "cpu"),
        ("auto", 0, "1", "cpu"),
    ],
)
def test_every_process_has_a_card_of_its_own(monkeypatch, name, cards, local_rank, wanted):
    pretend_cards(monkeypatch, cards, local_rank)
    assert resolve_device(name) == torch.device(wanted)


@pytest.mark.parametrize(
    ("name", "cards", "local_rank", "says"),
    [
        ("cuda", 0, None, "device 'cuda' was asked for, but torch sees no CUDA GPU; use cpu"),
        ("cuda:3", 2, None, "GPU 3 was asked for, but torch sees 2, counted from 0; use another"),
        ("auto", 1, "1", "GPU 1 was asked for, but torch sees 1, counted from 0; .* start fewer"),
        ("meta", 1, None, "device 'meta' is not supported; use auto, cpu or cuda"),
        ("abacus", 1, None, "device 'abacus' is not known; use auto, cpu or cuda"),
    ],
)
def test_a_device_that_is_not_there_is_named(monkeypatch, name, cards, local_rank, says):
    pretend_cards(monkeypatch, cards, local_rank)
    with pytest.raises(ValueError, match=says):
        resolve_device(name)


# --- randomness, precision, turns ---------------------------------------------------------------


def test_seeded_begins_anew_and_puts_back():
    before = torch.get_rng_state()
    with seeded(5, CPU):
        first = torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())
    with seeded(5, CPU):
        assert torch.equal(first, torch.rand(3))
    with seeded(6, CPU):
        assert not torch.equal(first, torch.rand(3))


def test_two_lanes_draw_as_if_each_were_alone():
    def lane(seed: int) -> Lane:
        return Lane(CPU, Precision("fp32", CPU), seed, elements=1)

    def draws(lane: Lane, count: int) -> list[float]:
        found = []
        for _ in range(count):
            with lane:
                found.append(float(torch.rand(())))
        return found

    alone = {seed: draws(lane(seed), 3) for seed in (1, 2)}
    assert alone[1] != alone[2] and len(set(alone[1])) == 3
    outside = torch.get_rng_state()
    one, two = lane(1), lane(2)
    mixed: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):
        mixed[1] += draws(one, 1)
        mixed[2] += draws(two, 1)
    assert mixed == alone
    assert torch.equal(outside, torch.get_rng_state())
    with pytest.raises(ZeroDivisionError), one:
        torch.rand(())
        raise ZeroDivisionError
    assert torch.equal(outside, torch.get_rng_state()), "not put back after an error"


def test_a_lane_has_its_precision_and_threads_only_inside():
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    assert before[0] == "highest"
    try:
        torch.set_num_threads(2)
        with Lane(CPU, Precision("tf32", CPU), 0, elements=1):
            assert torch.get_float32_matmul_precision() == "high"
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with few_threads(torch.device("cuda"), elements=1):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before[1])
    assert torch.get_float32_matmul_precision() == before[0]


def test_large_batches_have_all_threads_on_a_large_machine(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    try:
        torch.set_num_threads(2)
        for elements, threads in ((10_000, 1), (1_000_000, 2)):
            with few_threads(CPU, elements):
                assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_precision_is_that_of_the_device_unless_said():
    assert Precision.of("auto", CPU).name == "fp32"
    assert Precision.of("auto", torch.device("cuda", 0)).name == "bf16"
    layer, images = nn.Linear(4, 2), torch.ones(1, 4)
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        with Precision.of(name, CPU).passes():
            assert layer(images).dtype == dtype


# --- other processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_images_random_numbers_do_not_depend_on_the_number_of_processes(world):
    """Together, the processes' rows are those that one process draws for the whole batch."""
    whole = ALONE.uniform(8, 3, CPU, generator_on(CPU, 7), torch.float64)
    shares = [
        Ranks(rank, world).uniform(8 // world, 3, CPU, generator_on(CPU, 7), torch.float64)
        for rank in range(world)
    ]
    assert torch.equal(torch.cat(shares), whole)
    rows = torch.arange(24).view(3, 8)
    halves = [Ranks(rank, world).mine(rows, dim=1) for rank in range(world)]
    assert torch.equal(torch.cat(halves, 1), rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda images, noise, ranks: crop_and_flip(images, Base(crop=2, flip=True), noise, ranks),
        lambda images, noise, ranks: turn(images, noise, ranks),
        lambda images, noise, ranks: jitter_colours(images, 0.4, noise, ranks),
        lambda images, noise, ranks: change_lighting(images, 0.4, noise, ranks),
        lambda images, noise, ranks: cover_square(images.float(), 3, noise, ranks),
    ],
    ids=["crop_and_flip", "turn", "jitter_colours", "change_lighting", "cover_square"],
)
def test_what_is_done_to_an_image_does_not_depend_on_them_either(images_BCHW, change):
    images_BCHW = images_BCHW.cpu()
    whole = change(images_BCHW, generator_on(CPU, 3), ALONE)
    halves = [
        change(images_BCHW[3 * rank : 3 * rank + 3], generator_on(CPU, 3), Ranks(rank, 2))
        for rank in (0, 1)
    ]
    assert torch.equal(torch.cat(halves), whole)
    assert not torch.equal(whole, images_BCHW.to(whole.dtype))


def test_a_batch_is_shared_evenly_or_refused():
    assert Ranks(0, 3).share(128, 1000) == 42
    assert Ranks(0, 3).share(128, 10) == 3
    with pytest.raises(ValueError, match="a batch of 2 cannot be shared by 3 processes; raise `b"):
        Ranks(0, 3).share(2, 1000)


def test_alone_nothing_is_joined_and_nothing_is_sent(monkeypatch):
    for world in (None, "1"):
        monkeypatch.delenv("RANK", raising=False)
        if world:
            monkeypatch.setenv("RANK", "0")
            monkeypatch.setenv("WORLD_SIZE", world)
        with joined(CPU) as ranks:
            assert ranks == ALONE and not distributed.is_initialized()
    tensor = torch.arange(3.0)
    ALONE.average_([tensor])
    assert torch.equal(tensor, torch.arange(3.0))
    assert ALONE.gather(tensor) is tensor and ALONE.same(tensor) is tensor


# --- graphs -------------------------------------------------------------------------------------


def test_on_a_cpu_captured_is_the_function():
    seen = []

    def call(*tensors: Tensor) -> Tensor:
        seen.append(tensors)
        return tensors[0]

    step = Captured(call, generators=[torch.Generator()])
    given = torch.zeros(2), torch.ones(3)
    for _ in range(4):
        assert step(*given) is given[0]
    assert len(seen) == 4 and all(one is two for one, two in zip(seen[3], given, strict=True))
    assert step.graphs == {} and step.calls == {}


@pytest.fixture
def malloc() -> Callable[[], Any]:
    """What glibc holds: `mapped` bytes in mappings of their own."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    tuned = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if tuned or not hasattr(libc, "mallinfo2"):
        pytest.skip("another libc, or settings of malloc")

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "o", "s", "maps", "mapped")]
        _fields_ += [(f"other{i}", ctypes.c_size_t) for i in range(5)]

    libc.mallinfo2.restype = Info
    return libc.mallinfo2


LARGE = 2**27


def is_mapped(malloc: Callable[[], Any]) -> bool:
    """Whether a large tensor has a mapping of its own."""
    before = malloc().mapped
    held = torch.empty(LARGE, dtype=torch.uint8)
    return bool(malloc().mapped - before >= len(held))


def test_large_tensors_leave_their_memory_to_the_next_ones(malloc):
    """Of a mapping of its own a tensor's memory would go back to the system."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    assert is_mapped(malloc)
    with memory_kept(CPU):
        before = resident()
        assert len(torch.ones(LARGE, dtype=torch.uint8)) == LARGE
        assert resident() - before > LARGE / 2, "what was freed is held"
        assert not is_mapped(malloc)
    assert resident() - before < LARGE / 2 and is_mapped(malloc), "and given back"
    with memory_kept(torch.device("cuda")):
        assert is_mapped(malloc), "a card's host does as ever"


def test_memory_is_kept_until_the_last_has_ended(malloc):
    """A search may begin in a callback of another, or in a thread beside it, and be stopped."""
    with memory_kept(CPU):
        with pytest.raises(KeyboardInterrupt), memory_kept(CPU):
            raise KeyboardInterrupt
        assert not is_mapped(malloc)
        beside = Thread(target=memory_kept(CPU)(lambda: None))
        beside.start()
        beside.join()
        assert not is_mapped(malloc)
    assert is_mapped(malloc)


def never(*_: int) -> None:
    pytest.fail("settings of malloc were changed")


def test_older_libraries_take_the_settings_too(monkeypatch):
    """They refuse a threshold of more than 32 MiB, and set what else they are told."""
    told: list[tuple[int, int]] = []
    libc = SimpleNamespace(mallopt=lambda *one: told.append(one), malloc_trim=lambda _: None)
    monkeypatch.setattr("dada.engine.memory._libc_to_set", lambda: libc)
    with memory_kept(CPU):
        pass
    assert all(value <= 2**25 for name, value in told if name == MMAP_THRESHOLD)
    assert {name for name, _ in told[: len(KEEPS)]} <= {name for name, _ in told[len(KEEPS) :]}


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_MMAP_THRESHOLD_", "100000"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=1")],
)
def test_a_users_own_settings_of_malloc_stay(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    libc = SimpleNamespace(mallopt=never, malloc_trim=never)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", lambda _: libc)
    with memory_kept(CPU):
        pass


@pytest.mark.parametrize(
    ("platform", "has"), [("linux", ("mallopt",)), ("linux", ()), ("win32", ())]
)
def test_other_libraries_are_left_alone(platform, has, monkeypatch):
    """musl has neither function, Android's has one, with other parameters."""
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(**dict.fromkeys(has, never)))
    with memory_kept(CPU):
        pass


def test_side_by_side_gives_both():
    assert side_by_side(lambda: 1, lambda: 2, CPU) == (1, 2)


def test_nothing_is_sent_to_a_card_while_a_graph_is_recorded(monkeypatch):
    """Another thread that reads ahead would end the recording with an error."""
    from dada.engine import device, graphs

    sent, stream, inside = Event(), SimpleNamespace(stream_id=0), []
    monkeypatch.setattr(device, "_copied", lambda tensor, where: sent.set())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: nullcontext())

    def step(tensor: Tensor) -> Tensor:
        reader.start()
        inside.append(sent.wait(0.2))
        return tensor

    cuda = torch.device("cuda")
    reader = Thread(target=device.to_device, args=(torch.zeros(1), cuda))
    graphs.Captured(step)._record([torch.zeros(1)])
    assert inside == [False] and sent.wait(10), "it waits, and comes after"
    sent.clear()
    monkeypatch.setattr(device, "LONGEST_RECORDING", 0.05)
    reader = Thread(target=device.to_device, args=(torch.zeros(1), cuda))
    with device.recording:
        reader.start()
        assert sent.wait(10), "but not for ever"


def test_memory_that_is_full_while_a_graph_is_recorded_is_said_so(monkeypatch):
    """What ends a recording that failed fails, too."""

    @contextmanager
    def recorded(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: capturing stream has unjoined work")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", recorded)

    def full(tensor: Tensor) -> Tensor:
        raise FULL

    with pytest.raises(torch.cuda.OutOfMemoryError):
        Captured(full)._record([torch.zeros(1)])
    said = pytest.raises(ValueError, match="the GPU's memory is full with batches of 8 images")
    with said, out_of_memory_named(8, (32, 32)):
        Captured(full)._record([torch.zeros(1)])
    with pytest.raises(RuntimeError, match="unjoined"):  # of something else
        Captured(lambda tensor: tensor)._record([torch.zeros(1)])


@pytest.mark.gpu
def test_a_training_reads_from_files_while_its_step_is_recorded(tmp_path):
    """Small batches of files of a size that takes long to decode: there is always one to send."""
    for i in range(240):
        noise = torch.Generator().manual_seed(i)
        pixels = torch.randint(256, (300, 300, 3), generator=noise, dtype=torch.uint8)
        file = tmp_path / str(i % 2) / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.numpy()).save(file)
    split = load(tmp_path, image_size=64, in_memory=False)
    how = {"base": "none", "epochs": 2, "batch_size": 8, "device": "cuda"}
    trained = dada.train(split, "uniform", "torchvision:resnet18", **how)
    assert len(trained.history) == 2


@pytest.mark.gpu
def test_a_graph_does_what_the_function_does_and_random_numbers_go_on():
    """Weights, rates and random numbers: 12 steps as graphs, and as they are."""
    cuda = resolve_device("cuda")

    def run(enabled: bool) -> tuple[list[float], Tensor, int]:
        noise = generator_on(cuda, 1)
        weight = torch.ones(4, device=cuda)

        def step(images: Tensor, rate: Tensor) -> Tensor:
            drawn = torch.rand(images.shape, generator=noise, device=cuda)
            loss = (weight * images * drawn).sum()
            weight.sub_(rate * loss)
            return loss.clone()

        captured = Captured(step, generators=[noise], enabled=enabled)
        losses = []
        with Lane(cuda, Precision("fp32", cuda), 0, 1):
            for i in range(12):
                # A shape seen for the first time, between others: the last batch of an epoch.
                rows = 2 if i in (5, 9) else 3
                images = torch.full((rows, 4), 0.1 + i, device=cuda)
                losses.append(captured(images, torch.tensor(0.01 / (1 + i), device=cuda)))
            torch.cuda.synchronize()
        return [float(loss) for loss in losses], weight.cpu(), len(captured.graphs)

    eager, eager_weight, none = run(False)
    graph, graph_weight, recorded = run(True)
    assert (none, recorded) == (0, 1), "the shape seen twice stays as it is, the other is recorded"
    assert graph == pytest.approx(eager, rel=1e-5)
    assert torch.allclose(graph_weight, eager_weight, rtol=1e-5)


@pytest.mark.gpu
def test_what_a_graph_returns_is_not_overwritten_by_the_next():
    cuda = resolve_device("cuda")
    double = Captured(lambda x: (x * 2, x * 3))
    with Lane(cuda, Precision("fp32", cuda), 0, 1):
        made = [double(torch.full((2,), float(i), device=cuda)) for i in range(6)]
        torch.cuda.synchronize()
    assert [float(two[0]) for two, _ in made] == [2.0 * i for i in range(6)]
    assert [float(three[0]) for _, three in made] == [3.0 * i for i in range(6)]


def pictures(count: int = 192, classes: int = 4, size: int = 16) -> Split:
    """Coloured stripes in noise, half of them to judge on."""
    noise = torch.Generator().manual_seed(0)
    labels_B = torch.arange(count) % classes
    wave = torch.sin((labels_B[:, None] + 1) * torch.arange(size) * 2 * torch.pi / size)
    images = 128 + 60 * wave[:, None, None, :].expand(count, 3, size, size)
    images = images + 30 * torch.randn(count, 3, size, size, generator=noise)
    return split_off_validation(load((images.clamp(0, 255).to(torch.uint8), labels_B)), 0.5, 0)


class Plain(nn.Module):
    """No BatchNorm; dropout where asked for."""

    def __init__(self, classes: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        hidden = torch.relu(self.convolution(images_BCHW)).mean((2, 3))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits


def plain(**settings: Any) -> Plain:
    with seeded(0, CPU):
        return Plain(**settings)


def distance(one: nn.Module, other: nn.Module) -> float:
    """Largest difference of any weight, as a part of the largest weight."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    largest = max(float(weight.detach().abs().max()) for weight in one.parameters())
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs) / largest


@pytest.mark.gpu
@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_as_graphs_reaches_the_weights_of_training_without(ema, dropout):
    base = Base(crop=2, flip=True, turn=True)
    config = TrainConfig(epochs=6, batch_size=32, lr=0.02, precision="fp32", ema=ema, base=base)
    results = [
        training.run_job(
            training.Job(
                split=pictures(), model=plain(dropout=dropout), policy=uniform(), config=config,
                seed=0, device=resolve_device("cuda"), graph=graph,
            )
        )
        for graph in (True, False)
    ]  # fmt: skip
    graph, eager = results
    assert [e["loss"] for e in graph.history] == pytest.approx(
        [e["loss"] for e in eager.history], rel=1e-4
    )
    assert distance(graph.model, eager.model) < 1e-3
    assert distance(graph.model, plain(dropout=dropout).to(resolve_device("cuda"))) > 1e-2


def policy_numbers(preset: str, device: torch.device, graph: bool) -> Tensor:
    """Weight, probability and magnitudes of all pairs, less those that a search begins with."""
    # All 105 pairs: which of them are the best 25 may depend on the last bit.
    config = search_config(preset, epochs=8, batch_size=32, lr=0.02, precision="fp32", top=105)
    found = searching.measure(search_job(pictures(), plain(), config, device=device, graph=graph))
    numbers = {}
    for subpolicy in found.policy.subpolicies:
        steps = [(step.probability - 0.5, sum(step.magnitude_range) - 1) for step in subpolicy.ops]
        pair = tuple(step.op for step in subpolicy.ops)
        numbers[pair] = [105 * subpolicy.weight - 1, *steps[0], *steps[1]]
    return torch.tensor([numbers[pair] for pair in sorted(numbers)])


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["paper", "dada"])
def test_searching_as_graphs_finds_the_policy_of_searching_without(preset):
    graph, eager = (
        policy_numbers(preset, resolve_device("cuda"), graph) for graph in (True, False)
    )
    moved = eager.abs().mean()
    assert moved > 1e-3
    # Of the way that the policy went, the part that differs. Adam takes a step of its full size
    # however small the gradient, so a few numbers may differ by more than float error.
    assert (graph - eager).abs().mean() < 0.02 * moved


@pytest.mark.gpu
def test_several_trainings_on_one_card_are_those_of_each_alone():
    device = resolve_device("cuda")
    config = TrainConfig(epochs=6, batch_size=32, lr=0.02, precision="fp32")

    def jobs() -> list[Any]:
        return [
            training.Job(
                split=pictures(), model=plain(dropout=0.5), policy=uniform(), config=config,
                seed=seed, device=device,
            )
            for seed in (0, 1, 2)
        ]  # fmt: skip

    alone = {job.seed: result for job, result in training.train_many(jobs())}
    together = {job.seed: result for job, result in training.train_many(jobs(), at_once=3)}
    for seed in (0, 1, 2):
        assert distance(together[seed].model, alone[seed].model) < 1e-3
    assert distance(alone[0].model, alone[1].model) > 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
def test_memory_does_not_grow(graph):
    """Four hundred steps of each; what is taken after the first epochs is all there is."""
    device, taken = resolve_device("cuda"), []

    def look(metrics: dict[str, Any], epochs: int) -> None:
        gc.collect()
        torch.cuda.synchronize()
        taken.append(torch.cuda.memory_allocated(device))

    split = pictures()
    model = build("small", 4, 3, (16, 16), seed=0)
    config = TrainConfig(epochs=133, batch_size=32)
    job = training.Job(
        split=split, model=model, policy=uniform(), config=config, seed=0, device=device,
        graph=graph, on_epoch=look,
    )  # fmt: skip
    training.run_job(job)
    assert max(taken[66:]) <= max(taken[3:66])
    taken.clear()
    model = build("small", 4, 3, (16, 16), seed=0)
    settings = search_config("paper", epochs=133, batch_size=32)
    searching.measure(search_job(split, model, settings, device=device, graph=graph), look)
    assert max(taken[66:]) <= max(taken[3:66])


# --- memory that is full ------------------------------------------------------------------------


def test_a_full_card_is_one_line_that_says_what_to_lower():
    says = (
        r"^the GPU's memory is full with batches of 64 images of 20x10; lower `batch_size` "
        r"\('auto' finds one that fits\), `views` or `image_size`$"
    )
    with pytest.raises(ValueError, match=says), out_of_memory_named(64, (10, 20)):
        raise FULL
    with pytest.raises(ZeroDivisionError), out_of_memory_named(64, (10, 20)):
        raise ZeroDivisionError


def test_fitting_halves_until_there_is_room():
    def room_for(most: int) -> Any:
        def attempt(size: int) -> None:
            tried.append(size)
            if size > most:
                raise FULL

        return attempt

    tried: list[int] = []
    assert fitting(100, room_for(1000)) == 100 and tried == [100]
    tried.clear()
    assert fitting(100, room_for(20)) == 12 and tried == [100, 50, 25, 12]
    tried.clear()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fitting(5, room_for(0))
    assert tried == [5, 2, 1]


def digits(count: int = 160) -> tuple[Tensor, Tensor]:
    return load("digits").train.batch(torch.arange(count))


@pytest.mark.parametrize("command", ["train", "search"])
def test_a_step_that_finds_no_room_ends_with_that_line(monkeypatch, command):
    module = {"train": loop, "search": searching}[command]

    def full(*_: Any, **__: Any) -> Tensor:
        raise FULL

    monkeypatch.setattr(module, f"{command}_step", full)
    call = getattr(dada, command)
    with pytest.raises(ValueError, match="memory is full with batches of 32 images of 8x8; lower"):
        call(digits(), batch_size=32, epochs=1, device="cpu")
    with pytest.raises(ValueError, match="memory is full with batches of 1 images of 8x8; lower"):
        call(digits(), batch_size="auto", epochs=1, device="cpu")


@pytest.mark.usefixtures("quick_lookahead")
@pytest.mark.parametrize(("command", "tries"), [("train", [40, 20]), ("search", [128, 64, 32, 16])])
def test_auto_finds_the_batch_size_that_fits(monkeypatch, command, tries):
    module = {"train": loop, "search": searching}[command]
    real, tried, told = getattr(module, f"{command}_step"), [], {}

    def small_card(state: Any, images_BCHW: Tensor, *rest: Any, **options: Any) -> Tensor:
        tried.append(len(images_BCHW))
        if len(images_BCHW) > 24:
            raise FULL
        loss: Tensor = real(state, images_BCHW, *rest, **options)
        return loss

    def remember(split: Split, config: Any, model: str) -> None:
        told["batch_size"], told["steps"] = config.batch_size, len(split.train) // config.batch_size

    monkeypatch.setattr(module, f"{command}_step", small_card)
    found = getattr(dada, command)(
        digits(320), batch_size="auto", epochs=1, device="cpu", on_start=remember
    )
    # The first is the setting that `auto` starts from; all tries but the last found no room.
    fits = tries[-1]
    assert told["batch_size"] == fits and tried == tries + [fits] * told["steps"]
    # The trial step was made on a copy: the real training begins where it would have.
    wanted = getattr(dada, command)(digits(320), batch_size=fits, epochs=1, device="cpu")
    assert [e["loss"] for e in found.history] == [e["loss"] for e in wanted.history]
