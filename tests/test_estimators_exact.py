"""The estimators against exact enumeration, end to end: digits, real ops, a real unrolled step.

The space has 4 ops in pairs: 6 subpolicies with 4 patterns of coins each, so every outcome of
every image can be run through the network. No BatchNorm and one fixed val_grad: the cost of an
image is then a function of its own draw, and the exact gradient is a sum of 24 terms.

Shapes: B images, N subpolicies, K ops each, T = N 2^K outcomes, D draws, R repeats,
G gradient coordinates (N for alpha, then N K for beta).
"""

from __future__ import annotations

import copy
import itertools
import statistics
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dada.policy.augment import augment
from dada.policy.draw import Draw, policy_free_noise
from dada.policy.space import SearchSpace
from dada.policy_search.estimators import Estimator, Gradients, Reinforce, Relax, make_estimator
from dada.policy_search.estimators.base import DrawCosts, Estimate
from dada.policy_search.estimators.draws import Noise, open_uniform, score_functions
from dada.policy_search.hypergradient import forward_mode_cost, trainable_weights, virtual_val_grad
from dada.policy_search.parameters import PolicyParameters

INNER_LR = 0.1


def four_ops() -> SearchSpace:
    paper = SearchSpace.named("paper")
    names = ("Rotate", "Invert", "Brightness", "Cutout")
    return SearchSpace("four", tuple(paper.op(name) for name in names), strengths=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """B digits, a policy away from its symmetric start, and the cost of every outcome."""

    space: SearchSpace
    parameters: PolicyParameters
    model: nn.Module
    val_grad: dict[str, Tensor]
    images_BCHW: Tensor
    labels_B: Tensor
    sign_BK: Tensor
    center_BK2: Tensor
    cost_BT: Tensor
    exact_G: Tensor

    def run(self, draw: Draw, image_D: Tensor) -> Tensor:
        """The whole chain for D draws: augment, normalise, network, hypergradient."""
        draw = replace(draw, sign_BK=self.sign_BK[image_D], center_BK2=self.center_BK2[image_D])
        images = augment(self.images_BCHW[image_D], self.space, draw, self.parameters.magnitude_NK)
        weights, labels = trainable_weights(self.model), self.labels_B[image_D]
        return forward_mode_cost(
            self.model, weights, self.val_grad, INNER_LR, normalise(images), labels
        ).cost_B

    def look_up(self, draw: Draw, image_D: Tensor) -> Tensor:
        bit_K = 2 ** torch.arange(self.space.ops_per_subpolicy)
        pattern_D = (draw.apply_BK * bit_K).sum(dim=1)
        return self.cost_BT[image_D, draw.subpolicy_B * 2 ** len(bit_K) + pattern_D]


def normalise(images_BCHW: Tensor) -> Tensor:
    return (images_BCHW.float() - 78.0) / 96.0


def build_problem(space: SearchSpace, batch: int, steps: int) -> Problem:
    generator = torch.Generator().manual_seed(0)
    parameters = PolicyParameters(space.num_subpolicies, space.ops_per_subpolicy)
    with torch.no_grad():
        parameters.subpolicy_logits_N.normal_(std=0.5, generator=generator)
        parameters.apply_prob_NK.uniform_(0.25, 0.75, generator=generator)
        parameters.magnitude_NK.uniform_(0.6, 1.0, generator=generator)

    digits = load_digits()
    images = torch.tensor(digits.images * 15.9, dtype=torch.uint8)[:, None]
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=INNER_LR, momentum=0.9)
    for _ in range(steps):
        pick = torch.randint(600, (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(normalise(images[pick])), labels[pick]).backward()
        optimizer.step()

    sign_BK, center_BK2 = policy_free_noise(
        batch, space.ops_per_subpolicy, generator, torch.device("cpu")
    )
    subpolicy_T, apply_TK = outcomes(space)
    weights = trainable_weights(model)
    loss = F.cross_entropy(model(normalise(images[:batch])), labels[:batch])
    grads = dict(zip(weights, torch.autograd.grad(loss, tuple(weights.values())), strict=True))
    val_grad, _ = virtual_val_grad(
        model, weights, grads, INNER_LR, normalise(images[600:856]), labels[600:856]
    )
    problem = Problem(
        space=space,
        parameters=parameters,
        model=model,
        val_grad=val_grad,
        images_BCHW=images[:batch],
        labels_B=labels[:batch],
        sign_BK=sign_BK,
        center_BK2=center_BK2,
        cost_BT=torch.empty(0),
        exact_G=torch.empty(0),
    )
    every = Draw(
        subpolicy_B=subpolicy_T.repeat(batch),
        apply_BK=apply_TK.repeat(batch, 1),
        sign_BK=torch.empty(0),
        center_BK2=torch.empty(0),
    )
    image_D = torch.arange(batch).repeat_interleave(len(subpolicy_T))
    cost_BT = problem.run(every, image_D).reshape(batch, -1)

    prob_TK = parameters.apply_prob_NK[subpolicy_T]
    joint_T = torch.where(apply_TK, prob_TK, 1 - prob_TK).prod(dim=1)
    joint_T = parameters.subpolicy_prob_N[subpolicy_T] * joint_T
    expected = (joint_T * cost_BT.mean(dim=0)).sum()
    exact_G = flat(
        torch.autograd.grad(expected, (parameters.subpolicy_logits_N, parameters.apply_prob_NK))
    )
    return replace(problem, cost_BT=cost_BT, exact_G=exact_G)


def outcomes(space: SearchSpace) -> tuple[Tensor, Tensor]:
    """Every subpolicy with every pattern of its coins; coin k is bit k of the pattern."""
    patterns = torch.tensor(list(itertools.product((False, True), repeat=space.ops_per_subpolicy)))
    subpolicy_T = torch.arange(space.num_subpolicies).repeat_interleave(len(patterns))
    return subpolicy_T, patterns.flip(1).repeat(space.num_subpolicies, 1)


def flat(grads: Gradients | tuple[Tensor, ...]) -> Tensor:
    if isinstance(grads, Gradients):
        grads = (grads.subpolicy_logits_N, grads.apply_prob_NK)
    return torch.cat([grad.flatten() for grad in grads])


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build_problem(four_ops(), batch=32, steps=40)


def make(problem: Problem, name: str, *, views: int = 1) -> Estimator:
    parameters = problem.parameters
    return make_estimator(
        name,
        parameters.num_subpolicies,
        parameters.ops_per_subpolicy,
        views=views,
        generator=torch.Generator().manual_seed(1),
    )


def randomise_phi(estimator: Estimator, cost_scale: float = 1.0) -> None:
    """RELAX is unbiased for any phi; a random one shows every mistake a small one would hide.

    The scale of the costs is set too: only at c_phi = 0 may the first call take it from its costs.
    """
    assert isinstance(estimator, Relax)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        estimator.control.hidden_weight.normal_(generator=generator)
        estimator.control.output_weight.normal_(std=0.1, generator=generator)
        estimator.updates.fill_(1)
        estimator.cost_square.fill_((1 - estimator.scale_decay) * cost_scale**2)


def train_phi(problem: Problem, estimator: Estimator, steps: int) -> None:
    optimizer = torch.optim.Adam(estimator.parameters(), lr=5e-3, betas=(0.5, 0.999))
    generator, image_D = torch.Generator().manual_seed(3), torch.arange(32).repeat(4)
    for _ in range(steps):
        draw = estimator.sample(problem.parameters, 128, generator=generator)
        cost_D = problem.look_up(draw, image_D)
        estimator.gradients(draw, problem.parameters, cost_D).store_(problem.parameters, estimator)
        optimizer.step()


def gradients(
    problem: Problem, estimator: Estimator, repeats: int, each: int = 512, draws: str = "image"
) -> Tensor:
    """R gradients of `each` draws, the images in turn (all views of an image in one column)."""
    images, generator = len(problem.labels_B), torch.Generator().manual_seed(0)
    image_D = torch.arange(images).repeat(each // images)
    rows = []
    for _ in range(repeats):
        draw = estimator.sample(problem.parameters, each, draws=draws, generator=generator)
        cost_D = problem.look_up(draw, image_D)
        rows.append(flat(estimator.gradients(draw, problem.parameters, cost_D)))
    return torch.stack(rows)


def largest_z(problem: Problem, grads_RG: Tensor) -> float:
    error_G = grads_RG.std(dim=0) / len(grads_RG) ** 0.5
    return ((grads_RG.mean(dim=0) - problem.exact_G) / error_G).abs().max().item()


def critical_z(problem: Problem) -> float:
    """Two-sided, Bonferroni over the coordinates, one false alarm in 10,000."""
    return statistics.NormalDist().inv_cdf(1 - 1e-4 / (2 * len(problem.exact_G)))


def test_the_table_is_the_chain(problem: Problem):
    """Lookups stand for draw, augment, normalise, network, hypergradient: same costs."""
    estimator, image_D = make(problem, "relax"), torch.arange(32)
    draw = estimator.sample(problem.parameters, 32, generator=torch.Generator().manual_seed(9))
    run = problem.run(draw, image_D)
    assert torch.allclose(run, problem.look_up(draw, image_D), rtol=1e-3, atol=1e-5)
    assert problem.cost_BT.std(dim=1).min() > 0  # every image cares what is done to it


@pytest.mark.parametrize(
    ("name", "views", "phi"),
    [
        ("reinforce", 1, "none"),
        ("rloo", 4, "none"),
        ("relax", 1, "zero"),
        ("relax", 1, "random"),
        ("relax", 1, "trained"),
    ],
)
def test_unbiased(problem: Problem, name: str, views: int, phi: str):
    """The mean of 200 x 512 draws is the exact gradient, alpha and beta, in every coordinate."""
    estimator = make(problem, name, views=views)
    if phi == "random":
        randomise_phi(estimator, problem.cost_BT.square().mean().sqrt().item())
    if phi == "trained":
        train_phi(problem, estimator, 300)
    grads_RG = gradients(problem, estimator, 200)
    assert largest_z(problem, grads_RG) < critical_z(problem)
    # The check has teeth: the standard error is small beside the gradient itself.
    error = grads_RG.std(dim=0).norm() / 200**0.5
    assert error < 0.2 * problem.exact_G.norm()


def test_unbiased_with_one_draw_per_batch(problem: Problem):
    grads_RG = gradients(problem, make(problem, "reinforce"), 4000, each=32, draws="batch")
    assert largest_z(problem, grads_RG) < critical_z(problem)


class EveryCoinConditional(Relax):
    """Broken: z~ of coins that were not drawn follows them too, though log p does not hold them."""

    fresh = torch.Generator().manual_seed(6)

    def _relax(self, noise, drawn_DN, logits_DN, prob_DNK):
        z, z_cond = super()._relax(noise, drawn_DN, logits_DN, prob_DNK)
        v = open_uniform(tuple(prob_DNK.shape), prob_DNK, self.fresh)
        odds, tau = v / (1 - v), self.temperature
        follows = torch.where(
            z[1] > 0.5, torch.log1p(odds / (1 - prob_DNK)), -torch.log1p(1 / (odds * prob_DNK))
        )
        coins = torch.where(drawn_DN[..., None], z_cond[1], (follows / tau).sigmoid())
        return z, (z_cond[0], coins)


class GathersTheDrawn(Relax):
    """Broken: c_phi sees the coins of the drawn subpolicy only, and jumps where the draw does."""

    def _relax(self, noise, drawn_DN, logits_DN, prob_DNK):
        z, z_cond = super()._relax(noise, drawn_DN, logits_DN, prob_DNK)
        return (z[0], z[1] * drawn_DN[..., None]), (z_cond[0], z_cond[1] * drawn_DN[..., None])


class SumsInsteadOfSoftmax(Relax):
    """Broken: the paper's printed normalisation, z~_s / sum z~, for exp(z^) without temperature."""

    def _relax(self, noise, drawn_DN, logits_DN, prob_DNK):
        z, z_cond = super()._relax(noise, drawn_DN, logits_DN, prob_DNK)
        root_DN = z_cond[0] ** self.temperature  # proportional to exp(z^)
        return z, (root_DN / root_DN.sum(dim=1, keepdim=True), z_cond[1])


class ScoresEverySubpolicy(Reinforce):
    """Broken: the drawn coins are credited to every subpolicy."""

    def _estimate(self, noise: Noise, parameters: PolicyParameters, costs: DrawCosts) -> Estimate:
        right = super()._estimate(noise, parameters, costs)
        _, score_DK = score_functions(noise, parameters)
        smeared_K = (costs.cost_D[:, None] * score_DK).mean(dim=0) / parameters.num_subpolicies
        return right._replace(apply_prob_NK=smeared_K.expand_as(right.apply_prob_NK))


@pytest.mark.parametrize(
    "broken", [EveryCoinConditional, GathersTheDrawn, SumsInsteadOfSoftmax, ScoresEverySubpolicy]
)
def test_the_check_finds_broken_estimators(problem: Problem, broken: type[Estimator]):
    estimator = broken(6, 2, generator=torch.Generator().manual_seed(1))
    if isinstance(estimator, Relax):
        randomise_phi(estimator, problem.cost_BT.square().mean().sqrt().item())
    assert largest_z(problem, gradients(problem, estimator, 200)) > critical_z(problem)


def test_control_variate_in_both_halves_of_a_difference_cancels(problem: Problem):
    """The trap: RELAX on l(w+) minus RELAX on l(w-) is REINFORCE, whatever phi is."""
    estimator, parameters = make(problem, "relax"), problem.parameters
    randomise_phi(estimator)
    plain = make(problem, "reinforce")
    draw = estimator.sample(parameters, 32, generator=torch.Generator().manual_seed(0))
    cost_B = problem.look_up(draw, torch.arange(32))
    plus_B, minus_B = 1.3 + cost_B, torch.full_like(cost_B, 1.3)
    halves = [
        flat(copy.deepcopy(estimator).gradients(draw, parameters, half_B))
        for half_B in (plus_B, minus_B)
    ]
    reinforce_G = flat(plain.gradients(draw, parameters, cost_B))
    assert torch.allclose(halves[0] - halves[1], reinforce_G, atol=1e-5)

    ours = estimator.gradients(draw, parameters, cost_B)
    assert (flat(ours) - reinforce_G).norm() > 0.05 * reinforce_G.norm()
    assert all(grad.norm() > 0 for grad in ours.control_variate)


def test_trained_control_variate_lowers_variance():
    """At the same number of augmented images, after 300 steps of phi, on a young network."""
    problem = build_problem(four_ops(), batch=32, steps=10)
    estimator = make(problem, "relax")
    train_phi(problem, estimator, 300)
    relax_G = gradients(problem, estimator, 300, each=128).var(dim=0)
    plain_G = gradients(problem, make(problem, "reinforce"), 300, each=128).var(dim=0)
    num = problem.parameters.num_subpolicies
    assert relax_G[:num].sum() < 0.9 * plain_G[:num].sum()
    assert relax_G[num:].sum() < 0.9 * plain_G[num:].sum()


def test_a_draw_per_image_has_twenty_times_less_variance():
    """105 subpolicies, batch 128, a young network, as at the start of a search."""
    problem = build_problem(SearchSpace.named("paper"), batch=128, steps=10)
    estimator = make(problem, "reinforce")
    image_G = gradients(problem, estimator, 100, each=128).var(dim=0)
    batch_G = gradients(problem, estimator, 1000, each=128, draws="batch").var(dim=0)
    num = problem.parameters.num_subpolicies
    assert batch_G[:num].sum() > 20 * image_G[:num].sum()
    assert batch_G[num:].sum() > 20 * image_G[num:].sum()
