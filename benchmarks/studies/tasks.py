"""Segmentation and detection: is a policy that was searched for better, on images never seen?

    python benchmarks/studies/tasks.py judge nuclei/ --task segmentation --image-size 128 --out FILE
    python benchmarks/studies/tasks.py judge bccd/ --task detection --image-size 144,192 --out FILE
    python benchmarks/studies/tasks.py table5 --classes caltech101/ --boxes bccd/ --out FILE

Arms and counts are fixed here, before any number was seen.

judge   `dada`: `--searches` (3) searches of the training images with default settings, without
        verification, and `--trainings` (3) trainings of each policy on all of them. `none`,
        `uniform`, `trivialaugment` and `randaugment:1,0.5`: nine trainings each. Everyone is scored
        on the test images; where the data has none, on the two fifths that seed 0 splits off.
        Searches are the unit: the mean of a search's trainings. Differences come with Welch's 95%
        interval. "chosen free" is the free policy that two trainings each on half of the training
        images, scored on the other half, prefer. The score is the task's own: mean IoU, AP50.
table5  The paper's: a classifier is trained without a policy and with one that was searched for on
        its data, crop and flip in both, then a detector on each as backbone; box AP of both,
        `--seeds` (5) of each, with the interval of the paired differences.

What is in the file is not run again, so a study may be stopped. `--at-once` trainings share a card:
of `judge` in one process, of `table5` in processes of their own; results do not depend on it.

To share a judge between N processes, give each `--part K/N` and a file of its own, first with
`--only searches`, then with `--only trainings` and the files of the searches to `--join`; the whole
command with all files to `--join` runs what is missing, and concludes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import dada
from dada import Policy, models, tasks
from dada.config import NAMED_BASES, TrainConfig
from dada.data import Part, Split, load, split_off_validation
from dada.data.parts import TensorPart
from dada.engine import resolve_device
from dada.policy.moving import NO_BOX
from dada.training.loop import Job
from dada.training.many import train_many
from dada.trials.statistics import interval

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table, welch

FREE = ("none", "uniform", "trivialaugment", "randaugment:1,0.5")
CHOOSING = 2  # trainings of each free policy on half of the images
TEST_SHARE = 0.4
BASE = NAMED_BASES["photo"]  # of classifiers: crop and flip, as the paper's stock networks have it


def joined(one: TensorPart, other: TensorPart) -> TensorPart:
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
        train = joined(train, source.val.load())
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
    def begin(cls, args: argparse.Namespace) -> Study:
        found: dict[str, Any] = {}
        if args.out and args.out.exists():
            found = json.loads(args.out.read_text())
        for part in getattr(args, "join", []):
            held = json.loads(part.read_text())
            found.setdefault("searches", {}).update(held["searches"])
            for name, scores in held["score"].items():
                found.setdefault("score", {}).setdefault(name, {}).update(scores)
        about = ("out", "join", "part", "only", "data")
        settings = {name: value for name, value in vars(args).items() if name not in about}
        found["settings"] = {name: str(value) for name, value in settings.items()}
        return cls(found, args.out)

    def save(self) -> None:
        if self.out is not None:
            self.out.write_text(json.dumps(self.found | {"machine": machine()}, indent=1) + "\n")


class Judge:
    def __init__(self, args: argparse.Namespace, study: Study) -> None:
        self.args, self.study, self.found = args, study, study.found
        self.device = resolve_device(args.device)
        source = load(args.data, task=args.task, image_size=args.image_size)
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

    def train(self, wanted: list[tuple[str, Policy, int]], split: Split, judge: Part) -> None:
        """(name, policy, seed) -> all scores, those that are not known yet; some at once."""
        shape = split.num_classes, split.channels, split.image_size
        jobs: dict[int, tuple[str, int]] = {}

        def begin() -> Iterator[Job]:
            for name, policy, seed in wanted:
                if str(seed) in self.found["score"].setdefault(name, {}):
                    continue
                job = Job(
                    split=split,
                    model=models.build(self.model, *shape, seed=seed),
                    policy=policy,
                    config=self.config,
                    seed=seed,
                    device=self.device,
                    judge=judge,
                )
                jobs[id(job)] = name, seed
                yield job

        for job, result in train_many(list(begin()), self.args.at_once):
            name, seed = jobs[id(job)]
            kept = self.task.kept(result.scores) | {"seconds": round(result.seconds, 2)}
            self.found["score"][name][str(seed)] = kept
            print(f"{name}, seed {seed}: {100 * kept[self.task.decides]:.2f}", flush=True)
            self.study.save()

    def percent(self, name: str) -> list[float]:
        return [100 * each[self.task.decides] for each in self.found["score"][name].values()]

    def run(self) -> None:
        count, (part, parts) = self.args.searches * self.args.trainings, self.args.part
        if self.args.only == "searches":
            for seed in range(part, self.args.searches, parts):
                self.search(seed)
            return
        wanted = [
            (f"dada search {search}", self.search(search), 1000 * search + training)
            for search in range(self.args.searches)
            for training in range(self.args.trainings)
        ]
        free = {name: Policy.load(name) for name in FREE}
        wanted += [(name, policy, seed) for name, policy in free.items() for seed in range(count)]
        self.train(wanted[part::parts], self.whole, self.test)
        halves = split_off_validation(self.whole, 0.5, 0)
        assert halves.val is not None
        choosing = [
            (f"choosing {name}", policy, seed)
            for name, policy in free.items()
            for seed in range(CHOOSING)
        ]
        self.train(choosing[part::parts], halves, halves.val)
        if parts == 1:
            self.conclude()

    def conclude(self) -> None:
        names = [f"dada search {search}" for search in range(self.args.searches)]
        searches = [statistics.mean(self.percent(name)) for name in names]
        chosen = max(FREE, key=lambda name: statistics.mean(self.percent(f"choosing {name}")))
        rows = [_row("dada", searches)]
        for name in FREE:
            own = self.percent(name)
            row = _row(name, own) | {"chosen": name == chosen}
            if len(searches) > 1 and len(own) > 1:
                ends = welch(searches, own)
                row |= dict(zip(("dada_minus", "from", "to"), ends, strict=True))
            rows.append(row)
        self.found |= {"table": rows, "metric": self.task.decides, "chosen_free": chosen}
        self.study.save()
        columns = ["policy", "score", "lowest", "highest", "n", "dada_minus", "from", "to"]
        print_table(rows, columns)
        print(f"the free policy chosen on validation images: {chosen}")


def _row(name: str, scores: list[float]) -> dict[str, Any]:
    ends = {"lowest": min(scores), "highest": max(scores), "n": len(scores)}
    return {"policy": name, "score": statistics.mean(scores), **ends}


def table5(args: argparse.Namespace, study: Study) -> None:
    """Two commands for each arm and seed: a classifier, and a detector on it."""
    found = study.found
    held = found.setdefault("ap", {})
    if "policy" not in found:
        result = dada.search(
            args.classes,
            model=args.backbone,
            image_size=args.class_size,
            base="none",  # as the trainings have it
            verify=False,
            device=args.device,
        )
        found["policy"] = json.dumps(json.loads(result.policy.to_json()))
        study.save()
    arms = {"none": Policy.load("none"), "found": Policy.from_json(found["policy"])}
    wanted = [
        (name, policy, seed)
        for seed in range(args.seeds)
        for name, policy in arms.items()
        if str(seed) not in held.setdefault(f"{args.detector} {name}", {})
    ]
    # A detector's steps wait for the host: processes of their own fill the card.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.at_once, mp_context=spawn) as pool:
        made = {pool.submit(_detector, args, *each): each for each in wanted}
        for ended in as_completed(made):
            name, _, seed = made[ended]
            key = f"{args.detector} {name}"
            held[key][str(seed)] = ended.result()
            print(f"{key}, seed {seed}: AP {100 * ended.result()['ap']:.2f}", flush=True)
            study.save()
    both = [
        [100 * held[f"{args.detector} {name}"][str(seed)]["ap"] for seed in range(args.seeds)]
        for name in arms
    ]
    difference = [b - a for a, b in zip(*both, strict=True)]
    row = {"detector": args.detector, "none": statistics.mean(both[0])}
    row |= {"found": statistics.mean(both[1]), "difference": statistics.mean(difference)}
    row |= {"interval": interval(difference), "seeds": len(difference)}
    found.setdefault("table", {})[args.detector] = row
    study.save()
    print(row)


def _detector(args: argparse.Namespace, name: str, policy: Policy, seed: int) -> dict[str, Any]:
    """The scores of a detector on a backbone that was trained under the policy before."""
    begun = time.perf_counter()
    shared = {"seed": seed, "device": args.device}
    folder = args.runs / f"{name}-{seed}"
    classifier = dada.train(
        args.classes,
        policy,
        args.backbone,
        out=folder,
        resume=True,
        epochs=args.class_epochs,
        image_size=args.class_size,
        base=BASE,
        **shared,
    )
    trained = dada.train(
        args.boxes,
        "none",
        args.detector,
        backbone=folder,
        task="detection",
        epochs=args.epochs,
        image_size=args.image_size,
        **shared,
    )
    seconds = round(time.perf_counter() - begun, 1)
    more = {"accuracy": classifier.scores.accuracy, "seconds": seconds}
    return asdict(trained.scores) | more


def size_of(text: str) -> int | tuple[int, int]:
    sides = tuple(map(int, text.split(",")))
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def part_of(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    return part, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("judge")
    one.add_argument("data")
    one.add_argument("--task")
    one.add_argument("--model")
    one.add_argument("--image-size", type=size_of)
    one.add_argument("--epochs", type=int, default=60)
    one.add_argument("--searches", type=int, default=3)
    one.add_argument("--trainings", type=int, default=3)
    one.add_argument("--lookahead", type=float, help="seconds; default: as the search has it")
    one.add_argument("--only", choices=("searches", "trainings"), help="of the work")
    one.add_argument("--part", type=part_of, default=(0, 1), help="K/N: this process's share")
    one.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    two = commands.add_parser("table5")
    one.add_argument("--at-once", type=int, default=3, help="trainings that share a card")
    two.add_argument("--classes", required=True, help="data to train the backbone on")
    two.add_argument("--boxes", required=True, help="data to detect on")
    two.add_argument("--backbone", default="torchvision:resnet50")
    two.add_argument("--detector", default="fasterrcnn", help="or retinanet, maskrcnn")
    two.add_argument("--seeds", type=int, default=5)
    two.add_argument("--class-size", type=size_of, default=96)
    two.add_argument("--class-epochs", type=int, default=60)
    two.add_argument("--image-size", type=size_of)
    two.add_argument("--epochs", type=int, default=20)
    two.add_argument("--runs", type=Path, default=Path("runs/table5"), help="of the classifiers")
    two.add_argument("--at-once", type=int, default=1, help="processes that share a card")
    for each in (one, two):
        each.add_argument("--device", default="auto")
        each.add_argument("--out", type=Path)
    args = parser.parse_args()
    study = Study.begin(args)
    if args.command == "judge":
        Judge(args, study).run()
    else:
        table5(args, study)


if __name__ == "__main__":
    main()
