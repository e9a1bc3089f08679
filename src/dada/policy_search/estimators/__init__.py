"""Gradient estimators for the policy, chosen by name.

Two calls: sample() gives one draw per image, gradients() turns the costs of those images into
gradients of the expected cost. No model and no image in here, and nothing synchronises a device.
"""

from __future__ import annotations

from typing import Unpack

from dada.policy_search.estimators.base import Estimator, EstimatorSettings, Gradients
from dada.policy_search.estimators.gumbel import GumbelSoftmax, SampledGumbelSoftmax
from dada.policy_search.estimators.relax import Relax
from dada.policy_search.estimators.score import LeaveOneOut, Reinforce

__all__ = [
    "ESTIMATORS",
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
    **settings: Unpack[EstimatorSettings],
) -> Estimator:
    """An estimator by name."""
    if name not in ESTIMATORS:
        raise ValueError(f"estimator should be one of {', '.join(ESTIMATORS)}, but got {name!r}")
    return ESTIMATORS[name](num_subpolicies, ops_per_subpolicy, **settings)
