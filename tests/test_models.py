"""dada.models. Shapes: B images, C channels, H height, W width."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.functional import cross_entropy

from dada import models
from dada.models.noise import ShakeDrop, ShakeShake

# Small members of every family: quick, and built by the same code as the large ones.
FAMILIES = ("small", "wrn10_1", "shakeshake26_2x4d", "pyramidnet11_shakedrop")


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def batch(channels: int = 3, side: int = 16, size: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size, channels, side, side, generator=generator)
    return images, torch.arange(size) % 3


@pytest.mark.parametrize(
    ("name", "num_classes", "millions", "exact"),
    [
        ("wrn40_2", 10, 2.2, 2_243_546),
        ("wrn28_10", 10, 36.5, 36_479_194),
        ("wrn28_10", 100, 36.5, 36_536_884),
        ("shakeshake26_2x32d", 10, 2.9, 2_923_162),
        ("shakeshake26_2x96d", 10, 26.2, 26_192_922),
        ("shakeshake26_2x112d", 10, 35.6, 35_640_442),
        ("pyramidnet272_shakedrop", 10, 26.2, 26_210_842),
        ("resnet50", 1000, 25.56, 25_557_032),
    ],
)
def test_parameter_counts_are_those_of_the_literature(
    name: str, num_classes: int, millions: float, exact: int
) -> None:
    # On the meta device nothing is allocated or initialised; the adapter's trial pass runs too.
    with torch.device("meta"):
        model = models.build(name, num_classes)
    assert count(model) == exact
    assert exact / 1e6 == pytest.approx(millions, abs=0.05)


def test_depth_of_the_networks_is_the_number_in_their_name() -> None:
    def convolutions(name: str, within: str = "") -> int:
        with torch.device("meta"):
            modules = models.build(name, 10).named_modules()
        return sum(isinstance(m, nn.Conv2d) and within in path for path, m in modules)

    assert convolutions("wrn28_10") == 28  # the paper counts the three 1x1 shortcuts
    assert convolutions("pyramidnet272_shakedrop") == 272 - 1  # and the linear layer
    assert convolutions("shakeshake26_2x32d", "branch1") == 26 - 2  # the stem and the linear layer


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("channels", "size"), [(1, (8, 8)), (3, (33, 20))])
def test_any_size_and_channels(name: str, channels: int, size: tuple[int, int]) -> None:
    model = models.build(name, 3, channels, size, seed=0)
    images_BCHW = torch.randn(2, channels, *size)
    for layout in (torch.contiguous_format, torch.channels_last):
        assert model(images_BCHW.contiguous(memory_format=layout)).shape == (2, 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_few_steps_learn_a_batch(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, 3, seed=0, image_size=(8, 8))
    images_BCHW, labels_B = batch(side=8, size=12)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def quiet_loss() -> float:
        with models.without_noise(model), torch.no_grad():
            return cross_entropy(model(images_BCHW), labels_B).item()

    before = quiet_loss()
    for _ in range(25):
        optimiser.zero_grad()
        cross_entropy(model(images_BCHW), labels_B).backward()
        optimiser.step()
    assert quiet_loss() < 0.5 * before


# Torch warns of itself: forward mode compiles its decompositions by torch.jit.script.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", FAMILIES)
def test_functional_call_and_forward_mode(name: str) -> None:
    """The directional derivative by jvp is the one backward gives, and buffers stay untouched."""
    model = models.build(name, 3, seed=0, image_size=(16, 16))
    images_BCHW, labels_B = batch()
    weights = {k: v.detach() for k, v in model.named_parameters()}
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    before = {k: v.clone() for k, v in buffers.items()}
    generator = torch.Generator().manual_seed(1)
    along = {k: torch.randn(v.shape, generator=generator) for k, v in weights.items()}

    def losses_B(weights: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(7)  # the same noise in both modes
        copies = {k: v.clone() for k, v in buffers.items()}
        logits = functional_call(model, {**weights, **copies}, (images_BCHW,))
        return cross_entropy(logits, labels_B, reduction="none")

    forward_B = jvp(losses_B, (weights,), (along,))[1]
    leaves = {k: v.clone().requires_grad_() for k, v in weights.items()}
    out_B = losses_B(leaves)
    backward_B = torch.stack(
        [
            sum(
                (gradient * along[k]).sum()
                for k, gradient in zip(
                    leaves,
                    torch.autograd.grad(out, list(leaves.values()), retain_graph=True),
                    strict=True,
                )
            )
            for out in out_B
        ]
    )
    torch.testing.assert_close(forward_B, backward_B, rtol=1e-3, atol=1e-3)
    assert all(torch.equal(v, before[k]) for k, v in model.named_buffers())


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_autocast_channels_last(name: str) -> None:
    model = models.build(name, 3, seed=0, image_size=(16, 16)).to(memory_format=torch.channels_last)
    images_BCHW, labels_B = batch()
    images_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images_BCHW)
    assert logits.dtype == torch.bfloat16
    cross_entropy(logits.float(), labels_B).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with models.without_noise(model), torch.no_grad():
        exact = model(images_BCHW)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(images_BCHW).float()
    assert (exact - rounded).abs().max() < 0.1 * exact.abs().max()


def test_shake_shake_draws_anew_for_the_way_back() -> None:
    torch.manual_seed(0)
    x1 = torch.ones(2000, 1, 1, 1, requires_grad=True)
    x2 = torch.zeros(2000, 1, 1, 1, requires_grad=True)
    layer = ShakeShake().train()
    mixed = layer(x1, x2)
    mixed.sum().backward()
    assert x1.grad is not None and x2.grad is not None
    forward_B, backward_B = mixed.detach().flatten(), x1.grad.flatten()
    torch.testing.assert_close(x1.grad + x2.grad, torch.ones_like(x1))
    for drawn_B in (forward_B, backward_B):
        assert -1e-6 <= drawn_B.min() < 0.01 and 0.99 < drawn_B.max() <= 1 + 1e-6
        assert drawn_B.mean() == pytest.approx(0.5, abs=0.03)  # five standard errors
    assert torch.corrcoef(torch.stack([forward_B, backward_B]))[0, 1].abs() < 0.12
    assert torch.equal(layer.eval()(x1, x2), torch.full_like(x1, 0.5))


def test_shake_drop_keeps_or_shakes() -> None:
    torch.manual_seed(0)
    layer = ShakeDrop(0.7).train()
    kept = 0
    shaken_forward, shaken_backward = [], []
    for _ in range(400):
        x = torch.ones(4, 1, 1, 1, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert x.grad is not None
        if torch.equal(y, torch.ones_like(y)):
            kept += 1
            assert torch.equal(x.grad, torch.ones_like(x))
        else:
            shaken_forward.append(y.detach().flatten())
            shaken_backward.append(x.grad.flatten())
    assert kept / 400 == pytest.approx(0.7, abs=0.1)
    forward, backward = torch.cat(shaken_forward), torch.cat(shaken_backward)
    assert forward.min() < -0.9 and forward.max() > 0.9
    assert backward.min() >= -1e-6 and backward.max() > 0.9
    assert forward.mean().abs() < 0.15 and backward.mean() == pytest.approx(0.5, abs=0.07)
    assert torch.equal(layer.eval()(torch.ones(1)), torch.full((1,), 0.7))


def test_shake_drop_decays_linearly_to_a_half() -> None:
    with torch.device("meta"):
        model = models.build("pyramidnet272_shakedrop", 10)
    keep = [module.keep_prob for module in model.modules() if isinstance(module, ShakeDrop)]
    assert len(keep) == 90
    assert keep[0] == pytest.approx(1 - 0.5 / 90) and keep[-1] == pytest.approx(0.5)


def test_without_noise_repeats_and_leaves_batch_norm_in_training() -> None:
    model = nn.Sequential(models.build("shakeshake26_2x4d", 3, seed=0), nn.Dropout(0.5))
    images_BCHW, _ = batch()
    assert not torch.equal(model(images_BCHW), model(images_BCHW))
    modes = [module.training for module in model.modules()]
    with models.without_noise(model):
        first, second = model(images_BCHW), model(images_BCHW)
        assert all(m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    torch.testing.assert_close(first, second)
    assert [module.training for module in model.modules()] == modes


def test_seed_decides_the_weights_and_nothing_else_changes() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second, other = (models.build("small", 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_convolutions_start_with_he_variance() -> None:
    model = models.build("wrn16_4", 10, seed=0)
    widest = max(
        (m for m in model.modules() if isinstance(m, nn.Conv2d)), key=lambda m: m.weight.numel()
    )
    fan_out = widest.out_channels * 9
    assert widest.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)


def test_default_model() -> None:
    assert models.default_model("cpu", (224, 224)) == "small"
    assert models.default_model("cuda", (64, 64)) == "wrn40_2"
    assert models.default_model("cuda", (65, 64)) == "resnet50"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet5O", "no such model; known are small, wrn40_2"),
        ("wrn41_2", "wrn41_2: the depth of a wide residual network is 6n + 4"),
        ("pyramidnet271_shakedrop", "pyramidnet271: the depth of a bottleneck pyramid is 9n + 2"),
        ("torchvision:resnet19", "no such classification model; did you mean resnet18"),
        ("nosuchpackage.nets:make", "cannot import nosuchpackage.nets"),
        ("math:nothing", "the module math has no 'nothing'"),
        ("math:pi", "the module math has no callable 'pi'"),
        ("math:floor", "must return a torch.nn.Module, but gave int"),
        (":make", "write package.module:factory"),
    ],
)
def test_bad_names_are_explained_in_one_line(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        models.build(name, 10)
    assert name.split(":")[0].split("_")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_timm_if_installed() -> None:
    pytest.importorskip("timm")
    model = models.build("timm:resnet10t", 3, 1, (32, 32))
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 3)
    with pytest.raises(ValueError, match="timm has no such model"):
        models.build("timm:resnet10tt", 3)


def test_timm_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match="pip install timm"):
        models.build("timm:resnet18", 3)


def test_torchvision_head_and_channels() -> None:
    model = models.build("torchvision:resnet18", 7, 1, (40, 40), seed=0)
    assert model(torch.zeros(2, 1, 40, 40)).shape == (2, 7)
    with pytest.raises(ValueError, match=r"'torchvision:alexnet': it fails on images of shape"):
        models.build("torchvision:alexnet", 7, 3, (8, 8))


USER_MODULE = """
from torch import nn

def make(num_classes, channels=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, num_classes))

def any_name(n):
    return make(n)

def wrong(num_classes):
    return make(num_classes + 1)

def pair(num_classes):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()

def broken(num_classes):
    raise RuntimeError("no weights here")
"""


def test_factory_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets_for_test.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    path_before = list(sys.path)
    for factory in ("make", "any_name"):
        model = models.build(f"my_nets_for_test:{factory}", 4, image_size=(8, 8))
        assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 4)
    grey = models.build("my_nets_for_test:make", 4, 1, (8, 8))
    assert grey(torch.zeros(1, 1, 8, 8)).shape == (1, 4)
    for factory, says in (
        ("wrong", r"my_nets_for_test:wrong'.* = \(2, 4\), but has \(2, 5\)"),
        ("pair", "must return a tensor of logits .* returned tuple"),
        ("broken", "num_classes=4 failed .*no weights here"),
    ):
        with pytest.raises(ValueError, match=says):
            models.build(f"my_nets_for_test:{factory}", 4, image_size=(8, 8))
    assert sys.path == path_before


def test_check_logits_names_the_model_and_leaves_it_alone() -> None:
    model = models.build("small", 3, 3, (8, 8), seed=0).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    models.check_logits(model, torch.randn(5, 3, 8, 8), 3)
    with pytest.raises(ValueError, match=r"'Small'.*\(5, 4\), but has \(5, 3\)"):
        models.check_logits(model, torch.randn(5, 3, 8, 8), 4)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAMILIES)
def test_training_step_can_be_captured_in_a_cuda_graph(name: str) -> None:
    device = torch.device("cuda")
    model = models.build(name, 3, seed=0, image_size=(16, 16)).to(device)
    model = model.to(memory_format=torch.channels_last)
    images_BCHW, labels_B = (x.to(device) for x in batch(size=8))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> Tensor:
        optimiser.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(model(images_BCHW), labels_B)
        loss.backward()
        optimiser.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(40):
        graph.replay()
        losses.append(loss.item())
    # Shake noise makes single losses jump: the best of the last against the first.
    assert min(losses[-10:]) < 0.9 * losses[0]
    forward = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(forward):
        total = model(images_BCHW).double().sum()
    drawn = set()
    for _ in range(6):
        forward.replay()
        drawn.add(total.item())
    noisy = any(isinstance(module, ShakeShake | ShakeDrop) for module in model.modules())
    assert (len(drawn) > 1) == noisy  # every replay draws new numbers, where there are any
