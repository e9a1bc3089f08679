"""A policy as a transform: PIL images, tensors, batches, and tv_tensors with boxes and masks.

Letters: B images, C channels, H height, W width, N sub-policies, K operations in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data import get_worker_info
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tvf

from dada import ops
from dada.config import seed_number
from dada.engine import Captured
from dada.ops import Op, planes
from dada.ops.geometric import Affine, forward_matrix, warp
from dada.policy import Policy
from dada.policy.arrays import array_like, tensor_of
from dada.policy.augment import PolicyTables
from dada.policy.draw import draw_one
from dada.policy.space import SPACES, SearchSpace

CPU = torch.device("cpu")
PIL_MODES = ("L", "RGB")
BOX_FORMATS = ("XYXY", "XYWH", "CXCYWH")
MOVED_ALONG = (tv_tensors.BoundingBoxes, tv_tensors.Mask, tv_tensors.KeyPoints)


@dataclass(frozen=True)
class Step:
    """One operation on one image, decided."""

    op: Op
    value: float
    center: tuple[float, float]  # fractions of (width, height)

    @property
    def words(self) -> str:
        """What is done, e.g. "Rotate by -12.4 degrees"."""
        return self.op.describe([self.op.number(self.value)])


class PolicyTransform(v2.Transform):
    """Augments with a policy; in a batch every image has its own draw.

    Takes what torchvision's v2 transforms take: a PIL image, a CHW tensor, a BCHW batch, or a
    sample that holds them next to labels, boxes, masks and key points. Boxes, masks and key
    points are moved along by the geometric operations. Also numpy arrays, HW, HWC or BHWC.

    With `seed` the draws repeat; without, they follow torch's global generator. In the workers
    of a DataLoader a seeded transform also mixes in the loader's seed, so that workers and
    epochs differ and a run repeats under `torch.manual_seed`.
    """

    def __init__(self, policy: Policy, *, seed: int | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.seed = None if seed is None else seed_number(seed)
        self._tables: dict[torch.device, PolicyTables] = {}
        self._calls: dict[torch.device, Captured] = {}
        self._generators: dict[tuple[torch.device, int | None], torch.Generator] = {}

    @property
    def _space(self) -> SearchSpace:
        if self.policy.space not in SPACES:
            raise ValueError(
                f"space {self.policy.space!r} is not registered in this process; register it at "
                "the top of a module that every DataLoader worker imports"
            )
        return SPACES[self.policy.space]

    def forward(self, *inputs: Any) -> Any:
        if len(inputs) == 1 and _is_one_image(inputs[0]):  # nothing to take apart
            _check_image(inputs[0])
            return _do_all(self._draw_steps(), inputs[0])
        leaves, structure = _pytree.tree_flatten(inputs if len(inputs) != 1 else inputs[0])
        places = _image_places(leaves)
        if not places:
            raise ValueError(
                "the sample holds no image (PIL, CHW or BCHW tensor, HWC or BHWC array, tv_tensors)"
            )
        arrays = {place: leaves[place] for place in places if isinstance(leaves[place], np.ndarray)}
        for place, array in arrays.items():
            leaves[place] = tensor_of(array)
        for place in places:
            _check_image(leaves[place])
        if self.policy.subpolicies:
            if any(isinstance(leaves[i], Tensor) and leaves[i].ndim == 4 for i in places):
                self._augment_batch(leaves, places)
            else:
                self._augment_one(leaves, places)
        for place, array in arrays.items():
            leaves[place] = array_like(leaves[place], array)
        return _pytree.tree_unflatten(leaves, structure)

    def explained(self, image: Image.Image) -> tuple[Image.Image, list[str]]:
        """One image, augmented, and what was done to it in words."""
        _check_image(image)
        steps = self._draw_steps()
        return _do_all(steps, image), [step.words for step in steps]

    def _augment_batch(self, leaves: list[Any], places: list[int]) -> None:
        if len(places) > 1 or any(isinstance(leaf, MOVED_ALONG) for leaf in leaves):
            raise ValueError(
                "a batch comes alone: boxes, masks, key points and second images move along "
                "with one image at a time, so augment before batching"
            )
        batch = leaves[places[0]]
        device = batch.device
        if device not in self._tables:
            self._tables[device] = PolicyTables.of(self.policy, self._space, device)
        leaves[places[0]] = _wrap_like(batch, self._drawn(batch.as_subclass(Tensor)))

    def _drawn(self, batch_BCHW: Tensor) -> Tensor:
        """A draw for every image, applied; on CUDA by a graph.

        The thirty launches of a batch cost the host ten times what they cost the card.
        """
        device = batch_BCHW.device
        tables, space, generator = self._tables[device], self._space, self._generator(device)
        if device.type == "cpu":  # in a DataLoader's worker, too, whose generator is another one
            return tables.augment(batch_BCHW, space, generator)
        if device not in self._calls:
            self._calls[device] = Captured(
                lambda batch_BCHW: tables.augment(batch_BCHW, space, generator),
                generators=[] if generator is None else [generator],
            )
        done: Tensor = self._calls[device](batch_BCHW)
        return done

    def _augment_one(self, leaves: list[Any], places: list[int]) -> None:
        """One draw for the whole sample; plain numbers, because B = 1 is all overhead."""
        image = leaves[places[0]]
        size = (image.height, image.width) if isinstance(image, Image.Image) else image.shape[-2:]
        for leaf in leaves:
            if isinstance(leaf, MOVED_ALONG):
                _check_moved_along(leaf, tuple(size))
        steps = self._draw_steps()
        for place in places:
            leaves[place] = _do_all(steps, leaves[place])
        for step in steps:
            if isinstance(step.op.kernel, Affine):
                for place, leaf in enumerate(leaves):
                    if isinstance(leaf, MOVED_ALONG):
                        leaves[place] = _move_along(leaf, step, tuple(size))

    @cached_property
    def _rows(self) -> tuple[list[float], list[list[tuple[Op, float, float, float]]], int]:
        """Running sum of the weights, every sub-policy as (op, probability, low, high), and how
        many numbers a draw takes."""
        subpolicies = self.policy.subpolicies
        rows = [
            [(self._space.op(s.op), s.probability, *s.magnitude_range) for s in subpolicy.ops]
            for subpolicy in subpolicies
        ]
        numbers = 1 + 5 * max(map(len, rows), default=0)
        return list(accumulate(subpolicy.weight for subpolicy in subpolicies)), rows, numbers

    def _draw_steps(self) -> list[Step]:
        cumulative, rows, count = self._rows
        if not rows:
            return []
        generator = None if self.seed is None else self._generator(CPU)
        position, *numbers = torch.rand(count, generator=generator).tolist()
        steps = []
        space = self._space
        fired = draw_one(position * cumulative[-1], numbers, cumulative, rows)
        for (op, _, low, high), (between, direction, x, y) in fired:
            magnitude, sign = low + between * (high - low), -1.0 if direction < 0.5 else 1.0
            value = space.value(op, magnitude, sign)
            if value is not None:
                steps.append(Step(op, value, (x, y)))
        return steps

    def _generator(self, device: torch.device) -> torch.Generator | None:
        if self.seed is None:
            return None
        worker = get_worker_info()
        key = (device, None if worker is None else worker.seed)
        if key not in self._generators:
            seed = self.seed if worker is None else hash((self.seed, worker.seed)) % 2**63
            self._generators[key] = torch.Generator(device).manual_seed(seed)
        return self._generators[key]

    def __getstate__(self) -> dict[str, Any]:
        """Generators do not pickle; a copy goes on where this one stands."""
        stored = {key: generator.get_state() for key, generator in self._generators.items()}
        kept = {name: value for name, value in self.__dict__.items() if name != "_rows"}
        return {**kept, "_tables": {}, "_calls": {}, "_generators": stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_generators": {}})
        for (device, worker_seed), position in state["_generators"].items():
            generator = torch.Generator(device)
            generator.set_state(position)
            self._generators[device, worker_seed] = generator

    def extra_repr(self) -> str:
        name = self.policy.provenance.get("name", f"{len(self.policy.subpolicies)} sub-policies")
        return f"{name}, space={self.policy.space}, seed={self.seed}"


def _image_places(leaves: list[Any]) -> list[int]:
    """Which leaves are images. As in torchvision, a plain tensor counts only when alone; an array
    when there is no tensor either."""
    certain = [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, (Image.Image, tv_tensors.Image))
    ]
    if certain:
        return certain
    plain = [i for i, leaf in enumerate(leaves) if type(leaf) is Tensor and leaf.ndim >= 3]
    least = 2 if len(leaves) == 1 else 3  # beside others, an array of two dimensions is a table
    plain += [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and leaf.ndim >= least
    ]
    return plain[:1]


def _check_image(image: Any) -> None:
    if isinstance(image, Image.Image):
        if image.mode not in PIL_MODES:
            raise ValueError(
                f"PIL image of mode {image.mode!r}: convert it first with image.convert('RGB')"
            )
    elif image.ndim not in (3, 4):
        raise ValueError(f"an image tensor should be CHW or BCHW, got shape {tuple(image.shape)}")
    else:
        if image.layout != torch.strided:
            raise ValueError(f"an image tensor should be dense, got {image.layout}")
        plain = image.as_subclass(Tensor)
        ops.check_images(plain if plain.ndim == 4 else plain.unsqueeze(0))


def _check_moved_along(leaf: Any, size: tuple[int, int]) -> None:
    """Before anything is drawn: a sample that cannot be moved should fail every time, not some."""
    of = tuple(leaf.shape[-2:]) if isinstance(leaf, tv_tensors.Mask) else tuple(leaf.canvas_size)
    if of != size:
        raise ValueError(f"{type(leaf).__name__} is for a (height, width) of {of}, image is {size}")
    if isinstance(leaf, tv_tensors.BoundingBoxes) and leaf.format.name not in BOX_FORMATS:
        raise ValueError(
            f"boxes of format {leaf.format.name} cannot be moved along; "
            f"convert them to one of {', '.join(BOX_FORMATS)}"
        )


def _is_one_image(sample: Any) -> bool:
    return isinstance(sample, Image.Image) or (type(sample) is Tensor and sample.ndim == 3)


def _do_all(steps: list[Step], image: Any) -> Any:
    """The steps of one draw; without any, the image itself."""
    if steps and isinstance(image, Tensor) and image.dtype == torch.uint8 and image.is_cpu:
        h, w = image.shape[-2:]
        in_pixels = [
            (step.op, step.value, (step.center[0] * w, step.center[1] * h)) for step in steps
        ]
        done = planes.do_all(image.as_subclass(Tensor).contiguous().numpy(), in_pixels)
        return _wrap_like(image, planes.as_tensor(done))
    for step in steps:
        image = _do(step, image)
    return image


def _do(step: Step, image: Any) -> Any:
    if isinstance(image, Image.Image):
        if step.op.pillow is not None:
            center = step.center[0] * image.width, step.center[1] * image.height
            return step.op.pillow(image, step.value, center)
        array = np.array(image)
        return Image.fromarray(array_like(_run_step(step, tensor_of(array)), array))
    return _wrap_like(image, _run_step(step, image.as_subclass(Tensor)))


def _run_step(step: Step, image_CHW: Tensor) -> Tensor:
    device = image_CHW.device
    h, w = image_CHW.shape[-2:]
    op_index_11 = torch.zeros(1, 1, dtype=torch.int64, device=device)
    value_11 = torch.full((1, 1), step.value, dtype=torch.float64, device=device)
    center = [[[step.center[0] * w, step.center[1] * h]]]
    center_112 = torch.tensor(center, dtype=torch.float64, device=device)
    return ops.run((step.op,), image_CHW.unsqueeze(0), op_index_11, value_11, center_112)[0]


def _wrap_like(original: Tensor, done: Tensor) -> Tensor:
    if isinstance(original, tv_tensors.TVTensor):
        return tv_tensors.wrap(done, like=original)
    return done


def _move_along(leaf: Any, step: Step, size: tuple[int, int]) -> Any:
    """A mask, boxes or key points after a geometric step of an image of that (height, width)."""
    assert isinstance(step.op.kernel, Affine)
    value_1 = torch.tensor([step.value], dtype=torch.float64, device=leaf.device)
    matrix_16 = step.op.kernel.matrix(value_1, *size)
    if isinstance(leaf, tv_tensors.Mask):
        return _move_mask(leaf, matrix_16, size)
    return _move_points(leaf, matrix_16, size)


def _move_mask(mask: tv_tensors.Mask, matrix_16: Tensor, size: tuple[int, int]) -> tv_tensors.Mask:
    plain = mask.as_subclass(Tensor)
    flat = plain.reshape(1, -1, *size)
    moved = warp(flat.to(torch.uint8) if plain.dtype == torch.bool else flat, matrix_16)
    return tv_tensors.wrap(moved.view(plain.shape).to(plain.dtype), like=mask)


def _move_points(leaf: Any, matrix_16: Tensor, size: tuple[int, int]) -> Any:
    """Key points go where their pixel goes; a box becomes the box around its four corners."""
    forward_23 = forward_matrix(matrix_16)[0].to(leaf.device)

    def move(points: Tensor) -> Tensor:
        return points.to(torch.float64) @ forward_23[:, :2].T + forward_23[:, 2]

    plain = leaf.as_subclass(Tensor)
    if isinstance(leaf, tv_tensors.KeyPoints):
        return tv_tensors.wrap(_as_type(move(plain), plain.dtype), like=leaf)
    box_format = tv_tensors.BoundingBoxFormat.XYXY
    corners = tvf.convert_bounding_box_format(leaf, new_format=box_format).as_subclass(Tensor)
    x0, y0, x1, y1 = corners.to(torch.float64).unbind(-1)
    four = torch.stack([torch.stack(p, -1) for p in ((x0, y0), (x1, y0), (x0, y1), (x1, y1))], -2)
    moved = move(four)
    around = torch.cat([moved.amin(-2), moved.amax(-2)], dim=-1)
    limit = torch.tensor([size[1], size[0]] * 2, dtype=torch.float64, device=leaf.device)
    around = _as_type(torch.minimum(around.clamp(min=0), limit), plain.dtype)
    boxes = tvf.convert_bounding_box_format(around, old_format=box_format, new_format=leaf.format)
    return tv_tensors.wrap(boxes, like=leaf)


def _as_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)
