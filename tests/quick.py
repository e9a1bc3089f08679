"""Small settings for the phases that decide, so that tests of searches have them too."""

from __future__ import annotations

from dataclasses import replace

from dada.config import LOOKAHEAD, LookaheadConfig, ShortTraining, VerifyConfig

TINY = ShortTraining(
    steps=3, least_epochs=2, most_images=40, most_images_of_a_class=4, largest_batch=64
)
# Enough for two runs of the operations and four of the policies with networks of these tests.
QUICK_LOOKAHEAD: LookaheadConfig = replace(
    LOOKAHEAD["cpu"],
    seconds=4.0,
    training=replace(TINY, most_images=500, steps_per_epoch=1),
    stand_in_images=40,
)
QUICK_VERIFY = VerifyConfig(seconds=8.0, training=TINY)
