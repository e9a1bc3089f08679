"""What several tests share: small settings for the phases that decide, and ways to stop a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dada.config import LOOKAHEAD, LookaheadConfig, SearchConfig, ShortTraining, VerifyConfig
from dada.data import Split
from dada.policy_search import SearchJob

TINY = ShortTraining(
    steps=3, least_epochs=2, most_images=40, most_images_of_a_class=4, largest_batch=64
)
# Enough for two runs of the operations and four of the policies with networks of these tests.
QUICK_LOOKAHEAD: LookaheadConfig = replace(
    LOOKAHEAD["cpu"],
    seconds=2.6,
    training=replace(TINY, most_images=500, steps_per_epoch=1),
    few_shapes=False,  # all of them, as on a card
    stand_in_images=40,
)
QUICK_VERIFY = VerifyConfig(seconds=3.5, training=TINY)


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


class StopError(Exception):
    """What a test raises where a person would pull the plug."""


def stop_after(epoch: int) -> Any:
    def on_epoch(metrics: dict[str, Any], epochs: int) -> None:
        if metrics["epoch"] == epoch:
            raise StopError

    return on_epoch


class ForbidHostReads(TorchDispatchMode):
    """Fails where a device would have to be waited for: .item(), bool(tensor), nonzero."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "equal.default", "_unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(name in str(func) for name in self.forbidden), f"{func} reads a tensor"
        return func(*args, **(kwargs or {}))
