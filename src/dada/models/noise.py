"""Random mixing of branches, different on the way forward and on the way back.

Both layers use one trick: y = a x is to have the gradient b, so y = b x + detach((a - b) x). That
needs no autograd.Function, and works unchanged under forward-mode differentiation, functional_call
and CUDA graph capture. Random numbers are drawn on the device and never read by Python.

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def _uniform(like_BCHW: Tensor) -> Tensor:
    """One number in [0, 1) per image, shaped to multiply it."""
    return torch.rand((like_BCHW.shape[0], 1, 1, 1), device=like_BCHW.device, dtype=like_BCHW.dtype)


class ShakeShake(nn.Module):
    """a x1 + (1 - a) x2, with a ~ U(0, 1) for each image; backward another such number.

    In evaluation a = 1/2 (Gastaldi 2017, "Shake-Shake-Image").
    """

    def forward(self, x1_BCHW: Tensor, x2_BCHW: Tensor) -> Tensor:
        if not self.training:
            return (x1_BCHW + x2_BCHW) / 2
        forward_B111, backward_B111 = _uniform(x1_BCHW), _uniform(x1_BCHW)
        difference = x1_BCHW - x2_BCHW
        return (
            x2_BCHW
            + backward_B111 * difference
            + ((forward_B111 - backward_B111) * difference).detach()
        )


class ShakeDrop(nn.Module):
    """(g + a - g a) x: the branch as it is (g = 1) or shaken by a ~ U(-1, 1) for each image.

    g is 1 with probability `keep_prob`, drawn once per batch; backward a is replaced by a number
    from U(0, 1). In evaluation the factor is its mean, keep_prob (Yamada et al. 2019).
    """

    def __init__(self, keep_prob: float) -> None:
        super().__init__()
        self.keep_prob = keep_prob

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if not self.training:
            return x_BCHW * self.keep_prob
        draw = torch.rand((), device=x_BCHW.device, dtype=torch.float32)
        gate = (draw < self.keep_prob).to(x_BCHW.dtype)
        forward_B111 = gate + (1 - gate) * (2 * _uniform(x_BCHW) - 1)
        backward_B111 = gate + (1 - gate) * _uniform(x_BCHW)
        return backward_B111 * x_BCHW + ((forward_B111 - backward_B111) * x_BCHW).detach()

    def extra_repr(self) -> str:
        return f"keep_prob={self.keep_prob:.3f}"


@contextmanager
def without_noise(model: nn.Module) -> Iterator[None]:
    """Shake-Shake, ShakeDrop, dropout and similar layers give their mean; BatchNorm stays as it is.

    A finite difference compares two passes, and independent noise in the two would exceed it.
    """
    noisy = [
        module
        for module in model.modules()
        if module.training
        and next(module.children(), None) is None
        and next(module.parameters(), None) is None
        and next(module.buffers(), None) is None
    ]
    for module in noisy:
        module.training = False
    try:
        yield
    finally:
        for module in noisy:
            module.training = True
