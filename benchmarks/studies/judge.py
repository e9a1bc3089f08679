"""The judge: are policies that a search found better than free ones, on images never seen?

    python benchmarks/studies/judge.py DATA --train 4000 [--model wrn40_2] [--out FILE]

Every policy is trained from scratch on all `--train` images and tested on the test images, which
no search looks at. What is judged is what the search found, before a verification. Searches are the
unit: the mean of each one's trainings.

    dada              the default preset, `--searches` seeds, `--trainings` trainings of each
    paper, relax      the paper's preset with its own estimator, likewise
    paper, gumbel     the same with Gumbel-Softmax
    dada, steps only  the default preset without looking ahead, if `--presets` names it
    dada, six shapes  the default on a CPU before it had fewer and evened classes, likewise (with
                      twice the steps of the first phase where a stand-in looks ahead)
    uniform, init, trivialaugment, dada-cifar10
                      as many trainings as all of one preset's searches have together, or
                      `--free-trainings`
    randaugment       likewise, with n in 1, 2 and m in 0.3, 0.5, 0.7 chosen on validation images
    rival             with `--rivals`, for every search of `dada`: the free policy that validation
                      chooses among none, uniform, TrivialAugment and six RandAugments in the
                      seconds that the search took, trained as often as what it found (rivals.py)
    dada, verified    with `--verify NAME`: what the verification of the same searches returned,
                      with the seeds of what they found; the record it reads leaves out data NAME.
                      Searches of the file that were not verified are, without searching again

With `--for-epochs` and `--for-images` the default search is told for what training its policy is.

The difference to `dada` comes with Welch's 95% interval: the spread between searches on one side,
between trainings on the other. What is found and what is returned are compared search by search.
The words by which searches say how sure they are (clear, weak, none) are counted. What is in the
file is not run again, so a study may be stopped.

With `--samples` every search has its own sample of `--train` images, on which the free policies are
trained as often as what it found. Then samples are the unit, and the interval is Student's, of the
differences sample by sample. With `--pool` every image that is not trained on is a test image.

To share the work between processes, give each some of the searches (`--first`, `--searches`) or of
the free trainings (`--free-first`, `--free-trainings`), the same `--sample-seed` and a file of its
own; the whole command with `--join` reads those files and runs what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from judged import VERIFIED, conclude
from rivals import RANDAUGMENTS, rival_of

import dada
from dada import Policy, models
from dada.api.preparation import SharedOptions, prepare
from dada.api.searching import search_job
from dada.config import BASES, LOOKAHEAD, VERIFY, Base, TrainConfig, VerifyConfig
from dada.data import Part, Split, load, reduce, split_off_validation
from dada.data.parts import TensorPart
from dada.engine import resolve_device
from dada.policy.baselines import base_for
from dada.policy_search import SEARCHED
from dada.policy_search.lookahead import OPERATIONS, POLICIES
from dada.policy_search.verify import verify_searched
from dada.training.loop import Job, at_once_for
from dada.training.many import train_many

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import SEARCH, earlier, joined, print_table, save

PRESETS: dict[str, dict[str, Any]] = {
    "dada": {"preset": "dada"},
    "paper, relax": {"preset": "paper"},
    "paper, gumbel": {"preset": "paper", "estimator": "gumbel"},
    "dada, steps only": {"preset": "dada", "lookahead": 0.0},
    "dada, six shapes": {
        "preset": "dada",
        "lookahead": replace(LOOKAHEAD["cpu"], even_classes=False, few_shapes=False),
    },
}
USUAL_PRESETS = ("dada", "paper, relax", "paper, gumbel")
FREE = ("uniform", "init", "trivialaugment", "dada-cifar10", "randaugment")
CHOOSING = 2  # trainings of each RandAugment on half of the images
# Settings of one process, or of which there may be more later.
APART = ("searches", "trainings", "free_first", "free_trainings", "presets", "free", "rivals")


def apart(args: argparse.Namespace) -> tuple[str, ...]:
    """With the first search, but where that says which images are drawn for all of them."""
    return APART if args.sample_seed is None and not args.samples else (*APART, "first")


@dataclass(frozen=True)
class Sample:
    """What is trained on, and what judges; `suffix` tells its trainings from those of others."""

    whole: Split
    test: Part
    suffix: str = ""

    @classmethod
    def drawn(cls, source: Split, count: int, seed: int, *, pool: bool, suffix: str) -> Sample:
        assert source.test is not None
        everything = replace(source, val=None)
        if not pool:
            return cls(reduce(everything, count, seed), source.test, suffix)
        parts = [part.load() for part in (source.train, source.test)]
        images_NCHW = torch.cat([part.images_NCHW for part in parts])
        labels_N = torch.cat([part.labels_N for part in parts])
        everything = replace(everything, train=TensorPart(images_NCHW, labels_N), test=None)
        parted = split_off_validation(everything, 1 - count / len(labels_N), seed)
        assert parted.val is not None and len(parted.train) == count
        return cls(replace(parted, val=None), parted.val, suffix)


@dataclass(frozen=True)
class Judge:
    """What all trainings share, and the file they go to."""

    config: TrainConfig
    model: str
    device: torch.device
    at_once: int
    found: dict[str, Any]
    out: Path | None
    for_epochs: int | None = None
    for_images: int | None = None
    verify: VerifyConfig | None = None

    def save(self, *, measured: bool = True) -> None:
        save(self.found, self.out, measured=measured)

    def search(self, name: str, seed: int, sample: Sample) -> dict[str, Policy]:
        """What it found; and what its verification returned, if there was one."""
        held = self.found["searches"].get(f"{name} {seed}")
        if held is None:
            held = self._search(name, seed, sample)
        elif name == "dada" and self.verify is not None and "verified" not in held:
            held = self._verify(held, seed, sample)
        if held != self.found["searches"].get(f"{name} {seed}"):
            self.found["searches"][f"{name} {seed}"] = held
            self.save()
        kinds = {name: "policy", name + VERIFIED: "verified"}
        return {key: Policy.from_json(held[kind]) for key, kind in kinds.items() if kind in held}

    def _search(self, name: str, seed: int, sample: Sample) -> dict[str, Any]:
        train = sample.whole.train
        data = train.batch(torch.arange(len(train)))
        settings = dict(PRESETS[name])
        if name == "dada":
            settings |= {"for_epochs": self.for_epochs, "for_images": self.for_images}
        looked, begun = [0.0], time.time()
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            result = dada.search(
                data,
                model=self.model,
                seed=seed,
                base=self.config.base,
                verify=self.verify or False,
                out=run,
                device=self.device.type,
                on_lookahead=lambda done, total: looked.append(time.time()),
                **settings,
            )
            held: dict[str, Any] = {"seconds": time.time() - begun}
            ends = [json.loads(file.read_text()) for file in _rounds(run)]
            policies = {"policy": result.policy}
            if self.verify is not None:
                # Written when the verification ends; the last run of looking ahead is before it.
                searched = run / SEARCHED
                held["verifying"] = searched.stat().st_mtime - looked[-1]
                policies = {"policy": Policy.load(searched), "verified": result.policy}
        # As text: a hundred sub-policies would make a thousand lines of the file.
        held |= {k: json.dumps(json.loads(each.to_json())) for k, each in policies.items()}
        held |= dict(zip(("lookahead", "second_round"), ends, strict=False))
        verifying = f", {held['verifying']:.0f} of them verifying" if "verifying" in held else ""
        print(f"{name} {seed}: searched in {held['seconds']:.0f} s{verifying}", flush=True)
        return held

    def _verify(self, held: dict[str, Any], seed: int, sample: Sample) -> dict[str, Any]:
        """With what a search returns that found this policy, as its third phase would."""
        assert self.verify is not None
        train, begun = sample.whole.train, time.time()
        options = SharedOptions(
            model=self.model,
            seed=seed,
            device=self.device.type,
            settings={"base": self.config.base},
        )
        asked = prepare("search", train.batch(torch.arange(len(train))), options)
        _, job, _ = search_job(asked, None, "dada", None, self.verify, None)
        verified = verify_searched(job, Policy.from_json(held["policy"])).policy
        seconds = time.time() - begun
        print(f"{seed}: verified in {seconds:.0f} s", flush=True)
        return held | {
            "verified": json.dumps(json.loads(verified.to_json())),
            "verifying": seconds,
            "seconds": held["seconds"] + seconds,
        }

    def base(self, policy: Policy, split: Split) -> Base:
        name = str(policy.provenance.get("name"))
        return base_for(name, self.config.base, split.image_size)

    def job(self, split: Split, policy: Policy, seed: int, judge: Part) -> Job:
        shape = split.num_classes, split.channels, split.image_size
        return Job(
            split=split,
            model=models.build(self.model, *shape, seed=seed),
            policy=policy,
            config=replace(self.config, base=self.base(policy, split)),
            seed=seed,
            device=self.device,
            judge=judge,
        )

    def rival(self, search: int, sample: Sample) -> Policy:
        held = self.found.setdefault("rivals", {})
        if str(search) not in held:
            seconds = self.found["searches"][f"dada {search}"]["seconds"]
            held[str(search)] = rival_of(search, seconds, sample.whole, self.job, self.at_once)
            self.save()
        return Policy.load(held[str(search)]["chosen"])

    def train(self, wanted: list[tuple[str, Policy, int]], split: Split, judge: Part) -> None:
        """(name, policy, seed) -> accuracy in percent, those that are not known yet.

        What is the same policy with the same seed is trained once.
        """
        accuracy = self.found["accuracy"]
        keys = [(p, self.base(p, split), seed) for _, p, seed in wanted]
        held = [accuracy.setdefault(name, {}).get(str(seed)) for name, _, seed in wanted]
        known = {key: score for key, score in zip(keys, held, strict=True) if score is not None}
        names: dict[tuple[Policy, Base, int], list[str]] = {}
        jobs = []
        for (name, policy, seed), key in zip(wanted, keys, strict=True):
            if key in known:
                accuracy[name].setdefault(str(seed), known[key])
                continue
            if key not in names:
                jobs.append(self.job(split, policy, seed, judge))
            names.setdefault(key, []).append(name)
        for job, result in train_many(jobs, self.at_once):
            for name in names[job.policy, job.config.base, job.seed]:
                self.found["accuracy"][name][str(job.seed)] = 100 * result.scores.accuracy
                print(f"{name}, seed {job.seed}: {100 * result.scores.accuracy:.2f}", flush=True)
            self.save()

    def best_randaugment(self, sample: Sample) -> str:
        split = split_off_validation(sample.whole, 0.5, 0)
        assert split.val is not None
        names = {name: f"choosing {name}{sample.suffix}" for name in RANDAUGMENTS}
        seeds = range(CHOOSING)
        choosing = [(names[name], Policy.load(name), s) for name in RANDAUGMENTS for s in seeds]
        self.train(choosing, split, split.val)
        return max(RANDAUGMENTS, key=lambda name: self.mean(names[name]))

    def mean(self, name: str) -> float:
        return statistics.mean(self.found["accuracy"][name].values())


def _rounds(run: Path) -> list[Path]:
    """What a search wrote of its rounds of looking ahead."""
    return [file for file in (run / OPERATIONS, run / POLICIES) if file.exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--train", type=int, required=True, help="images to train on")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--model")
    parser.add_argument("--base", choices=list(BASES), help="crop, flip, cutout of")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--for-epochs", type=int, help="handed to the default search")
    parser.add_argument("--for-images", type=int, help="likewise")
    parser.add_argument("--searches", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="seed of the first search, sample")
    parser.add_argument("--sample-seed", type=int, help="of the one sample; else --first")
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--free-trainings", type=int, help="of each free policy, on each sample")
    parser.add_argument("--free-first", type=int, default=0, help="seed of the first of them")
    parser.add_argument("--presets", default=";".join(USUAL_PRESETS))
    parser.add_argument("--free", default=";".join(FREE), help="policies, with semicolons between")
    parser.add_argument("--rivals", action="store_true", help="one for every search of `dada`")
    parser.add_argument("--samples", action="store_true", help="one of its own for every search")
    parser.add_argument("--pool", action="store_true", help="test on all that is not trained on")
    parser.add_argument("--verify", metavar="NAME", help="these data, in the record of studies")
    parser.add_argument("--verify-budget", type=float, help="seconds; else the usual ones")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = resolve_device(args.device)
    source = load(args.data, image_size=args.image_size)
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "data", "join")}
    if not args.verify:  # searches that are not verified may be later
        del settings["verify"], settings["verify_budget"]
    found: dict[str, Any] = {"settings": settings | {"fingerprint": source.fingerprint}}
    found |= {"searches": {}, "accuracy": {}}
    joined(found, earlier(args), apart=apart(args))
    base = BASES[args.base] if args.base else Base()
    verify = None
    if args.verify:
        verify = replace(VERIFY[device.type], judged_data=(args.verify,))
        verify = replace(verify, seconds=args.verify_budget or verify.seconds)
    judge = Judge(
        config=TrainConfig(epochs=args.epochs, batch_size=args.batch_size, base=base),
        model=args.model or models.default_model(device.type, source.image_size),
        device=device,
        at_once=at_once_for(device, source.image_size),
        found=found,
        out=args.out,
        for_epochs=args.for_epochs,
        for_images=args.for_images,
        verify=verify,
    )
    searches = range(args.first, args.first + args.searches)

    def drawn(seed: int, suffix: str) -> Sample:
        return Sample.drawn(source, args.train, seed, pool=args.pool, suffix=suffix)

    if args.samples:
        samples = [drawn(search, f" search {search}") for search in searches]
    else:
        one = args.first if args.sample_seed is None else args.sample_seed
        samples = [drawn(one, "")]
    # All searches first: trainings on the same images share the card.
    of_sample: list[list[tuple[str, Policy, int]]] = [[] for _ in samples]
    for name in filter(None, args.presets.split(";")):
        for search, (wanted, sample) in zip(
            searches, itertools.cycle(zip(of_sample, samples, strict=True))
        ):
            seeds = range(1000 * search, 1000 * search + args.trainings)
            arms = judge.search(name, search, sample)
            if args.rivals and name == "dada":
                arms["rival"] = judge.rival(search, sample)
            for kind, policy in arms.items():
                wanted += [(f"{kind}{SEARCH}{search}", policy, seed) for seed in seeds]
    for wanted, sample in zip(of_sample, samples, strict=True):
        judge.train(wanted, sample.whole, sample.test)
    for sample in samples:
        free = {}
        for name in filter(None, args.free.split(";")):
            best = judge.best_randaugment(sample) if name == "randaugment" else name
            free[name] = Policy.load(best)
        count = args.free_trainings or args.searches * args.trainings // len(samples)
        seeds = range(args.free_first, args.free_first + count)
        wanted = [(n + sample.suffix, policy, s) for n, policy in free.items() for s in seeds]
        judge.train(wanted, sample.whole, sample.test)
    conclude(found)
    judge.save(measured=False)
    columns = ["policy", "accuracy", "lowest", "highest", "n", "dada_minus", "from", "to"]
    print_table(found["table"], columns)
    print(f"signals: {dict(found['signals'])}; verified: {found.get('verified')}")


if __name__ == "__main__":
    main()
