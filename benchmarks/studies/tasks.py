"""Segmentation and detection: is a policy that was searched for better, on images never seen?

    python benchmarks/studies/tasks.py nuclei/ --task segmentation --image-size 128 --out FILE
    python benchmarks/studies/tasks.py bccd/ --task detection --image-size 144,192 --out FILE

Arms and counts are fixed here, before any number of this study was seen. Trials on the same data
were seen before (docs/detection.md).

`dada`: `--searches` (3) searches of the training images with default settings, without
verification, and `--trainings` (3) trainings on all of them under each policy, with what its
search chose to do to every image, as `dada train` does. `none`, `uniform`, `trivialaugment` and
`randaugment:1,0.5`, nine trainings each: as they are, and once more with every image mirrored at
random, so that a mirror is not credited to a search. `base alone`: no policy, but what each search
chose for every image, three trainings each: what is left is the policy's own. All are scored on
the test images; where the data has none, on the two fifths that seed 0 splits off. Searches are
the unit: the mean of a search's trainings. Differences come with Welch's 95% interval. "chosen
free" is that of the eight free arms that two trainings each on half of the training images, scored
on the other half, prefer. The score is the task's own: mean IoU, AP50.

What is in the file is not run again, so a study may be stopped. `--at-once` trainings of a process
share a card; results do not depend on it.

To share a judge between N processes, give each `--part K/N` and a file of its own, and say which
half of the work with `--only`: `dada`, where K counts searches, or `free`. The whole command with
all files to `--join` runs what is missing, and concludes; with `--only table` it concludes from
what is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import dada
from dada import Policy, models, tasks
from dada.config import NAMED_BASES, Base, TrainConfig
from dada.data import Part, Split, load, split_off_validation
from dada.data.parts import TensorPart
from dada.engine import resolve_device
from dada.policy.moving import NO_BOX
from dada.report.base import chosen_base
from dada.training.loop import Job
from dada.training.many import train_many

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import earlier, joined, print_table, save, welch

FREE = ("none", "uniform", "trivialaugment", "randaugment:1,0.5")
MIRRORED = ", mirrored"
ALONE = "base alone"
CHOOSING = 2  # trainings of each free policy on half of the images
TEST_SHARE = 0.4
APART = ("at_once", "searches", "seeds", "trainings")  # settings of one process, or more later


def as_one(one: TensorPart, other: TensorPart) -> TensorPart:
    """Both as one part; rows of boxes are filled up to the same number."""
    targets = []
    for mine, theirs in zip(one.targets, other.targets, strict=True):
        most = max(mine.shape[1], theirs.shape[1])
        targets.append(torch.cat([_filled(mine, most), _filled(theirs, most)]))
    return TensorPart(
        torch.cat([one.images_NCHW, other.images_NCHW]),
        torch.cat([one.labels_N, other.labels_N]),
        targets=tuple(targets),
    )


def _filled(target: torch.Tensor, most: int) -> torch.Tensor:
    if target.shape[-1] != 5 or target.shape[1] == most:
        return target
    empty = torch.zeros(len(target), most - target.shape[1], 5)
    empty[..., 4] = NO_BOX
    return torch.cat([target, empty], 1)


def divided(source: Split) -> tuple[Split, Part]:
    """What may be searched and trained on, undivided, and the test images."""
    train, test = source.train.load(), source.test
    if source.val is not None:
        train = as_one(train, source.val.load())
    whole = replace(source, train=train, val=None, test=None)
    if test is not None:
        return whole, test
    parted = split_off_validation(whole, TEST_SHARE, 0)
    assert parted.val is not None
    return replace(parted, val=None), parted.val


@dataclass(frozen=True)
class Study:
    """The file that everything goes to."""

    found: dict[str, Any]
    out: Path | None

    @classmethod
    def begin(cls, args: argparse.Namespace, data: Split | None = None) -> Study:
        about = ("out", "join", "part", "only", "data", "classes", "detectors", "runs")
        settings = {name: value for name, value in vars(args).items() if name not in about}
        found: dict[str, Any] = {"settings": {name: str(each) for name, each in settings.items()}}
        if data is not None:
            found["settings"]["fingerprint"] = data.fingerprint
        return cls(joined(found, earlier(args), apart=APART), args.out)

    def save(self) -> None:
        save(self.found, self.out)


@dataclass(frozen=True)
class Arm:
    """A training of the judge."""

    name: str
    policy: Policy
    base: Base
    seed: int


def free_arms(seeds: range) -> list[Arm]:
    """All arms of a seed before those of the next, so that what is stopped early is balanced."""
    return [
        Arm(name + mirrored, Policy.load(name), base, seed)
        for seed in seeds
        for mirrored, base in (("", Base()), (MIRRORED, NAMED_BASES["flip"]))
        for name in FREE
    ]


class Judge:
    def __init__(self, args: argparse.Namespace) -> None:
        source = load(args.data, task=args.task, image_size=args.image_size)
        self.args, self.study = args, Study.begin(args, source)
        self.found = self.study.found
        self.device = resolve_device(args.device)
        self.whole, self.test = divided(source)
        self.task = tasks.named(self.whole.task)
        size = self.whole.image_size
        self.model = args.model or self.task.default_model(self.device.type, size)
        settings = {**self.task.settings_for(self.model), "epochs": args.epochs}
        self.config = TrainConfig(**settings)
        self.found.setdefault("searches", {})
        self.found.setdefault("score", {})
        self.found["training"] = asdict(self.config)
        self.found["images"] = {"train": len(self.whole.train), "test": len(self.test)}

    def search(self, seed: int) -> Policy:
        held = self.found["searches"].get(str(seed))
        if held is None:
            begun = time.perf_counter()
            more = {} if self.args.lookahead is None else {"lookahead": self.args.lookahead}
            result = dada.search(
                self.whole,
                model=self.model,
                seed=seed,
                verify=False,
                device=self.args.device,
                **more,
            )
            seconds = time.perf_counter() - begun
            policy = json.dumps(json.loads(result.policy.to_json()))
            held = self.found["searches"][str(seed)] = {"policy": policy, "seconds": seconds}
            print(f"search {seed}: {seconds:.0f} s", flush=True)
            self.study.save()
        return Policy.from_json(held["policy"])

    def train(self, wanted: list[Arm], split: Split, judge: Part) -> None:
        """All scores of those arms and seeds that are not known yet; some at once."""
        shape = split.num_classes, split.channels, split.image_size
        jobs: dict[int, Arm] = {}
        waiting: list[Job] = []
        for arm in wanted:
            if str(arm.seed) in self.found["score"].setdefault(arm.name, {}):
                continue
            job = Job(
                split=split,
                model=models.build(self.model, *shape, seed=arm.seed),
                policy=arm.policy,
                config=replace(self.config, base=arm.base),
                seed=arm.seed,
                device=self.device,
                judge=judge,
            )
            jobs[id(job)] = arm
            waiting.append(job)
        for job, result in train_many(waiting, self.args.at_once):
            arm = jobs[id(job)]
            kept = self.task.kept(result.scores) | {"seconds": round(result.seconds, 2)}
            self.found["score"][arm.name][str(arm.seed)] = kept
            print(f"{arm.name}, seed {arm.seed}: {100 * kept[self.task.decides]:.2f}", flush=True)
            self.study.save()

    def percent(self, name: str) -> list[float]:
        held = self.found["score"].get(name, {})
        return [100 * each[self.task.decides] for each in held.values()]

    def run(self) -> None:
        part, parts = self.args.part
        if self.args.only in (None, "dada"):
            for search in range(part, self.args.searches, parts):
                self.train(self.arms_of(search), self.whole, self.test)
        if self.args.only in (None, "free"):
            halves = split_off_validation(self.whole, 0.5, 0)
            assert halves.val is not None
            choosing = [
                replace(arm, name=f"choosing {arm.name}") for arm in free_arms(range(CHOOSING))
            ]
            self.train(choosing[part::parts], halves, halves.val)
            free = free_arms(range(self.args.searches * self.args.trainings))
            self.train(free[part::parts], self.whole, self.test)
        if parts == 1:
            self.conclude()

    def arms_of(self, search: int) -> list[Arm]:
        policy = self.search(search)
        base = NAMED_BASES[chosen_base(policy) or "none"]
        seeds = [1000 * search + training for training in range(self.args.trainings)]
        both = ("dada", policy), (ALONE, Policy.load("none"))
        return [
            Arm(f"{name} search {search}", own, base, seed) for seed in seeds for name, own in both
        ]

    def by_search(self, name: str) -> list[float]:
        each = [self.percent(f"{name} search {search}") for search in range(self.args.searches)]
        return [statistics.mean(scores) for scores in each if scores]

    def conclude(self) -> None:
        """From what is there: a study that was stopped early has fewer trainings of some."""
        searches = self.by_search("dada")
        names = list(dict.fromkeys(arm.name for arm in free_arms(range(1))))
        tried = {name: self.percent(f"choosing {name}") for name in names}
        known = [name for name in names if tried[name] and self.percent(name)]
        chosen = max(known, key=lambda name: statistics.mean(tried[name]), default=None)
        rows = [_row("dada", searches)] if searches else []
        for name in (*names, ALONE):
            own = self.by_search(name) if name == ALONE else self.percent(name)
            if not own:
                continue
            row = _row(name, own) | {"chosen": name == chosen}
            if len(searches) > 1 and len(own) > 1:
                ends = welch(searches, own)
                row |= dict(zip(("dada_minus", "from", "to"), ends, strict=True))
            rows.append(row)
        bases = {
            search: chosen_base(Policy.from_json(held["policy"]))
            for search, held in self.found["searches"].items()
        }
        self.found |= {"table": rows, "metric": self.task.decides, "chosen_free": chosen}
        self.found["bases"] = bases
        self.study.save()
        columns = ["policy", "score", "lowest", "highest", "n", "dada_minus", "from", "to"]
        print_table(rows, columns)
        print(f"the free policy chosen on validation images: {chosen}; bases chosen: {bases}")


def _row(name: str, scores: list[float]) -> dict[str, Any]:
    ends = {"lowest": min(scores), "highest": max(scores), "n": len(scores)}
    return {"policy": name, "score": statistics.mean(scores), **ends}


def size_of(text: str) -> int | tuple[int, int]:
    sides = tuple(map(int, text.split(",")))
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def part_of(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    return part, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--task")
    parser.add_argument("--model")
    parser.add_argument("--image-size", type=size_of)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--lookahead", type=float, help="seconds; default: as the search has it")
    parser.add_argument("--only", choices=("dada", "free", "table"), help="of the work")
    parser.add_argument("--part", type=part_of, default=(0, 1), help="K/N: this process's share")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    parser.add_argument("--at-once", type=int, default=3, help="trainings that share a card")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    Judge(args).run()


if __name__ == "__main__":
    main()
