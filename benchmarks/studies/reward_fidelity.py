"""Does the reward know what helps? The true effect of every operation against what a search sees.

    python benchmarks/studies/reward_fidelity.py [DATA] [--train 200] [--seeds 4] [--out FILE]

truth     the operation alone (probability 0.5, any magnitude), trained on all `--train` images,
          judged on the test images, minus the same training without augmentation
one step  the search's own reward, averaged over a quarter of the training under `uniform`
short trainings
          32 trainings on one half of the images, judged on the other, and the same with the
          halves exchanged. Each uses half of the operations, by a balanced design (a Hadamard
          matrix and its negative), so that every training tells of every operation: an effect
          is the mean of the 16 trainings with it minus that of the 16 without
look ahead
          the second half of a training, repeated with each operation alone, as long as a search
          does it (dada.lookahead), on one half of the images, judged on the other, and exchanged;
          `--runs` of them; or, with `--judged`, those that the searches of `judge.py` made
stand-in  the same with shrunken images and a small network, as a search does it where its own
          would take too long (policy_search/lookahead/stand_in.py)

Spearman's rank correlation of each with the mean truth of all seeds, and between seeds. Every seed
has its own images, halves and initial weights. What is already in the file is not run again.

Letters: O operations, R trainings of the design.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from dada import Policy, models
from dada.config import BASES, LOOKAHEAD, Base, TrainConfig, search_config
from dada.data import Part, Split, load, reduce, split_off_validation
from dada.engine import resolve_device
from dada.policy.space import SearchSpace
from dada.policy_search.evidence import RunningMean
from dada.policy_search.lookahead import single_operations
from dada.policy_search.lookahead.runs import BranchedRun, run_branches
from dada.policy_search.lookahead.stand_in import StandIn
from dada.policy_search.measuring import read_steps
from dada.policy_search.state import SearchState
from dada.policy_search.step import search_step
from dada.training.loop import Job
from dada.training.many import train_many
from dada.training.scores import Scores
from dada.trials.short import shorten

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

SPACE = SearchSpace.named("paper")
NAMES = [op.name for op in SPACE.ops]
ANY: tuple[float, float] = (0.0, 1.0)
QUARTERS = 4
READINGS = ("accuracy", "loss")
STAND_IN = "look ahead, loss, stand-in"
UNIFORM = Policy.load("uniform")


def policy_of(names: list[str]) -> Policy:
    """Uniform over the pairs of these operations; one alone; or nothing."""
    pairs = itertools.combinations(names, 2) if len(names) > 1 else [tuple(names)]
    rows = [[(name, 0.5, ANY) for name in pair] for pair in pairs if pair]
    return Policy.from_rows(rows, SPACE.name) if rows else Policy.load("none")


def balanced_RO() -> NDArray[np.int64]:
    """+1: the operation is used. Of 32 rows every column has 16, and any two are orthogonal."""
    matrix = np.ones((1, 1), dtype=np.int64)
    while len(matrix) <= len(NAMES):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    half = matrix[:, 1 : len(NAMES) + 1]
    return np.concatenate([half, -half])


class Bench:
    """The networks and settings that all trainings share."""

    def __init__(
        self, model: str, base: Base, device: torch.device, at_once: int, batch: int = 64
    ) -> None:
        self.model, self.base, self.device, self.at_once = model, base, device, at_once
        self.batch = batch

    def network(self, split: Split, seed: int) -> torch.nn.Module:
        shape = split.num_classes, split.channels, split.image_size
        return models.build(self.model, *shape, seed=seed)

    def scores(
        self, split: Split, judge: Part, policies: list[Policy], seed: int, epochs: int
    ) -> list[Scores]:
        config = TrainConfig(epochs=epochs, batch_size=self.batch, base=self.base)
        jobs = [
            Job(
                split=split,
                model=self.network(split, seed),
                policy=policy,
                config=config,
                seed=seed,
                device=self.device,
                judge=judge,
            )
            for policy in policies
        ]
        done = {id(job): result.scores for job, result in train_many(jobs, self.at_once)}
        return [done[id(job)] for job in jobs]


def truth(bench: Bench, whole: Split, test: Part, seed: int, epochs: int) -> dict[str, float]:
    policies = [policy_of([name]) for name in NAMES]
    scores = bench.scores(whole, test, [*policies, Policy.load("none")], seed, epochs)
    none = scores.pop().accuracy
    return {name: 100 * (s.accuracy - none) for name, s in zip(NAMES, scores, strict=True)} | {
        "none": 100 * none
    }


def one_step(bench: Bench, split: Split, seed: int, steps: int) -> list[list[float]]:
    """Minus the cost of every operation (so that more is better), by quarter of the training."""
    assert split.val is not None
    config = search_config("dada", base=bench.base, batch_size=bench.batch)
    split = split.to(bench.device)
    network = bench.network(split, seed)
    state = SearchState(network, split, config, seed, bench.device)
    assert state.evidence is not None and split.val is not None
    batch = min(bench.batch, len(split.train))
    per_epoch = len(split.train) // batch
    quarters, taken = [], 0
    with state.lane:
        network.train()
        while taken < steps:
            for some, others in read_steps(state, split.train, split.val, batch, per_epoch):
                rate = config.lr * 0.5 * (1 + np.cos(np.pi * min(taken, steps) / steps))
                rate_T = torch.tensor(rate, dtype=torch.float32, device=bench.device)
                search_step(state, *some, *others, rate_T, measure=True)
                taken += 1
                if taken % (steps // QUARTERS) == 0 and len(quarters) < QUARTERS:
                    quarters.append((-state.evidence.op.mean).tolist())
                    state.evidence.op = RunningMean(len(NAMES)).to(bench.device)
    return quarters


def short_trainings(bench: Bench, split: Split, seed: int, epochs: int) -> dict[str, list[float]]:
    assert split.val is not None
    design_RO = balanced_RO()
    policies = [
        policy_of([n for n, used in zip(NAMES, row, strict=True) if used > 0]) for row in design_RO
    ]
    halves = [split, replace(split, train=split.val, val=split.train)]
    effects: dict[str, list[NDArray[np.float64]]] = {"accuracy": [], "loss": []}
    for i, half in enumerate(halves):
        assert half.val is not None
        scores = bench.scores(half, half.val, policies, 1000 * seed + i, epochs)
        accuracy_R = np.array([100 * s.accuracy for s in scores])
        loss_R = np.array([s.loss for s in scores])
        effects["accuracy"].append(design_RO.T @ accuracy_R / 16)
        effects["loss"].append(-design_RO.T @ loss_R / 16)
    return {name: np.mean(both, 0).tolist() for name, both in effects.items()}


def ahead(
    bench: Bench, split: Split, seed: int, count: int, banded: bool
) -> dict[str, dict[str, list[float]]]:
    """Accuracy and minus the loss of every arm, run by run."""
    short = LOOKAHEAD[bench.device.type].training
    split, config = shorten(split, TrainConfig(base=bench.base), short, seed=seed)
    arms = single_operations(SPACE) | {"none": Policy.load("none"), "uniform": UNIFORM}
    if banded:
        arms |= banded_arms()
    assert split.val is not None
    exchanged = replace(split, train=split.val, val=split.train)
    first = 10_000 * (seed + 1)
    runs = [
        BranchedRun(
            repeated=LOOKAHEAD[bench.device.type].repeated,
            job=Job(
                split=exchanged if i % 2 else split,
                model=bench.network(split, first + i),
                policy=UNIFORM,
                config=config,
                seed=first + i,
                device=bench.device,
            ),
            arms=arms,
        )
        for i in range(count)
    ]
    found = {run.job.seed: scores for run, scores in run_branches(runs, bench.at_once)}
    in_order = [found[run.job.seed] for run in runs]
    return {
        "accuracy": {name: [100 * scores[name].accuracy for scores in in_order] for name in arms},
        "loss": {name: [-scores[name].loss for scores in in_order] for name in arms},
    }


def judged(path: Path) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Minus the loss of every arm, run by run, of each search of the default preset."""
    searches = json.loads(path.read_text())["searches"]
    for name in sorted(name for name in searches if name.startswith("dada ")):
        runs = searches[name]["lookahead"].values()
        yield {"loss": {op: [-run[op] for run in runs] for op in NAMES}}


def banded_arms() -> dict[str, Policy]:
    """Every operation that has a strength alone, weak and strong."""
    found = {}
    for op in SPACE.ops:
        if not op.has_strength:
            continue
        for name, band in (("weak", (0.0, 0.5)), ("strong", (0.5, 1.0))):
            strength = Policy.from_rows([[(op.name, 0.5, band)]], "strength")
            found[f"{op.name} {name}"] = strength.to_space("paper")
    return found


def measure(
    bench: Bench, source: Split, seed: int, args: Any, found: dict[str, Any]
) -> Iterator[None]:
    """Fills `found`, and stops after every signal to let it be written."""
    assert source.test is not None
    whole = reduce(replace(source, val=None), args.train, seed)
    split = split_off_validation(whole, 0.5, seed)
    signals = args.signals.split(",")
    seconds = found.setdefault("seconds", {})

    def wanted(name: str, key: str) -> bool:
        return name in signals and key not in found

    begun = time.perf_counter()
    if wanted("ahead", "look ahead, raw"):
        banded = seed < args.banded_seeds
        raw = ahead(bench, split, seed, args.runs, banded)
        found["look ahead, raw"] = raw
        for reading, by_arm in raw.items():
            found[f"look ahead, {reading}"] = {n: float(np.mean(by_arm[n])) for n in NAMES}
        seconds["look ahead"] = time.perf_counter() - begun
        yield
    begun = time.perf_counter()
    if wanted("stand-in", STAND_IN):
        small = StandIn.of(split, bench.base, LOOKAHEAD[bench.device.type], bench.device, seed=seed)
        smaller = Bench(small.model, small.base, bench.device, bench.at_once, bench.batch)
        by_arm = ahead(smaller, small.split, seed, args.runs, banded=False)["loss"]
        found[STAND_IN] = {n: float(np.mean(by_arm[n])) for n in NAMES}
        seconds["stand-in"] = time.perf_counter() - begun
        yield
    begun = time.perf_counter()
    if wanted("one", "one step, quarter 1"):
        for i, effects in enumerate(one_step(bench, split, seed, args.steps)):
            found[f"one step, quarter {i + 1}"] = dict(zip(NAMES, effects, strict=True))
        seconds["one step"] = time.perf_counter() - begun
        yield
    begun = time.perf_counter()
    if wanted("short", "short trainings, loss"):
        for name, effects in short_trainings(bench, split, seed, args.short_epochs).items():
            found[f"short trainings, {name}"] = dict(zip(NAMES, effects, strict=True))
        seconds["short trainings"] = time.perf_counter() - begun
        yield
    begun = time.perf_counter()
    if wanted("truth", "truth"):
        found["truth"] = truth(bench, whole, source.test, seed, args.epochs)
        seconds["truth"] = time.perf_counter() - begun
        yield


SIGNALS = (
    "truth",
    *(f"one step, quarter {i + 1}" for i in range(QUARTERS)),
    *(f"{kind}, {reading}" for kind in ("short trainings", "look ahead") for reading in READINGS),
    *(f"look ahead, loss, {runs} runs" for runs in (2, 3)),  # a search makes 2 or 4 by default
    STAND_IN,
)


def table(seeds: dict[str, Any]) -> list[dict[str, Any]]:
    """Rank correlations with the truth and between seeds."""

    def rank(a: Any, b: Any) -> float:
        return float(spearmanr(a, b).statistic)

    def rows_of(name: str) -> list[list[float]]:
        if name.endswith(" runs"):
            runs = int(name.split()[-2])
            raw = [f["look ahead, raw"]["loss"] for f in seeds.values() if "look ahead, raw" in f]
            enough = [loss for loss in raw if len(loss[NAMES[0]]) >= runs]
            return [[float(np.mean(loss[op][:runs])) for op in NAMES] for loss in enough]
        return [[found[name][op] for op in NAMES] for found in seeds.values() if name in found]

    if not rows_of("truth"):
        return []
    true = np.mean(rows_of("truth"), 0)
    rows = []
    for name in SIGNALS:
        if not (seen := rows_of(name)):
            continue
        with_truth = [rank(true, row) for row in seen]
        between = [rank(a, b) for a, b in itertools.combinations(seen, 2)]
        rows.append(
            {
                "signal": name,
                "with_truth": float(np.mean(with_truth)),
                "lowest": min(with_truth),
                "highest": max(with_truth),
                "averaged_over_seeds": rank(true, np.mean(seen, 0)),
                "between_seeds": float(np.mean(between)) if between else None,
                "n": len(seen),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", default="digits")
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--signals", default="ahead,one,short,truth")
    parser.add_argument("--model", default=None)
    parser.add_argument("--base", default=None, choices=list(BASES), help="crop, flip, cutout of")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=100, help="of a training for the truth")
    parser.add_argument("--short-epochs", type=int, default=40)
    parser.add_argument("--runs", type=int, default=4, help="of looking ahead")
    parser.add_argument("--banded-seeds", type=int, default=4, help="that try strengths, too")
    parser.add_argument("--steps", type=int, default=320, help="of the one-step search")
    parser.add_argument("--at-once", type=int, default=None)
    parser.add_argument("--judged", type=Path, help="what judge.py wrote: take its looks ahead")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = resolve_device("auto")
    source = load(args.data, image_size=args.image_size)
    model = args.model or models.default_model(device.type, source.image_size)
    base = BASES[args.base] if args.base else Base()
    at_once = args.at_once or (4 if device.type == "cuda" else 1)
    bench = Bench(model, base, device, at_once, args.batch_size)
    seeds: dict[str, Any] = {}
    if args.out and args.out.exists():
        seeds = json.loads(args.out.read_text())["seeds"]
    given = {k: v for k, v in vars(args).items() if k not in ("out", "judged")}
    settings = given | {"data": Path(args.data).name, "model": model}
    settings["looks_ahead_of_judged_searches"] = args.judged is not None

    def save() -> None:
        if args.out:
            content = {
                "machine": machine(),
                "settings": settings,
                "correlations": table(seeds),
                "seeds": seeds,
            }
            args.out.write_text(json.dumps(content, indent=1) + "\n")

    for seed, raw in enumerate(judged(args.judged) if args.judged else ()):
        found = seeds.setdefault(str(seed), {})
        found["look ahead, raw"] = raw
        found["look ahead, loss"] = {n: float(np.mean(raw["loss"][n])) for n in NAMES}
    save()
    for seed in range(args.seeds):
        found = seeds.setdefault(str(seed), {})
        for _ in measure(bench, source, seed, args, found):
            print(seed, {k: round(v) for k, v in found["seconds"].items()}, "s", flush=True)
            save()
    columns = ["signal", "with_truth", "lowest", "highest", "averaged_over_seeds", "between_seeds"]
    print_table(table(seeds), [*columns, "n"])


if __name__ == "__main__":
    main()
