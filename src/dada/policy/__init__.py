"""Policies: the file, what a search may choose from, policies by name, and how one is drawn."""

from __future__ import annotations

from dada.policy import baselines
from dada.policy.policy import Magnitude, Policy, PolicyOp, SubPolicy, names

__all__ = ["Magnitude", "Policy", "PolicyOp", "SubPolicy", "baselines", "names"]
