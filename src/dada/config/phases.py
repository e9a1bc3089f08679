"""Settings of the phases that decide: short trainings, looking ahead, verification."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from dada.config.checks import check_types, one_of, positive, real_number


@dataclass(frozen=True, kw_only=True)
class ShortTraining:
    """A training that is only there to compare policies: few steps, many epochs.

    Augmentation pays where images are seen many times over. So a large data set is reduced, not
    passed over once.
    """

    steps: int = 400
    least_epochs: int = 20
    most_images: int = 4000
    most_images_of_a_class: int = 40  # or so many in all, if that is more
    smallest_batch: int = 16
    largest_batch: int = 128
    steps_per_epoch: int = 10  # wanted of small data sets, which else would have one or two
    warmup: float = 0.1  # largest part of the training

    def __post_init__(self) -> None:
        check_types(self)
        for field in fields(self):
            positive(field.name, getattr(self, field.name))


SHORT = ShortTraining()


@dataclass(frozen=True, kw_only=True)
class LookaheadConfig:
    """Settings of looking ahead: trainings whose end is repeated under several policies, the arms.

    The seconds are of a nominal machine (trials/cost.py), for both rounds together.
    """

    seconds: float
    training: ShortTraining
    # Of the first phase's usual steps, where the user's own images look ahead: a step is believed
    # only about harm that looking ahead cannot tell.
    steps_before: float = 1.0
    repeated: float = 0.5  # of a training: its end
    first_round: float = 0.625  # of the seconds
    most_runs: int = 8
    most_policy_runs: int = 4  # of the second round: what is too close to tell is worth no more
    look_again: bool = False  # as many runs again where the first round ends without a signal
    # What of the ends of trainings is compared: "loss" (by class, where classes are unequal), or
    # "calibrated_loss", which leaves out how confident a network is.
    reading: str = "loss"
    # Where classes are unequal, train on as many images of each: few steps would learn to guess the
    # largest, and what helps such a network says nothing of the others.
    even_classes: bool = False
    few_shapes: bool = False  # fewer of them, as few runs cannot tell many apart
    # Where features of a pretrained network are read: views of every image, the side that images
    # are shrunk to, and how many validation images are read; None: as they are.
    views: int = 2
    features_side: int | None = None
    features_validation: int | None = None
    # Of the first round's seconds, on top: whether to mirror, turn and cut, where nobody said.
    base_share: float = 0.2
    # Images and a network that stand in for larger ones (policy_search/lookahead/stand_in.py).
    stand_in_side: int  # of a square with as many pixels
    stand_in_images: int  # of each half: those on a disk have to be read first
    stand_in_images_of_a_class: int = 10  # or so many, if that is more

    def __post_init__(self) -> None:
        real_number("lookahead", self.seconds)
        if not 0 <= self.base_share <= 1:
            raise ValueError(f"`base_share` should lie in 0..1, got {self.base_share}")
        one_of("reading", self.reading, ("loss", "calibrated_loss"))
        if self.most_runs % 2:
            raise ValueError(f"`most_runs` should be even, got {self.most_runs}")
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"`lookahead` should be 0 or more seconds, got {self.seconds}")


LOOKAHEAD = {
    # On a CPU, few images make large batches, or the ends differ by chance.
    "cpu": LookaheadConfig(
        seconds=28.7,
        training=ShortTraining(steps=100, most_images=500, largest_batch=64, steps_per_epoch=1),
        even_classes=True,
        few_shapes=True,
        stand_in_side=12,
        stand_in_images=1000,
    ),
    # A card makes many more steps: batches of 128 would have few images seen hundreds of times.
    "cuda": LookaheadConfig(
        seconds=95.0,
        training=ShortTraining(steps=600, steps_per_epoch=8),
        steps_before=0.5,
        most_policy_runs=2,  # in all judged searches with four, the first two chose the same
        # Two runs missed what four see (docs/search-study-log.md).
        look_again=True,
        stand_in_side=32,
        stand_in_images=4000,
    ),
}

# For targets that are masks or boxes: what every image gets matters more than which operations do,
# and whether to use any is asked as well (docs/detection.md).
LOOKAHEAD_OF_PLACES = {
    device: replace(
        settings, base_share=0.4, few_shapes=False, most_policy_runs=4, look_again=False
    )
    for device, settings in LOOKAHEAD.items()
}

# As long as a fine-tuning is (FINE_TUNING), or a little less.
SHORT_FINE_TUNING = ShortTraining(steps=200, least_epochs=10, largest_batch=64, steps_per_epoch=8)

# For pretrained networks, whose features are read (policy_search/lookahead/features.py).
# Augmentation mostly makes a network less confident in fine-tuning: of whole policies the plain
# loss knew nothing, the calibrated one did (docs/fine-tuning-study.md).
LOOKAHEAD_FINE_TUNING = {
    # A forward pass of a photograph is milliseconds of a CPU: fewer and smaller images, or there
    # would be no time for it at all (benchmarks/studies/agreement.py).
    "cpu": replace(
        LOOKAHEAD["cpu"],
        seconds=83.9,
        training=replace(SHORT_FINE_TUNING, most_images=250, most_images_of_a_class=5),
        features_side=128,
        features_validation=1000,
        reading="calibrated_loss",
        even_classes=False,
        few_shapes=False,
        most_policy_runs=8,
    ),
    "cuda": replace(
        LOOKAHEAD["cuda"],
        seconds=24.0,
        training=SHORT_FINE_TUNING,
        reading="calibrated_loss",
        most_policy_runs=8,
        look_again=False,
    ),
}


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Settings of the verification: short trainings of the policy found and of the free ones.

    The seconds are of a nominal machine; 0 is no verification.
    """

    seconds: float
    training: ShortTraining = SHORT
    # Data sets by name that the record of earlier studies is read without, so that a judge of one
    # of them does not meet its own results again (policy_search/verify/prior.py).
    judged_data: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        real_number("verify_budget", self.seconds)
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"`verify_budget` should be 0 or more seconds, got {self.seconds:g}")


# On a CPU a verification would take as long as the search again, so there one has to ask for it.
# Longer trainings show more of what a policy does (docs/search-study.md).
VERIFY = {
    "cpu": VerifyConfig(seconds=0.0),
    "cuda": VerifyConfig(seconds=44.0, training=ShortTraining(steps=700)),
}

# Photographs take longer, and looking ahead takes less time with a pretrained network.
VERIFY_FINE_TUNING = {
    "cpu": VerifyConfig(seconds=0.0, training=SHORT_FINE_TUNING),
    "cuda": VerifyConfig(seconds=90.0, training=SHORT_FINE_TUNING),
}
