"""What shape should a search on a CPU give its policy?

    python benchmarks/studies/cpu_shapes.py NAME DATA.npz --arms "1 1 2 any strength;..." --out FILE

A search of the default preset gives scores to the operations. Policies of several shapes are made
of them (arms, as in second_round.py), and `small` is trained with each on all training images and
tested. NAME is the row of the table in the file; what is in the file is not run again. With
`--scores JUDGED.json` the scores are those of searches that were judged. With `--runs` the second
round of a search sees the arms as well, on the images themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dada
from dada import Policy, models
from dada.config import BASES, LOOKAHEAD, Base, TrainConfig
from dada.data import load, split_off_validation
from dada.engine import resolve_device
from dada.policy.space import SPACES, SearchSpace
from dada.policy_search.lookahead.runs import BranchedRuns

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from judge import Judge
from measure import machine
from second_round import policy_of

EPOCHS, BATCH = 60, 64


def scored(provenance: dict[str, Any]) -> dict[str, Any]:
    """Of a search, what its scores are and how sure it was."""
    known = {name: provenance["lookahead"].get(name) for name in ("score", "runs", "shape")}
    signal = (provenance.get("signal") or {}).get("word")
    return known | {"stand_in": "stand_in" in provenance["lookahead"], "signal": signal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("data")
    parser.add_argument("--arms", required=True, help="with semicolons between")
    parser.add_argument("--search", type=int, default=0, help="its seed")
    parser.add_argument("--runs", type=int, default=0, help="of looking ahead")
    parser.add_argument("--trainings", type=int, default=2, help="of every arm")
    parser.add_argument("--base", choices=list(BASES), help="crop, flip, cutout of")
    parser.add_argument("--scores", type=Path, help="a file of the judge")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = resolve_device("cpu")
    split = load(args.data)
    assert split.test is not None
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    searches = found.setdefault("sets", {}).setdefault(args.name, {})
    base = BASES[args.base] if args.base else Base()
    held = searches.setdefault(str(args.search), {"accuracy": {}})
    if "score" not in held:
        if args.scores:
            judged = json.loads(args.scores.read_text())["searches"][f"dada {args.search}"]
            policy = Policy.from_json(judged["policy"])
        else:
            data = split.train.load()
            given = {"model": "small", "base": base, "verify": False, "device": "cpu"}
            pair = (data.images_NCHW, data.labels_N)
            policy = dada.search(pair, seed=args.search, **given).policy
        held |= scored(policy.provenance)
    known = {"lookahead": {"score": held["score"]}}
    searched = replace(Policy.load("uniform"), provenance=known)
    arms = {arm: policy_of(arm, searched) for arm in args.arms.split(";")}
    if args.runs:
        settings = LOOKAHEAD["cpu"]
        missing = [op.name for op in SPACES["paper"].ops if op.name not in held["score"]]
        shape = split.num_classes, split.channels, split.image_size
        runs = BranchedRuns.over(
            split_off_validation(replace(split, test=None), 0.5, args.search),
            SearchSpace.named("paper", exclude=missing),
            base,
            settings,
            models.untrained("small", *shape),
            device,
            exchange=True,
            seed=args.search,
        )
        made = {arm: policy for arm, policy in arms.items() if " " in arm}
        held["ahead"] = runs.losses(made, args.runs, file="", first=settings.most_runs).loss
    judge = Judge(
        config=TrainConfig(epochs=EPOCHS, batch_size=BATCH, base=base),
        model="small",
        device=device,
        at_once=1,
        found={"accuracy": held["accuracy"]},
        out=None,
    )
    for arm, policy in arms.items():
        seeds = range(100 * args.search, 100 * args.search + args.trainings)
        judge.train([(arm, policy, seed) for seed in seeds], split, split.test)
        found["machine"] = machine()
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
