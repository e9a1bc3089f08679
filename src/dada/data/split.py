"""Split: training, validation and test images, and how to cut smaller ones out of it.

Legend: N images of a part, B of a batch, C classes (channels, in mean and std), P pixels, G groups.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dada.config import real_number, seed_number, whole_number
from dada.data.parts import Part, TensorPart
from dada.safe_text import LONGEST_MESSAGE, listed, printable, quoted

IN_MEMORY_LIMIT = 2 * 2**30
"""Decoded bytes up to which `in_memory="auto"` keeps a data set in memory."""

IMAGES_LOOKED_AT = 256  # at once
_SAMPLED_FOR_MEAN = 10_000
_DECODED_FOR_MEAN = 2_000
UNBALANCED = 2  # times as many images of one class as of another


@dataclass(frozen=True, kw_only=True, repr=False)
class Split:
    """A data set as the rest of the package sees it: uint8 images of one shape."""

    train: Part
    val: Part | None = None
    test: Part | None = None
    classes: tuple[str, ...]
    name: str
    task: str = "classification"
    """What `dada.tasks` calls what the targets are for."""
    notes: tuple[str, ...] = ()
    """Notes to the user about what was converted, left out or assumed."""
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and deviation that a pretrained network was trained with; None: the images' own."""

    def __repr__(self) -> str:
        about = f"{self.summary()}; {listed(self.classes, 4)}; {self.train.place}"
        return f"<Split {printable(about, LONGEST_MESSAGE)}>"

    @property
    def channels(self) -> int:
        return self.train.channels

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W)"""
        return self.train.image_size

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def unbalanced(self) -> bool:
        """Whether one class has more than twice the training images of another."""
        count_C = torch.bincount(self.train.labels_N, minlength=self.num_classes)
        return int(count_C.max()) > UNBALANCED * int(count_C.min())

    @property
    def parts(self) -> dict[str, Part]:
        """The parts there are, by name."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}

    @property
    def train_is_held(self) -> bool:
        """Whether the training images are in memory, at their final size."""
        return isinstance(self.train, TensorPart)

    @property
    def decoded_bytes(self) -> int:
        height, width = self.image_size
        return sum(map(len, self.parts.values())) * self.channels * height * width

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over class names, labels and images (file names and sizes where lazy)."""
        hasher = hashlib.sha256("\0".join(self.classes).encode())
        for name, part in self.parts.items():
            hasher.update(name.encode() + part.digest())
        return hasher.hexdigest()

    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel of the training images, in units of [0, 1].

        Measured on at most 10,000 images (2,000 where they must be decoded) spread evenly over the
        part. A channel that never changes is given a deviation of one grey level, so that dividing
        by it is safe. A pretrained network brings numbers of its own.
        """
        if self.normalisation is not None:
            return self.normalisation
        most = _SAMPLED_FOR_MEAN if self.train_is_held else _DECODED_FOR_MEAN
        count = min(len(self.train), most)
        index_N = torch.linspace(0, len(self.train) - 1, count, dtype=torch.float64).long()
        mean_C = torch.zeros(self.channels, dtype=torch.float64)
        square_C = torch.zeros(self.channels, dtype=torch.float64)
        # Large ones fewer at a time: a hundred of 4,000 pixels would take 19 GB.
        at_once = min(100, max(1, 2**29 // (4 * self.channels * math.prod(self.image_size))))
        for index_B in index_N.split(at_once):
            pixels_BCP = self.train.batch(index_B)[0].flatten(2).float() / 255
            # Within an image in single precision (quick), over images in double (exact enough).
            mean_C += pixels_BCP.mean(2).cpu().double().sum(0) / count
            square_C += pixels_BCP.square().mean(2).cpu().double().sum(0) / count
        std_C = (square_C - mean_C**2).clamp(min=1 / 255**2).sqrt()
        return tuple(mean_C.tolist()), tuple(std_C.tolist())

    def to(self, device: torch.device | str) -> Split:
        return self._with({name: part.to(device) for name, part in self.parts.items()})

    def summary(self) -> str:
        """One line: name, counts, classes and shape."""
        counts = ", ".join(f"{len(part):,} {name}" for name, part in self.parts.items())
        task = "" if self.task == "classification" else f" for {self.task}"
        classes = "1 class" if self.num_classes == 1 else f"{self.num_classes} classes"
        return f"{self.name}: {counts}; {classes}{task}; {self.train.form}"

    def _with(self, parts: dict[str, Part]) -> Split:
        return replace(self, train=parts["train"], val=parts.get("val"), test=parts.get("test"))


def is_grey(split: Split) -> bool:
    """Whether no training image has a colour; of images that are not held only channels tell."""
    if split.channels == 1:
        return True
    if not split.train_is_held:
        return False
    for index_B in torch.arange(len(split.train)).split(IMAGES_LOOKED_AT):
        images_BCHW = split.train.batch(index_B)[0]
        if not (images_BCHW == images_BCHW[:, :1]).all():
            return False
    return True


def split_off_validation(split: Split, fraction: float = 0.5, seed: int = 0) -> Split:
    """Move `fraction` of the training images of every class into a validation part.

    Each class keeps at least one image on both sides; a group stays whole on one side, and so do
    exact copies of an image.
    """
    if not 0 < real_number("fraction", fraction) < 1:
        raise ValueError(f"the validation fraction must lie between 0 and 1, but got {fraction}")
    if split.val is not None:
        raise ValueError(f"{split.name}: there is a validation part already; nothing to split off")
    labels_N = split.train.labels_N.cpu()
    generator = torch.Generator().manual_seed(seed_number(seed))
    groups_N, copies_N = split.train.groups_N, split.train.copies_N
    if groups_N is None:
        first_N = torch.arange(len(labels_N)) if copies_N is None else _first_N(copies_N, labels_N)
        kept = (first_N == torch.arange(len(labels_N))).nonzero().squeeze(1)
        chosen_N = torch.zeros(len(labels_N), dtype=torch.bool)
        chosen_N[kept] = _choose_images(labels_N[kept], split, fraction, generator)
        chosen_N = chosen_N[first_N]
    else:
        together_N = groups_N if copies_N is None else _joined_groups(groups_N, copies_N)
        chosen_N = _choose_groups(labels_N, together_N, split, fraction, generator)
    order_N = torch.arange(len(labels_N))
    return replace(
        split, train=split.train.take(order_N[~chosen_N]), val=split.train.take(order_N[chosen_N])
    )


SCORING_FRACTION = 0.2


def split_for_scoring(split: Split, seed: int = 0) -> tuple[Split, Part]:
    """The data, and its part to score a training on: the test images, else the validation images,
    else a fifth of the training images, which is then split off."""
    if split.test is not None:
        return split, split.test
    if split.val is None:
        split = split_off_validation(split, SCORING_FRACTION, seed)
    assert split.val is not None
    return split, split.val


def reduce(
    split: Split, count: int, seed: int = 0, classes: int | Sequence[str] | None = None
) -> Split:
    """A stratified subset of `count` training images; validation and test images stay.

    `classes` keeps that many classes drawn at random, or those named; the others disappear from
    every part and labels are renumbered (the paper's ImageNet: 6,000 images of 120 classes).
    """
    generator = torch.Generator().manual_seed(seed_number(seed))
    if classes is not None:
        split = _keep_classes(split, classes, generator)
    labels_N = split.train.labels_N.cpu()
    count = whole_number("count", count)
    if not 0 < count <= len(labels_N):
        raise ValueError(
            f"{split.name}: cannot take {count:,} of {len(labels_N):,} training images"
        )
    present_C = torch.bincount(labels_N, minlength=split.num_classes)
    if count < int((present_C > 0).sum()):
        raise ValueError(
            f"{split.name}: {count:,} images cannot cover {split.num_classes} classes; "
            "ask for more images or fewer classes"
        )
    take_C = apportion(present_C, count, lowest_C=present_C.clamp(max=1), highest_C=present_C)
    return replace(split, train=split.train.take(_draw(labels_N, take_C, generator)))


def _keep_classes(split: Split, classes: int | Sequence[str], generator: torch.Generator) -> Split:
    if isinstance(classes, int):
        if not 2 <= classes <= split.num_classes:
            raise ValueError(f"{split.name}: cannot keep {classes} of {split.num_classes} classes")
        drawn = torch.randperm(split.num_classes, generator=generator)[:classes]
        kept = sorted(drawn.tolist())
    else:
        unknown = [name for name in classes if name not in split.classes]
        if unknown or len(set(classes)) < 2:
            problem = (
                f"no class {quoted(unknown[0])}" if unknown else "fewer than two classes asked for"
            )
            raise ValueError(f"{split.name}: {problem}; there are {listed(split.classes)}")
        kept = [i for i, name in enumerate(split.classes) if name in set(classes)]
    renumber_C = torch.full((split.num_classes,), -1)
    renumber_C[torch.tensor(kept)] = torch.arange(len(kept))
    parts: dict[str, Part] = {}
    for name, part in split.parts.items():
        labels_N = renumber_C[part.labels_N.cpu()]
        index_N = (labels_N >= 0).nonzero().squeeze(1)
        taken = part.take(index_N)
        renumbered_N = labels_N[index_N].to(taken.labels_N.device)
        parts[name] = replace(taken, labels_N=renumbered_N)  # type: ignore[type-var]
    return replace(split._with(parts), classes=tuple(split.classes[i] for i in kept))


def apportion(count_C: Tensor, total: int, *, lowest_C: Tensor, highest_C: Tensor) -> Tensor:
    """Whole numbers proportional to count_C that add up to `total` where the bounds allow it.

    Largest remainders, then one at a time towards the quota while a bound stands in the way.
    """
    quota_C = count_C.double() * total / count_C.sum()
    take_C = torch.minimum(torch.maximum(quota_C.floor().long(), lowest_C), highest_C)
    while (short := total - int(take_C.sum())) != 0:
        step = 1 if short > 0 else -1
        room_C = (take_C < highest_C) if step > 0 else (take_C > lowest_C)
        if not room_C.any():
            break
        want_C = ((quota_C - take_C) * step).masked_fill(~room_C, -torch.inf)
        best = want_C.argsort(descending=True, stable=True)[: min(abs(short), int(room_C.sum()))]
        take_C[best] += step
    return take_C


def _draw(labels_N: Tensor, take_C: Tensor, generator: torch.Generator) -> Tensor:
    """Sorted positions of take_C[c] images of every class c, drawn at random."""
    drawn = []
    for label, take in enumerate(take_C.tolist()):
        members = (labels_N == label).nonzero().squeeze(1)
        drawn.append(members[torch.randperm(len(members), generator=generator)[:take]])
    return torch.cat(drawn).sort().values


def _first_N(copies_N: Tensor, labels_N: Tensor) -> Tensor:
    """For each image the position of the first copy of it, which is drawn for all of them.

    A class that would have fewer than two images left is left as it is: it has to be on both sides.
    """
    number_N = copies_N.unique(return_inverse=True)[1]
    own_N = torch.arange(len(number_N))
    first = torch.full((int(number_N.max()) + 1,), len(number_N))
    first_N = first.scatter_reduce(0, number_N, own_N, "amin")[number_N]
    left_C = torch.bincount(labels_N[first_N == own_N], minlength=int(labels_N.max()) + 1)
    enough_N = (left_C[labels_N] >= 2) & (left_C[labels_N[first_N]] >= 2)
    return torch.where(enough_N, first_N, own_N)


def _joined_groups(groups_N: Tensor, copies_N: Tensor) -> Tensor:
    """Groups of which two hold copies of one image become one group."""
    leader = {group: group for group in groups_N.unique().tolist()}

    def find(group: int) -> int:
        while leader[group] != group:
            group = leader[group]
        return group

    home: dict[int, int] = {}
    for group, copy in zip(groups_N.tolist(), copies_N.tolist(), strict=True):
        leader[find(group)] = find(home.setdefault(copy, group))
    return torch.tensor([find(group) for group in groups_N.tolist()])


def _choose_images(
    labels_N: Tensor, split: Split, fraction: float, generator: torch.Generator
) -> Tensor:
    count_C = torch.bincount(labels_N, minlength=split.num_classes)
    if bool((count_C == 1).any()):
        single = split.classes[int((count_C == 1).nonzero()[0])]
        raise ValueError(
            f"{split.name}: class {single!r} has one training image, but validation needs another; "
            "add images, leave the class out, or pass validation data"
        )
    highest_C = (count_C - 1).clamp(min=0)
    take_C = apportion(
        count_C,
        round(fraction * len(labels_N)),
        lowest_C=count_C.clamp(max=1),
        highest_C=highest_C,
    )
    chosen_N = torch.zeros(len(labels_N), dtype=torch.bool)
    chosen_N[_draw(labels_N, take_C, generator)] = True
    return chosen_N


def _choose_groups(
    labels_N: Tensor,
    groups_N: Tensor,
    split: Split,
    fraction: float,
    generator: torch.Generator,
) -> Tensor:
    """Greedy: the largest groups first, each to the side whose classes are further from target."""
    group_of_N = groups_N.unique(return_inverse=True)[1]
    num_groups = int(group_of_N.max()) + 1
    count_GC = torch.zeros(num_groups, split.num_classes, dtype=torch.float64)
    count_GC.index_put_((group_of_N, labels_N), torch.ones(()).double(), accumulate=True)
    homes_C = (count_GC > 0).sum(0)
    if bool((homes_C == 1).any()):
        single = split.classes[int((homes_C == 1).nonzero()[0])]
        raise ValueError(
            f"{split.name}: all training images of class {single!r} are in one group, which cannot "
            "be on both sides; add groups or pass validation data"
        )
    shuffled_G = torch.randperm(num_groups, generator=generator)
    sizes_G = count_GC.sum(1)[shuffled_G]
    order_G = shuffled_G[sizes_G.argsort(descending=True, stable=True)]
    target_C = count_GC.sum(0) * fraction
    rest_target_C = count_GC.sum(0) - target_C
    val_C, rest_C = torch.zeros_like(target_C), torch.zeros_like(target_C)
    in_val_G = torch.zeros(num_groups, dtype=torch.bool)
    for group in order_G.tolist():
        group_C = count_GC[group]
        # Filled fraction of each side over the classes of this group, as if it went there.
        val_fill = ((val_C + group_C) * group_C / target_C.clamp(min=1e-9)).sum()
        rest_fill = ((rest_C + group_C) * group_C / rest_target_C.clamp(min=1e-9)).sum()
        in_val_G[group] = bool(val_fill <= rest_fill)
        (val_C if in_val_G[group] else rest_C).add_(group_C)
    _cover_both_sides(count_GC, in_val_G, split)
    return in_val_G[group_of_N]


def _cover_both_sides(count_GC: Tensor, in_val_G: Tensor, split: Split) -> None:
    """While a class is missing from one side, move the smallest group that has it."""
    for _ in range(count_GC.shape[1]):
        for side in (True, False):
            have_C = count_GC[in_val_G == side].sum(0)
            other_GC = count_GC.masked_fill((in_val_G == side)[:, None], 0)
            spare_C = (other_GC > 0).sum(0)
            for missing in ((have_C == 0) & (count_GC.sum(0) > 0)).nonzero().squeeze(1).tolist():
                helps_G = other_GC[:, missing] > 0
                # A group may leave only if no class of its own would then be gone from its side.
                helps_G &= ((other_GC == 0) | (spare_C > 1)).all(1)
                if helps_G.any():
                    sizes_G = other_GC.sum(1).masked_fill(~helps_G, torch.inf)
                    in_val_G[int(sizes_G.argmin())] = side
                    break
    for side in (True, False):
        missing_C = (count_GC[in_val_G == side].sum(0) == 0) & (count_GC.sum(0) > 0)
        if bool(missing_C.any()):
            name = split.classes[int(missing_C.nonzero()[0])]
            raise ValueError(
                f"{split.name}: the groups cannot be divided so that class {name!r} is on both "
                "sides; use smaller groups or pass validation data"
            )
