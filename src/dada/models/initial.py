"""Initial weights shared by the networks of this package."""

from __future__ import annotations

from torch import nn


def initialise(model: nn.Module) -> None:
    """He initialisation: convolutions N(0, 2 / fan_out), BatchNorm 1 and 0, linear biases 0.

    The linear weights keep torch's default, U(+-1/sqrt(fan_in)), as in the networks' papers.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
