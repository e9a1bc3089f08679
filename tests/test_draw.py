"""From uniform numbers to a draw: one image in plain numbers, a batch in tensors, the same rule.

Letters: B images, N sub-policies, K operations in each.
"""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
import torch

from dada.policy import Policy
from dada.policy.augment import PolicyTables
from dada.policy.draw import draw_batch, draw_one, policy_free_noise
from dada.policy.space import SPACES


def uneven() -> Policy:
    """Weights that a person has rounded, an empty sub-policy, and one of three operations."""
    steps = {"op": "Rotate", "probability": 0.3, "magnitude": [0.2, 0.9]}
    rows = [(0.333333, [steps]), (0.5, []), (0.166666, [steps, steps, steps])]
    content = {
        "format": "dada-policy",
        "version": 1,
        "space": "paper",
        "sampling": "weighted",
        "subpolicies": [{"weight": weight, "ops": ops} for weight, ops in rows],
    }
    return Policy.from_json(json.dumps(content))


@pytest.mark.parametrize("name", ["uneven", "dada-cifar10", "trivialaugment", "randaugment:1,0.5"])
def test_one_image_and_a_batch_decide_the_same(name):
    """Also at the very boundaries between sub-policies, and at and above the last of them."""
    policy = uneven() if name == "uneven" else Policy.load(name)
    tables = PolicyTables.of(policy, SPACES[policy.space], torch.device("cpu"))
    rows = [
        [(step.op, step.probability, *step.magnitude_range) for step in subpolicy.ops]
        for subpolicy in policy.subpolicies
    ]
    cumulative = list(accumulate(subpolicy.weight for subpolicy in policy.subpolicies))
    noise = torch.Generator().manual_seed(0)
    k = tables.op_index_NK.shape[1]
    random_B = torch.rand(2000, generator=noise, dtype=torch.float64)
    position_B = torch.cat([random_B, torch.tensor([0.0, *cumulative, 1.0], dtype=torch.float64)])
    numbers_BK5 = torch.rand(len(position_B), k, 5, generator=noise, dtype=torch.float64)
    numbers_BK5[::3, :, 0] = rows[0][0][1] if rows[0] else 1.0  # a probability itself: no firing
    chosen_B, fires_BK, row_BK3 = draw_batch(
        position_B, numbers_BK5, tables.cumulative_N, tables.rows_NK3
    )
    op_names = [op.name for op in SPACES[policy.space].ops]
    seen = set()
    for b, position in enumerate(position_B.tolist()):
        fired = draw_one(position, numbers_BK5[b].flatten().tolist(), cumulative, rows)
        wanted = []
        for j in fires_BK[b].nonzero().flatten().tolist():
            op = op_names[int(tables.op_index_NK[chosen_B[b], j])]
            wanted.append(((op, *row_BK3[b, j].tolist()), numbers_BK5[b, j, 1:].tolist()))
        assert fired == wanted
        seen.add(int(chosen_B[b]))
    assert seen == set(range(len(rows))), "every sub-policy is drawn, and no row that was added"


def test_a_sub_policy_is_drawn_by_its_weight_and_an_operation_by_its_probability():
    cumulative, subpolicies = [0.25, 1.0], [[("A", 0.5)], [("B", 1.0), ("C", 0.0)]]
    numbers = [0.49, 1, 2, 3, 4, 0.0, 5, 6, 7, 8]
    assert draw_one(0.2499, numbers, cumulative, subpolicies) == [(("A", 0.5), [1, 2, 3, 4])]
    assert draw_one(0.25, numbers, cumulative, subpolicies) == [(("B", 1.0), [1, 2, 3, 4])]
    assert draw_one(1.0, numbers, cumulative, subpolicies) == [(("B", 1.0), [1, 2, 3, 4])]
    assert draw_one(0.1, [0.5, *numbers[1:]], cumulative, subpolicies) == []


def test_the_noise_no_policy_decides(generator, device):
    sign_BK, center_BK2 = policy_free_noise(4000, 2, generator, device)
    assert sign_BK.shape == (4000, 2) and center_BK2.shape == (4000, 2, 2)
    assert set(sign_BK.unique().tolist()) == {-1.0, 1.0}
    # Half of 8000 signs: one standard deviation is 0.56%; five are allowed.
    assert abs((sign_BK > 0).double().mean().item() - 0.5) < 0.028
    assert center_BK2.min() >= 0 and center_BK2.max() < 1
    assert abs(center_BK2.double().mean().item() - 0.5) < 0.012
    joint = torch.stack([sign_BK.flatten(), *center_BK2.flatten(0, 1).unbind(-1)])
    off_diagonal = torch.corrcoef(joint) - torch.eye(3, device=device)
    assert off_diagonal.abs().max() < 0.06
