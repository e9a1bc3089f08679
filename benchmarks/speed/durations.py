"""How long a search says that it will take, and how long it takes: by phase.

    python benchmarks/speed/durations.py DATA [--model NAME] [--weights FILE] [--image-size 64] \\
        [--device auto] [--verify-budget S] [--out FILE]

One search, as a user's. What is said is counted, for a nominal machine that has nothing else to do
(src/dada/policy_search/duration.py); the load of this one stands beside it. Rows are added to the
file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import dada

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table


def one_search(args: argparse.Namespace) -> dict[str, Any]:
    said: dict[str, float] = {}
    ended: dict[str, float] = {}
    load = os.getloadavg()[0]
    begun = time.perf_counter()

    def now(phase: str) -> None:
        ended[phase] = time.perf_counter() - begun

    def plan(seconds: dict[str, float]) -> None:
        said.update(seconds)
        now("reading")

    given = {name: getattr(args, name) for name in ("model", "weights", "image_size", "device")}
    policy = dada.search(
        args.data,
        verify_budget=args.verify_budget,
        on_plan=plan,
        on_epoch=lambda *_: now("measuring"),
        on_lookahead=lambda *_: now("looking ahead"),
        on_training=lambda *_: now("verifying"),
        **given,
    ).policy
    facts, before, measured = policy.provenance, 0.0, {}
    for phase, at in ended.items():
        measured[phase], before = round(at - before, 2), at
    return {
        "data": Path(args.data).name,
        "model": facts["model"],
        "images": facts["data"]["train"] + facts["data"]["val"],
        "image_size": facts["data"]["image_size"],
        "pretrained": args.weights is not None,
        "said": {phase: round(seconds, 2) for phase, seconds in said.items()},
        "measured": measured,
        "signal": facts["signal"]["word"],
        "load": round(load, 2),
        "threads": torch.get_num_threads(),
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--model")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--verify-budget", type=float)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    rows.append(one_search(args))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print_table(rows, ["data", "model", "images", "said", "measured", "signal", "load"])


if __name__ == "__main__":
    main()
