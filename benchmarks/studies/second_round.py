"""The second round of a search: what it may choose from, what it sees, and what is true.

    python benchmarks/studies/second_round.py JUDGED.json DATA --arms "1 0.5 2 any wide;..."

JUDGED is what `judge.py` wrote for the same data: the scores of its searches are taken from there.
An arm is `found`, the policy of the search itself, the name of a free policy, or one made of the
scores, in five words (with | between them, several in equal parts):

sharpness     a sub-policy is likelier by exp(sharpness x the sum of its operations' scores)
probability   with which operations fire
operations    in a sub-policy
magnitude     of all of them: a number, any, weak (the lower half) or strong (the upper)
space         strength, or wide: over TrivialAugment's ranges

Two readings of every arm, search by search: *ahead*, of those made of scores, the validation loss
of each run as in the second round of a search (`dada.shapes`), and *truth*, the test accuracy of
trainings on all images. *Rules*: where every search has all of what is compared, how much better
than `uniform` those arms are that a rule of choosing would have taken. The shapes that a search
tries were chosen with such truths in sight; no search has seen them. What is in the file is not run
again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from judge import Judge, Sample
from torch import Tensor

from dada import Policy, models
from dada.config import BASES, LOOKAHEAD, Base, TrainConfig
from dada.data import load, split_off_validation
from dada.engine import resolve_device
from dada.policy import PolicyOp, SubPolicy
from dada.policy.space import SPACES, SearchSpace
from dada.policy_search.lookahead.runs import BranchedRuns
from dada.policy_search.lookahead.scoring import clearly_lowest
from dada.training.loop import at_once_for

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

FIRST_SEED = 5000  # of trainings: the judge has others
MAGNITUDES = {"any": (0.0, 1.0), "weak": (0.0, 0.5), "strong": (0.5, 1.0)}


def policy_of(arm: str, searched: Policy) -> Policy:
    if " " not in arm:
        return searched if arm == "found" else Policy.load(arm)
    mixed = [policy_of_words(words, searched) for words in arm.split("|")]
    shared = len(mixed)
    subpolicies = (replace(s, weight=s.weight / shared) for each in mixed for s in each.subpolicies)
    return replace(mixed[0], subpolicies=tuple(subpolicies))


def policy_of_words(arm: str, searched: Policy) -> Policy:
    sharpness, probability, operations, word, space = arm.split()
    score = searched.provenance["lookahead"]["score"]
    magnitude = MAGNITUDES.get(word) or float(word)
    names = [op.name for op in SPACES[space].ops if op.name in score]
    rows = list(itertools.combinations(names, int(operations)))
    weights = [math.exp(float(sharpness) * sum(score[name] for name in row)) for row in rows]
    subpolicies = (
        SubPolicy(
            weight / math.fsum(weights),
            tuple(PolicyOp(name, float(probability), magnitude) for name in row),
        )
        for row, weight in zip(rows, weights, strict=True)
    )
    return Policy(tuple(subpolicies), space, "weighted", {})


class Study:
    """What all readings share."""

    def __init__(self, asked: dict[str, Any], args: argparse.Namespace) -> None:
        self.asked, self.args = asked, args
        self.device = resolve_device("auto")
        self.source = load(args.data, image_size=asked["image_size"])
        self.base = BASES[asked["base"]] if asked["base"] else Base()
        default = models.default_model(self.device.type, self.source.image_size)
        self.model = asked["model"] or default
        self.at_once = at_once_for(self.device, self.source.image_size)

    def sample(self, search: int) -> Sample:
        first = self.asked.get("first", 0)
        own = search if self.asked.get("samples") else first
        pool = bool(self.asked.get("pool"))
        return Sample.drawn(self.source, self.asked["train"], own, pool=pool, suffix="")

    def network(self, sample: Sample, seed: int) -> torch.nn.Module:
        split = sample.whole
        shape = split.num_classes, split.channels, split.image_size
        return models.build(self.model, *shape, seed=seed)

    def ahead(self, sample: Sample, search: int, arms: dict[str, Policy]) -> dict[str, list[float]]:
        settings = LOOKAHEAD[self.device.type]
        runs = BranchedRuns.over(
            split_off_validation(sample.whole, 0.5, search),
            SearchSpace.named("strength"),
            self.base,
            settings,
            lambda seed: self.network(sample, seed),
            self.device,
            exchange=True,
            seed=search,
        )
        return runs.losses(arms, self.args.runs, file="", first=settings.most_runs).loss

    def truth(
        self, sample: Sample, search: int, arms: dict[str, Policy], found: dict[str, list[float]]
    ) -> None:
        epochs = self.args.epochs or self.asked["epochs"]
        judge = Judge(
            config=TrainConfig(epochs=epochs, batch_size=self.asked["batch_size"], base=self.base),
            model=self.model,
            device=self.device,
            at_once=self.at_once,
            found={"accuracy": {}},
            out=None,
        )
        wanted = [
            (arm, policy, FIRST_SEED + 100 * search + number)
            for arm, policy in arms.items()
            for number in range(len(found.setdefault(arm, [])), self.args.trainings)
        ]
        judge.train(wanted, sample.whole, sample.test)
        for arm, by_seed in judge.found["accuracy"].items():
            found[arm] += [round(accuracy, 2) for accuracy in by_seed.values()]


def table(searches: dict[str, Any]) -> list[dict[str, Any]]:
    """Means over all searches that have a reading, and how many of them and trainings there are."""
    arms = dict.fromkeys(arm for held in searches.values() for of in held.values() for arm in of)
    rows = []
    for arm in arms:
        ahead = [
            statistics.fmean(s["ahead"][arm]) for s in searches.values() if s["ahead"].get(arm)
        ]
        truth = [
            statistics.fmean(s["truth"][arm]) for s in searches.values() if s["truth"].get(arm)
        ]
        trainings = sum(len(s["truth"].get(arm, [])) for s in searches.values())
        row: dict[str, Any] = {"arm": arm, "searches": max(len(ahead), len(truth))}
        row |= {"trainings": trainings}
        row |= {"loss": statistics.fmean(ahead)} if ahead else {}
        row |= {"accuracy": statistics.fmean(truth)} if truth else {}
        rows.append(row)
    return rows


BROADEST, UNIFORM = "1 1 2 any strength", "0 0.5 2 any strength"
TRIED = (BROADEST, "1 0.5 2 any strength", "1 1 1 0.5 strength", "1 1 1 any wide")  # by a search
Rule = Callable[[Tensor], int]
RULES: dict[str, Rule] = {
    "the broadest": lambda loss_RP: 0,
    "the lowest loss": lambda loss_RP: int(loss_RP.mean(0).argmin()),
    "the lowest, if clearly lower than the broadest": clearly_lowest,
}


def rules(searches: dict[str, Any]) -> list[dict[str, Any]]:
    """How much better than `uniform` is what each rule takes, search by search."""
    common = set.intersection(*({*s["ahead"]} & {*s["truth"]} for s in searches.values()))
    if not common.issuperset((UNIFORM, *TRIED)):
        return []
    others = sorted(common - {BROADEST, UNIFORM})
    rows = []
    for among, arms in {"all of these": (BROADEST, *others), "those a search tries": TRIED}.items():
        for rule, take in RULES.items():
            gains, kept = [], 0
            for held in searches.values():
                loss_RP = torch.tensor([held["ahead"][arm] for arm in arms]).T
                taken = arms[take(loss_RP)]
                truth = {arm: statistics.fmean(held["truth"][arm]) for arm in (taken, UNIFORM)}
                gains.append(truth[taken] - truth[UNIFORM])
                kept += taken == BROADEST
            row = {"rule": rule, "among": among, "broadest": kept, "n": len(gains)}
            rows.append(row | {"minus_uniform": statistics.fmean(gains)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("judged", type=Path)
    parser.add_argument("data")
    parser.add_argument("--arms", required=True, help="with semicolons between")
    parser.add_argument("--searches", default="0,1,2,3")
    parser.add_argument("--runs", type=int, default=2, help="of looking ahead; 0: none")
    parser.add_argument("--trainings", type=int, default=2, help="of every arm and search")
    parser.add_argument("--epochs", type=int, help="of a training; those of the judge")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    judged = json.loads(args.judged.read_text())
    study = Study(judged["settings"], args)
    found: dict[str, Any] = {"searches": {}}
    if args.out and args.out.exists():
        found = json.loads(args.out.read_text())

    def save() -> None:
        if args.out:
            settings = {name: getattr(args, name) for name in ("runs", "epochs")}
            content = found | {"machine": machine(), "settings": settings}
            content |= {"table": table(found["searches"]), "rules": rules(found["searches"])}
            args.out.write_text(json.dumps(content, indent=1) + "\n")

    for search in map(int, args.searches.split(",")):
        searched = Policy.from_json(judged["searches"][f"dada {search}"]["policy"])
        arms = {arm: policy_of(arm, searched) for arm in args.arms.split(";")}
        sample = study.sample(search)
        held = found["searches"].setdefault(str(search), {"ahead": {}, "truth": {}})
        made = {arm: policy for arm, policy in arms.items() if " " in arm}
        new = {arm: policy for arm, policy in made.items() if arm not in held["ahead"]}
        if args.runs and new:
            held["ahead"] |= study.ahead(sample, search, new)
            save()
        study.truth(sample, search, arms, held["truth"])
        save()
        print(f"search {search} done", flush=True)
    print_table(table(found["searches"]), ["arm", "searches", "trainings", "loss", "accuracy"])


if __name__ == "__main__":
    main()
