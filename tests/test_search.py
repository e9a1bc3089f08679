"""One step of the search, and the loop around it.

Shapes: B images, C channels, H height, W width, V views, N sub-policies, K operations in each.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch import Tensor, nn

from dada.config import Base, SearchConfig, search_config
from dada.data import Split, load
from dada.models import build
from dada.policy.augment import augment, augment_stages
from dada.policy.draw import Draw
from dada.policy.space import SearchSpace
from dada.policy_search import pixel_effects as effects_module
from dada.policy_search.hypergradient import HYPERGRADIENTS
from dada.policy_search.measuring import measure
from dada.policy_search.pixel_effects import Branches, pathwise_effects, pixel_effects
from dada.policy_search.state import SearchState
from dada.policy_search.step import search_step
from quick import search_job

CPU = torch.device("cpu")
FEW_OPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "AutoContrast", "Equalize", "Posterize")
ENHANCERS = ("Brightness", "Color", "Contrast", "Sharpness")


def stripes(
    count: int = 48, classes: int = 3, channels: int = 1, size: tuple[int, int] = (8, 8)
) -> tuple[Tensor, Tensor]:
    """Noisy stripes, as many to an image as its class says; easy to learn."""
    noise = torch.Generator().manual_seed(count)
    labels_B = torch.arange(count) % classes
    height, width = size
    wave_BW = torch.sin((labels_B[:, None] + 1) * torch.arange(width) * 2 * math.pi / width)
    images = 128 + 70 * wave_BW[:, None, None, :].expand(count, channels, height, width)
    images = images + 25 * torch.randn(count, channels, height, width, generator=noise)
    return images.clamp(0, 255).to(torch.uint8), labels_B


def striped_split(**shape: Any) -> Split:
    return load(stripes(48, **shape), val_data=stripes(33, **shape))


class Plain(nn.Module):
    """A user's own network: no BatchNorm, and no name that dada knows."""

    def __init__(self, classes: int = 3, channels: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 6, 3, stride=2, padding=1)
        self.head = nn.Linear(6, classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.convolution(images_BCHW)).mean((2, 3)))
        return logits


def make_state(config: SearchConfig, model: nn.Module | None = None, **shape: Any) -> SearchState:
    split = striped_split(**shape)
    if model is None:
        model = build("small", split.num_classes, split.channels, split.image_size, seed=0)
    model.train()
    return SearchState(model, split, config, seed=0, device=CPU)


def take_step(state: SearchState, *, measure: bool = True, lr: float = 0.1) -> Tensor:
    return search_step(state, *stripes(16), *stripes(20), lr, measure=measure)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {n for n, tensor in module.state_dict().items() if not torch.equal(tensor, before[n])}


# --- every combination of settings --------------------------------------------------------------

# With one draw for a whole batch, some steps draw only operations that do nothing at m = 0.5.
STEPS = {"image": 2, "batch": 8}


@pytest.mark.parametrize("hypergradient", ["finite_difference", "forward"])
@pytest.mark.parametrize("magnitudes", ["straight_through", "pathwise", "distribution", "fixed"])
@pytest.mark.parametrize("estimator", ["gumbel", "gumbel-sampled", "relax", "reinforce", "rloo"])
def test_a_few_steps_of_the_papers_update_move_the_policy(estimator, magnitudes, hypergradient):
    for draws in ("image", "batch"):
        for views in (1, 2):
            settings = {"draws": draws, "views": views, "magnitudes": magnitudes}
            settings |= {"estimator": estimator, "hypergradient": hypergradient}
            if estimator == "rloo" and views == 1:
                settings["clean_baseline"] = True
            state = make_state(search_config("paper", exclude=FEW_OPS, **settings), Plain())
            before, control = tensors_of(state.learned), tensors_of(state.estimator)
            for _ in range(STEPS[draws]):
                assert torch.isfinite(take_step(state))
            moved = changed(state.learned, before)
            assert "subpolicy_logits_N" in moved
            assert all(
                torch.isfinite(tensor).all() for tensor in state.learned.state_dict().values()
            )
            if draws == "image":
                assert "apply_prob_NK" in moved
                wanted = {"straight_through": {"magnitude_NK"}, "pathwise": {"magnitude_NK"}}
                wanted["distribution"] = {"magnitude_distribution.logits_RM"}
                learned_magnitudes = moved - {"subpolicy_logits_N", "apply_prob_NK"}
                assert learned_magnitudes == wanted.get(magnitudes, set())
            if estimator == "relax":
                assert "control.output_weight" in changed(state.estimator, control)


@pytest.mark.parametrize("hypergradient", ["finite_difference", "forward"])
@pytest.mark.parametrize("magnitudes", ["distribution", "fixed"])
@pytest.mark.parametrize("estimator", ["gumbel", "gumbel-sampled", "relax", "reinforce", "rloo"])
def test_a_few_steps_gather_evidence_and_leave_the_policy_alone(
    estimator, magnitudes, hypergradient
):
    for draws in ("image", "batch"):
        for views in (1, 2):
            settings = {"draws": draws, "views": views, "magnitudes": magnitudes}
            settings |= {"estimator": estimator, "hypergradient": hypergradient}
            state = make_state(search_config("dada", exclude=FEW_OPS, **settings), Plain())
            learned, sampling = tensors_of(state.learned), tensors_of(state.sampling)
            for _ in range(STEPS[draws]):
                take_step(state)
            assert changed(state.learned, learned) == changed(state.sampling, sampling) == set()
            evidence = state.evidence
            assert evidence is not None
            assert int(evidence.op.count) == int(evidence.pair.count) == STEPS[draws]
            # Costs are cosines, so this is far above what rounding leaves of a difference.
            assert evidence.pair.mean.abs().max() > 1e-3
            assert evidence.op.mean.abs().max() > 1e-3
            assert int(evidence.bin.count) == (STEPS[draws] if magnitudes == "distribution" else 0)
            evidence.conclude_(state.learned)
            assert all(
                torch.isfinite(tensor).all() for tensor in state.learned.state_dict().values()
            )


@pytest.mark.parametrize(
    ("preset", "settings", "says"),
    [
        ("dada", {"magnitudes": "straight_through"}, "'straight_through' need update 'adam'"),
        ("dada", {"magnitudes": "pathwise"}, "'pathwise' need update 'adam'"),
        ("paper", {"update": "evidence"}, "'straight_through' need update 'adam'"),
        ("paper", {"estimator": "rloo"}, "'rloo' compares the views of .* `views` of 2"),
        ("dada", {"clean_baseline": False}, "'rloo' compares the views of .* `views` of 2"),
        ("best", {}, "`preset` should be one of dada, paper, got 'best'"),
        (
            "dada",
            {"estimator": "nes"},
            "`estimator` should be one of gumbel, gumbel-sampled, .* got 'nes'",
        ),
        ("paper", {"gumbel_branches": 0}, "`gumbel_branches` should be positive, got 0"),
        ("paper", {"pixel_precision": "bf16"}, "`pixel_precision` should be one of fp32, tf32"),
        ("dada", {"draws": "each"}, "`draws` should be one of image, batch, got 'each'"),
        ("dada", {"hypergradient": "exact"}, "`hypergradient` should be one of .* got 'exact'"),
        ("dada", {"magnitudes": "none"}, "`magnitudes` should be one of .* got 'none'"),
        ("dada", {"reward": "sum"}, "`reward` should be one of cosine, slope, got 'sum'"),
        ("dada", {"update": "sgd"}, "`update` should be one of evidence, adam, got 'sgd'"),
        ("dada", {"views": 0}, "`views` should be positive, got 0"),
        ("dada", {"epochs": 0}, "`epochs` should be positive, got 0"),
        ("dada", {"batch_size": -1}, "`batch_size` should be positive, got -1"),
        ("dada", {"lr": float("nan")}, "`lr` should be a finite number, got nan"),
        ("dada", {"measure_from": 1.0}, "`measure_from` should lie in 0..1, got 1.0"),
        ("dada", {"val_fraction": 0.0}, "`val_fraction` should lie between 0 and 1, got 0.0"),
        ("dada", {"learning_rate": 0.1}, "unknown setting 'learning_rate'; there are .*lr"),
    ],
)
def test_settings_that_cannot_be(preset, settings, says):
    with pytest.raises(ValueError, match=says):
        search_config(preset, **settings)


def test_a_setting_of_none_is_the_presets():
    assert search_config("paper", estimator=None, epochs=None) == search_config("paper")
    assert search_config("dada", views=3) == replace(search_config("dada"), views=3)


# --- what a step does to the network ------------------------------------------------------------


def recorded_inputs(model: nn.Module) -> list[Tensor]:
    """What the model is called with from now on, virtual passes included."""
    inputs: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].clone()))
    return inputs


@pytest.mark.parametrize("preset", ["dada", "paper"])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("hypergradient", ["finite_difference", "forward"])
def test_the_network_takes_one_ordinary_step(preset, views, hypergradient):
    """Weights, momentum and BatchNorm statistics are those of plain training, to the last bit.

    Three steps, so that momentum counts. The virtual passes leave no trace.
    """
    config = search_config(preset, views=views, hypergradient=hypergradient, clip=0.5)
    state = make_state(config)
    plain = copy.deepcopy(state.model)
    optimizer = torch.optim.SGD(
        plain.parameters(), lr=1.0, momentum=0.9, weight_decay=2e-4, nesterov=True
    )
    inputs = recorded_inputs(state.model)
    labels_B = stripes(16)[1].repeat(views)
    for lr in (0.1, 0.05, 0.02):
        inputs.clear()
        loss = take_step(state, lr=lr)
        assert len(inputs[0]) == 16 * views
        optimizer.zero_grad()
        plain_loss = F.cross_entropy(plain(inputs[0]), labels_B)
        plain_loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        assert norm > 0.5, "clipping should be part of this test"
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        assert torch.equal(loss, plain_loss.detach())
    assert changed(state.model, tensors_of(plain)) == set()
    assert int(state.model.state_dict()["features.1.num_batches_tracked"]) == 3
    for buffer, other in zip(state.weight_optimizer.velocity, plain.parameters(), strict=True):
        assert torch.equal(buffer, optimizer.state[other]["momentum_buffer"])


def test_measuring_changes_nothing_in_the_network():
    states = [make_state(search_config("dada")) for _ in range(2)]
    for state, measured in zip(states, (True, False), strict=True):
        for _ in range(3):
            take_step(state, measure=measured)
    assert changed(states[0].model, tensors_of(states[1].model)) == set()
    assert [int(state.evidence.op.count) for state in states] == [3, 0]


@pytest.mark.parametrize(
    ("settings", "passes", "derivatives"),
    [
        ({}, 4, 1),  # training, validation, w+, w-
        ({"hypergradient": "forward"}, 3, 1),
        ({"estimator": "gumbel"}, 4, 3),  # and the pixels at w+ and w-
    ],
)
def test_the_weight_gradient_is_computed_once(monkeypatch, settings, passes, derivatives):
    """One backward for both steps; the validation gradient (and the pixels') by autograd.grad."""
    state = make_state(search_config("dada", **settings))
    counts = {"backward": 0, "grad": 0}
    backward, grad = Tensor.backward, torch.autograd.grad

    def counted_backward(self: Tensor, *arguments: Any, **options: Any) -> None:
        counts["backward"] += 1
        return backward(self, *arguments, **options)

    def counted_grad(*arguments: Any, **options: Any) -> Any:
        counts["grad"] += 1
        return grad(*arguments, **options)

    monkeypatch.setattr(Tensor, "backward", counted_backward)
    monkeypatch.setattr(torch.autograd, "grad", counted_grad)
    inputs = recorded_inputs(state.model)
    take_step(state)
    assert len(inputs) == passes
    assert counts == {"backward": 1, "grad": derivatives}


def test_weights_that_are_frozen_or_unused_are_left_alone():
    model = Plain()
    model.unused = nn.Linear(2, 2)
    model.convolution.bias.requires_grad_(False)
    state = make_state(search_config("dada"), model)
    before = tensors_of(model)
    take_step(state)
    assert changed(model, before) == {"convolution.weight", "head.weight", "head.bias"}


# --- what a step measures -----------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["cosine", "slope"])
@pytest.mark.parametrize("clean_baseline", [True, False])
def test_the_cost_of_an_image_is_its_gradient_along_the_validation_gradient(
    monkeypatch, reward, clean_baseline
):
    """Against gradients of single images, and the validation gradient after the virtual step."""
    lr = 0.3
    config = search_config(
        "dada",
        estimator="reinforce",
        hypergradient="forward",
        reward=reward,
        clean_baseline=clean_baseline,
        clip=0.0,
    )
    state = make_state(config, Plain())
    plain, inputs = copy.deepcopy(state.model), recorded_inputs(state.model)
    seen = []
    gradients = state.estimator.gradients

    def spied(draw: Draw, parameters: Any, cost_B: Tensor, **options: Any) -> Any:
        seen.append((cost_B, options["baseline_B"]))
        return gradients(draw, parameters, cost_B, **options)

    monkeypatch.setattr(state.estimator, "gradients", spied)
    take_step(state, lr=lr)
    (cost_B, baseline_B), labels_B = seen[0], stripes(16)[1]
    views_BCHW, clean_BCHW = inputs[0], state.normalise(stripes(16)[0])

    def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(model(images), labels)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([grad.flatten() for grad in grads]), loss.detach()

    step, _ = gradient(plain, views_BCHW, labels_B)
    ahead = copy.deepcopy(plain)
    flat = nn.utils.parameters_to_vector(ahead.parameters()) - lr * step
    nn.utils.vector_to_parameters(flat, ahead.parameters())
    val_images, val_labels = stripes(20)
    val_grad, _ = gradient(ahead, state.normalise(val_images), val_labels)

    def reference(images_BCHW: Tensor) -> Tensor:
        costs = []
        for image, label in zip(images_BCHW, labels_B, strict=True):
            own, loss = gradient(plain, image[None], label[None])
            slope = -(own @ val_grad)
            if reward == "slope":
                costs.append(lr * slope)
            else:
                costs.append(slope / val_grad.norm() / (0.05 + 1 - torch.exp(-loss)))
        return torch.stack(costs)

    expected_B = reference(views_BCHW)
    torch.testing.assert_close(cost_B, expected_B, rtol=1e-3, atol=1e-5)
    if not clean_baseline:
        assert baseline_B is None
        return
    clean_B = reference(clean_BCHW)
    gain_B = expected_B - clean_B
    others_B = torch.stack([gain_B[torch.arange(16) != i].mean() for i in range(16)])
    torch.testing.assert_close(baseline_B, clean_B + others_B, rtol=1e-3, atol=1e-5)


# --- effects through the pixels -----------------------------------------------------------------


def one_op_draw(
    state: SearchState, op: str, batch: int, position: int = 0
) -> tuple[Draw, Tensor, str]:
    """A draw of sub-policies that hold `op`, which fires alone; and its sign and magnitude."""
    names = state.space.subpolicies
    chosen = next(n for n, ops in enumerate(names) if ops[position] == op)
    noise = torch.Generator().manual_seed(4)
    shape = (batch, state.space.ops_per_subpolicy)
    apply_BK = torch.zeros(shape, dtype=torch.bool)
    apply_BK[:, position] = True
    sign_BK = torch.where(torch.rand(shape, generator=noise) < 0.5, -1.0, 1.0)
    draw = Draw(
        subpolicy_B=torch.full((batch,), chosen),
        apply_BK=apply_BK,
        sign_BK=sign_BK,
        center_BK2=torch.rand(*shape, 2, generator=noise),
    )
    return draw, sign_BK[:, position].double(), op


@pytest.mark.parametrize("magnitude", [0.0513, 0.4137, 0.8071])
@pytest.mark.parametrize("space", ["paper", "strength"])
@pytest.mark.parametrize("op", ENHANCERS)
def test_the_pathwise_effect_is_the_slope_of_the_operation(op, space, magnitude):
    """Against a difference in m of Pillow's blend, done in double precision without rounding."""
    config = search_config("paper", magnitudes="pathwise", space=space, ops_per_subpolicy=1)
    state = make_state(config, Plain(channels=3), channels=3)
    state.learned.magnitude_NK.data.fill_(magnitude)
    images_BCHW = stripes(6, channels=3)[0]
    draw, sign_B, _ = one_op_draw(state, op, len(images_BCHW))
    noise = torch.Generator().manual_seed(2)
    cost_grad_BCHW = torch.randn(images_BCHW.shape, generator=noise)
    effect_BK = pathwise_effects(state, draw, cost_grad_BCHW, [images_BCHW, images_BCHW])

    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images_BCHW]
    degenerates = [
        np.asarray(getattr(ImageEnhance, op)(picture).degenerate.convert("RGB"))
        for picture in pictures
    ]
    duller_BCHW = torch.from_numpy(np.stack(degenerates)).permute(0, 3, 1, 2).double()

    def cost(m: float) -> Tensor:
        strength = 0.5 * m * sign_B if space == "strength" else torch.full_like(sign_B, m - 0.5)
        factor_B = (1 + 1.8 * strength).view(-1, 1, 1, 1)
        mixed = duller_BCHW + factor_B * (images_BCHW.double() - duller_BCHW)
        return (cost_grad_BCHW * mixed.clamp(0, 255) / state.normalise.std).sum((1, 2, 3))

    small = 1e-5
    slope_B = (cost(magnitude + small) - cost(magnitude - small)) / (2 * small)
    torch.testing.assert_close(effect_BK[:, 0].double(), slope_B, rtol=1e-3, atol=1e-3)


def test_the_pathwise_effect_of_other_operations_is_none():
    config = search_config("paper", magnitudes="pathwise")
    state = make_state(config, Plain())
    images_BCHW = stripes(16)[0]
    draw = state.estimator.sample(state.sampling, 16, generator=state.noise)
    op_BK = state.space.op_index_NK[draw.subpolicy_B]
    effect_BK = pathwise_effects(state, draw, torch.ones(16, 1, 8, 8), [images_BCHW] * 3)
    enhances_BK = torch.tensor(
        [[state.space.ops[o].name in ENHANCERS for o in row] for row in op_BK]
    )
    assert (effect_BK[~enhances_BK] == 0).all()
    assert (effect_BK[enhances_BK] != 0).any()


@pytest.mark.parametrize("position", [0, 1])
def test_effects_of_a_draw_through_the_pixels(position):
    """x_K itself, what an operation changed, and d x / d m = 1 (eq. 10, 11)."""
    state = make_state(search_config("paper", estimator="gumbel-sampled"), Plain())
    draw, _, _ = one_op_draw(state, "Contrast", 6, position)
    images_BCHW = stripes(6)[0]
    stages = [images_BCHW, images_BCHW, images_BCHW]
    for later in range(position + 1, 3):
        stages[later] = 255 - images_BCHW
    noise = torch.Generator().manual_seed(2)
    cost_grad_BCHW = torch.randn(images_BCHW.shape, generator=noise)
    shown = state.normalise(stages[-1])
    effects = pixel_effects(state, draw, None, cost_grad_BCHW, stages, shown)
    difference = (255 - 2 * images_BCHW.float()) / state.normalise.std
    expected_BK = torch.zeros(6, 2)
    expected_BK[:, position] = (cost_grad_BCHW * difference).sum((1, 2, 3))
    torch.testing.assert_close(effects["op_effect_BK"], expected_BK, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(effects["branch_B"], (cost_grad_BCHW * shown).sum((1, 2, 3)))
    whole_B = cost_grad_BCHW.sum((1, 2, 3))
    torch.testing.assert_close(effects["magnitude_effect_BK"], whole_B[:, None].expand(6, 2))


@pytest.mark.parametrize("at_once", [1, 2**24])
@pytest.mark.parametrize("preset", ["paper", "dada"])
def test_effects_of_branches_that_were_not_drawn(monkeypatch, preset, at_once):
    """Image by image, branch by branch: what the cost's gradient says of s(x) - x."""
    monkeypatch.setattr(effects_module, "ELEMENTS_AT_ONCE", at_once)
    state = make_state(search_config(preset, estimator="gumbel", gumbel_branches=3), Plain())
    with torch.no_grad():
        state.sampling.magnitude_NK.uniform_(0.6, 1.0, generator=torch.Generator().manual_seed(1))
    images_BCHW = stripes(6)[0]
    draw = state.estimator.sample(state.sampling, 6, generator=state.noise)
    branches = Branches.of(draw, lambda rows: rows)
    assert branches is not None and branches.subpolicy_BM.shape == (6, 3)
    magnitude_NK = state.sampling.magnitude_NK
    stages = augment_stages(images_BCHW, state.space, draw, magnitude_NK)
    cost_grad_BCHW = torch.randn(images_BCHW.shape, generator=torch.Generator().manual_seed(2))
    views_BCHW = state.normalise(stages[-1])
    views_BCHW[..., 3:] = 7.0  # covered by a square: nothing of it counts
    effects = pixel_effects(state, draw, branches, cost_grad_BCHW, stages, views_BCHW)
    seen_BCHW = cost_grad_BCHW.clone()
    seen_BCHW[..., 3:] = 0.0

    def effect(image: int, subpolicy: Tensor, apply_K: Tensor, magnitude_K: Tensor | None) -> float:
        one = Draw(
            subpolicy_B=subpolicy.view(1),
            apply_BK=apply_K.view(1, 2),
            sign_BK=draw.sign_BK[image : image + 1],
            center_BK2=draw.center_BK2[image : image + 1],
            magnitude_BK=None if magnitude_K is None else magnitude_K.view(1, 2),
        )
        before = images_BCHW[image : image + 1]
        after = augment(before, state.space, one, magnitude_NK)
        change = state.normalise(after) - state.normalise(before)
        return float((seen_BCHW[image] * change[0]).sum())

    for b in range(6):
        own = None if draw.magnitude_BK is None else draw.magnitude_BK[b]
        first = draw.apply_BK[b, 0]
        before_2 = effect(b, draw.subpolicy_B[b], torch.tensor([first, False]), own)
        fired_1 = effect(b, draw.subpolicy_B[b], torch.tensor([True, False]), own)
        fired_2 = effect(b, draw.subpolicy_B[b], torch.tensor([first, True]), own)
        expected = torch.tensor([fired_1, fired_2 - before_2])
        torch.testing.assert_close(effects["op_effect_BK"][b], expected, rtol=1e-3, atol=1e-3)
        whole = effect(b, draw.subpolicy_B[b], draw.apply_BK[b], own)
        assert float(effects["branch_B"][b]) == pytest.approx(whole, rel=1e-3, abs=1e-3)
        for m in range(3):
            other = None if branches.magnitude_BMK is None else branches.magnitude_BMK[b, m]
            value = effect(b, branches.subpolicy_BM[b, m], branches.apply_BMK[b, m], other)
            found = float(effects["other_branch_BM"][b, m])
            assert found == pytest.approx(value, rel=1e-3, abs=1e-3)
    assert effects["op_effect_BK"][~draw.apply_BK].abs().max() > 0  # also where a coin said no


@pytest.mark.parametrize(
    ("settings", "rounded"),
    [
        ({}, False),
        ({"pixel_precision": "tf32"}, True),
        ({"magnitudes": "distribution"}, True),  # no pixels are read
        ({"magnitudes": "distribution", "estimator": "gumbel"}, False),
    ],
)
def test_pixels_are_read_in_float32(monkeypatch, settings, rounded):
    state = make_state(search_config("paper", precision="tf32", **settings), Plain())
    asked = []
    usual = HYPERGRADIENTS["finite_difference"]

    def recorded(*arguments: Any, **options: Any) -> Any:
        asked.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))
        return usual(*arguments, **options)

    monkeypatch.setitem(HYPERGRADIENTS, "finite_difference", recorded)
    with state.precision.products():
        take_step(state)
        assert torch.backends.cudnn.allow_tf32  # the rest of the step is as it was
    assert asked == [(rounded, "high" if rounded else "highest")]


IDENTITY_AT_HALF = "ShearX,ShearY,TranslateX,TranslateY,Rotate,Contrast,Color,Brightness,Sharpness"


@pytest.mark.parametrize("estimator", ["gumbel", "gumbel-sampled"])
def test_where_no_operation_does_anything_the_gradient_is_zero(estimator):
    """Enumeration is simple there: every outcome costs the same. The truncated sum says else."""
    others = tuple(
        {op.name for op in SearchSpace.named("paper").ops} - set(IDENTITY_AT_HALF.split(","))
    )
    config = search_config("paper", estimator=estimator, exclude=others, gumbel_branches=4)
    state = make_state(config, Plain())
    take_step(state)
    largest = state.learned.subpolicy_logits_N.grad.abs().max()
    assert (largest < 1e-9) == (estimator == "gumbel")
    assert state.learned.apply_prob_NK.grad.abs().max() < 1e-9


@pytest.mark.parametrize("magnitudes", ["straight_through", "pathwise"])
def test_what_a_square_covers_has_no_effect(magnitudes):
    state = make_state(search_config("paper", magnitudes=magnitudes), Plain())
    draw, _, _ = one_op_draw(state, "Contrast", 6)
    images_BCHW = stripes(6)[0]
    stages = [images_BCHW, images_BCHW // 2, images_BCHW // 2]
    cost_grad_BCHW = torch.ones(images_BCHW.shape)
    views_BCHW = state.normalise(stages[-1])
    views_BCHW[..., 3:] = 0.0
    covered = pixel_effects(state, draw, None, cost_grad_BCHW, stages, views_BCHW)
    cost_grad_BCHW[..., 3:] = 0.0
    shown = state.normalise(stages[-1])
    expected = pixel_effects(state, draw, None, cost_grad_BCHW, stages, shown)
    for name, effect in expected.items():
        torch.testing.assert_close(covered[name], effect)
        assert effect.abs().max() > 0


# --- the loop -----------------------------------------------------------------------------------


def run_search(config: SearchConfig, model: nn.Module | str = "small", **shape: Any) -> Any:
    split = striped_split(**shape)
    if isinstance(model, str):
        model = build(model, split.num_classes, split.channels, split.image_size, seed=0)
    return measure(search_job(split, model, config, device=CPU))


@pytest.mark.parametrize("preset", ["dada", "paper"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_subpolicies_of_one_two_and_three_operations(preset, k):
    config = search_config(preset, ops_per_subpolicy=k, epochs=3, batch_size=16)
    policy = run_search(config, Plain()).policy
    count = math.comb(15, k)
    assert all(len(subpolicy.ops) == k for subpolicy in policy.subpolicies)
    if preset == "paper":
        assert len(policy.subpolicies) == min(25, count) and policy.sampling == "uniform"
    else:
        assert len(policy.subpolicies) == count and policy.sampling == "weighted"


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("small", {"channels": 3}),
        ("small", {"channels": 3, "size": (11, 7)}),
        ("small", {"size": (5, 13)}),
        ("small", {"classes": 2}),
        ("wrn10_1", {"channels": 3, "size": (9, 9)}),
        (Plain(classes=2, channels=3), {"classes": 2, "channels": 3, "size": (7, 6)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("preset", ["dada", "paper"])
def test_data_and_networks_of_many_kinds(preset, model, shape):
    model = copy.deepcopy(model)
    result = run_search(search_config(preset, epochs=2, batch_size=16), model, **shape)
    assert [entry["epoch"] for entry in result.history] == [1, 2]
    assert result.policy.provenance["data"]["channels"] == shape.get("channels", 1)
    assert sum(result.policy.op_probabilities().values()) > 0.1


def test_the_history_says_what_happened():
    result = run_search(search_config("dada", epochs=6, batch_size=16))
    first, last = result.history[0], result.history[-1]
    assert set(last) == {
        *("epoch", "loss", "val_accuracy", "entropy", "change", "op_rate", "seconds"),
    }
    assert first["entropy"] == pytest.approx(math.log(105) + 2 * math.log(2), rel=1e-5)
    assert first["change"] == 0.0  # the first quarter measures nothing
    assert last["entropy"] < first["entropy"] and last["change"] > 0
    assert last["loss"] < first["loss"]
    assert last["op_rate"] == pytest.approx(result.policy.op_probabilities(), abs=1e-5)
    assert result.policy.provenance["epochs"] == 6
    assert result.policy.provenance["settings"]["estimator"] == "rloo"


@pytest.mark.parametrize("preset", ["dada", "paper"])
def test_when_the_policy_learns_and_how_fast_the_network(monkeypatch, preset):
    """Cosine from lr to 0 over all steps; `dada` measures after the first quarter."""
    calls = []

    def spied(state: SearchState, *arguments: Any, measure: bool) -> Tensor:
        calls.append((arguments[-1], measure))
        return search_step(state, *arguments, measure=measure)

    monkeypatch.setattr("dada.policy_search.measuring.search_step", spied)
    run_search(search_config(preset, epochs=4, batch_size=16, lr=0.2), Plain())
    assert len(calls) == 4 * 3
    for step, (lr, measured) in enumerate(calls):
        assert lr == pytest.approx(0.1 * (1 + math.cos(math.pi * step / 12)))
        assert measured == (step >= 3 or preset == "paper")


@pytest.mark.parametrize("fixed", [True, False])
def test_the_validation_batch_is_fresh_unless_asked_to_be_fixed(fixed):
    model = Plain()
    inputs = recorded_inputs(model)
    config = search_config("paper", epochs=2, batch_size=16, fixed_validation=fixed)
    run_search(config, model)
    # Every step calls: training, validation, w+, w-; before all, the check of the output, and
    # after every epoch the accuracy.
    steps = [inputs[1 + epoch * 13 + 4 * i + 1] for epoch in range(2) for i in range(3)]
    assert all(len(batch) == 16 for batch in steps)
    same = [torch.equal(steps[0], other) for other in steps[1:]]
    assert all(same) if fixed else not any(same)


def test_how_many_epochs_make_enough_steps():
    config = SearchConfig()
    assert config.epochs_for(4) == 80  # 320 steps
    assert config.epochs_for(100) == 10  # and at least ten passes
    assert config.epochs_for(7) == 46
    assert replace(config, epochs=3).epochs_for(1) == 3
    assert search_config("paper").epochs_for(16) == 20


class Diverging(Plain):
    """Finite for some passes, then not."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.passes, self.after = 0, after

    def forward(self, images_BCHW: Tensor) -> Tensor:
        self.passes += 1
        logits = super().forward(images_BCHW)
        return logits if self.passes <= self.after else logits * float("nan")


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (1 + 4 * 3 + 1, "the training loss became nan in epoch 2; lower `lr`"),
        # The last step's training pass is the last good one: only the policy sees the rest.
        (1 + 4 * 2 + 1, "the policy's entropy became nan in epoch 1; lower `lr`"),
    ],
)
def test_numbers_that_are_none_are_an_error(after, says):
    with pytest.raises(ValueError, match=says):
        run_search(search_config("paper", epochs=3, batch_size=16), Diverging(after))


def test_a_network_with_other_outputs_is_refused():
    with pytest.raises(ValueError, match=r"model 'Plain': its output must have shape .*\(2, 3\)"):
        run_search(search_config("dada", epochs=1), Plain(classes=5))


def test_cutout_and_crops_of_the_base_are_part_of_a_step():
    """After normalising, a square of the mean colour; before the policy, a crop of the clean."""
    config = search_config("dada", base=Base(crop=2, flip=True, cutout=4))
    state = make_state(config, Plain())
    inputs = recorded_inputs(state.model)
    take_step(state)
    assert ((inputs[0] == 0).flatten(1).sum(1) >= 4).all()
    clean_BCHW = inputs[2][16:]  # the clean views of w+
    assert ((clean_BCHW == 0).flatten(1).sum(1) < 4).all(), "the comparison is not covered"
    assert not torch.equal(clean_BCHW, state.normalise(stripes(16)[0]))
