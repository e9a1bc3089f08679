"""Bias and variance of the gradient estimators, against exact enumeration, on real images.

    python benchmarks/studies/estimators.py [--quick] [--out benchmarks/results/estimators.json]

The problem is enumeration.py's. What BatchNorm and a shared virtual step add in bias cannot be
looked up in its table and is measured by running the network itself.

Shapes: B images, D draws, R repeats, G gradient coordinates (N for alpha, then N K for beta),
T outcomes of a draw, P network weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from enumeration import (
    FOUR_OPS,
    INNER_LR,
    WEAK_OPS,
    Setting,
    Simulation,
    Table,
    build_table,
    digits,
    every_outcome,
    exact_gradient,
    flat,
    four_ops,
    normalise,
    off_centre,
    outcome_index,
    outcome_probability,
    trained_network,
    unrolled_step,
)
from torch import Tensor

from dada.config import GUMBEL_BRANCHES
from dada.policy.draw import Draw
from dada.policy.space import SearchSpace
from dada.policy_search.estimators import Estimator, make_estimator
from dada.policy_search.hypergradient import (
    finite_difference_cost,
    forward_mode_cost,
    trainable_weights,
    virtual_val_grad,
)
from dada.policy_search.parameters import PolicyParameters

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import RESULTS, machine, timed


def against(exact_G: Tensor, grads_RG: Tensor, num: int) -> dict[str, Any]:
    """The mean of R gradients against a reference, for alpha and beta apart."""
    difference_G = grads_RG.mean(dim=0) - exact_G
    error_G = grads_RG.std(dim=0) / len(grads_RG) ** 0.5
    z_G = difference_G / error_G.clamp_min(1e-30)  # some coordinate may be zero in every gradient
    row: dict[str, Any] = {"largest_z": z_G.abs().max().item()}
    for part, where in (("alpha", slice(0, num)), ("beta", slice(num, None))):
        scale = exact_G[where].norm()
        mean_G = grads_RG.mean(dim=0)[where]
        row[part] = {
            "relative_bias": (difference_G[where].norm() / scale).item(),
            "relative_standard_error": (error_G[where].norm() / scale).item(),
            "cosine": F.cosine_similarity(mean_G, exact_G[where], dim=0).item(),
        }
    return row


GUMBEL = [
    Setting(estimator="gumbel"),
    Setting(estimator="gumbel", branches=2),
    Setting(estimator="gumbel-sampled"),
]
STRENGTHS = ((0.5, 0.55), (0.5, 0.6), (0.55, 0.7), (0.6, 1.0))  # ranges of m; 0.5 does nothing
EVERY = [
    Setting(estimator="reinforce"),
    Setting(estimator="reinforce", draws="batch"),
    Setting(estimator="rloo", views=4),
    Setting(estimator="rloo", views=4, clean=True),
    Setting(estimator="relax"),
    Setting(estimator="relax", phi_steps=500),
    *GUMBEL,
]


def measure_bias(
    repeats: int,
    settings: list[Setting],
    names: tuple[str, ...] = FOUR_OPS,
    magnitudes: tuple[float, float] = (0.6, 1.0),
) -> dict[str, Any]:
    """Mean of many gradients against the exact one, on 6 subpolicies (4 ops, k = 2)."""
    space = four_ops(names)
    parameters = off_centre(space, magnitudes=magnitudes)
    table = build_table(space, parameters.magnitude_NK, batch=64, seed=0, steps=40)
    exact_G = exact_gradient(table, parameters, space)
    # Family-wise one false alarm in a thousand runs, over all coordinates.
    critical = statistics.NormalDist().inv_cdf(1 - 1e-3 / (2 * len(exact_G)))
    rows = []
    for setting in settings:
        grads_RG = Simulation(setting, table, parameters, seed=1).repeat(repeats)
        row = against(exact_G, grads_RG, space.num_subpolicies)
        rows.append({"setting": setting.name, "passes": row["largest_z"] < critical, **row})
    return {
        "space": names,
        "magnitudes": magnitudes,
        "subpolicies": space.num_subpolicies,
        "n_gradients": repeats,
        "draws_per_gradient": 64,
        "critical_z": critical,
        "rows": rows,
    }


def measure_variance(repeats: int, networks: int, steps: int) -> dict[str, Any]:
    """Total variance of one gradient from 128 augmented images, on the paper's 105 subpolicies."""
    space = SearchSpace.named("paper")
    settings = [
        Setting(estimator="reinforce", draws="batch"),
        Setting(estimator="relax", draws="batch", phi_steps=320),
        Setting(estimator="reinforce"),
        Setting(estimator="reinforce", clean=True),
        Setting(estimator="rloo", views=4),
        Setting(estimator="rloo", views=4, clean=True),
        Setting(estimator="relax", phi_steps=320),
        Setting(estimator="relax", phi_steps=1000),
        Setting(estimator="relax", phi_steps=320, clean=True),
        Setting(estimator="gumbel"),
        Setting(estimator="gumbel", branches=GUMBEL_BRANCHES["cpu"]),
        Setting(estimator="gumbel", branches=2),
        Setting(estimator="gumbel-sampled"),
    ]
    num = space.num_subpolicies
    found: dict[str, list[tuple[float, float]]] = {setting.name: [] for setting in settings}
    for seed in range(networks):
        parameters = off_centre(space, seed)
        table = build_table(space, parameters.magnitude_NK, batch=128, seed=seed, steps=steps)
        scale = table.cost_BNE.square().mean()  # so that all networks weigh the same
        for setting in settings:
            # One draw per batch is the noisiest, its variance too: more repeats, which are cheap.
            count = repeats * (4 if setting.draws == "batch" else 1)
            grads_RG = Simulation(setting, table, parameters, seed=seed).repeat(count)
            variance_G = grads_RG.var(dim=0) / scale
            found[setting.name].append(
                (variance_G[:num].sum().item(), variance_G[num:].sum().item())
            )
    rows = []
    for name, pairs in found.items():
        row: dict[str, Any] = {"setting": name}
        for part, values in zip(("alpha", "beta"), zip(*pairs, strict=True), strict=True):
            row[part] = {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}
        rows.append(row)
    batch, image = found[settings[0].name], found[settings[2].name]
    return {
        "subpolicies": num,
        "batch": 128,
        "training_steps_of_the_network": steps,
        "n_gradients": repeats,
        "n_networks": networks,
        "unit": "total variance divided by the mean square of a cost",
        "per_batch_over_per_image": [
            {"alpha": one[0] / two[0], "beta": one[1] / two[1]}
            for one, two in zip(batch, image, strict=True)
        ],
        "rows": rows,
    }


def measure_shared_step(repeats: int, batch: int) -> dict[str, Any]:
    """Bias from taking val_grad after a step on the very images whose cost is measured.

    The reference takes it after the expected step, -zeta grad E[mean_i l_i]. Both use the same
    draws, so their difference is free of most noise.
    """
    space = four_ops()
    parameters = off_centre(space)
    model = trained_network(0, norm=False, steps=40)
    weights = trainable_weights(model)
    images, labels = (x[:batch] for x in digits())
    val_images, val_labels = (x[600:856] for x in digits())
    val_images = normalise(val_images)
    every_BTCHW = every_outcome(space, images, parameters.magnitude_NK)

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, weights, (image[None],))
        return F.cross_entropy(logits, label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    labels_BT = labels[:, None].expand(every_BTCHW.shape[:2])
    grads = each(
        {name: weight.detach() for name, weight in weights.items()},
        every_BTCHW.flatten(0, 1),
        labels_BT.flatten(),
    )
    grad_BTP = torch.cat([g.flatten(1) for g in grads.values()], dim=1)
    grad_BTP = grad_BTP.reshape(*every_BTCHW.shape[:2], -1)

    def val_grad_P(step_P: Tensor) -> Tensor:
        pieces = step_P.split([weight.numel() for weight in weights.values()])
        shaped = {n: p.view_as(w) for (n, w), p in zip(weights.items(), pieces, strict=True)}
        found = virtual_val_grad(model, weights, shaped, INNER_LR, val_images, val_labels)[0]
        return flat(tuple(found.values()))

    joint_T = outcome_probability(parameters, space).detach()
    expected_P = torch.einsum("t,btp->p", joint_T, grad_BTP) / batch
    fixed_P = val_grad_P(expected_P)
    cost_BNE = (-INNER_LR * grad_BTP @ fixed_P).reshape(batch, space.num_subpolicies, -1)
    table = Table(cost_BNE=cost_BNE, clean_B=labels)
    exact_G = exact_gradient(table, parameters, space)
    estimator = make_estimator("reinforce", space.num_subpolicies, space.ops_per_subpolicy)
    generator, rows = torch.Generator().manual_seed(2), []
    for _ in range(repeats):
        draw = estimator.sample(parameters, batch, generator=generator)
        grad_BP = grad_BTP[torch.arange(batch), outcome_index(draw.subpolicy_B, draw.apply_BK)]
        change_P = val_grad_P(grad_BP.mean(dim=0)) - fixed_P
        rows.append(flat(estimator.gradients(draw, parameters, -INNER_LR * grad_BP @ change_P)))
    row = against(exact_G, exact_G + torch.stack(rows), space.num_subpolicies)
    return {"batch": batch, "n_gradients": repeats, **row}


def measure_batch_norm(repeats: int, batch: int) -> dict[str, Any]:
    """Bias from crediting image i's draw with its own cost only, BatchNorm in train mode.

    What is left out: sum over j != i of cost_j times the score of i's draw. cost_j's mean given
    j's own draw says nothing about i and is subtracted, or its noise would bury the effect.
    """
    space = four_ops()
    parameters = off_centre(space)
    model = trained_network(0, norm=True, steps=40)
    images, labels = (x[:batch] for x in digits())
    every_BTCHW = every_outcome(space, images, parameters.magnitude_NK)
    val_grad = unrolled_step(model, normalise(images), labels)
    estimator = make_estimator("reinforce", space.num_subpolicies, space.ops_per_subpolicy)
    generator, row_B = torch.Generator().manual_seed(3), torch.arange(batch)
    kept: list[tuple[Draw, Tensor]] = []
    total_BT, count_BT = torch.zeros(every_BTCHW.shape[:2]), torch.zeros(every_BTCHW.shape[:2])
    for _ in range(repeats):
        draw = estimator.sample(parameters, batch, generator=generator)
        at = row_B, outcome_index(draw.subpolicy_B, draw.apply_BK)
        weights = trainable_weights(model)
        cost = forward_mode_cost(model, weights, val_grad, INNER_LR, every_BTCHW[at], labels)
        kept.append((draw, cost.cost_B))
        total_BT[at] += cost.cost_B
        count_BT[at] += 1
    own, cross = [], []
    for draw, cost_B in kept:
        at = row_B, outcome_index(draw.subpolicy_B, draw.apply_BK)
        # The mean of the other repeats with the same draw: this repeat's own cost stays out of it.
        others_B = (total_BT[at] - cost_B) / (count_BT[at] - 1).clamp_min(1)
        rest_B = torch.where(count_BT[at] > 1, cost_B - others_B, torch.zeros(()))
        own.append(flat(estimator.gradients(draw, parameters, cost_B)))
        cross.append(flat(estimator.gradients(draw, parameters, rest_B.sum() - rest_B)))
    truth_G = torch.stack(own).mean(dim=0) + torch.stack(cross).mean(dim=0)
    row = against(truth_G, truth_G - torch.stack(cross), space.num_subpolicies)
    return {"batch": batch, "n_gradients": repeats, **row}


def measure_hypergradients() -> list[dict[str, Any]]:
    """Error of the per-image cost against float64 forward mode, and the time it takes."""
    model = trained_network(0, norm=True, steps=40)
    images, labels = (x[:128] for x in digits())
    ways = {"forward": forward_mode_cost, "finite difference": finite_difference_cost}
    rows: list[dict[str, Any]] = []
    exact_B: Tensor | None = None
    for dtype in (torch.float64, torch.float32):
        model, inputs = model.to(dtype), normalise(images).to(dtype)
        weights = trainable_weights(model)
        grads = torch.autograd.grad(F.cross_entropy(model(inputs), labels), tuple(weights.values()))
        named = dict(zip(weights, grads, strict=True))
        val_grad = virtual_val_grad(model, weights, named, INNER_LR, inputs, labels)[0]
        for name, function in ways.items():
            call = partial(function, model, weights, val_grad, INNER_LR, inputs, labels)
            cost_B = call().cost_B
            exact_B = cost_B if exact_B is None else exact_B
            error = ((cost_B - exact_B).norm() / exact_B.norm()).item()
            row = {"hypergradient": name, "dtype": str(dtype), "relative_error": error}
            rows.append({**row, "seconds": timed(call)})
    return rows


def measure_time() -> list[dict[str, Any]]:
    """sample() and gradients() together, 128 draws of 105 subpolicies, costs given."""
    parameters, rows = PolicyParameters(105, 2), []
    given = {"cost_B": torch.randn(128), "branch_B": torch.randn(128)}
    given["op_effect_BK"] = torch.ones(128, 2)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("reinforce", {}),
        ("rloo", {"views": 4}),
        ("gumbel", {}),
        ("gumbel", {"branches": GUMBEL_BRANCHES["cpu"]}),
        ("gumbel-sampled", {}),
        ("relax", {}),
    ]
    for name, options in ways:
        estimator = make_estimator(name, 105, 2, **options)
        effect_BM = torch.ones(128, options.get("branches", 105))

        def call(estimator: Estimator = estimator, effect_BM: Tensor = effect_BM) -> None:
            draw = estimator.sample(parameters, 128)
            estimator.gradients(draw, parameters, other_branch_BM=effect_BM, **given)

        told = f"{name}, {options['branches']} other branches" if "branches" in options else name
        rows.append({"estimator": told, "seconds": timed(call)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws")
    parser.add_argument("--out", type=Path, default=RESULTS / "estimators.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    less = 10 if arguments.quick else 1
    start = time.perf_counter()
    parts: list[tuple[str, Callable[[], object]]] = [
        ("machine", lambda: {**machine(), "cores": os.cpu_count(), "threads_used": 1}),
        ("hypergradients", measure_hypergradients),
        ("time", measure_time),
        ("bias", lambda: measure_bias(5_000 // less, EVERY)),
        (
            "bias_by_strength",
            lambda: [measure_bias(5_000 // less, GUMBEL, WEAK_OPS, m) for m in STRENGTHS],
        ),
        ("shared_step", lambda: [measure_shared_step(5_000 // less, b) for b in (16, 64)]),
        ("batch_norm", lambda: [measure_batch_norm(5_000 // less, b) for b in (16, 64)]),
        *(
            (f"variance_{steps}", lambda steps=steps: measure_variance(400 // less, 4, steps))
            for steps in (10, 40, 150)
        ),
    ]
    result: dict[str, Any] = {}
    for name, measure in parts:
        result[name] = measure()
        print(f"{name}: done after {time.perf_counter() - start:.0f} s", flush=True)
    result["seconds"] = round(time.perf_counter() - start)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print("the tables of docs/estimators.md: python benchmarks/tools/tables.py")


if __name__ == "__main__":
    main()
