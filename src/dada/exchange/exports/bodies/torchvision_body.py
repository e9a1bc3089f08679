"""For torchvision's transforms v2; needs torch, torchvision and Pillow, nothing else.

    from this_file import DadaPolicy
    transform = v2.Compose([v2.RandomCrop(32, 4), DadaPolicy(), v2.ToImage(), ...])

PIL images (RGB, L), CHW tensors and BCHW batches of uint8 or of float in 0..1 (rounded to 8
bits), with boxes, masks and key points moved along. In a batch every image has its own draw.
Byte for byte what Pillow gives. Randomness is torch's: torch.manual_seed repeats it.
"""

# Letters: B images, C channels, H height, W width.
from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from dada.exchange.exports.kernels import KERNELS
from dada.ops.batch import to_uint8
from dada.ops.geometric import Affine
from dada.ops.pillow import CALLS
from dada.policy.draw import draw_one
from dada.policy.transform import BOX_FORMATS, _move_mask, _move_points

# (weight, [(operation, probability, ranges), ...]): one sub-policy is drawn for every image; of the
# ranges one is taken, and a value drawn between its ends.
SUBPOLICIES: list = []

MOVED_ALONG = (tv_tensors.BoundingBoxes, tv_tensors.Mask, tv_tensors.KeyPoints)
Step = tuple[str, float, tuple[float, float]]  # operation, value, Cutout's centre in 0..1


class DadaPolicy(v2.Transform):
    """Draws a sub-policy for every image and does its operations in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.cumulative = list(accumulate(weight for weight, _ in SUBPOLICIES))
        self.subpolicies = [steps for _, steps in SUBPOLICIES]

    def draw(self) -> list[Step]:
        """What is done to one image."""
        if not SUBPOLICIES:
            return []
        longest = max(map(len, self.subpolicies))
        position, *numbers = torch.rand(1 + 5 * longest).tolist()
        position *= self.cumulative[-1]
        done = []
        fired = draw_one(position, numbers, self.cumulative, self.subpolicies)
        for (name, _, ranges), (which, between, x, y) in fired:
            start, end = ranges[int(which * len(ranges))]
            done.append((name, start + between * (end - start), (x, y)))
        return done

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        image = _image_of(flat_inputs)
        _check(image)
        batch = isinstance(image, Tensor) and image.ndim == 4
        batch = batch and not isinstance(image, tv_tensors.Video)
        moved = [leaf for leaf in flat_inputs if isinstance(leaf, MOVED_ALONG)]
        size = (image.height, image.width) if isinstance(image, Image.Image) else image.shape[-2:]
        if batch and moved:
            raise ValueError("boxes, masks and key points move along before batching, not after")
        for leaf in moved:
            _check_moved_along(leaf, tuple(size))
        draws = [self.draw() for _ in range(len(image) if batch else 1)]
        return {"draws": draws, "size": tuple(size), "batch": batch}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, MOVED_ALONG):
            return _move_along(inpt, params["draws"][0], params["size"])
        _check(inpt)
        if isinstance(inpt, Image.Image):
            for name, value, (x, y) in params["draws"][0]:
                inpt = CALLS[name](inpt, value, (x * inpt.width, y * inpt.height))
            return inpt
        plain = inpt.as_subclass(Tensor)
        levels = to_uint8(plain)
        if params["batch"]:
            pairs = zip(levels, params["draws"], strict=True)
            done = torch.stack([_steps(image[None], steps)[0] for image, steps in pairs])
        else:  # one image, or the frames of a video, which share their draw
            frames = levels.reshape(-1, *levels.shape[-3:])
            done = _steps(frames, params["draws"][0]).view(plain.shape)
        done = done if plain.dtype == torch.uint8 else done.to(plain.dtype) / 255
        return tv_tensors.wrap(done, like=inpt) if isinstance(inpt, tv_tensors.TVTensor) else done

    def extra_repr(self) -> str:
        return f"{len(SUBPOLICIES)} sub-policies"


def _steps(images_BCHW: Tensor, steps: list[Step]) -> Tensor:
    """The same steps to every image."""
    b, _, h, w = images_BCHW.shape
    images_BCHW = images_BCHW.contiguous()
    for name, value, (x, y) in steps:
        value_B = torch.full((b,), value, dtype=torch.float64, device=images_BCHW.device)
        center_B2 = torch.tensor([x * w, y * h], dtype=torch.float64, device=images_BCHW.device)
        images_BCHW = KERNELS[name](images_BCHW, value_B, center_B2.expand(b, 2))
    return images_BCHW


def _move_along(leaf: Any, steps: list[Step], size: tuple[int, int]) -> Any:
    """A mask, boxes or key points after the geometric steps of an image of that size."""
    for name, value, _ in steps:
        kernel = KERNELS[name]
        if isinstance(kernel, Affine):
            value_1 = torch.tensor([value], dtype=torch.float64, device=leaf.device)
            move = _move_mask if isinstance(leaf, tv_tensors.Mask) else _move_points
            leaf = move(leaf, kernel.matrix(value_1, *size), size)
    return leaf


def _image_of(leaves: list[Any]) -> Any:
    """The image of a sample. As in torchvision, a plain tensor counts only when alone."""
    images = (Image.Image, tv_tensors.Image, tv_tensors.Video)
    certain = [leaf for leaf in leaves if isinstance(leaf, images)]
    plain = [leaf for leaf in leaves if type(leaf) is Tensor]
    for leaf in certain or plain:
        return leaf
    raise ValueError("the sample holds no image (PIL, tensor or tv_tensors)")


def _check(image: Any) -> None:
    if isinstance(image, Image.Image):
        if image.mode not in ("L", "RGB"):
            raise ValueError(f"PIL image of mode {image.mode!r}: convert it to RGB first")
    elif image.ndim not in (3, 4, 5) or image.shape[-3] not in (1, 3):
        raise ValueError(f"an image should be CHW or BCHW, 1 or 3 channels: {tuple(image.shape)}")
    elif image.is_floating_point():
        if not image.is_cuda and not (image.amin() >= 0 and image.amax() <= 1):
            raise ValueError("float images should lie in 0..1; augment before normalising")
    elif image.dtype != torch.uint8:
        raise ValueError(f"images should be uint8, or float in 0..1, got {image.dtype}")


def _check_moved_along(leaf: Any, size: tuple[int, int]) -> None:
    of = tuple(leaf.shape[-2:]) if isinstance(leaf, tv_tensors.Mask) else tuple(leaf.canvas_size)
    if of != size:
        raise ValueError(f"{type(leaf).__name__} is for a (height, width) of {of}, image is {size}")
    if isinstance(leaf, tv_tensors.BoundingBoxes) and leaf.format.name not in BOX_FORMATS:
        raise ValueError(f"boxes should have one of the formats {', '.join(BOX_FORMATS)}")
