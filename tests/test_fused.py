"""The Triton kernels give the bytes of the CPU: through Triton's interpreter, and on a card.

Letters: B images, K operations one after another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch

from dada import ops
from dada.engine import plain_kernels
from dada.ops import Op, batch, formulas, fused

TESTS = Path(__file__).parent
OWN = Op(name="Own", kernel=lambda images, value_B, center_B2: images.flip(-1), neutral=0.0)
TABLES = {"paper": ops.PAPER, "wide": ops.WIDE, "with an own row": (*ops.PAPER, OWN)}


def steps_for(
    table: tuple[Op, ...], copies: int, h: int, w: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every op first in `copies` images, and none in as many; a random one after it."""
    generator = torch.Generator().manual_seed(seed)
    first_B = (torch.arange(len(table) + 1) - 1).repeat(copies)
    second_B = torch.randint(-1, len(table), first_B.shape, generator=generator)
    op_index_BK = torch.stack([first_B, second_B], dim=1)
    low = torch.tensor([op.low for op in table] + [0.0], dtype=torch.float64)[op_index_BK]
    high = torch.tensor([op.high for op in table] + [0.0], dtype=torch.float64)[op_index_BK]
    uniform = torch.rand(3, *op_index_BK.shape, generator=generator, dtype=torch.float64)
    center_BK2 = torch.stack([uniform[1] * w, uniform[2] * h], dim=-1)
    return op_index_BK, low + uniform[0] * (high - low), center_BK2


def ends_for(
    table: tuple[Op, ...], h: int, w: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every op alone at the ends and thirds of its range, where roundings are decided.

    A third of the wide range of Rotate is a right angle's half, two thirds a right angle.
    """
    shares = torch.tensor([0.0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1.0], dtype=torch.float64)
    op_index_B1 = torch.arange(len(table)).repeat_interleave(len(shares)).unsqueeze(1)
    low = torch.tensor([op.low for op in table], dtype=torch.float64)[op_index_B1]
    high = torch.tensor([op.high for op in table], dtype=torch.float64)[op_index_B1]
    value_B1 = torch.round(low + shares.repeat(len(table)).unsqueeze(1) * (high - low), decimals=12)
    corner = torch.tensor([[w - 0.001, h - 0.001], [0.0, 0.0]], dtype=torch.float64)
    return op_index_B1, value_B1, corner[torch.arange(len(value_B1)) % 2].unsqueeze(1)


def images_for(count: int, c: int, h: int, w: int) -> torch.Tensor:
    """Noise in a band of levels that differs from image to image, so that tables have work."""
    generator = torch.Generator().manual_seed(h * 1000 + w)
    noise = torch.randint(0, 256, (count, c, h, w), generator=generator)
    return (noise // (1 + torch.arange(count).view(-1, 1, 1, 1) % 4) + 20).clamp(max=255).byte()


def interpreted_case(table_name: str, c: int, h: int, w: int) -> dict[str, object]:
    """In a process with TRITON_INTERPRET=1: the fused kernels on CPU tensors."""
    ends = table_name.startswith("ends of ")
    table = TABLES[table_name.removeprefix("ends of ")]
    steps = ends_for(table, h, w) if ends else steps_for(table, 1, h, w)
    images = images_for(len(steps[0]), c, h, w)
    expected = ops.run(table, images, *steps)
    before = images.clone()
    done = fused.run(table, images, *steps)
    answer = {
        "case": [table_name, c, h, w],
        "wrong ops": sorted(
            {
                table[steps[0][b, 0]].name if steps[0][b, 0] >= 0 else "none"
                for b in (done != expected).flatten(1).any(1).nonzero().flatten().tolist()
            }
        ),
        "changed images": int((done != images).flatten(1).any(1).sum()),
        "input kept": torch.equal(images, before),
    }
    if len(table) == len(ops.PAPER) and h * w < 40:
        normal = torch.tensor([120.3, 118.1, 99.9])[:c], torch.tensor([62.7, 61.3, 70.1])[:c]
        floats = fused.run(table, images, *steps, normal)
        alike = torch.equal(floats, ops.run(table, images, *steps, normal))
        answer["normalised"] = alike and floats.is_contiguous(memory_format=torch.channels_last)
    return answer


CASES = [
    ("paper", 3, 1, 1),
    ("paper", 3, 2, 5),
    ("paper", 3, 3, 3),
    ("paper", 3, 33, 40),
    ("paper", 1, 1, 1),
    ("paper", 1, 3, 3),
    ("paper", 1, 33, 40),
    ("wide", 3, 33, 40),
    ("with an own row", 3, 7, 6),
    ("ends of paper", 1, 8, 6),
    ("ends of wide", 1, 8, 8),
]

CHILD = f"""
import json, sys
sys.path.insert(0, {str(TESTS)!r})
import torch
torch.set_num_threads(1)
import test_fused
from dada.ops import fused_kernels
kind = type(fused_kernels.pixels).__name__
print(json.dumps([kind, [test_fused.interpreted_case(*case) for case in test_fused.CASES]]))
"""


@pytest.mark.skipif(not fused.is_available(), reason="triton is not installed")
def test_the_interpreted_kernels_give_the_same_bytes():
    """Two blocks of pixels at 33 x 40, all programs partly empty below; borders of every size."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=300
    )
    if "only 0-dimensional arrays can be converted to Python scalars" in done.stderr:
        # Triton 3.6 with numpy 2.5: a loop over range() fails whatever its body.
        pytest.skip("the interpreter of this Triton does not work with this numpy")
    assert done.returncode == 0, done.stderr
    kind, answers = json.loads(done.stdout)
    assert kind == "InterpretedFunction"
    assert [answer["case"] for answer in answers] == [list(case) for case in CASES]
    for answer in answers:
        assert answer["wrong ops"] == [], answer
        assert answer["input kept"], answer
    normalised = [answer["normalised"] for answer in answers if "normalised" in answer]
    assert len(normalised) == 5 and all(normalised), answers
    at_33_40 = [answer for answer in answers if answer["case"][2:] == [33, 40]]
    assert all(answer["changed images"] > 10 for answer in at_33_40), "the kernels did nothing"


def test_every_row_of_the_tables_has_a_formula():
    assert formulas.OTHER not in {formulas.formula_of(op) for op in (*ops.PAPER, *ops.WIDE)}
    assert formulas.formula_of(OWN) == formulas.OTHER


def test_a_launch_fits_the_grid():
    """CUDA's second grid axis has 65535 places, one for each block of an image's pixels."""
    side = batch.SAFE_SIDE_INT32
    assert -(-side * side // fused.PIXELS_PER_PROGRAM) <= 65535


# --- on a card ----------------------------------------------------------------------------------

SIZES = [(32, 32), (224, 224), (33, 47), (1, 1), (2, 5), (3, 3), (517, 301)]


@pytest.mark.gpu
@pytest.mark.parametrize("plain", [False, True], ids=["fused", "torch"])
@pytest.mark.parametrize("channels", [1, 3])
def test_cuda_normalises_alike(channels, plain):
    steps = steps_for(ops.PAPER, 2, 33, 47)
    images = images_for(len(steps[0]), channels, 33, 47)
    normal = torch.full((channels,), 120.3), torch.full((channels,), 62.7)
    with plain_kernels() if plain else nullcontext():
        done = ops.run(
            ops.PAPER,
            images.cuda(),
            *(step.cuda() for step in steps),
            (normal[0].cuda(), normal[1].cuda()),
        )
    assert torch.equal(done.cpu(), ops.run(ops.PAPER, images, *steps, normal))


@contextmanager
def synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def on_cuda(table: tuple[Op, ...], images: torch.Tensor, steps: tuple[torch.Tensor, ...]):
    return ops.run(table, images.cuda(), *(step.cuda() for step in steps)).cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["fused", "torch"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("table_name", TABLES)
def test_cuda_gives_the_same_bytes(table_name, size, way, monkeypatch):
    if way == "torch":
        monkeypatch.setattr(fused, "is_available", lambda: False)
    elif not fused.is_available():
        pytest.skip("triton is not installed")
    table = TABLES[table_name]
    for channels, steps in product((1, 3), (steps_for(table, 3, *size), ends_for(table, *size))):
        images = images_for(len(steps[0]), channels, *size)
        wrong_B = (
            (on_cuda(table, images, steps) != ops.run(table, images, *steps)).flatten(1).any(1)
        )
        assert steps[0][wrong_B].tolist() == [], f"{channels} channels"


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(31, 24), (64, 64)], ids=str)
def test_cuda_turns_as_the_cpu_does(size):
    """Sine and cosine come from another library there; 20,000 angles."""
    op = next(op for op in ops.WIDE if op.name == "Rotate")
    generator = torch.Generator().manual_seed(0)
    value_B = torch.rand(20_000, generator=generator, dtype=torch.float64) * 270 - 135
    images = images_for(1, 1, *size).expand(20_000, 1, *size)
    done = ops.apply(op, images.cuda(), value_B.cuda()).cpu()
    wrong_B = (done != ops.apply(op, images, value_B)).flatten(1).any(1)
    assert value_B[wrong_B].tolist() == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cuda_takes_floats(dtype):
    steps = steps_for(ops.PAPER, 2, 40, 24)
    images = images_for(len(steps[0]), 3, 40, 24).to(dtype) / 255
    done, expected = on_cuda(ops.PAPER, images, steps), ops.run(ops.PAPER, images, *steps)
    assert done.dtype == dtype
    assert torch.equal((done.float() * 255).round(), (expected.float() * 255).round())
    # CUDA divides by 255 with a product: float32 may differ in its last bit.
    torch.testing.assert_close(done, expected, rtol=2e-7 if dtype == torch.float32 else 0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["fused", "torch"])
@pytest.mark.parametrize("table_name", TABLES)
def test_cuda_never_waits(table_name, way, monkeypatch):
    """After a warm-up nothing synchronises, and a graph of it replays with other numbers."""
    if way == "torch":
        monkeypatch.setattr(fused, "is_available", lambda: False)
    table = TABLES[table_name]
    first = [step.cuda() for step in steps_for(table, 4, 32, 32, seed=0)]
    second = [step.cuda() for step in steps_for(table, 4, 32, 32, seed=1)]
    images = images_for(len(first[0]), 3, 32, 32).cuda()
    expected = [ops.run(table, images, *first), ops.run(table, images, *second)]
    with synchronising_is_an_error():
        ops.run(table, images, *first)
    held = [step.clone() for step in first]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ops.run(table, images, *held)
    for steps, wanted in zip((first, second), expected, strict=True):
        for place, step in zip(held, steps, strict=True):
            place.copy_(step)
        graph.replay()
        assert torch.equal(result, wanted)
    assert not torch.equal(*expected)


@pytest.mark.gpu
def test_more_images_than_a_grid_axis_has_places():
    images = images_for(70_000, 1, 2, 2)
    done = ops.apply("Invert", images.cuda(), 0.0)
    assert torch.equal(done.cpu(), 255 - images)
