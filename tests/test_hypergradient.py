"""The one-step cost: right value, two ways, and nothing of the model moved.

Shapes: B images, C channels, H x W pixels, L classes.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.policy_search.hypergradient import (
    HYPERGRADIENTS,
    finite_difference_cost,
    forward_mode_cost,
    trainable_weights,
    virtual_val_grad,
)
from quick import ForbidHostReads

INNER_LR = 0.1


def network(*, norm: bool = True, drop: float = 0.0) -> nn.Module:
    """Smooth, so that a central difference converges at its full order."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6) if norm else nn.Identity(),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Dropout(drop),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).double()


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, 8, 8, generator=generator, dtype=torch.float64)
    return images, torch.randint(4, (size,), generator=generator)


def train_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    weights = trainable_weights(model)
    loss = F.cross_entropy(model(images), labels)
    return dict(zip(weights, torch.autograd.grad(loss, tuple(weights.values())), strict=True))


def step(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    grads = train_gradient(model, images, labels)
    return virtual_val_grad(model, trainable_weights(model), grads, INNER_LR, *batch(10, 7))


def test_cost_is_the_derivative_of_the_validation_loss_by_the_weight_of_an_image():
    """d L_val(w - zeta grad mean_i s_i l_i) / d s_i at s = 1 is cost_i / B, by plain autograd."""
    model = network(norm=False)
    images, labels = batch(6, 1)
    weights = trainable_weights(model)
    val_images, val_labels = batch(10, 7)

    weight_of_image = torch.ones(6, dtype=torch.float64, requires_grad=True)
    losses = F.cross_entropy(model(images), labels, reduction="none")
    grads = torch.autograd.grad(
        (weight_of_image * losses).mean(), tuple(weights.values()), create_graph=True
    )
    unrolled = {
        name: weight - INNER_LR * grad
        for (name, weight), grad in zip(weights.items(), grads, strict=True)
    }
    val_loss = F.cross_entropy(
        torch.func.functional_call(model, unrolled, (val_images,)), val_labels
    )
    expected_B = 6 * torch.autograd.grad(val_loss, weight_of_image)[0]

    val_grad, val_loss_B = step(model, images, labels)
    assert torch.allclose(val_loss_B.mean(), val_loss)
    forward = forward_mode_cost(model, weights, val_grad, INNER_LR, images, labels)
    assert torch.allclose(forward.cost_B, expected_B, rtol=1e-9)
    difference = finite_difference_cost(model, weights, val_grad, INNER_LR, images, labels)
    assert torch.allclose(difference.cost_B, expected_B, rtol=1e-3)
    assert torch.allclose(forward.loss_B, losses)
    assert torch.allclose(difference.loss_B, losses, rtol=1e-3)


@pytest.mark.parametrize("norm", [False, True])
def test_finite_difference_and_forward_mode_agree(norm: bool):
    model = network(norm=norm)
    images, labels = batch(12, 1)
    val_grad, _ = step(model, images, labels)
    arguments = (model, trainable_weights(model), val_grad, INNER_LR, images, labels)
    one = finite_difference_cost(*arguments, image_grad=True)
    two = forward_mode_cost(*arguments, image_grad=True)
    assert (one.cost_B - two.cost_B).norm() < 1e-3 * two.cost_B.norm()
    difference = (one.cost_grad_BCHW - two.cost_grad_BCHW).norm()
    assert difference < 1e-3 * two.cost_grad_BCHW.norm()
    assert two.cost_grad_BCHW.norm() > 0
    # The same costs without the pixel gradients, which are then not computed.
    for cost, function in ((one, finite_difference_cost), (two, forward_mode_cost)):
        plain = function(*arguments)
        assert plain.cost_grad_BCHW is None
        assert torch.allclose(plain.cost_B, cost.cost_B, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", HYPERGRADIENTS)
def test_pixel_gradient_is_the_slope_of_the_cost(name: str, norm: bool):
    """Of the sum of costs: in train mode BatchNorm lets an image's pixels into others' costs."""
    model = network(norm=norm)
    images, labels = batch(6, 1)
    val_grad, _ = step(model, images, labels)
    arguments = (model, trainable_weights(model), val_grad, INNER_LR)
    cost = HYPERGRADIENTS[name](*arguments, images, labels, image_grad=True)
    direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(3)).double()
    moved = [
        forward_mode_cost(*arguments, images + t * direction, labels).cost_B.sum()
        for t in (1e-5, -1e-5)
    ]
    slope = (cost.cost_grad_BCHW * direction).sum()
    assert torch.allclose((moved[0] - moved[1]) / 2e-5, slope, rtol=1e-3)


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[bytes]:
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("name", HYPERGRADIENTS)
@pytest.mark.parametrize("image_grad", [False, True])
def test_nothing_of_the_model_moves(name: str, image_grad: bool):
    model = network()
    images, labels = batch(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    grads = {name: weight.grad for name, weight in model.named_parameters()}
    before = state_bytes(model, optimizer)
    weights = trainable_weights(model)
    val_grad, _ = virtual_val_grad(model, weights, grads, INNER_LR, *batch(10, 7))
    HYPERGRADIENTS[name](model, weights, val_grad, INNER_LR, images, labels, image_grad=image_grad)
    assert state_bytes(model, optimizer) == before
    assert all(module.training for module in model.modules())
    assert not images.requires_grad
    model(images)  # an ordinary pass does move the statistics: the check above can fail
    assert state_bytes(model, optimizer) != before


def test_both_halves_see_the_same_dropout_masks():
    model = network(drop=0.5)
    images, labels = batch(8, 1)
    torch.manual_seed(1)
    val_grad, _ = step(model, images, labels)
    arguments = (model, trainable_weights(model), val_grad, INNER_LR, images, labels)
    torch.manual_seed(2)
    one = finite_difference_cost(*arguments).cost_B
    after = torch.rand(1)
    torch.manual_seed(2)
    two = forward_mode_cost(*arguments).cost_B
    assert (one - two).norm() < 1e-3 * two.norm()
    assert torch.equal(after, torch.rand(1))  # randomness was spent as by one pass
    other_masks = forward_mode_cost(*arguments).cost_B
    assert (one - other_masks).norm() > 0.05 * two.norm()


def test_zero_validation_gradient_costs_nothing():
    model = network()
    images, labels = batch(4, 1)
    weights = trainable_weights(model)
    zero = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for function in HYPERGRADIENTS.values():
        cost = function(model, weights, zero, INNER_LR, images, labels, image_grad=True)
        assert cost.cost_B.abs().max() == 0 and cost.cost_grad_BCHW.abs().max() == 0


def test_soft_labels_and_tensor_learning_rate():
    model = network()
    images, labels = batch(5, 1)
    soft_BL = F.one_hot(labels, 4).double()
    rate = torch.tensor(INNER_LR, dtype=torch.float64)
    val_grad, _ = step(model, images, labels)
    weights = trainable_weights(model)
    for function in HYPERGRADIENTS.values():
        hard = function(model, weights, val_grad, INNER_LR, images, labels)
        soft = function(model, weights, val_grad, rate, images, soft_BL)
        assert torch.allclose(hard.cost_B, soft.cost_B, rtol=1e-6)


def test_frozen_weights_stay_out():
    model = network()
    for weight in model[0].parameters():
        weight.requires_grad_(False)
    images, labels = batch(4, 1)
    val_grad, _ = step(model, images, labels)
    assert "0.weight" not in val_grad and "5.weight" in val_grad
    cost = forward_mode_cost(model, trainable_weights(model), val_grad, 0.1, images, labels)
    assert cost.cost_B.abs().min() > 0


def test_a_missing_gradient_is_named():
    model = network()
    weights = trainable_weights(model)
    images, labels = batch(4, 1)
    with pytest.raises(ValueError, match=r"train_grads has no entry for weight '0\.weight'"):
        virtual_val_grad(model, weights, {}, INNER_LR, images, labels)
    for function in HYPERGRADIENTS.values():
        with pytest.raises(ValueError, match=r"val_grad has no entry for weight '0\.weight'"):
            function(model, weights, {}, INNER_LR, images, labels)


@pytest.mark.parametrize("name", HYPERGRADIENTS)
def test_no_value_is_read_on_the_host(name: str):
    model = network()
    images, labels = batch(4, 1)
    with ForbidHostReads():
        val_grad, _ = step(model, images, labels)
        HYPERGRADIENTS[name](
            model, trainable_weights(model), val_grad, INNER_LR, images, labels, image_grad=True
        )
    with pytest.raises(AssertionError, match="reads a tensor"), ForbidHostReads():
        images.sum().item()


@pytest.mark.gpu
@pytest.mark.parametrize("name", HYPERGRADIENTS)
def test_captured_in_a_cuda_graph(name: str, monkeypatch: pytest.MonkeyPatch):
    model = network().float().cuda()
    images, labels = (tensor.cuda() for tensor in batch(8, 1))
    val_images, val_labels = (tensor.cuda() for tensor in batch(10, 7))
    images, val_images = images.float(), val_images.float()
    weights = trainable_weights(model)

    def whole() -> Tensor:
        grads = train_gradient(model, images, labels)
        val_grad, _ = virtual_val_grad(model, weights, grads, INNER_LR, val_images, val_labels)
        cost = HYPERGRADIENTS[name](
            model, weights, val_grad, INNER_LR, images, labels, image_grad=True
        )
        return torch.cat([cost.cost_B, cost.cost_grad_BCHW.flatten()])

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            whole()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = whole()
    images.add_(0.1)
    graph.replay()
    eager = whole()
    assert (captured - eager).norm() < 1e-2 * eager.norm()
    # The device's own kernels (cudnn's BatchNorm among them) against the CPU's in float64.
    host = network()
    host_grads = train_gradient(host, images.cpu().double(), labels.cpu())
    host_weights = trainable_weights(host)
    host_val_grad, _ = virtual_val_grad(host, host_weights, host_grads, INNER_LR, *batch(10, 7))
    monkeypatch.setattr("dada.policy_search.hypergradient.STEP_NORM", 1e-4)
    cost = finite_difference_cost(
        host,
        host_weights,
        host_val_grad,
        INNER_LR,
        images.cpu().double(),
        labels.cpu(),
        image_grad=True,
    )
    exact = torch.cat([cost.cost_B, cost.cost_grad_BCHW.flatten()])
    assert (eager.cpu() - exact).norm() < 0.03 * exact.norm()


@pytest.mark.gpu
def test_captured_finite_difference_refuses_dropout():
    model = network(drop=0.5).float().cuda()
    images, labels = (tensor.cuda() for tensor in batch(8, 1))
    weights = trainable_weights(model)
    val_grad = {name: torch.ones_like(weight) for name, weight in weights.items()}
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="use hypergradient 'forward'"), torch.cuda.graph(graph):
        finite_difference_cost(model, weights, val_grad, INNER_LR, images.float(), labels)
