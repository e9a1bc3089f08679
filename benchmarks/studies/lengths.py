"""How far ahead does the second round have to look, for a training that is longer?

    python benchmarks/studies/lengths.py JUDGED.json DATA --name NAME --out FILE [--image-size 16]

JUDGED is what `judge.py` wrote for the same data: shapes are made of the scores of its searches, as
in `second_round.py`. Every shape ends trainings of the second round on a CPU, and trainings two,
three, four and eight times as long, with the same seeds. Those of eight times are what shorter ones
should foresee; `benchmarks/tools/study_tables.py` asks how well they do. All sets may share a FILE;
what is in it is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from judge import Sample
from second_round import policy_of

from dada import Policy, models
from dada.config import BASES, LOOKAHEAD, Base
from dada.data import load, split_off_validation
from dada.policy.space import SearchSpace
from dada.policy_search.lookahead.runs import BranchedRuns, run_branches

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine

LENGTHS = (1, 2, 3, 4, 8)
RUNS = 2  # one for each half of the images
READINGS = ("loss", "accuracy")
SHAPES = (
    "1 1 2 any strength",
    "1 0.5 2 any strength",
    "1 0.25 2 any strength",
    "1 1 1 0.5 strength",
    "1 1 1 any wide",
)


def runs_of(asked: dict[str, Any], args: argparse.Namespace, search: int) -> BranchedRuns:
    """Of the second round of a search on a CPU."""
    source = load(args.data, image_size=args.image_size)
    own = search if asked["samples"] else 0
    sample = Sample.drawn(source, asked["train"], own, pool=asked["pool"], suffix="").whole
    base = BASES[asked["base"]] if asked["base"] else Base()
    if args.image_size and asked["base"]:  # half the size, half of the pixels to pad and to cover
        base = Base(crop=base.crop // 2, flip=base.flip, cutout=base.cutout // 2)
    shape = sample.num_classes, sample.channels, sample.image_size
    return BranchedRuns.over(
        split_off_validation(sample, 0.5, search),
        SearchSpace.named("strength"),
        base,
        LOOKAHEAD["cpu"],
        lambda seed: models.build("small", *shape, seed=seed),
        torch.device("cpu"),
        exchange=True,
        seed=search,
    )


def ends_of(runs: BranchedRuns, arms: dict[str, Policy]) -> dict[str, dict[str, list[float]]]:
    """Reading -> arm -> run by run."""
    found = {reading: {arm: list[float]() for arm in arms} for reading in READINGS}
    first = runs.settings.most_runs  # seeds of the second round
    for number in range(first, first + RUNS):
        [(_, scores)] = run_branches([runs.numbered(arms, number)])
        for reading, arm in ((r, a) for r in READINGS for a in arms):
            found[reading][arm].append(round(getattr(scores[arm], reading), 5))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("judged", type=Path)
    parser.add_argument("data")
    parser.add_argument("--name", required=True, help="of the data, in the file")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--searches", default="0,1,2")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    judged = json.loads(args.judged.read_text())
    found = json.loads(args.out.read_text()) if args.out.exists() else {"data": {}}
    of_data = found["data"].setdefault(args.name, {})
    for search in args.searches.split(","):
        runs = runs_of(judged["settings"], args, int(search))
        searched = Policy.from_json(judged["searches"][f"dada {search}"]["policy"])
        arms = {shape: policy_of(shape, searched) for shape in SHAPES}
        known = of_data.setdefault(search, {})
        for times in LENGTHS:
            if str(times) not in known:
                known[str(times)] = ends_of(runs.lengthened(times), arms)
                args.out.write_text(json.dumps(found | {"machine": machine()}, indent=1) + "\n")
        print(f"search {search} done", flush=True)


if __name__ == "__main__":
    main()
