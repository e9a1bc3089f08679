"""DADA: learn an image augmentation policy for your data in one training pass."""

__version__ = "0.1.0"

from dada import ops
from dada.api import compare, search, train
from dada.comparison import Comparison
from dada.config import SearchConfig, TrainConfig
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.policy.space import SearchSpace
from dada.results import Result, Trained

__all__ = [
    "Comparison",
    "Policy",
    "PolicyOp",
    "Result",
    "SearchConfig",
    "SearchSpace",
    "SubPolicy",
    "TrainConfig",
    "Trained",
    "__version__",
    "compare",
    "ops",
    "search",
    "train",
]
