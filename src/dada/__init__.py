"""DADA: learn an image augmentation policy for your data, look at it, and use it.

Importing this loads nothing else: every public name comes from its module when it is first used.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dada import renamed

if TYPE_CHECKING:
    from dada import ops
    from dada.api import compare, search, train
    from dada.api.results import Result, Trained
    from dada.comparison import Comparison
    from dada.config import SearchConfig, TrainConfig
    from dada.policy import Policy, PolicyOp, SubPolicy
    from dada.policy.space import SearchSpace

__version__ = "0.2.0"

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
    "verify",
]

_MODULE_OF = {
    "Comparison": "dada.comparison",
    "Policy": "dada.policy",
    "PolicyOp": "dada.policy",
    "Result": "dada.api.results",
    "SearchConfig": "dada.config",
    "SearchSpace": "dada.policy.space",
    "SubPolicy": "dada.policy",
    "TrainConfig": "dada.config",
    "Trained": "dada.api.results",
    "compare": "dada.api",
    "search": "dada.api",
    "train": "dada.api",
    "verify": "dada.api",
}

renamed.install()


def __getattr__(name: str) -> Any:
    """A public name, or a module of this package: `dada.data.load` needs no import of its own."""
    if name in _MODULE_OF:
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found
    if not name.startswith("_") and find_spec(f"dada.{name}") is not None:
        return import_module(f"dada.{name}")
    raise AttributeError(f"module 'dada' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
