"""From noisy gradients to a policy: planted effects are found, noise is not.

Shapes: B draws of a step, N sub-policies, K operations in each, O operations, M magnitude bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dada.policy.draw import Draw
from dada.policy.space import SearchSpace
from dada.policy_search.estimators import Gradients, make_estimator
from dada.policy_search.evidence import LARGEST_SCORE, Evidence, RunningMean
from dada.policy_search.parameters import MagnitudeDistribution, PolicyParameters

BINS = 5
SPACE = SearchSpace.named("paper")
NAMES = [op.name for op in SPACE.ops]
UNIFORM_RATE = 1 / len(NAMES)  # two of fifteen operations, each half the time

# (operation of each position, whether it fired, its bin) -> cost of each draw
CostOf = Callable[[Tensor, Tensor, Tensor], Tensor]


def uniform_parameters(*, magnitudes: bool = True) -> PolicyParameters:
    n, k = SPACE.num_subpolicies, SPACE.ops_per_subpolicy
    distribution = None
    if magnitudes:
        distribution = MagnitudeDistribution(n, k, bins=BINS, op_index_NK=SPACE.op_index_NK)
    return PolicyParameters(n, k, magnitude_distribution=distribution)


def gather(cost_of: CostOf, *, seed: int, steps: int = 240, batch: int = 128) -> Evidence:
    """Evidence as a search gathers it, of costs that are planted instead of measured.

    The real estimator draws and differentiates, so what is tested is what gradients really hold.
    """
    noise = torch.Generator().manual_seed(seed)
    estimator = make_estimator("rloo", SPACE.num_subpolicies, SPACE.ops_per_subpolicy)
    sampling, evidence = uniform_parameters(), Evidence(SPACE, BINS)
    for _ in range(steps):
        draw = estimator.sample(sampling, batch, generator=noise)
        cost_B = cost_of(*facts(draw)) + torch.randn(batch, generator=noise)
        others_B = (cost_B.sum() - cost_B) / (batch - 1)
        gradients = estimator.gradients(draw, sampling, cost_B, baseline_B=others_B)
        evidence.add(gradients, sampling)
    return evidence


def facts(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    assert draw.magnitude_BK is not None
    op_BK = SPACE.op_index_NK[draw.subpolicy_B]
    return op_BK, draw.apply_BK, (draw.magnitude_BK * BINS).long().clamp(max=BINS - 1)


def conclude(evidence: Evidence) -> PolicyParameters:
    parameters = uniform_parameters()
    evidence.conclude_(parameters)
    return parameters


def rates(parameters: PolicyParameters) -> dict[str, float]:
    rate_O = parameters.op_rate_O(SPACE.op_index_NK, len(NAMES)).tolist()
    return dict(zip(NAMES, rate_O, strict=True))


def effects_of(effect_OM: Tensor) -> CostOf:
    """What fires adds the effect of its operation in its bin."""
    return lambda op_BK, apply_BK, bin_BK: (effect_OM[op_BK, bin_BK] * apply_BK).sum(1)


# --- effects that are there ---------------------------------------------------------------------


def test_planted_effects_are_measured_without_bias_and_ranked():
    """Effects from -0.4 to 0.4 of the noise of one image, all different, in a shuffled order."""
    shuffled = torch.randperm(len(NAMES), generator=torch.Generator().manual_seed(0))
    effect_O = torch.linspace(-0.4, 0.4, len(NAMES))[shuffled]
    evidence = gather(effects_of(effect_O[:, None].expand(-1, BINS)), seed=1)
    assert int(evidence.op.count) == 240
    # 15 effects, 75 bins and 105 pairs: none of 195 is 4.5 standard errors off, by chance.
    error_O = evidence.op.error()
    assert ((evidence.op.mean - effect_O) / error_O).abs().max() < 4.5
    assert (evidence.bin.mean / evidence.bin.error()).abs().max() < 4.5
    pair_N = effect_O[SPACE.op_index_NK].sum(1) / 2  # each fires half the time
    off_N = evidence.pair.mean - (pair_N - pair_N.mean())
    assert (off_N / evidence.pair.error()).abs().max() < 4.5
    # The errors are those of the noise: 128 draws, two of fifteen operations, half the time each.
    expected = 2 / math.sqrt(240 * 128 * 2 / 15)
    assert (error_O / expected - 1).abs().max() < 0.3

    rate = rates(conclude(evidence))
    found = sorted(NAMES, key=lambda name: -rate[name])
    planted = [NAMES[i] for i in effect_O.argsort().tolist()]
    distance = [abs(found.index(name) - planted.index(name)) for name in NAMES]
    assert max(distance) <= 3  # neighbours lie 1.8 standard errors apart
    assert found[0] in planted[:2] and found[-1] in planted[-2:]
    for name in planted[:5]:
        assert rate[name] > UNIFORM_RATE
    for name in planted[-5:]:
        assert rate[name] < UNIFORM_RATE


def test_one_helpful_operation_rises_and_one_harmful_falls():
    effect_OM = torch.zeros(len(NAMES), BINS)
    effect_OM[NAMES.index("Rotate")] = -0.3
    effect_OM[NAMES.index("Invert")] = 0.3
    parameters = conclude(gather(effects_of(effect_OM), seed=2))
    rate = rates(parameters)
    assert max(rate, key=lambda name: rate[name]) == "Rotate" and rate["Rotate"] > 4 * UNIFORM_RATE
    assert min(rate, key=lambda name: rate[name]) == "Invert" and rate["Invert"] < UNIFORM_RATE / 8
    prob_NK = parameters.apply_prob_NK.detach()
    with_rotate = [n for n, names in enumerate(SPACE.subpolicies) if "Rotate" in names]
    for n in with_rotate:
        k = SPACE.subpolicies[n].index("Rotate")
        assert prob_NK[n, k] > 0.8


def test_what_a_pair_does_beyond_its_operations_goes_to_the_pair():
    """Rotate and Color together help, alone they do nothing."""
    pair = SPACE.subpolicies.index(("Rotate", "Color"))
    rotate, color = NAMES.index("Rotate"), NAMES.index("Color")

    def cost_of(op_BK: Tensor, apply_BK: Tensor, bin_BK: Tensor) -> Tensor:
        both_B = ((op_BK == rotate) & apply_BK).any(1) & ((op_BK == color) & apply_BK).any(1)
        return -6.0 * both_B

    weight_N = conclude(gather(cost_of, seed=3)).subpolicy_prob_N
    assert int(weight_N.argmax()) == pair
    others = [
        n
        for n, names in enumerate(SPACE.subpolicies)
        if n != pair and {"Rotate", "Color"} & {*names}
    ]
    assert weight_N[pair] > 2 * weight_N[others].max()


def test_effects_of_bins_move_the_magnitudes():
    """Only a dark image helps; only a strong shear, whichever of the two ends it comes from."""
    effect_OM = torch.zeros(len(NAMES), BINS)
    effect_OM[NAMES.index("Brightness")] = torch.tensor([-1.0, 0.0, 0.0, 0.0, 0.0])
    effect_OM[NAMES.index("ShearX")] = torch.tensor([-0.7, 0.0, 0.0, 0.0, -0.7])
    parameters = conclude(gather(effects_of(effect_OM), seed=4))
    assert parameters.magnitude_distribution is not None
    prob_RM = parameters.magnitude_distribution.prob_RM
    assert int(prob_RM[NAMES.index("Brightness")].argmax()) == 0
    assert prob_RM[NAMES.index("Brightness"), 0] > 0.6
    ends = prob_RM[NAMES.index("ShearX"), [0, -1]]
    assert ends.min() > 0.3
    ranges = {
        step.op: step.magnitude_range
        for subpolicy in parameters.to_policy(SPACE).subpolicies
        for step in subpolicy.ops
    }
    untouched = conclude(Evidence(SPACE, BINS)).to_policy(SPACE)
    before = {s.op: s.magnitude_range for sub in untouched.subpolicies for s in sub.ops}
    assert sum(ranges["Brightness"]) < sum(before["Brightness"]) - 0.3
    assert before["ShearX"] == pytest.approx((0.5, 1.0), abs=0.03)  # any strength, folded
    assert ranges["ShearX"][0] > before["ShearX"][0] + 0.05
    assert ranges["ShearX"][1] <= 1.0


def test_an_operation_is_worth_what_it_does_at_the_magnitudes_that_will_be_drawn():
    """Harmful on average, helpful in one bin: it rises. Less harmful in one bin: it does not."""
    effect_OM = torch.zeros(len(NAMES), BINS)
    effect_OM[NAMES.index("Solarize")] = torch.tensor([0.5, 0.5, 0.5, 0.5, -1.6])
    effect_OM[NAMES.index("Contrast")] = torch.tensor([0.6, 0.6, 0.6, 0.6, 0.1])
    evidence = gather(effects_of(effect_OM), seed=5)
    assert evidence.op.mean[NAMES.index("Solarize")] > 0
    rate = rates(conclude(evidence))
    assert rate["Solarize"] > UNIFORM_RATE
    assert rate["Contrast"] < UNIFORM_RATE / 4


# --- what must not matter -----------------------------------------------------------------------


def entropy_lost(seed: int, steps: int) -> float:
    """Of pure noise, as a fraction of the entropy of the start."""
    none = effects_of(torch.zeros(len(NAMES), BINS))
    found = conclude(gather(none, seed=seed, steps=steps))
    return 1 - float(found.entropy() / uniform_parameters().entropy())


def test_pure_noise_leaves_the_policy_where_it_was():
    """Of 100 seeds 93 lost less than 1% of the entropy, the worst 1.6%; without shrinking 5%."""
    lost = sorted(entropy_lost(seed, 240) for seed in range(6))
    assert lost[3] < 0.01 and lost[-1] < 0.025


def test_the_unit_of_the_cost_does_not_matter():
    effect_OM = torch.zeros(len(NAMES), BINS)
    effect_OM[NAMES.index("Rotate")] = -0.3
    evidence, larger = gather(effects_of(effect_OM), seed=6, steps=40), Evidence(SPACE, BINS)
    larger.load_state_dict(evidence.state_dict())
    for running in (larger.op, larger.bin, larger.pair):
        running.mean *= 1000
        running.squares *= 1000**2
    one, other = conclude(evidence), conclude(larger)
    torch.testing.assert_close(one.subpolicy_logits_N, other.subpolicy_logits_N)
    torch.testing.assert_close(one.apply_prob_NK, other.apply_prob_NK)


def test_no_effect_is_trusted_without_limit():
    effect_OM = torch.zeros(len(NAMES), BINS)
    effect_OM[NAMES.index("Rotate")] = -1e4
    effect_OM[NAMES.index("Invert")] = 1e4
    parameters = conclude(gather(effects_of(effect_OM), seed=7, steps=30))
    prob_NK = parameters.apply_prob_NK.detach()
    limit = 1 / (1 + math.exp(LARGEST_SCORE))
    assert prob_NK.min() >= limit - 1e-6 and prob_NK.max() <= 1 - limit + 1e-6
    assert prob_NK.max() > 0.9


def test_without_evidence_the_policy_is_uniform():
    parameters = conclude(Evidence(SPACE, BINS))
    torch.testing.assert_close(parameters.subpolicy_prob_N, torch.full((105,), 1 / 105))
    torch.testing.assert_close(parameters.apply_prob_NK.detach(), torch.full((105, 2), 0.5))


def test_magnitudes_that_are_not_drawn_leave_no_trace():
    evidence, sampling = Evidence(SPACE, BINS), uniform_parameters(magnitudes=False)
    noise = torch.Generator().manual_seed(0)
    for _ in range(4):
        gradients = Gradients(
            subpolicy_logits_N=torch.randn(105, generator=noise),
            apply_prob_NK=torch.randn(105, 2, generator=noise),
        )
        evidence.add(gradients, sampling)
    assert float(evidence.bin.count) == 0
    evidence.conclude_(sampling)
    assert torch.isfinite(sampling.subpolicy_logits_N).all()
    assert (sampling.magnitude_NK == 0.5).all()


@pytest.mark.parametrize("k", [1, 3])
def test_other_numbers_of_operations(k):
    """The derivative by a probability is turned into an effect by how often it is offered."""
    space = SearchSpace.named("paper", ops_per_subpolicy=k)
    effect_O = torch.linspace(-1, 1, len(NAMES))
    n = space.num_subpolicies
    evidence = Evidence(space, BINS)
    expected_N = effect_O[space.op_index_NK].sum(1) / 2
    gradients = Gradients(
        subpolicy_logits_N=(expected_N - expected_N.mean()) / n,
        apply_prob_NK=effect_O[space.op_index_NK] / n,
    )
    for _ in range(3):
        evidence.add(gradients, PolicyParameters(n, k))
    torch.testing.assert_close(evidence.op.mean, effect_O, atol=1e-5, rtol=1e-4)
    parameters = PolicyParameters(n, k)
    evidence.conclude_(parameters)
    rate_O = parameters.op_rate_O(space.op_index_NK, len(NAMES))
    # Ties where the largest score is reached, at both ends.
    assert (rate_O.diff() <= 1e-6).all() and rate_O[0] > 10 * rate_O[-1]


# --- the parts ----------------------------------------------------------------------------------


def test_running_mean_is_the_mean_and_its_standard_error():
    samples = torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(0)) * 5 + 100
    running = RunningMean(3, 4)
    for count, sample in enumerate(samples, start=1):
        running.add(sample)
        assert int(running.count) == count
        torch.testing.assert_close(running.mean, samples[:count].mean(0))
        if count > 1:
            error = (samples[:count].var(0) / count).sqrt()
            torch.testing.assert_close(running.error(), error, rtol=1e-3, atol=1e-5)


def test_running_mean_of_nothing_and_of_one():
    running = RunningMean(2)
    assert torch.equal(running.error(), torch.zeros(2))
    running.add(torch.tensor([3.0, -1.0]))
    assert torch.equal(running.mean, torch.tensor([3.0, -1.0]))
    assert torch.equal(running.error(), torch.zeros(2))


def test_the_state_survives_a_round_trip():
    effect_OM = torch.linspace(-1, 1, len(NAMES))[:, None].expand(-1, BINS)
    evidence = gather(effects_of(effect_OM), seed=8, steps=10)
    restored = Evidence(SPACE, BINS)
    restored.load_state_dict({name: t.clone() for name, t in evidence.state_dict().items()})
    more = gather(effects_of(effect_OM), seed=9, steps=1)
    gradients = Gradients(
        subpolicy_logits_N=more.pair.mean / 105,
        apply_prob_NK=more.op.mean[SPACE.op_index_NK] / 105,
        magnitude_logits_RM=more.bin.mean,
    )
    for each in (evidence, restored):
        each.add(gradients, uniform_parameters())
    one, other = conclude(evidence).state_dict(), conclude(restored).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert int(restored.op.count) == 11
