"""What the features of a pretrained network say of policies, without training it.

Fine-tuning changes a good network little. So the network is left as it is, augmented training
images are sent through it once, and only a head is fitted to their features. How well that head
knows the validation images says what the policy is worth: a forward pass for every view in place
of a training for every policy, and less noise (docs/fine-tuning-study.md).

Letters: N images, F features of an image, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dada.config import Base, LookaheadConfig, TrainConfig
from dada.data import Part, Split, batches, reduce
from dada.data.parts import TensorPart
from dada.engine import Precision, channels_last, generator_on
from dada.models import evaluating, head_of
from dada.policy import Policy
from dada.policy.augment import Normalise, PolicyTables
from dada.policy.space import SPACES
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.arms import ArmRuns, NumberedEnds
from dada.policy_search.lookahead.stand_in import resized_images, scaled_to
from dada.training.base import before_policy
from dada.training.scores import scores_of_logits
from dada.trials.cost import SPEEDS, forward_work
from dada.trials.short import seed_of, shorten

BATCHES = {"cpu": 64, "cuda": 512}  # a card would wait for launches of small ones
# Of a batch, what goes through the network at once. What a CPU writes between layers is memory that
# it asks for anew, page by page, where it is large and malloc is not told to keep it
# (engine/memory.py), and outgrows its caches.
SENT = {"cpu": 16, "cuda": 512}
# Of the passes that are counted for all views, what is made. On a CPU about half of the views are
# known already, and a pass that nothing is learned from takes less than a third of a step.
NEW = {"cpu": 0.4, "cuda": 1.0}
DECAY = 0.01  # of the head's weights, for features with a deviation of 1
ITERATIONS = 30  # of L-BFGS, which has mostly converged by then
SMOOTHING = 0.1  # of the labels, as in fine-tuning


@dataclass(frozen=True, kw_only=True)
class FeatureRuns(ArmRuns):
    """Every second run may fit heads to the validation images, and read them on the others."""

    halves: tuple[Split, Split]  # (train, val), and swapped where chance divided them
    build: Callable[[int], nn.Module]
    base: Base
    seed: int

    @classmethod
    def of(cls, job: SearchJob) -> FeatureRuns | None:
        """For a search with a pretrained network; None where no head is found in it."""
        split = job.split
        assert split.val is not None
        if split.task != "classification" or not job.pretrained or head_of(job.network) is None:
            return None
        swapped = replace(split, train=split.val, val=split.train)
        size, build = _reader(job)
        here, there = (
            _smaller(half, job.lookahead, job.training, size, job.seed)
            for half in (split, swapped if job.undivided is not None else split)
        )
        return cls(
            halves=(here, there),
            build=build,
            base=job.config.base,
            settings=job.lookahead,
            seed=job.seed,
            device=job.device,
            run=job.run,
            ranks=job.ranks,
        )

    @property
    def read_on(self) -> Split:
        """The first run's images."""
        return self.halves[0]

    def with_base(self, base: Base) -> FeatureRuns:
        return replace(self, base=base)

    def run_seconds(self, arms: int) -> float:
        split, speed, new = self.halves[0], SPEEDS[self.device.type], NEW[self.device.type]
        assert split.val is not None
        work = forward_work(self.build(0), (split.channels, *split.image_size))
        views = len(split.val) + round(arms * self.settings.views * len(split.train) * new)
        batch = SENT[self.device.type]
        return views / batch * speed.forward(work, batch) + arms * speed.head

    def _ends(self, arms: Mapping[str, Policy], numbers: Sequence[int]) -> Iterator[NumberedEnds]:
        network = Features(self.build(self.seed), self.halves[0], self.device)
        halves = [half.to(self.device) for half in self.halves]
        for number in numbers:
            split = halves[number % 2]
            train, val = split.train, split.val
            assert val is not None
            network.known.clear()  # a run is the same whichever came before it
            val_NF, val_N = network(val)
            losses, accuracies = {}, []
            for name, arm in arms.items():
                # All arms draw the same numbers, so that what differs between them is the arm. Some
                # policies, and some bases, draw more than others: each has a stream of its own.
                noise = Noise.of(self.device, self.seed, number)
                base, count = self.bases.get(name, self.base), self.settings.views
                views = [network(train, base, arm, noise) for _ in range(count)]
                train_NF, train_N = (torch.cat(each) for each in zip(*views, strict=True))
                head = fit_head(train_NF, train_N, split.num_classes)
                scores = scores_of_logits(head(val_NF), val_N, split.num_classes)
                losses[name] = getattr(scores, self.settings.reading)
                accuracies.append(scores.balanced_accuracy)
            yield number, losses, max(accuracies)


def _reader(job: SearchJob) -> tuple[tuple[int, int], Callable[[int], nn.Module]]:
    """The size at which images are read, no more than `features_side`, and what builds the network.

    Most transformers are bound to the size they were built for: whether one is, is tried. It is
    built anew for the smaller one then, and the position embeddings of its weights are resized.
    Where that cannot be, it reads images of its own size.
    """
    side, size = job.lookahead.features_side, job.split.image_size
    if side is None or max(size) <= side:
        return size, job.build
    smaller = scaled_to(size, side)
    if _reads(job.network, job.split.channels, smaller):
        return smaller, job.build
    if job.build_for is not None:
        build = job.build_for(smaller)
        with suppress(AssertionError, RuntimeError, ValueError):
            if _reads(build(job.seed), job.split.channels, smaller):
                return smaller, build
    return size, job.build


def _reads(network: nn.Module, channels: int, size: tuple[int, int]) -> bool:
    where = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    try:
        with evaluating(network):
            network(torch.zeros(1, channels, *size, device=where))
    except (AssertionError, RuntimeError, ValueError):
        return False
    return True


def _smaller(
    split: Split,
    settings: LookaheadConfig,
    training: TrainConfig,
    size: tuple[int, int],
    seed: int,
) -> Split:
    """No more images than a short training has, and of that size."""
    split = shorten(split, training, settings.training, seed=seed)[0]
    assert split.val is not None
    most = settings.features_validation
    if most is not None and len(split.val) > most:
        alone = replace(split, train=split.val, val=None)
        split = replace(split, val=reduce(alone, most, seed).train)
    if split.image_size == size:
        return split

    def shrunk(part: Part) -> TensorPart:
        images_NCHW = resized_images(part, size)
        return TensorPart(images_NCHW, part.labels_N.to(images_NCHW.device))

    assert split.val is not None
    return replace(split, train=shrunk(split.train), val=shrunk(split.val), test=None)


class Noise(NamedTuple):
    """Where the random numbers of views come from."""

    base: torch.Generator
    policy: torch.Generator

    @classmethod
    def of(cls, device: torch.device, seed: int, run: int) -> Noise:
        streams = ("features, base", "features")
        return cls(*(generator_on(device, seed_of(seed, name, run)) for name in streams))


class Features:
    """A network up to its head: call it with images, clean or under a base and a policy."""

    def __init__(self, network: nn.Module, split: Split, device: torch.device) -> None:
        path = head_of(network)
        assert path is not None
        self.device, self.precision = device, Precision.of("auto", device)
        self.network = channels_last(network.to(device), device).eval()
        self.network.get_submodule(path).register_forward_pre_hook(self._note)
        self.normalise = Normalise(*split.mean_std()).to(device)
        self._noted: Tensor | None = None
        self.known: dict[bytes, Tensor] = {}  # by the pixels, on a CPU

    def _note(self, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._noted = given[0].flatten(1).float()

    @torch.no_grad()
    def __call__(
        self,
        part: Part,
        base: Base | None = None,
        policy: Policy | None = None,
        noise: Noise | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The features of every image, and the labels."""
        found, labels = [], []
        order = torch.arange(len(part)).split(BATCHES[self.device.type])
        space = SPACES["paper" if policy is None else policy.space]
        tables = None if policy is None else PolicyTables.of(policy, space, self.device)
        with self.precision.products():
            for images_BCHW, labels_B in batches(part, order):
                images_BCHW, labels_B = images_BCHW.to(self.device), labels_B.to(self.device)
                if tables is not None:
                    assert noise is not None
                    before_BCHW = before_policy(images_BCHW, base or Base(), noise.base)
                    images_BCHW = tables.augment(before_BCHW, space, noise.policy)
                found.append(self._features(images_BCHW))
                labels.append(labels_B)
        return torch.cat(found), torch.cat(labels)

    def _features(self, images_BCHW: Tensor) -> Tensor:
        """What is not known yet is sent through the network.

        An operation that fires half of the time leaves half of the images as they were. On a card
        to find out which would take longer than to send them.
        """
        if self.device.type != "cpu":
            return self._sent(images_BCHW)
        keys = [blake2b(image.numpy().tobytes()).digest() for image in images_BCHW]
        new = {key: i for i, key in enumerate(keys) if key not in self.known}
        if new:
            sent_NF = self._sent(images_BCHW[list(new.values())])
            self.known |= dict(zip(new, sent_NF, strict=True))
        return torch.stack([self.known[key] for key in keys])

    def _sent(self, images_BCHW: Tensor) -> Tensor:
        found = []
        for sent_BCHW in images_BCHW.split(SENT[self.device.type]):
            with self.precision.passes():
                self.network(channels_last(self.normalise(sent_BCHW), self.device))
            assert self._noted is not None
            found.append(self._noted)
        return torch.cat(found)


def fit_head(features_NF: Tensor, labels_N: Tensor, num_classes: int) -> Callable[[Tensor], Tensor]:
    """Multinomial regression on features that are brought to mean 0 and deviation 1.

    argmin over W, b of the mean cross-entropy + DECAY / 2 |W|^2, convex, so its start and its
    random numbers do not matter.
    """
    mean_F, std_F = features_NF.mean(0), features_NF.std(0).clamp(min=1e-6)
    known_NF = (features_NF - mean_F) / std_F
    weight_FC = torch.zeros(features_NF.shape[1], num_classes, device=features_NF.device)
    bias_C = torch.zeros(num_classes, device=features_NF.device)
    weight_FC.requires_grad_()
    bias_C.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight_FC, bias_C], max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        logits_NC = known_NF @ weight_FC + bias_C
        loss = F.cross_entropy(logits_NC, labels_N, label_smoothing=SMOOTHING)
        whole = loss + DECAY / 2 * weight_FC.square().sum()
        whole.backward()
        return whole

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
    weight_FC, bias_C = weight_FC.detach(), bias_C.detach()
    return lambda others_NF: (others_NF - mean_F) / std_F @ weight_FC + bias_C
