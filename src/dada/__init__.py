"""DADA: learn an image augmentation policy for your data in one training pass."""

__version__ = "0.1.0"

from dada import ops
from dada.api import Result, search
from dada.config import SearchConfig
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.space import SearchSpace

__all__ = [
    "Policy",
    "PolicyOp",
    "Result",
    "SearchConfig",
    "SearchSpace",
    "SubPolicy",
    "__version__",
    "ops",
    "search",
]
