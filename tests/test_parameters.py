"""The learnables: where they start, where they may go, and how a change is measured.

Shapes: N subpolicies, K ops per subpolicy, M magnitude bins, R rows of magnitude logits.
"""

from __future__ import annotations

import math

import pytest
import torch

from dada.policy_search.parameters import APPLY_PROB_MARGIN, MagnitudeDistribution, PolicyParameters


def random_parameters(seed: int, num: int = 5, ops: int = 2) -> PolicyParameters:
    generator = torch.Generator().manual_seed(seed)
    parameters = PolicyParameters(num, ops)
    with torch.no_grad():
        parameters.subpolicy_logits_N.normal_(generator=generator)
        parameters.apply_prob_NK.uniform_(0.1, 0.9, generator=generator)
        parameters.magnitude_NK.uniform_(0.0, 1.0, generator=generator)
    return parameters


def test_starts_where_the_paper_starts():
    parameters = PolicyParameters(105, 2)
    assert torch.equal(parameters.subpolicy_logits_N, torch.full((105,), 1e-3))
    assert torch.equal(parameters.apply_prob_NK, torch.full((105, 2), 0.5))
    assert torch.equal(parameters.magnitude_NK, torch.full((105, 2), 0.5))
    assert torch.allclose(parameters.subpolicy_prob_N, torch.full((105,), 1 / 105))
    assert len(list(parameters.parameters())) == 3


def test_projection_clamps_and_keeps_log_odds_finite():
    parameters = random_parameters(0)
    with torch.no_grad():
        parameters.apply_prob_NK[0] = torch.tensor([-0.3, 1.2])
        parameters.magnitude_NK[1] = torch.tensor([-0.1, 1.1])
    inside = parameters.apply_prob_NK[2:].clone()
    assert parameters.project_() is parameters
    assert torch.allclose(
        parameters.apply_prob_NK[0], torch.tensor([APPLY_PROB_MARGIN, 1 - APPLY_PROB_MARGIN])
    )
    assert torch.equal(parameters.magnitude_NK[1], torch.tensor([0.0, 1.0]))
    assert torch.equal(parameters.apply_prob_NK[2:], inside)
    assert parameters.apply_prob_NK.logit().abs().max() < 5
    assert parameters.apply_prob_NK.requires_grad


def test_entropy_of_a_draw():
    uniform = PolicyParameters(8, 3)
    assert torch.allclose(uniform.subpolicy_entropy(), torch.tensor(math.log(8)))
    assert torch.allclose(uniform.entropy(), torch.tensor(math.log(8) + 3 * math.log(2)))
    parameters = random_parameters(1)
    joint = parameters._joint_prob_NE()
    assert torch.allclose(parameters.entropy(), -(joint * joint.log()).sum())


def test_distance_is_the_total_variation_of_draws():
    one, two = random_parameters(1), random_parameters(2)
    assert one.distance(one) == 0
    assert torch.allclose(one.distance(two), two.distance(one))
    assert 0 < one.distance(two) < 1
    # By hand: two subpolicies of one op, pi = (1/2, 1/2), beta (0.5, 0.5) against (0.7, 0.5).
    first, second = PolicyParameters(2, 1), PolicyParameters(2, 1)
    with torch.no_grad():
        second.apply_prob_NK[0, 0] = 0.7
    assert torch.allclose(first.distance(second), torch.tensor(0.5 * 0.2))
    # All mass on another subpolicy: nothing in common.
    with torch.no_grad():
        first.subpolicy_logits_N.copy_(torch.tensor([50.0, -50.0]))
        second.subpolicy_logits_N.copy_(torch.tensor([-50.0, 50.0]))
    assert torch.allclose(first.distance(second), torch.tensor(1.0))


def test_op_rate_counts_every_position():
    parameters = random_parameters(3, num=3)
    op_index_NK = torch.tensor([[0, 1], [0, 2], [1, 2]])
    rate_O = parameters.op_rate_O(op_index_NK, 4)
    prob_N, apply_NK = parameters.subpolicy_prob_N, parameters.apply_prob_NK
    assert torch.allclose(rate_O[0], prob_N[0] * apply_NK[0, 0] + prob_N[1] * apply_NK[1, 0])
    assert torch.allclose(rate_O.sum(), (prob_N[:, None] * apply_NK).sum())
    assert rate_O[3] == 0


def test_magnitude_distribution_rows():
    each = MagnitudeDistribution(3, 2, bins=4)
    assert each.logits_RM.shape == (6, 4)
    shared = MagnitudeDistribution(3, 2, bins=4, op_index_NK=torch.tensor([[0, 1], [0, 2], [1, 2]]))
    assert shared.logits_RM.shape == (3, 4)
    assert torch.equal(shared.rows_DK(torch.tensor([2, 0])), torch.tensor([[1, 2], [0, 1]]))
    parameters = PolicyParameters(3, 2, magnitude_distribution=shared)
    assert "magnitude_distribution.logits_RM" in parameters.state_dict()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PolicyParameters(0, 2), "should be at least 1, but got 0 and 2"),
        (lambda: PolicyParameters(3, 2, apply_prob=1.0), r"apply_prob .* but got 1\.0"),
        (lambda: PolicyParameters(3, 2, magnitude=1.5), r"magnitude should lie in \[0, 1\]"),
        (lambda: MagnitudeDistribution(3, 2, bins=1), "bins should be at least 2, but got 1"),
        (
            lambda: MagnitudeDistribution(3, 2, op_index_NK=torch.zeros(2, 2)),
            r"op_index_NK should have shape \(3, 2\), but got \(2, 2\)",
        ),
        (
            lambda: PolicyParameters(3, 2, magnitude_distribution=MagnitudeDistribution(4, 2)),
            r"built for .*\(4, 2\), but the policy has \(3, 2\)",
        ),
    ],
)
def test_wrong_settings_are_named(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()
