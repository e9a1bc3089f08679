"""A search problem small enough to enumerate: real digits, a trained network, the package's ops.

Without coupling between images (no BatchNorm), the cost of an image depends on its own draw alone,
so a table of the cost of every image under every outcome (subpolicy, which ops fire) gives the
exact gradient, and hundreds of thousands of draws for the price of a lookup. Signs and cutout
centres are fixed for each image.

Shapes: B images, C channels, H x W pixels, N subpolicies, K ops each, E = 2^K patterns of coins,
T = N E outcomes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.policy.augment import augment
from dada.policy.draw import Draw, policy_free_noise
from dada.policy.space import SearchSpace
from dada.policy_search.estimators import Estimator, Gradients, Relax, make_estimator
from dada.policy_search.estimators.draws import Noise, to_images
from dada.policy_search.hypergradient import forward_mode_cost, trainable_weights, virtual_val_grad
from dada.policy_search.parameters import PolicyParameters

INNER_LR = 0.1
FOUR_OPS = ("Rotate", "Invert", "Brightness", "Cutout")
WEAK_OPS = ("Rotate", "Contrast", "Brightness", "Cutout")  # Invert cannot be weak


def four_ops(names: tuple[str, ...] = FOUR_OPS) -> SearchSpace:
    paper = SearchSpace.named("paper")
    return SearchSpace("four", tuple(paper.op(name) for name in names), strengths=False)


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images * 15.9, dtype=torch.uint8)[:, None]
    return images, torch.tensor(bunch.target)


def normalise(images_BCHW: Tensor) -> Tensor:
    return (images_BCHW.float() - 78.0) / 96.0


def trained_network(seed: int, *, norm: bool, steps: int) -> nn.Module:
    """Two convolutions, trained on the first 600 digits without augmentation."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inside, outside in ((1, 12), (12, 16)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1)]
        layers += [nn.BatchNorm2d(outside)] if norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))
    images, labels = digits()
    images, labels = normalise(images[:600]), labels[:600]
    optimizer = torch.optim.SGD(model.parameters(), lr=INNER_LR, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        pick = torch.randint(600, (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[pick]), labels[pick]).backward()
        optimizer.step()
    return model


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Everything the estimators may ask about B images, for every outcome."""

    cost_BNE: Tensor
    clean_B: Tensor
    # <cost gradient under outcome T, the image under outcome U>, and the image left clean.
    product_BTU: Tensor | None = None
    clean_product_BT: Tensor | None = None

    def look_up(self, draw: Draw, image_B: Tensor) -> dict[str, Tensor]:
        outcome_B = outcome_index(draw.subpolicy_B, draw.apply_BK)
        cost_B = self.cost_BNE.flatten(1)[image_B, outcome_B]
        if self.product_BTU is None or self.clean_product_BT is None:
            return {"cost_B": cost_B}
        product_BU = self.product_BTU[image_B, outcome_B]
        clean_B = self.clean_product_BT[image_B, outcome_B]
        row_B = torch.arange(len(image_B))
        effects = []
        for k in range(draw.apply_BK.shape[1]):
            earlier_BK = draw.apply_BK.clone()
            earlier_BK[:, k:] = False
            before_B = outcome_index(draw.subpolicy_B, earlier_BK)
            effects.append(product_BU[row_B, before_B + 2**k] - product_BU[row_B, before_B])
        found = {"cost_B": cost_B, "op_effect_BK": torch.stack(effects, dim=1)}
        found["branch_B"] = product_BU[row_B, outcome_B]
        noise = draw.noise
        if isinstance(noise, Noise) and noise.branches is not None:
            found["branch_B"] = found["branch_B"] - clean_B
            other_DM = outcome_index(noise.branches.subpolicy_DM, noise.branches.apply_DMK)
            other_BM = to_images(other_DM, len(image_B))
            found["other_branch_BM"] = product_BU.gather(1, other_BM) - clean_B[:, None]
        return found


def outcomes(space: SearchSpace) -> tuple[Tensor, Tensor]:
    """Every subpolicy with every pattern of coins: subpolicy_(NE), apply_(NE)K, coin k at bit k."""
    ops = space.ops_per_subpolicy
    pattern_EK = torch.tensor(list(itertools.product((False, True), repeat=ops))).flip(1)
    subpolicy = torch.arange(space.num_subpolicies).repeat_interleave(len(pattern_EK))
    return subpolicy, pattern_EK.repeat(space.num_subpolicies, 1)


def outcome_index(subpolicy: Tensor, applied: Tensor) -> Tensor:
    """Which of the N E outcomes that is, in the order of `outcomes`; coins in the last dimension"""
    ops = applied.shape[-1]
    return subpolicy * 2**ops + (applied * 2 ** torch.arange(ops)).sum(dim=-1)


def every_outcome(space: SearchSpace, images_BCHW: Tensor, magnitude_NK: Tensor) -> Tensor:
    """images_BTCHW with T = N E: each image under each outcome, its signs and centres fixed."""
    subpolicy_T, apply_TK = outcomes(space)
    count, total = len(images_BCHW), len(subpolicy_T)
    sign_BK, center_BK2 = policy_free_noise(
        count, space.ops_per_subpolicy, torch.Generator().manual_seed(5), torch.device("cpu")
    )
    draw = Draw(
        subpolicy_B=subpolicy_T.repeat(count),
        apply_BK=apply_TK.repeat(count, 1),
        sign_BK=sign_BK.repeat_interleave(total, dim=0),
        center_BK2=center_BK2.repeat_interleave(total, dim=0),
    )
    every = augment(images_BCHW.repeat_interleave(total, dim=0), space, draw, magnitude_NK)
    return normalise(every).reshape(count, total, *images_BCHW.shape[1:])


def unrolled_step(model: nn.Module, images: Tensor, labels: Tensor, offset: int = 600) -> dict:
    """val_grad on 256 held-out digits after one step on the given, already augmented, images."""
    weights = trainable_weights(model)
    loss = F.cross_entropy(model(images), labels)
    grads = dict(zip(weights, torch.autograd.grad(loss, tuple(weights.values())), strict=True))
    all_images, all_labels = digits()
    val = slice(offset, offset + 256)
    val_images, val_labels = normalise(all_images[val]), all_labels[val]
    return virtual_val_grad(model, weights, grads, INNER_LR, val_images, val_labels)[0]


def build_table(
    space: SearchSpace, magnitude_NK: Tensor, *, batch: int, seed: int, steps: int
) -> Table:
    model = trained_network(seed, norm=False, steps=steps)
    images, labels = (x[:batch] for x in digits())
    every_BTCHW = every_outcome(space, images, magnitude_NK)
    val_grad = unrolled_step(model, normalise(images), labels)
    weights, total = trainable_weights(model), every_BTCHW.shape[1]
    parts: list[tuple[Tensor, Tensor]] = []
    for image_TCHW, label in zip(every_BTCHW, labels, strict=True):
        cost = forward_mode_cost(
            model, weights, val_grad, INNER_LR, image_TCHW, label.repeat(total), image_grad=True
        )
        assert cost.cost_grad_BCHW is not None
        parts.append((cost.cost_B, cost.cost_grad_BCHW))
    shape_BNE = (batch, space.num_subpolicies, 2**space.ops_per_subpolicy)
    grad_BTP = torch.stack([grad for _, grad in parts]).flatten(2)
    clean = forward_mode_cost(model, weights, val_grad, INNER_LR, normalise(images), labels)
    return Table(
        cost_BNE=torch.stack([cost for cost, _ in parts]).reshape(shape_BNE),
        clean_B=clean.cost_B,
        product_BTU=grad_BTP @ every_BTCHW.flatten(2).mT,
        clean_product_BT=(grad_BTP @ normalise(images).flatten(1)[..., None]).squeeze(-1),
    )


def outcome_probability(parameters: PolicyParameters, space: SearchSpace) -> Tensor:
    """p(c, b) of every outcome, in the order of `outcomes`, differentiable."""
    subpolicy_T, apply_TK = outcomes(space)
    prob_TK = parameters.apply_prob_NK[subpolicy_T]
    coins_T = torch.where(apply_TK, prob_TK, 1 - prob_TK).prod(dim=1)
    return parameters.subpolicy_prob_N[subpolicy_T] * coins_T


def exact_gradient(table: Table, parameters: PolicyParameters, space: SearchSpace) -> Tensor:
    """The gradient of sum_c,b p(c, b) mean_i cost_i(c, b), by autograd through the sum itself."""
    cost_T = table.cost_BNE.mean(dim=0).flatten()
    expected = (outcome_probability(parameters, space) * cost_T).sum()
    both = (parameters.subpolicy_logits_N, parameters.apply_prob_NK)
    return flat(torch.autograd.grad(expected, both))


def flat(grads: Gradients | tuple[Tensor, ...]) -> Tensor:
    if isinstance(grads, Gradients):
        grads = (grads.subpolicy_logits_N, grads.apply_prob_NK)
    return torch.cat([grad.flatten() for grad in grads])


def off_centre(
    space: SearchSpace, seed: int = 0, magnitudes: tuple[float, float] = (0.6, 1.0)
) -> PolicyParameters:
    """A policy away from its symmetric start: bias hides where everything is equal."""
    generator = torch.Generator().manual_seed(seed)
    parameters = PolicyParameters(space.num_subpolicies, space.ops_per_subpolicy)
    with torch.no_grad():
        parameters.subpolicy_logits_N.normal_(std=0.5, generator=generator)
        parameters.apply_prob_NK.uniform_(0.25, 0.75, generator=generator)
        parameters.magnitude_NK.uniform_(*magnitudes, generator=generator)
    return parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class Setting:
    """One way of spending a batch of augmented images."""

    estimator: str
    draws: str = "image"
    views: int = 1
    clean: bool = False  # the clean view's cost as baseline (one more forward pass per image)
    phi_steps: int = 0
    branches: int | None = None  # gumbel: others than the drawn one; None: all

    @property
    def name(self) -> str:
        parts = [self.estimator, f"one draw per {self.draws}"]
        parts += [f"{self.views} views"] if self.views > 1 else []
        parts += ["clean baseline"] if self.clean else []
        parts += [f"phi trained {self.phi_steps} steps"] if self.estimator == "relax" else []
        if self.estimator == "gumbel":
            how_many = "all" if self.branches is None else f"{self.branches} other"
            parts += [f"{how_many} branches"]
        elif self.estimator == "gumbel-sampled":
            parts += ["drawn branch only"]
        return ", ".join(parts)


class Simulation:
    """Runs one setting on one table; phi is trained as in a search, with Adam at 5e-3."""

    def __init__(self, setting: Setting, table: Table, parameters: PolicyParameters, seed: int):
        self.setting, self.table, self.parameters = setting, table, parameters
        num, ops = parameters.num_subpolicies, parameters.ops_per_subpolicy
        self.generator = torch.Generator().manual_seed(seed)
        self.estimator: Estimator = make_estimator(
            setting.estimator,
            num,
            ops,
            views=setting.views,
            branches=setting.branches,
            generator=self.generator,
        )
        if isinstance(self.estimator, Relax):
            optimizer = torch.optim.Adam(self.estimator.parameters(), lr=5e-3, betas=(0.5, 0.999))
            for _ in range(setting.phi_steps):
                self.step().store_(parameters, self.estimator)
                optimizer.step()

    def step(self) -> Gradients:
        images = len(self.table.clean_B)
        chosen = torch.arange(images)
        if self.setting.views > 1:  # the same number of augmented images: fewer images, more views
            keep = images // self.setting.views
            chosen = torch.randperm(images, generator=self.generator)[:keep]
            chosen = chosen.repeat(self.setting.views)
        draw = self.estimator.sample(
            self.parameters, images, draws=self.setting.draws, generator=self.generator
        )
        found = self.table.look_up(draw, chosen)
        baseline_B = self.table.clean_B[chosen] if self.setting.clean else None
        return self.estimator.gradients(draw, self.parameters, baseline_B=baseline_B, **found)

    def repeat(self, count: int) -> Tensor:
        return torch.stack([flat(self.step()) for _ in range(count)])
