"""numpy arrays as most libraries have them, HW, HWC or BHWC, made tensors and back.

Letters: B images, C channels, H height, W width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def tensor_of(array: Array) -> Tensor:
    """CHW or BCHW. A copy where torch could not share the memory, or should not write to it."""
    if array.ndim not in (2, 3, 4) or (array.ndim > 2 and array.shape[-1] not in (1, 3)):
        raise ValueError(
            "an image array should be HW, HWC or BHWC with 1 or 3 channels, got shape "
            f"{array.shape}; channels first is for tensors"
        )
    with_channels = array[..., None] if array.ndim == 2 else array
    try:
        tensor = torch.from_numpy(np.require(with_channels, requirements=["C", "W"]))
    except TypeError:
        raise ValueError(
            f"an image array should be uint8, or floating point in 0..1, got {array.dtype}"
        ) from None
    return tensor.movedim(-1, -3)


def array_like(done: Tensor, array: Array) -> Array:
    """What was made of `tensor_of(array)`, in the array's own layout and type."""
    by_pixel = done.movedim(-3, -1).contiguous().numpy()
    return by_pixel[..., 0] if array.ndim == 2 else by_pixel
