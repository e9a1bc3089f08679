"""BatchNorm with ReLU: torch's own bits where it is plain, float64's numbers where it is fused.

The fused kernels run on a card, and on CPU tensors through Triton's interpreter.
Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, relu

from dada import models
from dada.engine import plain_kernels, wants_plain_kernels
from dada.models import batchnorm
from dada.models.batchnorm import BatchNormReLU
from dada.models.wideresnet import WideResNet
from dada.policy_search.hypergradient import forward_mode_cost, trainable_weights

TESTS = Path(__file__).parent
# ||wrong|| / ||right||: rounding of the output, and for float32 of the sums. The interpreter cuts
# bfloat16 off where a card rounds it.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def noise(shape: tuple[int, ...], seed: int, device: str = "cpu") -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)
    return made.contiguous(memory_format=torch.channels_last)


def layer_for(channels: int, device: str = "cpu") -> BatchNormReLU:
    layer = BatchNormReLU(channels).to(device)
    with torch.no_grad():
        for number, tensor in enumerate((layer.weight, layer.bias, layer.running_mean)):
            tensor.copy_(noise((channels,) + (1,) * 3, number).flatten())
    return layer


def error(got: Tensor, right: Tensor, size: Tensor | None = None) -> float:
    return ((got.double() - right).norm() / (right if size is None else size).norm()).item()


def errors_of_fused(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    *,
    residual: bool,
    skip: bool,
    offset: float = 0.0,
    device: str = "cpu",
) -> dict[str, float]:
    """Relative error of everything the fused layer computes, against float64.

    The gradient is that of the outputs that are positive in float32: of millions, a few are so near
    to zero that float64 has them on the other side.
    """
    layer = layer_for(shape[1], device)
    exact = nn.BatchNorm2d(shape[1]).to(device).double()
    exact.load_state_dict(layer.state_dict())
    x, more, grad_y, grad_sum = (noise(shape, seed, device).to(dtype) for seed in range(4))
    x = (x + offset).requires_grad_()
    more.requires_grad_()
    assert layer._can_fuse(x)
    y, total = layer.add(x, more) if residual else (layer(x), x.detach())
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    asked = [x, *([more] if residual else []), layer.weight, layer.bias]
    outputs, grads = ([y, total], [grad_y, grad_sum]) if skip else ([y], [grad_y])
    got = torch.autograd.grad(outputs, asked, grads)
    right_x = total.detach().double().requires_grad_()
    normal = exact(right_x)
    g = torch.where(y > 0, grad_y, 0.0).double()
    right = torch.autograd.grad(normal, [right_x, exact.weight, exact.bias], g)
    right_grad_x = right[0] + (grad_sum.double() if skip else 0.0)
    # Of two numbers the normalised ones are 1 and -1: the gradient cancels, its terms do not.
    terms = g * (exact.weight.detach() / right_x.detach().std((0, 2, 3)))[:, None, None]
    size = terms.abs() + right_grad_x.abs()
    assert layer._arrivals is not None and not layer._arrivals.any(), "a counter is not at zero"
    assert layer.num_batches_tracked == 1
    found = {
        "y": error(y, relu(normal.detach())),
        "grad x": error(got[0], right_grad_x, size),
        "grad weight": error(got[-2], right[1]),
        "grad bias": error(got[-1], right[2]),
        "running mean": error(layer.running_mean, exact.running_mean),
        "running var": error(layer.running_var, exact.running_var),
    }
    if residual:
        found["sum"] = error(total, (x + more).double())
        found["grad residual"] = error(got[1], right_grad_x, size)
    return found


# --- where it is plain --------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_plain_is_torch_bit_for_bit(training: bool, layout: torch.memory_format) -> None:
    layer = layer_for(5).train(training)
    theirs = nn.BatchNorm2d(5).train(training)
    theirs.load_state_dict(layer.state_dict())  # the same names, both ways
    layer.load_state_dict(theirs.state_dict())
    x, more = (noise((3, 5, 4, 6), s).contiguous(memory_format=layout) for s in (7, 8))
    answers = []
    for add, norm in ((layer.add, layer), (lambda a, b: (relu(theirs(a + b)), a + b), theirs)):
        x.requires_grad_().grad = None
        norm.zero_grad()
        y, total = add(x, more)
        (y.square() + total).sum().backward()
        answers.append([y, total, x.grad, norm.weight.grad, norm.bias.grad, *norm.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*answers, strict=True))
    assert torch.equal(layer(x.detach()), relu(theirs(x.detach())))
    assert list(layer.state_dict()) == list(nn.BatchNorm2d(5).state_dict())


def test_the_residual_network_adds_as_before() -> None:
    """The sum moved from the end of a block into the next normalisation; no bit may change."""
    model = models.build("wrn16_2", 3, seed=0)
    assert isinstance(model, WideResNet)
    images = noise((4, 3, 8, 8), 0)
    plain = copy.deepcopy(model)
    x = plain.stem(images)
    for block in plain.blocks:
        active = block.norm1(x)
        out = block.conv2(block.norm2(block.conv1(active)))
        x = out + (x if block.shortcut is None else block.shortcut(active))
    logits = plain.head(plain.norm(x).mean((2, 3)))
    (logits**2).sum().backward()
    (model(images) ** 2).sum().backward()
    assert all(
        torch.equal(a.grad, b.grad)
        for a, b in zip(model.parameters(), plain.parameters(), strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))


@pytest.fixture
def pretend_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the device is as the fused kernels want it."""
    monkeypatch.setattr(batchnorm, "_can_launch_on", lambda device: True)


def test_what_is_fused_and_what_is_not(pretend_card: None) -> None:
    x, layer = noise((2, 8, 3, 3), 0), BatchNormReLU(8)
    assert layer._can_fuse(x) and layer._can_fuse(x.bfloat16()) and layer._can_fuse(x.half())
    assert not layer._can_fuse(x.contiguous())
    assert not layer._can_fuse(x.double())
    assert not layer._can_fuse(x[:, :7])
    assert not layer._can_fuse(noise((1, 8, 1, 1), 0))  # torch refuses it, with its own words
    assert not layer.eval()._can_fuse(x)
    for changed in ({"momentum": None}, {"affine": False}, {"track_running_stats": False}):
        assert not BatchNormReLU(8, **changed)._can_fuse(x), changed
    assert not BatchNormReLU(8).half()._can_fuse(x)
    layer.train()
    with plain_kernels():
        assert not layer._can_fuse(x)
        with plain_kernels():
            pass
        assert wants_plain_kernels()
    assert layer._can_fuse(x)


def test_nothing_is_fused_on_a_cpu() -> None:
    assert not BatchNormReLU(8)._can_fuse(noise((2, 8, 3, 3), 0))


# Torch warns of itself: forward mode compiles its decompositions by torch.jit.script.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_is_plain(pretend_card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("fused")

    monkeypatch.setattr(batchnorm._FusedBatchNormReLU, "apply", never)
    model = models.build("wrn10_1", 3, seed=0).to(memory_format=torch.channels_last)
    images, labels = noise((4, 3, 8, 8), 0), torch.tensor([0, 1, 2, 0])
    with pytest.raises(AssertionError, match="fused"):
        model(images)
    weights = trainable_weights(model)
    cost = forward_mode_cost(model, weights, weights, 0.1, images, labels, image_grad=True)
    assert cost.cost_B.isfinite().all() and not wants_plain_kernels()


# --- the launches -------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 16, 31, 32, 64, 160, 640, 2048])
@pytest.mark.parametrize("rows", [2, 63, 64, 8192, 524_288])
def test_every_tile_has_a_program(
    channels: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batchnorm, "_processors", lambda device: 132)
    device = torch.device("cuda")
    block_rows, width, blocks = batchnorm._tile(channels)
    assert (blocks - 1) * width < channels <= blocks * width
    each, grid = batchnorm._other_grid(rows, channels, device)
    assert grid % blocks == 0
    tiles = grid // blocks * each  # of which the last program may have some too many
    assert (tiles - each) * block_rows < rows <= tiles * block_rows
    programs, grid = batchnorm._summing_grid(rows, channels, block_rows, device)
    assert grid == programs * blocks and (programs - 1) * block_rows < rows
    assert grid <= max(4 * 132, blocks)  # one wave


CASES: list[tuple[tuple[int, int, int, int], str, bool, bool, float]] = [
    # 8 x 32 tiles; 60 rows: a program with one tile of two, and the last one partly empty
    ((3, 5, 4, 5), "float32", False, False, 0.0),
    ((4, 32, 5, 7), "float32", True, True, 0.0),
    ((2, 70, 6, 7), "float32", True, False, 0.0),  # three blocks of channels
    ((3, 128, 3, 3), "float32", False, False, 0.0),  # 4 x 64 tiles
    ((4, 33, 5, 7), "float32", True, True, 500.0),  # far from zero: nothing may cancel
    ((2, 1, 9, 7), "float16", True, True, 0.0),
    ((2, 64, 5, 6), "float16", True, True, 2.0),
    ((2, 64, 5, 6), "bfloat16", True, True, 0.0),
    ((2, 1, 1, 1), "float32", False, False, 0.0),
]

CHILD = f"""
import json, sys
sys.path.insert(0, {str(TESTS)!r})
import torch
torch.set_num_threads(1)
import test_batchnorm
print(json.dumps(test_batchnorm.interpreted()))
"""


def interpreted() -> dict[str, object]:
    """In a process with TRITON_INTERPRET=1: the fused layer on CPU tensors."""
    from dada.models import batchnorm_kernels

    batchnorm._can_launch_on = lambda device: True
    batchnorm.TILE_ELEMENTS = 256  # many tiles in small tensors
    answers = []
    for number, (shape, dtype, residual, skip, offset) in enumerate(CASES):
        batchnorm._processors = lambda device, count=1 + number % 2: count
        arguments = {"residual": residual, "skip": skip, "offset": offset}
        answers.append(errors_of_fused(shape, getattr(torch, dtype), **arguments))
    asked_and_nan = {**_only_what_is_asked("cpu"), "nan": _nan_stays("cpu")}
    return {"kind": type(batchnorm_kernels.activate).__name__, "errors": answers, **asked_and_nan}


def _only_what_is_asked(device: str) -> dict[str, bool]:
    """Gradients for the pixels alone, for the weights alone, for the residual alone, for none."""
    layer = layer_for(8, device)
    x, more, grad = (noise((2, 8, 5, 5), seed, device) for seed in range(3))
    leaves = [x.requires_grad_(), more.requires_grad_(), layer.weight, layer.bias]
    all_four = torch.autograd.grad(layer.add(x, more)[0], leaves, grad)
    same = {}
    for name, wanted in {"pixels": [0], "weights": [2, 3], "residual": [1], "bias": [3]}.items():
        for number, leaf in enumerate(leaves):
            leaf.requires_grad_(number in wanted)
        y = layer.add(x, more)[0]
        got = torch.autograd.grad(y, [leaves[number] for number in wanted], grad)
        same[name] = all(
            torch.equal(a, all_four[number]) for a, number in zip(got, wanted, strict=True)
        )
    x.requires_grad_()
    with torch.no_grad():
        same["none"] = not layer(x).requires_grad
    y, total = layer.add(x, more)
    same["sum alone"] = torch.equal(torch.autograd.grad(total, x, grad)[0], grad)
    y = layer.add(x, more)[0]
    spread = torch.autograd.grad(y.mean((2, 3)).sum(), x)[0]  # its gradient is an expanded tensor
    y = layer.add(x, more)[0]
    same["expanded"] = torch.equal(spread, torch.autograd.grad(y, x, torch.full_like(y, 1 / 25))[0])
    return same


def _nan_stays(device: str) -> bool:
    x = noise((2, 8, 5, 5), 0, device)
    x[0, 3, 1, 1] = torch.nan
    y = BatchNormReLU(8).to(device)(x)
    return bool(y[:, 3].isnan().all() and not y[:, :3].isnan().any())


@pytest.mark.skipif(not batchnorm._triton_is_installed(), reason="triton is not installed")
def test_the_interpreted_kernels_are_right() -> None:
    path = os.pathsep.join([str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=300
    )
    if "only 0-dimensional arrays can be converted to Python scalars" in done.stderr:
        # Triton 3.6 with numpy 2.5: a loop over range() fails whatever its body.
        pytest.skip("the interpreter of this Triton does not work with this numpy")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer.pop("kind") == "InterpretedFunction"
    for case, found in zip(CASES, answer.pop("errors"), strict=True):
        check_errors(found, getattr(torch, case[1]), case[4], case)
    assert len(answer) == 8 and all(answer.values()), answer


def check_errors(found: dict[str, float], dtype: torch.dtype, offset: float, case: object) -> None:
    for name, wrong in found.items():
        limit = TOLERANCE[dtype]
        if name in ("grad weight", "grad bias", "running mean", "running var"):
            limit = TOLERANCE[torch.float32]  # sums are of float32 whatever the tensors are
        # The mean itself is rounded to float32, and x - mean is no better than that.
        limit += 3e-7 * abs(offset)
        assert wrong <= limit, (case, name, wrong)


# --- on a card ----------------------------------------------------------------------------------

SHAPES = [
    (128, 32, 32, 32),
    (512, 64, 16, 16),
    (128, 640, 8, 8),
    (64, 160, 32, 32),
    (5, 16, 7, 9),
    (3, 33, 5, 5),
    # Of two numbers only the difference would count, and float32 may have lost it.
    (4, 2048, 2, 2),
    (1, 3, 3, 4),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cuda_is_right(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    for residual, skip, offset in ((False, False, 0.0), (True, False, 0.0), (True, True, 3.0)):
        found = errors_of_fused(
            shape, dtype, residual=residual, skip=skip, offset=offset, device="cuda"
        )
        check_errors(found, dtype, offset, (shape, dtype, residual, skip, offset))
        assert found.get("sum", 0.0) == 0.0  # rounded as torch rounds it


@pytest.mark.gpu
def test_cuda_does_not_cancel() -> None:
    found = errors_of_fused(
        (32, 64, 16, 16), torch.float32, residual=False, skip=False, offset=1e4, device="cuda"
    )
    check_errors(found, torch.float32, 1e4, "far from zero")
    assert found["running var"] < 1e-4


@pytest.mark.gpu
def test_cuda_gives_what_is_asked_and_keeps_nan() -> None:
    answer = _only_what_is_asked("cuda")
    assert all(answer.values()), answer
    assert _nan_stays("cuda")


@pytest.mark.gpu
def test_cuda_repeats_itself() -> None:
    """Sums are taken in a fixed order; a hundred times, since a race would show only at times."""
    x, more = noise((64, 64, 16, 16), 0, "cuda"), noise((64, 64, 16, 16), 1, "cuda")
    x.requires_grad_()

    def once() -> list[Tensor]:
        layer = layer_for(64, "cuda")
        y, _ = layer.add(x, more)
        return [y, layer.running_var, *torch.autograd.grad(y.sum(), [x, layer.weight])]

    first = once()
    for _ in range(100):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))


@pytest.mark.gpu
def test_functional_call_moves_only_the_buffers_passed_in() -> None:
    layer = layer_for(16, "cuda")
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    passed = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    passed["weight"] = passed["weight"] * 2
    y = functional_call(layer, passed, (noise((4, 16, 6, 6), 0, "cuda"),))
    assert all(torch.equal(layer.state_dict()[name], before[name]) for name in before)
    assert passed["num_batches_tracked"] == 1
    assert not torch.equal(passed["running_mean"], before["running_mean"])
    own = layer(noise((4, 16, 6, 6), 0, "cuda"))
    assert not torch.equal(y, own)


def trained(step_of: Callable[[Callable[[], Tensor]], Callable[[], object]]) -> list[Tensor]:
    """Weights and buffers after six steps of a small residual network, float32."""
    model = models.build("wrn16_2", 3, seed=0).cuda().to(memory_format=torch.channels_last)
    images, labels = noise((16, 3, 16, 16), 0, "cuda"), (torch.arange(16) % 3).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> Tensor:
        optimiser.zero_grad(set_to_none=False)
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        return loss

    step(), step(), step()
    call = step_of(step)
    call(), call(), call()
    return [tensor.detach().double() for tensor in model.state_dict().values()]


def as_graph(step: Callable[[], Tensor]) -> Callable[[], None]:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@pytest.mark.gpu
def test_a_network_trains_the_same_fused_plain_and_in_a_graph() -> None:
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        fused, graph = trained(lambda step: step), trained(as_graph)
        with plain_kernels():
            plain = trained(lambda step: step)
    for one, other, right in zip(fused, graph, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(one, right, rtol=1e-2, atol=1e-4)
