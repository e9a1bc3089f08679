"""Pretrained networks: how much augmentation fine-tuning wants, and which reading knows it.

    python benchmarks/studies/fine_tuning.py DATA --weights FILE [--operations] [--out FILE]

Truth is the test accuracy after fine-tuning on all images under each of several policies, from none
to strong, or, with `--operations`, under each operation alone. Readings are taken from the
validation images of short fine-tunings on one half of the images, and on the other: of whole ones,
and of ones whose second half alone is repeated; and of heads on the features of the network as it
came, as a search reads them.

DATA has train/ and test/ folders. What is in the file is not run again, so a study may be stopped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

from dada import Policy, models
from dada.config import FINE_TUNING, LOOKAHEAD_FINE_TUNING, NAMED_BASES, ShortTraining, TrainConfig
from dada.data import Part, Split, load, split_off_validation
from dada.engine import resolve_device
from dada.models.weights import Weights, from_file
from dada.policy.space import SearchSpace
from dada.policy_search.lookahead import single_operations
from dada.policy_search.lookahead.features import FeatureRuns
from dada.policy_search.lookahead.runs import BranchedRun, run_branches
from dada.training.loop import Job
from dada.training.many import train_many
from dada.trials.short import shorten

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import earlier, joined, print_table, save

MODEL = "timm:tf_efficientnet_lite0"
NOT_SETTINGS = ("data", "weights", "truth", "out", "only", "join")  # of one machine, or process
TABLES = ("repeated 0.5", "repeated 1.0", "features")
READINGS = {"loss": -1, "calibrated_loss": -1, "accuracy": 1}  # and whether more is better


def at_probability(name: str, probability: float) -> Policy:
    """A free policy whose operations all fire with that probability."""
    free = Policy.load(name)
    rows = [[(op.op, probability, op.magnitude) for op in row.ops] for row in free.subpolicies]
    return Policy.from_rows(rows, free.space, name=f"{name} at {probability}")


SHAPES = {
    **{name: Policy.load(name) for name in ("none", "uniform", "trivialaugment")},
    **{f"{name} at {p}": at_probability(name, p) for name in ("uniform",) for p in (0.1, 0.25)},
    **{
        f"{name} at {p}": at_probability(name, p)
        for name in ("trivialaugment",)
        for p in (0.25, 0.5)
    },
    **{name: Policy.load(name) for name in ("randaugment:1,0.5", "randaugment:2,0.5")},
}


OPERATIONS = {"none": SHAPES["none"], **single_operations(SearchSpace.named("paper"))}


@dataclass(frozen=True, kw_only=True)
class Study:
    """What all trainings share, and the file they go to."""

    arms: dict[str, Policy]
    whole: Split
    config: TrainConfig
    weights: Weights
    device: torch.device
    at_once: int
    found: dict[str, Any]
    out: Path | None

    @classmethod
    def begin(
        cls,
        args: argparse.Namespace,
        whole: Split,
        arms: dict[str, Policy],
        *,
        apart: Sequence[str] = (),
    ) -> Study:
        """With what is there already. Processes may differ in the settings that are named `apart`,
        as they do in how many trainings share their card."""
        assert whole.test is not None
        _, weights = from_file(args.weights, MODEL)
        settings = {k: v for k, v in vars(args).items() if k not in NOT_SETTINGS}
        settings |= {"fingerprint": whole.fingerprint, "weights": weights.digest}
        found: dict[str, Any] = {"settings": settings}
        found["images"] = {"train": len(whole.train), "test": len(whole.test)}
        joined(found, earlier(args), apart=("at_once", *apart))
        tuning = {**FINE_TUNING, "epochs": args.epochs, "batch_size": args.batch_size}
        return cls(
            arms=arms,
            whole=replace(whole, normalisation=weights.normalisation(whole.channels)),
            config=TrainConfig(**tuning, base=NAMED_BASES[args.base]),
            weights=weights,
            device=resolve_device("auto"),
            at_once=args.at_once,
            found=found,
            out=args.out,
        )

    def save(self, *, measured: bool = True) -> None:
        save(self.found, self.out, measured=measured)

    def job(self, split: Split, policy: Policy, seed: int, judge: Part) -> Job:
        shape = split.num_classes, split.channels, split.image_size
        return Job(
            split=split,
            model=models.build(MODEL, *shape, seed=seed, weights=self.weights),
            policy=policy,
            config=self.config,
            seed=seed,
            device=self.device,
            judge=judge,
        )

    def truth(self, seeds: range) -> None:
        """Test accuracy in percent of every arm and seed that is not known yet, and its loss.

        Arms that are the same policy share their trainings, which would be the same, too.
        """
        held, loss = (self.found.setdefault(name, {}) for name in ("truth", "truth_loss"))
        assert self.whole.test is not None
        names: dict[tuple[str, int], list[str]] = {}
        jobs = []
        for seed in seeds:
            for name, policy in self.arms.items():
                if str(seed) in held.setdefault(name, {}):
                    continue
                same = replace(policy, provenance={}).to_json(), seed
                if same not in names:
                    jobs.append(self.job(self.whole, policy, seed, self.whole.test))
                names.setdefault(same, []).append(name)
        for job, result in train_many(jobs, self.at_once):
            for name in names[replace(job.policy, provenance={}).to_json(), job.seed]:
                held[name][str(job.seed)] = round(100 * result.scores.accuracy, 4)
                loss.setdefault(name, {})[str(job.seed)] = round(result.scores.calibrated_loss, 6)
            self.save()

    def readings(self, short: ShortTraining, runs: int, repeated: float) -> None:
        """Of every shape, run by run; odd runs are trained on the other half."""
        held = self.found.setdefault(f"repeated {repeated}", {})
        halves = self.halves()
        numbers, wanted = {}, []
        for number in range(runs):
            if str(number) not in held:
                split, config = shorten(halves[number % 2], self.config, short, seed=0)
                assert split.val is not None
                job = self.job(split, SHAPES["uniform"], 100 + number, split.val)
                job = replace(job, config=config)
                wanted.append(BranchedRun(job=job, arms=self.arms, repeated=repeated))
                numbers[id(wanted[-1])] = str(number)
        for run, scores in run_branches(wanted, self.at_once):
            held[numbers[id(run)]] = {
                name: {reading: getattr(each, reading) for reading in READINGS}
                for name, each in scores.items()
            }
            self.save()

    def halves(self) -> tuple[Split, Split]:
        parted = split_off_validation(replace(self.whole, test=None), 0.5, 0)
        assert parted.val is not None
        return parted, replace(parted, train=parted.val, val=parted.train)

    def features(self, runs: int) -> None:
        """The calibrated loss of every arm, as `FeatureRuns` reads it."""
        held = self.found.setdefault("features", {})
        shape = self.whole.num_classes, self.whole.channels, self.whole.image_size
        reader = FeatureRuns(
            halves=self.halves(),
            build=models.untrained(MODEL, *shape, self.weights),
            base=self.config.base,
            settings=LOOKAHEAD_FINE_TUNING[self.device.type],
            seed=0,
            device=self.device,
        )
        for number in range(runs):
            if str(number) not in held:
                seen = reader.losses(self.arms, 1, file="", first=number)
                held[str(number)] = {
                    name: {"calibrated_loss": loss[0]} for name, loss in seen.loss.items()
                }
                self.save()

    def conclude(self) -> list[dict[str, Any]]:
        """Spearman's correlation of every reading with the truth, of one run and of all."""
        known = {name: each for name, each in self.found["truth"].items() if each}
        truth = [statistics.mean(each.values()) for each in known.values()]
        rows = []
        for table in [name for name in TABLES if self.found.get(name)]:
            runs = list(self.found[table].values())
            readings = next(iter(runs[0].values()))
            for reading, sign in READINGS.items():
                if reading not in readings:
                    continue
                each = [[sign * run[name][reading] for name in known] for run in runs]
                mean = [statistics.mean(of_runs) for of_runs in zip(*each, strict=True)]
                alone = [float(spearmanr(one, truth).statistic) for one in each]
                rows.append(
                    {
                        "training": table,
                        "reading": reading,
                        "one run": statistics.mean(alone),
                        "all runs": float(spearmanr(mean, truth).statistic),
                        "best": list(known)[mean.index(max(mean))],
                        "seconds": self.found["seconds"][table],
                    }
                )
        return rows


def options(about: str, *, image_size: int = 160) -> argparse.ArgumentParser:
    """What all studies of fine-tuning are asked; `about` is what this one asks."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--image-size", type=int, default=image_size)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--base", default="photo", choices=list(NAMED_BASES))
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of the truth")
    parser.add_argument("--runs", type=int, default=4, help="short trainings of each kind")
    parser.add_argument("--steps", type=int, default=200, help="of a short training")
    parser.add_argument("--operations", action="store_true", help="each alone, for policies")
    args = parser.parse_args()
    whole = load(args.data, image_size=args.image_size)
    arms = OPERATIONS if args.operations else SHAPES
    study = Study.begin(args, whole, arms, apart=("seeds", "runs"))
    found = study.found
    seconds = found.setdefault("seconds", {})
    short = ShortTraining(steps=args.steps, least_epochs=1, largest_batch=args.batch_size)

    def timed(name: str, part: Any, *arguments: Any) -> None:
        begun = time.perf_counter()
        part(*arguments)
        seconds.setdefault(name, round(time.perf_counter() - begun, 1))
        print(f"{name}: {seconds[name]} s", flush=True)

    timed("repeated 0.5", study.readings, short, args.runs, 0.5)
    timed("repeated 1.0", study.readings, short, args.runs, 1.0)
    timed("features", study.features, args.runs)
    timed("truth", study.truth, range(args.seeds))
    found["table"] = study.conclude()
    study.save(measured=False)
    for name, each in found["truth"].items():
        if not each:
            continue
        print(f"{name:24} {statistics.mean(each.values()):.2f}", *each.values())
    print_table(found["table"], list(found["table"][0]))


if __name__ == "__main__":
    main()
