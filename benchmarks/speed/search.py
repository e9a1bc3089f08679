"""Seconds of a search, from images in memory to a policy on disk, and how they grow.

    python benchmarks/speed/search.py [--data images.npz] [--only "NAME;NAME"] [--out FILE]

A search runs in a process of its own, so that loading libraries, compiling kernels and recording
graphs count as they do for a user; `import torch` and reading the data do not. `seconds` include
the report; `seconds_to_policy` end when the last policy.json is written. Only the cases that show
growth share a process: of those, the seconds of an epoch count. Cases that are already in the file
are not run again. Without --data, images are random bytes: what a step takes does not depend on
them. "start of paper" tells the seconds of every phase of a search of two epochs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

PAPER = {"model": "wrn40_2", "preset": "paper", "batch_size": 128, "epochs": 20}
STEPS_ONLY = {"preset": "dada", "lookahead": 0.0, "verify": False}
WHOLE = "dada, looking ahead and verified"
# Growth: the median of three epochs.
SHORT = STEPS_ONLY | {"model": "wrn40_2", "batch_size": 128, "epochs": 4}


def cases() -> dict[str, dict[str, Any]]:
    """Name -> settings. `images` are halved into training and validation."""
    reduced = {"images": 4000, "side": 32}
    found = {
        "paper": reduced | PAPER,
        "paper, eager": reduced | PAPER | {"graph": False, "epochs": 3},
        "paper, gumbel": reduced | PAPER | {"estimator": "gumbel"},
        "dada": reduced | STEPS_ONLY | {"model": "wrn40_2", "epochs": 20},
        "dada, eager": reduced | STEPS_ONLY | {"model": "wrn40_2", "epochs": 3, "graph": False},
        WHOLE: reduced | {"preset": "dada", "model": "wrn40_2"},
        f"{WHOLE}, on streams": reduced | {"preset": "dada", "model": "wrn40_2", "stacks": False},
        "full": {"images": 50000, "side": 32} | PAPER | {"batch_size": 512},
    }
    for images in (1000, 4000, 16000, 50000):
        found[f"images {images}"] = SHORT | {"images": images, "side": 32}
    for side in (32, 64, 128, 224):
        found[f"side {side}"] = SHORT | {"images": 2048, "side": side}
    for ops in (15, 30, 45, 64):  # 105, 435, 990 and 2016 sub-policies
        found[f"ops {ops}"] = SHORT | {"images": 4000, "side": 32, "ops": ops}
    for views in (1, 2, 4, 8):
        found[f"views {views}"] = SHORT | {"images": 4000, "side": 32, "views": views}
    for preset in ("paper", "dada"):
        found[PROFILE + preset] = {}
    found[START] = reduced | PAPER | {"epochs": 2}
    found["10000 steps"] = STEPS_ONLY | {
        "images": 4000,
        "side": 32,
        "model": "small",
        "batch_size": 20,
        "epochs": 100,
    }
    tiny = {"images": 64, "side": 8, "model": "small", "epochs": 2, "batch_size": 16}
    found["tiny"] = STEPS_ONLY | tiny
    return found


NEVER_ALL = ("tiny",)
GROWTH = ("images", "side", "ops", "views")
ANSWER, PROFILE, START = "answer: ", "profile of ", "start of paper"


def run_here(settings: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """One search in this process."""
    import numpy as np
    import torch

    import dada
    from dada.ops import PAPER as FIFTEEN
    from dada.policy.space import register

    if not settings.pop("stacks", True):
        os.environ["DADA_STACKS"] = "0"
    images, side, ops = settings.pop("images"), settings.pop("side"), settings.pop("ops", 15)
    if ops > len(FIFTEEN):
        from dataclasses import replace

        many = [
            replace(op, name=f"{op.name}{i // 15 or ''}")
            for i, op in enumerate(FIFTEEN * (ops // 15 + 1))
        ]
        register(f"many {ops}", many[:ops], strengths=False)
        settings["space"] = f"many {ops}"
    if data is not None and side == 32:
        with np.load(data) as held:
            pixels, labels = held["images"][:images], held["labels"][:images]
        pixels_NCHW = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        labels_N = torch.from_numpy(labels).long()
    if data is None or side != 32 or len(pixels) < images:
        data = None
        generator = torch.Generator().manual_seed(0)
        shape = (images, 3, side, side)
        pixels_NCHW = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        labels_N = torch.arange(images) % 10
    base = dada.config.BASES["cifar10"] if side == 32 else dada.config.Base(flip=True)
    seconds_per_epoch: list[float] = []
    memory: list[int] = []
    gc.collect()  # what an earlier search of this process left
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    ended: dict[str, float] = {}  # phase -> when it was last heard of

    def after_epoch(metrics: dict[str, Any], epochs: int) -> None:
        ended["measuring"] = time.perf_counter() - start
        seconds_per_epoch.append(metrics["seconds"])
        if torch.cuda.is_available():
            memory.append(torch.cuda.memory_reserved())

    with tempfile.TemporaryDirectory() as folder:
        start, began = time.perf_counter(), time.time()
        result = dada.search(
            (pixels_NCHW, labels_N),
            out=Path(folder) / "run",
            base=base,
            on_epoch=after_epoch,
            on_lookahead=lambda *_: ended.update({"looking ahead": time.perf_counter() - start}),
            on_training=lambda *_: ended.update(verifying=time.perf_counter() - start),
            **settings,
        )
        seconds = time.perf_counter() - start
        seconds_to_policy = (Path(folder) / "run" / "policy.json").stat().st_mtime - began
    settled = statistics.median(seconds_per_epoch[1:] or seconds_per_epoch)
    steps = images // 2 // min(settings["batch_size"], images // 2) if images else 0
    on_card = torch.cuda.is_available()
    return {
        "seconds": seconds,
        "seconds_to_policy": seconds_to_policy,
        "ended": {phase: round(at, 2) for phase, at in ended.items()},
        "seconds_per_epoch": settled,
        "ms_per_step": 1e3 * settled / max(1, steps),
        "until_settled": seconds - settled * len(seconds_per_epoch),
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30 if on_card else None,
        "reserved_GiB_by_epoch": [round(m / 2**30, 3) for m in (*memory[1:3], *memory[-2:])],
        "val_accuracy": result.history[-1]["val_accuracy"],
        "op_rate": result.history[-1]["op_rate"] if ops == 15 else None,
        "images_are": "random" if data is None else "real",
        "verdict": (result.policy.provenance["verification"] or {}).get("verdict"),
    }


def profile_step(preset: str) -> dict[str, Any]:
    """Milliseconds of one recorded search step by kind of kernel."""
    from functools import partial

    import torch
    from train import kernels, random_split

    from dada import models
    from dada.config import BASES, search_config
    from dada.data import split_off_validation
    from dada.engine import Captured
    from dada.policy_search.state import SearchState
    from dada.policy_search.step import search_step

    device = torch.device("cuda")
    split = split_off_validation(random_split(4000, 32, device), 0.5, 0)
    assert split.val is not None
    config = search_config(preset, base=BASES["cifar10"])
    network = models.build("wrn40_2", 10, seed=0)
    state = SearchState(network, split, config, 0, device)
    call = partial(search_step, state, measure=True)
    step = Captured(call, generators=[state.noise])
    index_B, rate = torch.arange(128, device=device), torch.tensor(0.1, device=device)

    def once() -> Any:
        return step(*split.train.batch(index_B), *split.val.batch(index_B), rate)

    with state.lane:
        for _ in range(4):
            once()
        return kernels(once)


def phases_of_start(settings: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """Seconds between the events of a search, in their order."""
    import torch

    from dada.engine import Captured
    from dada.policy_search.state import SearchState
    from dada.runlog import RunLog

    last = time.perf_counter()
    phases: list[tuple[str, float]] = []

    def note(event: str) -> None:
        nonlocal last
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        now = time.perf_counter()
        phases.append((event, round(now - last, 3)))
        last = now

    def around(owner: type, method: str, event: str) -> None:
        real = getattr(owner, method)

        def noted(*args: Any, **kwargs: Any) -> Any:
            note(f"until {event}")
            try:
                return real(*args, **kwargs)
            finally:
                note(event)

        setattr(owner, method, noted)

    around(SearchState, "__init__", "the state is built")
    around(Captured, "_record", "a graph is recorded")
    around(Captured, "__call__", "a step")
    around(RunLog, "checkpoint", "a checkpoint is written")
    around(RunLog, "finish", "the last policy is written")
    run_here(settings, data)
    note("the report is written")
    return {"phases": phases}


def run_elsewhere(names: list[str], data: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same in a new process, which these cases share."""
    command = [sys.executable, __file__, "--these", ";".join(names)]
    if data is not None:
        command += ["--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(ANSWER):
                name, found = json.loads(line.removeprefix(ANSWER))
                yield name, found
    if process.returncode:
        print(f"{names}: exit code {process.returncode}", flush=True)


def in_processes(names: list[str]) -> list[list[str]]:
    """One process for each case, and one for all that show growth."""
    growth = [name for name in names if name.split()[0] in GROWTH]
    alone = [[name] for name in names if name not in growth]
    return [*alone, *([growth] if growth else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="npz with images (NHWC uint8) and labels")
    parser.add_argument("--only", default="", help="cases, with semicolons between")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--these", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    every = cases()
    if arguments.these:
        for name in arguments.these.split(";"):
            if name.startswith(PROFILE):
                print(ANSWER + json.dumps([name, profile_step(name.removeprefix(PROFILE))]))
                continue
            call = phases_of_start if name == START else run_here
            found = call({"batch_size": 128} | every[name], arguments.data)
            print(ANSWER + json.dumps([name, found]), flush=True)
        return
    wanted = [name.strip() for name in arguments.only.split(";") if name.strip()]
    wanted = wanted or [name for name in every if name not in NEVER_ALL]
    results: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        results = json.loads(arguments.out.read_text())["cases"]
    for names in in_processes([name for name in wanted if name not in results]):
        for name, found in run_elsewhere(names, arguments.data):
            results[name] = every[name] | found
            print(name, json.dumps(results[name]), flush=True)
            if arguments.out:
                text = json.dumps({"machine": machine(), "cases": results}, indent=1)
                arguments.out.write_text(text + "\n")
    columns = ["case", "seconds", "ms_per_step", "until_settled", "peak_GiB", "images_are"]
    print_table([{"case": name} | row for name, row in results.items()], columns)


if __name__ == "__main__":
    main()
