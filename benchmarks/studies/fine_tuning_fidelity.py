"""Pretrained networks: does looking ahead know which operations help in fine-tuning?

    python benchmarks/studies/fine_tuning_fidelity.py DATA --weights FILE --train 500 --out FILE

Truth is the test accuracy after fine-tuning under each operation alone, as the first round of a
search has them, with `--seeds` seeds; or that of an earlier file (`--truth`). Of all images of DATA
(train/ and test/ folders) `--train` are trained on and the others test. Searches read the images
that are trained on, each with its own halves, in as many runs as a default search makes: heads on
features, or (`--reader trainings`) the ends of short fine-tunings. Written down are Spearman's
correlation of every search with the truth, between searches, and of the truth with itself: between
one half of its seeds and the other, over all ways of halving them.

The plan is in docs/fine-tuning-study.md. What is in the file is not run again, so a study may be
stopped; seeds of the truth end one after the other. To share the work between processes, give each
some of the searches (`--only 0 1`) and a file of its own; the whole command with `--join` reads
them all.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fine_tuning import MODEL, Study, options
from judge import Sample
from scipy.stats import spearmanr

from dada import models
from dada.config import LOOKAHEAD_FINE_TUNING
from dada.data import load, split_off_validation
from dada.policy.space import SearchSpace
from dada.policy_search.lookahead import single_operations
from dada.policy_search.lookahead.features import FeatureRuns
from dada.policy_search.lookahead.runs import BranchedRuns

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import print_table

SPACE = SearchSpace.named("paper")
# Readings of the truth, and whether more is better; the first is what decides.
TRUTHS = {"truth": 1, "truth_loss": -1}


def search(study: Study, seed: int, runs: int | None, steps: int | None) -> None:
    """The mean loss of every operation, as a search with this seed reads it in its first round.

    With `steps`, of short fine-tunings of so many, whose second half is repeated; else of heads on
    features.
    """
    held = study.found.setdefault("searches", {})
    if str(seed) in held:
        return
    begun = time.perf_counter()
    parted = split_off_validation(replace(study.whole, test=None), 0.5, seed)
    assert parted.val is not None
    shape = parted.num_classes, parted.channels, parted.image_size
    settings = LOOKAHEAD_FINE_TUNING[study.device.type]
    build = models.untrained(MODEL, *shape, study.weights)
    reader: BranchedRuns | FeatureRuns
    if steps is None:
        reader = FeatureRuns(
            halves=(parted, replace(parted, train=parted.val, val=parted.train)),
            build=build,
            base=study.config.base,
            settings=settings,
            seed=seed,
            device=study.device,
        )
    else:
        short = replace(LOOKAHEAD_FINE_TUNING["cuda"].training, steps=steps)
        reader = BranchedRuns.over(
            parted,
            SPACE,
            study.config.base,
            replace(settings, training=short),
            build,
            study.device,
            exchange=True,
            seed=seed,
            training=study.config,
        )
    seconds = settings.first_round * settings.seconds
    count = runs or reader.affordable(len(study.arms), seconds)
    seen = reader.losses(study.arms, count, file="")
    held[str(seed)] = {
        "runs": count,
        "seconds": round(time.perf_counter() - begun, 1),
        "loss": {name: statistics.mean(each) for name, each in seen.loss.items()},
        "loss_of_runs": {name: [round(x, 6) for x in each] for name, each in seen.loss.items()},
    }
    print(f"search {seed}: {count} runs in {held[str(seed)]['seconds']} s", flush=True)
    study.save()


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    return float(spearmanr(one, other).statistic)


def halves_agree(by_arm: dict[str, dict[str, float]]) -> float:
    """The mean correlation between half of the seeds and the other, over all ways to halve them."""
    seeds = list(next(iter(by_arm.values())))

    def means(some: Sequence[str]) -> list[float]:
        return [statistics.mean(each[seed] for seed in some) for each in by_arm.values()]

    found = []
    for one in itertools.combinations(seeds, len(seeds) // 2):
        other = [seed for seed in seeds if seed not in one]
        found.append(correlation(means(one), means(other)))
    return statistics.mean(found)


def conclude(found: dict[str, Any]) -> None:
    """A row for each reading of the truth; of seeds that all operations have had."""
    searches = found["searches"].values()
    read = [[-each["loss"][name] for name in found["truth"]] for each in searches]
    pairs = list(itertools.combinations(read, 2))
    between = statistics.mean(correlation(*pair) for pair in pairs) if pairs else None
    averaged = [statistics.mean(of_searches) for of_searches in zip(*read, strict=True)]
    found["table"] = []
    for reading, sign in TRUTHS.items():
        common = set.intersection(*(set(each) for each in found[reading].values()))
        known = {
            name: {seed: value for seed, value in each.items() if seed in common}
            for name, each in found[reading].items()
        }
        truth = [sign * statistics.mean(each.values()) for each in known.values()]
        with_truth = [correlation(each, truth) for each in read]
        found["table"].append(
            {
                "truth": reading,
                "seeds": len(common),
                "halves of truth": halves_agree(known) if len(common) > 1 else None,
                "with truth": statistics.mean(with_truth),
                "lowest": min(with_truth),
                "highest": max(with_truth),
                "averaged": correlation(averaged, truth),
                "between searches": between,
            }
        )


def main() -> None:
    parser = options(__doc__, image_size=128)
    parser.add_argument("--train", type=int, required=True, help="images; all others test")
    parser.add_argument("--seeds", type=int, default=6, help="trainings of each operation")
    parser.add_argument("--searches", type=int, default=4)
    parser.add_argument("--truth", type=Path, help="a file of this study: no training for it")
    parser.add_argument("--reader", choices=("features", "trainings"), default="features")
    parser.add_argument("--steps", type=int, default=200, help="of a short fine-tuning")
    parser.add_argument("--runs", type=int, help="of each search; else as by default")
    parser.add_argument("--operations", type=int, help="only the first so many, for a trial")
    parser.add_argument("--only", type=int, nargs="*", help="seeds of searches; else all")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    args = parser.parse_args()
    source = load(args.data, image_size=args.image_size)
    sample = Sample.drawn(source, args.train, 0, pool=True, suffix="")
    whole = replace(sample.whole, test=sample.test)
    arms = dict(itertools.islice(single_operations(SPACE).items(), args.operations))
    study = Study.begin(args, whole, arms, apart=("seeds", "searches"))
    found = study.found
    found["classes"] = whole.num_classes
    for seed in range(args.searches) if args.only is None else args.only:
        search(study, seed, args.runs, args.steps if args.reader == "trainings" else None)
    if args.truth:
        known = json.loads(args.truth.read_text())
        assert (known["images"], known["classes"]) == (found["images"], found["classes"])
        found |= {reading: known[reading] for reading in TRUTHS}
    else:
        begun = time.perf_counter()
        study.truth(range(args.seeds))
        seconds = found.setdefault("seconds", {})
        seconds.setdefault("truth", round(time.perf_counter() - begun, 1))
        print(f"truth: {seconds['truth']} s")
    conclude(found)
    study.save(measured=False)
    print_table(found["table"], list(found["table"][0]))


if __name__ == "__main__":
    main()
