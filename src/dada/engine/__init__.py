"""The device: precision, CUDA graphs, random numbers, other processes; set nowhere else."""

from __future__ import annotations

from dada.engine.device import (
    channels_last,
    few_threads,
    fitting,
    generator_on,
    memory_that_is_full,
    out_of_memory_named,
    record_use,
    resolve_device,
    seeded,
    to_device,
)
from dada.engine.graphs import Captured, side_by_side
from dada.engine.kernels import (
    kernels_for,
    plain_kernels,
    wants_plain_kernels,
    wants_whole_networks,
    whole_networks,
    whole_networks_pay,
)
from dada.engine.lane import Lane, Precision
from dada.engine.memory import memory_kept
from dada.engine.ranks import ALONE, Ranks, join, joined, several_processes
from dada.engine.threads import share

__all__ = [
    "ALONE",
    "Captured",
    "Lane",
    "Precision",
    "Ranks",
    "channels_last",
    "few_threads",
    "fitting",
    "generator_on",
    "join",
    "joined",
    "kernels_for",
    "memory_kept",
    "memory_that_is_full",
    "out_of_memory_named",
    "plain_kernels",
    "record_use",
    "resolve_device",
    "seeded",
    "several_processes",
    "share",
    "side_by_side",
    "to_device",
    "wants_plain_kernels",
    "wants_whole_networks",
    "whole_networks",
    "whole_networks_pay",
]
