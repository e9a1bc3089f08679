"""How sure are searches? The word of each (clear, weak or none), by its first round alone.

    python benchmarks/studies/words.py DATA --train 1000 [--model wrn40_2] [--out FILE]
    python benchmarks/studies/words.py digits --train 200 --shuffle [--out FILE]
    python benchmarks/studies/words.py digits --train 200 --shuffle --settings-of cuda

A search says it by the runs of its first round, made again where they show nothing; nothing else
of it is run here. With --shuffle every search has labels in another order, of which no policy
knows anything. With --pool images are drawn from those to train and to test, as a judge draws them.
With --settings-of a device searches as on that one, wherever it runs: steps, runs and whether to
look again are settings; --lookahead gives them other seconds.
What is in the file is not run again. To share the work between processes, give each some of it
(`--first`, `--searches`) and a file of its own; the whole command with `--join` reads those files
and runs what is missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from judge import Sample

from dada import models
from dada.api.preparation import SharedOptions, prepare
from dada.api.searching import search_job
from dada.config import LOOKAHEAD, Base
from dada.data import load, reduce
from dada.engine import resolve_device
from dada.policy_search.lookahead import first_round, plan_for

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import earlier, joined, print_table, save


def word_of(
    images: torch.Tensor, labels_N: torch.Tensor, args: argparse.Namespace, seed: int
) -> dict[str, Any]:
    if args.shuffle:
        order = torch.Generator().manual_seed(seed)
        labels_N = labels_N[torch.randperm(len(labels_N), generator=order)]
    begun = time.perf_counter()
    options = SharedOptions(
        model=args.model, seed=seed, device=args.device, settings={"base": Base()}
    )
    asked = prepare("search", (images, labels_N), options)
    settings = LOOKAHEAD[args.settings_of or args.device]
    seconds = settings.seconds if args.lookahead is None else args.lookahead
    settings = replace(settings, seconds=seconds)
    _, job, _ = search_job(asked, None, "dada", settings, False, None)
    plan = plan_for(job)
    assert plan is not None
    losses, signal = first_round(plan)
    again = losses.runs > plan.first
    facts = {"seed": seed, **asdict(signal), "runs": losses.runs, "looked_again": again}
    return facts | {"seconds": round(time.perf_counter() - begun, 1), "loss": losses.loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--train", type=int, required=True, help="images of a search")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--settings-of", choices=sorted(LOOKAHEAD), help="else of the device")
    parser.add_argument("--lookahead", type=float, help="seconds of it, else the default's")
    parser.add_argument("--searches", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--sample-seed", type=int, default=0)
    parser.add_argument("--pool", action="store_true")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.device = resolve_device(args.device).type
    source = replace(load(args.data, image_size=args.image_size), val=None)
    args.model = args.model or models.default_model(args.device, source.image_size)
    whole = reduce(source, args.train, args.sample_seed)
    if args.pool:
        whole = Sample.drawn(source, args.train, args.sample_seed, pool=True, suffix="").whole
    images, labels_N = whole.train.batch(torch.arange(len(whole.train)))
    settings = {k: v for k, v in vars(args).items() if k not in ("data", "out", "join")}
    found: dict[str, Any] = {"settings": settings | {"fingerprint": source.fingerprint}}
    searches = found["searches"] = dict[str, dict[str, Any]]()
    joined(found, earlier(args), apart=("first", "searches"))
    for seed in range(args.first, args.first + args.searches):
        if str(seed) not in searches:
            row = searches[str(seed)] = word_of(images, labels_N, args, seed)
            print(seed, row["word"], f"({row['seconds']:.0f} s)", flush=True)
        found["words"] = Counter(row["word"] for row in searches.values())
        save(found, args.out)
    rows = sorted(searches.values(), key=lambda row: row["seed"])
    print_table(rows, ["seed", "word", "chance", "agreement", "runs", "seconds"])


if __name__ == "__main__":
    main()
