"""Gradient estimators for the policy, chosen by name.

Two calls: sample() gives one draw per image, gradients() turns the costs of those images into
gradients of the expected cost. No model and no image in here, and nothing synchronises a device.
"""

from __future__ import annotations

import torch

from dada.policy_search.estimators.base import Estimator, Gradients
from dada.policy_search.estimators.gumbel import GumbelSoftmax, SampledGumbelSoftmax
from dada.policy_search.estimators.relax import ControlVariate, Relax
from dada.policy_search.estimators.score import LeaveOneOut, Reinforce

__all__ = [
    "ESTIMATORS",
    "ControlVariate",
    "Estimator",
    "Gradients",
    "GumbelSoftmax",
    "LeaveOneOut",
    "Reinforce",
    "Relax",
    "SampledGumbelSoftmax",
    "make_estimator",
]

ESTIMATORS: dict[str, type[Estimator]] = {
    "gumbel": GumbelSoftmax,
    "gumbel-sampled": SampledGumbelSoftmax,
    "relax": Relax,
    "reinforce": Reinforce,
    "rloo": LeaveOneOut,
}


def make_estimator(
    name: str,
    num_subpolicies: int,
    ops_per_subpolicy: int,
    *,
    temperature: float = 0.5,
    views: int = 1,
    branches: int | None = None,
    generator: torch.Generator | None = None,
) -> Estimator:
    """An estimator by name.

    `branches` is how many branches that were not drawn gumbel evaluates (None: all of them), and
    `generator` initialises the control variate of relax.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"estimator should be one of {', '.join(ESTIMATORS)}, but got {name!r}")
    return ESTIMATORS[name](
        num_subpolicies,
        ops_per_subpolicy,
        temperature=temperature,
        views=views,
        branches=branches,
        generator=generator,
    )
