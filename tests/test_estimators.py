"""The estimators' interface and their parts; test_estimators_exact.py has the proof of the whole.

Shapes: B images, N subpolicies, K ops each, T = N 2^K outcomes, D draws, G gradient coordinates
(N for alpha, then N K for beta), R rows of M magnitude logits.
"""

from __future__ import annotations

import copy
import statistics
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from dada.policy.draw import Draw
from dada.policy_search.estimators import ESTIMATORS, Estimator, Gradients, Relax, make_estimator
from dada.policy_search.estimators.draws import Noise, mean_at_drawn
from dada.policy_search.parameters import MagnitudeDistribution, PolicyParameters
from quick import ForbidHostReads


@pytest.fixture
def parameters() -> PolicyParameters:
    """6 subpolicies of 2 ops, away from the symmetric start."""
    generator = torch.Generator().manual_seed(0)
    parameters = PolicyParameters(6, 2)
    with torch.no_grad():
        parameters.subpolicy_logits_N.normal_(std=0.5, generator=generator)
        parameters.apply_prob_NK.uniform_(0.25, 0.75, generator=generator)
    return parameters


def flat(grads: Gradients | tuple[Tensor, ...]) -> Tensor:
    if isinstance(grads, Gradients):
        grads = (grads.subpolicy_logits_N, grads.apply_prob_NK)
    return torch.cat([grad.flatten() for grad in grads])


def relax_with_random_phi() -> Relax:
    estimator = make_estimator("relax", 6, 2)
    assert isinstance(estimator, Relax)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        estimator.control.hidden_weight.normal_(generator=generator)
        estimator.control.output_weight.normal_(std=0.3, generator=generator)
        # Past costs of root mean square 1: only at c_phi = 0 may they come from the first call.
        estimator.updates.fill_(1)
        estimator.cost_square.fill_(1 - estimator.scale_decay)
    return estimator


def test_leave_one_out_lowers_variance_of_images_that_differ():
    """Costs that are mostly the image's own, whatever is done to it: 8 views against 8 draws."""
    generator = torch.Generator().manual_seed(0)
    parameters = PolicyParameters(6, 2)
    own_B = torch.randn(16, generator=generator).repeat(8)
    variance = {}
    for name, views in (("reinforce", 1), ("rloo", 8)):
        estimator, rows = make_estimator(name, 6, 2, views=views), []
        for _ in range(200):
            draw = estimator.sample(parameters, 128, generator=generator)
            cost_B = own_B + 0.1 * draw.apply_BK[:, 0]
            rows.append(flat(estimator.gradients(draw, parameters, cost_B)))
        variance[name] = torch.stack(rows).var(dim=0).sum()
    assert variance["rloo"] < 0.02 * variance["reinforce"]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_draws_follow_the_policy(name: str, parameters: PolicyParameters):
    """Counts of all 24 outcomes against p(c, b), chi-square."""
    generator = torch.Generator().manual_seed(5)
    draw = make_estimator(name, 6, 2).sample(parameters, 40_000, generator=generator)
    index = draw.subpolicy_B * 4 + draw.apply_BK[:, 0] + 2 * draw.apply_BK[:, 1]
    pattern_E = torch.arange(4)
    apply_E2 = torch.stack([pattern_E % 2, pattern_E // 2], dim=1).bool()
    prob_NE2 = parameters.apply_prob_NK[:, None].detach().double()
    joint_NE = torch.where(apply_E2, prob_NE2, 1 - prob_NE2).prod(dim=2)
    joint_NE = joint_NE * parameters.subpolicy_prob_N[:, None].detach().double()
    expected_T = 40_000 * joint_NE.flatten() / joint_NE.sum()
    assert stats.chisquare(torch.bincount(index, minlength=24), expected_T).pvalue > 1e-4


def test_phi_gradient_is_that_of_the_square_norm(parameters: PolicyParameters):
    """Against a numerical derivative, in float64, one draw: then the mean is the draw's own."""
    parameters = parameters.double()
    estimator = relax_with_random_phi().double()
    draw = estimator.sample(parameters, 1, generator=torch.Generator().manual_seed(0))
    cost_B = torch.tensor([0.7], dtype=torch.float64)
    grads = copy.deepcopy(estimator).gradients(draw, parameters, cost_B).control_variate
    for parameter, grad in zip(estimator.parameters(), grads, strict=True):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7))
        square = []
        for step in (1e-6, -1e-6):
            moved = copy.deepcopy(estimator)
            for own, other in zip(moved.parameters(), estimator.parameters(), strict=True):
                if other is parameter:
                    own.data.add_(step * direction)
            square.append(flat(moved.gradients(draw, parameters, cost_B)).square().sum())
        slope = (square[0] - square[1]) / 2e-6
        assert torch.allclose(slope, (grad * direction).sum(), rtol=1e-4, atol=1e-7)


def test_conditional_sample_has_the_law_of_the_relaxed_one(parameters: PolicyParameters):
    """z~ given (c, b), with (c, b) from the policy, is distributed as z; and it implies (c, b)."""
    estimator = relax_with_random_phi()
    draw = estimator.sample(parameters, 20_000, generator=torch.Generator().manual_seed(8))
    noise = draw.noise
    assert isinstance(noise, Noise)
    drawn_DN = noise.subpolicy_D[:, None] == torch.arange(6)
    logits_DN = parameters.subpolicy_logits_N.detach().expand(20_000, 6)
    prob_DNK = parameters.apply_prob_NK.detach().expand(20_000, 6, 2)
    z, z_cond = estimator._relax(noise, drawn_DN, logits_DN, prob_DNK)
    for own, conditional in zip(z, z_cond, strict=True):
        for one, two in zip(own.flatten(1).T, conditional.flatten(1).T, strict=True):
            assert stats.ks_2samp(one, two).pvalue > 1e-5
    assert torch.equal(z_cond[0].argmax(dim=1), draw.subpolicy_B)
    coins_DK = z_cond[1][torch.arange(20_000), draw.subpolicy_B]
    assert torch.equal(coins_DK > 0.5, draw.apply_BK)
    # Conditional, not a copy: the relaxed values of the drawn subpolicy were drawn again.
    assert (z[0] - z_cond[0]).abs().mean() > 0.01


def toy(generator: torch.Generator) -> tuple[PolicyParameters, Tensor, Tensor, Tensor]:
    """3 subpolicies of ops that add a picture (slope one), 40 images, and a cost linear in them.

    The images are bright: what all branches share outweighs what they do.
    """
    parameters = PolicyParameters(3, 2)
    with torch.no_grad():
        parameters.subpolicy_logits_N.normal_(generator=generator)
        parameters.apply_prob_NK.uniform_(0.3, 0.7, generator=generator)
    images, cost_grad = torch.randn(2, 40, 5, generator=generator)
    added_NK5 = torch.randn(3, 2, 5, generator=generator)
    return parameters, 4 + images, 1 + cost_grad, added_NK5


def straight_through(noise: Noise, parameters: PolicyParameters, tau: float) -> tuple[Tensor, ...]:
    """h + c - c.detach(): hard forward, relaxed backward, for the subpolicy and its coins."""
    hard_DN = F.one_hot(noise.subpolicy_D, parameters.num_subpolicies).float()
    soft_DN = ((parameters.subpolicy_logits_N + noise.gumbel_DN) / tau).softmax(dim=1)
    prob_DK = parameters.apply_prob_NK[noise.subpolicy_D]
    soft_DK = ((prob_DK.logit() + noise.logistic_DK) / tau).sigmoid()
    return hard_DN + soft_DN - soft_DN.detach(), noise.apply_DK + soft_DK - soft_DK.detach()


def toy_gradients(
    estimator: Estimator, draw: Draw, parameters: PolicyParameters, *given: Tensor
) -> Gradients:
    """What a search would pass for the toy: inner products with the cost's gradient."""
    images, cost_grad, added_NK5 = given
    effect_BK = (cost_grad[:, None] * added_NK5[draw.subpolicy_B]).sum(dim=2)
    branch_B = (effect_BK * draw.apply_BK).sum(dim=1)
    noise, other_BM = draw.noise, None
    assert isinstance(noise, Noise)
    if noise.branches is not None:
        of_all_BNK = torch.einsum("bp,nkp->bnk", cost_grad, added_NK5)
        row_B1 = torch.arange(len(images))[:, None]
        effect_BMK = of_all_BNK[row_B1, noise.branches.subpolicy_DM]
        other_BM = (effect_BMK * noise.branches.apply_DMK).sum(dim=2)
    else:
        branch_B = branch_B + (cost_grad * images).sum(dim=1)
    return estimator.gradients(
        draw,
        parameters,
        torch.zeros(len(images)),
        branch_B=branch_B,
        op_effect_BK=effect_BK,
        other_branch_BM=other_BM,
        magnitude_effect_BK=cost_grad.sum(dim=1, keepdim=True).expand(-1, 2),
    )


@pytest.mark.parametrize("name", ["gumbel", "gumbel-sampled"])
def test_gumbel_is_the_gradient_of_the_whole_sum(name: str):
    """Against autograd through x^ = sum_s c_s s(x), every branch in it; the truncated one fails."""
    generator = torch.Generator().manual_seed(0)
    parameters, images, cost_grad, added_NK5 = toy(generator)
    estimator, tau = make_estimator("gumbel", 3, 2, temperature=0.7), 0.7
    draw = estimator.sample(parameters, 40, generator=generator)
    noise = draw.noise
    assert isinstance(noise, Noise) and noise.branches is not None
    straight_BN, straight_BK = straight_through(noise, parameters, tau)
    branches_BN5 = images[:, None] + torch.einsum(
        "bnk,nkp->bnp", noise.branches.apply_DMK.float(), added_NK5
    )
    drawn_B5 = images + torch.einsum("bk,bkp->bp", straight_BK, added_NK5[draw.subpolicy_B])
    is_drawn_BN1 = F.one_hot(draw.subpolicy_B, 3)[..., None] > 0
    branches_BN5 = torch.where(is_drawn_BN1, drawn_B5[:, None], branches_BN5)
    mixed_B5 = (straight_BN[..., None] * branches_BN5).sum(dim=1)
    both = (parameters.subpolicy_logits_N, parameters.apply_prob_NK)
    expected = torch.autograd.grad((cost_grad * mixed_B5).sum() / 40, both)

    asked = make_estimator(name, 3, 2, temperature=tau)
    if name == "gumbel-sampled":
        draw = replace(draw, noise=replace(noise, branches=None))
    found = toy_gradients(asked, draw, parameters, images, cost_grad, added_NK5)
    whole = name == "gumbel"
    assert torch.allclose(found.subpolicy_logits_N, expected[0], atol=1e-5) == whole
    assert torch.allclose(found.apply_prob_NK, expected[1], atol=1e-5) == whole
    assert found.magnitude_NK is not None
    by_hand = torch.zeros(3, 2)
    for n, fires_K, grad in zip(draw.subpolicy_B, draw.apply_BK, cost_grad.sum(dim=1), strict=True):
        by_hand[n] += fires_K * grad / 40
    assert torch.allclose(found.magnitude_NK, by_hand, atol=1e-6)


def relative_errors(name: str, branches: int | None) -> list[float]:
    """Of the mean gradient at a low temperature, against enumeration: alpha and beta."""
    generator = torch.Generator().manual_seed(0)
    parameters, images, cost_grad, added_NK5 = toy(generator)
    images, cost_grad = images.repeat(500, 1), cost_grad.repeat(500, 1)
    effect_NK = torch.einsum("bp,nkp->nk", cost_grad, added_NK5) / len(images)
    branch_N = (parameters.apply_prob_NK * effect_NK).sum(dim=1)
    expected = (parameters.subpolicy_prob_N * branch_N).sum()  # + <g, x>, whatever is drawn
    both = (parameters.subpolicy_logits_N, parameters.apply_prob_NK)
    exact = torch.autograd.grad(expected, both)
    estimator = make_estimator(name, 3, 2, temperature=0.15, branches=branches)
    found = []
    for _ in range(10):
        draw = estimator.sample(parameters, len(images), generator=generator)
        grads = toy_gradients(estimator, draw, parameters, images, cost_grad, added_NK5)
        found.append((grads.subpolicy_logits_N, grads.apply_prob_NK))
    means = [torch.stack(each).mean(dim=0) for each in zip(*found, strict=True)]
    pairs = zip(means, exact, strict=True)
    return [float((mean - true).norm() / true.norm()) for mean, true in pairs]


@pytest.mark.parametrize("branches", [None, 1, 2])
def test_gumbel_meets_enumeration_at_a_low_temperature(branches: int | None):
    """For a cost linear in the pixels nothing but the temperature biases it, and that is low."""
    alpha, beta = relative_errors("gumbel", branches)
    assert alpha < 0.1 and beta < 0.1


def test_the_truncated_gumbel_does_not_meet_enumeration():
    alpha, beta = relative_errors("gumbel-sampled", None)
    assert alpha > 0.5 and beta > 0.4


@pytest.mark.parametrize("draws", ["image", "batch"])
def test_sampled_branches_have_the_whole_sum_as_their_mean(draws: str, parameters):
    """Given the Gumbel noise: the difference of each draw to its own whole sum averages to none."""
    generator, tau = torch.Generator().manual_seed(1), 0.5
    effect_N = torch.randn(6, generator=generator)
    estimator = make_estimator("gumbel", 6, 2, branches=2)
    differences = []
    for _ in range(3000):
        draw = estimator.sample(parameters, 4, draws=draws, generator=generator)
        noise = draw.noise
        assert isinstance(noise, Noise) and noise.branches is not None
        assert not (noise.branches.subpolicy_DM == noise.subpolicy_D[:, None]).any()
        found = estimator.gradients(
            draw,
            parameters,
            torch.zeros(4),
            branch_B=effect_N[draw.subpolicy_B],
            other_branch_BM=effect_N[noise.branches.subpolicy_DM].expand(4, 2),
            op_effect_BK=torch.zeros(4, 2),
        )
        soft_DN = ((parameters.subpolicy_logits_N.detach() + noise.gumbel_DN) / tau).softmax(dim=1)
        mean_D1 = (soft_DN * effect_N).sum(dim=1, keepdim=True)
        whole_N = (soft_DN * (effect_N - mean_D1) / tau).mean(dim=0)
        differences.append(found.subpolicy_logits_N - whole_N)
    difference_RN = torch.stack(differences)
    z_N = difference_RN.mean(dim=0) / (difference_RN.std(dim=0) / len(differences) ** 0.5)
    assert difference_RN.std() > 1e-3  # not the whole sum itself
    assert z_N.abs().max() < statistics.NormalDist().inv_cdf(1 - 1e-4 / 12)


@pytest.mark.parametrize("name", ["reinforce", "rloo", "relax"])
@pytest.mark.parametrize("shared", [False, True])
def test_drawn_magnitudes_learn_by_score_function(name: str, shared: bool):
    """cost = m of the fired ops, plus the coin: exact gradient of the bins' logits by hand."""
    op_index_NK = torch.tensor([[0, 1], [0, 2], [1, 2]])
    law = MagnitudeDistribution(3, 2, bins=4, op_index_NK=op_index_NK if shared else None)
    parameters = PolicyParameters(3, 2, magnitude_distribution=law)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        law.logits_RM.normal_(generator=generator)
        parameters.apply_prob_NK.uniform_(0.3, 0.7, generator=generator)
    mean_NK = (law.prob_RM @ torch.tensor([0.125, 0.375, 0.625, 0.875]))[law.row_NK]
    per_subpolicy_N = (parameters.apply_prob_NK * mean_NK).sum(dim=1)
    expected = (parameters.subpolicy_prob_N * per_subpolicy_N).sum()
    exact_RM = torch.autograd.grad(expected, law.logits_RM)[0]

    estimator = make_estimator(name, 3, 2, views=4 if name == "rloo" else 1, generator=generator)
    rows = []
    for _ in range(200):
        draw = estimator.sample(parameters, 512, generator=generator)
        assert draw.magnitude_BK is not None
        assert draw.magnitude_BK.min() >= 0 and draw.magnitude_BK.max() <= 1
        cost_B = (draw.magnitude_BK * draw.apply_BK).sum(dim=1)
        grads = estimator.gradients(draw, parameters, cost_B)
        assert grads.magnitude_NK is None and grads.magnitude_logits_RM is not None
        rows.append(grads.magnitude_logits_RM)
    grads_RRM = torch.stack(rows)
    z = (grads_RRM.mean(dim=0) - exact_RM) / (grads_RRM.std(dim=0) / 200**0.5)
    assert z.abs().max() < statistics.NormalDist().inv_cdf(1 - 1e-4 / (2 * exact_RM.numel()))
    assert (exact_RM / (grads_RRM.std(dim=0) / 200**0.5)).abs().max() > 10  # it could have failed


def test_baselines():
    parameters = PolicyParameters(6, 2)
    generator = torch.Generator().manual_seed(0)
    plain, loo = make_estimator("reinforce", 6, 2), make_estimator("rloo", 6, 2, views=2)
    draw = loo.sample(parameters, 8, generator=generator)
    cost_B, clean_B = torch.randn(2, 8, generator=generator)
    clean_B = clean_B[:4].repeat(2)  # one clean cost for the two views of an image

    def estimate(estimator: Estimator, cost: Tensor, baseline: Tensor | None = None) -> Tensor:
        return flat(estimator.gradients(draw, parameters, cost, baseline_B=baseline))

    other_B = cost_B.roll(4)  # view-major: the other view of image i is four places on
    assert torch.allclose(estimate(loo, cost_B), estimate(plain, cost_B - other_B))
    assert torch.allclose(estimate(plain, cost_B, clean_B), estimate(plain, cost_B - clean_B))
    both = estimate(loo, cost_B, clean_B)
    assert torch.allclose(both, estimate(plain, cost_B - (other_B + clean_B) / 2), atol=1e-6)
    alone = make_estimator("rloo", 6, 2, views=1)
    assert torch.allclose(estimate(alone, cost_B, clean_B), estimate(plain, cost_B - clean_B))
    with pytest.raises(ValueError, match="rloo with views=1 has no other view"):
        estimate(alone, cost_B)


def test_one_draw_per_batch_is_shared_by_its_images():
    parameters, generator = PolicyParameters(6, 2), torch.Generator().manual_seed(0)
    one = make_estimator("relax", 6, 2).sample(parameters, 12, draws="batch", generator=generator)
    assert (one.subpolicy_B == one.subpolicy_B[0]).all()
    assert (one.apply_BK == one.apply_BK[0]).all()
    assert len(one.sign_BK.unique(dim=0)) > 1 and len(one.center_BK2.unique(dim=0)) > 1
    loo = make_estimator("rloo", 6, 2, views=3)
    three = loo.sample(parameters, 12, draws="batch", generator=generator)
    by_view = three.subpolicy_B.reshape(3, 4)
    assert (by_view == by_view[:, :1]).all() and len(by_view[:, 0].unique()) > 1
    # The cost of a shared draw is the mean over its images.
    cost_B = torch.randn(12, generator=generator)
    averaged_B = cost_B.reshape(3, 4).mean(dim=1).repeat_interleave(4)
    one_G, two_G = (flat(loo.gradients(three, parameters, c)) for c in (cost_B, averaged_B))
    assert torch.allclose(one_G, two_G, atol=1e-6)


def test_a_seed_decides_everything():
    parameters = PolicyParameters(6, 2)
    found = []
    for _ in range(2):
        torch.rand(1)  # the global generator plays no part
        estimator = make_estimator("relax", 6, 2, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            estimator.get_parameter("control.output_weight").fill_(0.1)
        draw = estimator.sample(parameters, 16, generator=torch.Generator().manual_seed(4))
        found.append(flat(estimator.gradients(draw, parameters, torch.arange(16.0))))
    assert torch.equal(found[0], found[1])


def test_control_variate_starts_at_zero_and_costs_are_scaled(parameters: PolicyParameters):
    estimator, plain = make_estimator("relax", 6, 2), make_estimator("reinforce", 6, 2)
    assert isinstance(estimator, Relax)
    generator = torch.Generator().manual_seed(0)
    draw = estimator.sample(parameters, 32, generator=generator)
    cost_B = 0.1 * torch.randn(32, generator=generator)
    other_unit = copy.deepcopy(estimator)
    first = estimator.gradients(draw, parameters, cost_B)
    assert torch.allclose(flat(first), flat(plain.gradients(draw, parameters, cost_B)), atol=1e-7)
    # Costs in another unit: the gradient scales, phi's does not.
    other = other_unit.gradients(draw, parameters, 1e-6 * cost_B)
    assert torch.allclose(1e6 * flat(other), flat(first), rtol=1e-3, atol=1e-6)
    for one, two in zip(first.control_variate, other.control_variate, strict=True):
        assert torch.allclose(one, two, rtol=1e-3, atol=1e-5)
    # After that the scale is the past's: this call's costs do not enter it.
    scale = estimator._cost_scale(cost_B)
    assert torch.allclose(scale, cost_B.square().mean().sqrt())
    assert torch.equal(scale, estimator._cost_scale(100 * cost_B))


def test_gradients_are_stored_in_place():
    parameters, generator = PolicyParameters(6, 2), torch.Generator().manual_seed(0)
    estimator = make_estimator("relax", 6, 2, generator=generator)
    draw = estimator.sample(parameters, 16, generator=generator)
    grads = estimator.gradients(
        draw,
        parameters,
        torch.randn(16, generator=generator),
        magnitude_effect_BK=torch.ones(16, 2),
    )
    grads.store_(parameters, estimator)
    before = [p.grad for p in (*parameters.parameters(), *estimator.parameters())]
    assert all(grad is not None for grad in before)
    grads.store_(parameters, estimator)
    after = [p.grad for p in (*parameters.parameters(), *estimator.parameters())]
    assert all(one is two for one, two in zip(before, after, strict=True))
    assert isinstance(draw.noise, Noise)
    fired_NK = mean_at_drawn(draw.noise, parameters, draw.apply_BK.float())
    assert torch.equal(parameters.magnitude_NK.grad, fired_NK)
    restored = make_estimator("relax", 6, 2)
    restored.load_state_dict(estimator.state_dict())
    assert torch.equal(restored.cost_square, estimator.cost_square) and restored.updates == 1


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda e, p, d: make_estimator("relacs", 6, 2), "should be one of gumbel, gumbel-sampled"),
        (lambda e, p, d: make_estimator("rloo", 6, 2, views=0), "views should be at least 1"),
        (lambda e, p, d: make_estimator("gumbel", 6, 2, temperature=0.0), "temperature should be"),
        (lambda e, p, d: make_estimator("gumbel", 6, 2, branches=0), "branches should be at least"),
        (lambda e, p, d: e.sample(p, 8, draws="pixel"), "draws should be 'image' or 'batch'"),
        (lambda e, p, d: e.sample(p, 7), r"positive multiple of views \(2\), but got 7"),
        (lambda e, p, d: e.sample(PolicyParameters(5, 2), 8), r"apply_prob_NK has shape \(5, 2\)"),
        (lambda e, p, d: e.gradients(d, p, torch.zeros(4)), "cost_B should have 8 rows"),
        (
            lambda e, p, d: e.gradients(replace(d, noise=None), p, torch.zeros(8)),
            r"draw.noise should come from this estimator's sample\(\)",
        ),
        (
            lambda e, p, d: make_estimator("gumbel", 6, 2).gradients(d, p, torch.zeros(8)),
            "gumbel needs branch_B, other_branch_BM and op_effect_BK",
        ),
        (
            lambda e, p, d: make_estimator("relax", 6, 2).gradients(d, p, torch.zeros(8)),
            "relax needs a draw of its own",
        ),
    ],
)
def test_mistakes_are_named(act, message: str):
    estimator, parameters = make_estimator("rloo", 6, 2, views=2), PolicyParameters(6, 2)
    draw = estimator.sample(parameters, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=message):
        act(estimator, parameters, draw)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("learned_magnitudes", [False, True])
def test_no_value_is_read_on_the_host(name: str, learned_magnitudes: bool):
    law = MagnitudeDistribution(6, 2) if learned_magnitudes else None
    parameters = PolicyParameters(6, 2, magnitude_distribution=law)
    estimator = make_estimator(name, 6, 2, views=2)
    with ForbidHostReads():
        draw = estimator.sample(parameters, 8)
        estimator.gradients(
            draw,
            parameters,
            torch.ones(8),
            magnitude_effect_BK=torch.ones(8, 2),
            branch_B=torch.ones(8),
            op_effect_BK=torch.ones(8, 2),
            other_branch_BM=torch.ones(8, 6),
        ).store_(parameters, estimator)
        parameters.project_()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ESTIMATORS)
def test_captured_in_a_cuda_graph(name: str):
    """Every replay draws anew, and the gradients are those of its own draw."""
    parameters = PolicyParameters(
        105, 2, magnitude_distribution=MagnitudeDistribution(105, 2)
    ).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    estimator = make_estimator(name, 105, 2, views=2, generator=generator).cuda()
    if name == "relax":
        with torch.no_grad():
            estimator.get_parameter("control.output_weight").fill_(0.1)
    cost_B = torch.randn(128, device="cuda", generator=generator)
    given = {"branch_B": cost_B, "op_effect_BK": cost_B[:, None].repeat(1, 2)}
    given["other_branch_BM"] = cost_B[:, None].repeat(1, 105)

    def whole() -> Draw:
        draw = estimator.sample(parameters, 128, generator=generator)
        estimator.gradients(draw, parameters, cost_B, **given).store_(parameters, estimator)
        return draw

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            whole()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        draw = whole()
    seen = []
    for _ in range(2):
        state = copy.deepcopy(estimator.state_dict())
        graph.replay()
        seen.append(draw.subpolicy_B.clone())
        stored_G = flat((parameters.subpolicy_logits_N.grad, parameters.apply_prob_NK.grad)).clone()
        estimator.load_state_dict(state)
        eager_G = flat(estimator.gradients(draw, parameters, cost_B, **given))
        assert torch.allclose(stored_G, eager_G, rtol=1e-3, atol=1e-5)
    assert not torch.equal(seen[0], seen[1])
