"""Small settings for the phases that decide, so that tests of searches have them too."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dada.config import LOOKAHEAD, LookaheadConfig, SearchConfig, ShortTraining, VerifyConfig
from dada.data import Split
from dada.policy_search import SearchJob

TINY = ShortTraining(
    steps=3, least_epochs=2, most_images=40, most_images_of_a_class=4, largest_batch=64
)
# Enough for two runs of the operations and four of the policies with networks of these tests.
QUICK_LOOKAHEAD: LookaheadConfig = replace(
    LOOKAHEAD["cpu"],
    seconds=4.0,
    training=replace(TINY, most_images=500, steps_per_epoch=1),
    few_shapes=False,  # all of them, as on a card
    stand_in_images=40,
)
QUICK_VERIFY = VerifyConfig(seconds=8.0, training=TINY)


def search_job(
    split: Split,
    network: nn.Module,
    config: SearchConfig,
    *,
    device: torch.device,
    graph: bool = True,
) -> SearchJob:
    """A search of halves that a user gave, with small settings."""
    return SearchJob(
        split=split,
        undivided=None,
        network=network,
        build=lambda seed: network,
        model_name="model",
        config=config,
        lookahead=QUICK_LOOKAHEAD,
        verify=QUICK_VERIFY,
        seed=0,
        device=device,
        graph=graph,
    )
