"""The paper's tables, run: what searches find and what is free, trained by the paper's recipes.

    python benchmarks/studies/paper.py TABLE ... --data DATA --out FILE [--minutes M] [--most N]

The plan is `benchmarks/tools/paper_plan.py`: arms, and how often each is run, fixed before the
first number. A search is the unit: one training of what it found, with the search's seed. Policies
are those that were found, without verification, which might return a free one in their place.
All searches of a call come first, then all of its trainings together: those of one kind are trained
as one stack (`dada.training.stacks`), which ends at one time. Stage by stage the arms take turns,
seed by seed: --most N, of what is left the first N, leaves as many of each.

DATA is anything `dada.data.load` reads with these images in it (cifar10:ROOT, an .npz). Of SVHN the
paper trains on all images (svhn-extra:ROOT) and searches on the core set: --search-data svhn:ROOT.
Everything goes on where it stopped: searches and trainings keep run directories with checkpoints
beside FILE, and what is in FILE is not run again. With --minutes everything that runs writes a
checkpoint and stops at that time. All tables may share one FILE: what two need is run once.
To share the work between processes, give each some of it (--only, --seeds) and a FILE of its own;
the whole command with --join reads those files and runs what is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rivals import RANDAUGMENTS

import dada
from dada import Policy, models, recipes
from dada.api.settings import reduced
from dada.config import SearchConfig, TrainConfig, changed
from dada.data import Split, load_with_base, reduce, split_off_validation
from dada.engine import resolve_device
from dada.policy import baselines
from dada.recipes import Recipe
from dada.runlog import RunLog
from dada.training.loop import Job, at_once_for
from dada.training.many import train_many

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import earlier, joined, print_table, save
from paper_plan import PLANS, SEARCHES, Plan

Unit = tuple[str, int]  # an arm and a seed
CHOOSING = 2  # trainings of each RandAugment on half of the part that is searched on
CHOOSING_EPOCHS = 80

TRIAL = {"images": 300, "epochs": 2, "batch_size": 50, "model": "small"}


class OutOfTimeError(Exception):
    """Raised where everything that runs has a checkpoint."""


class Study:
    """The file of results, the run directories beside it, and when to stop."""

    def __init__(
        self,
        out: Path,
        data: str,
        search_data: str | None,
        *,
        minutes: float | None,
        at_once: int | None,
        trial: bool,
        earlier: Sequence[Path],
    ) -> None:
        self.out, self.trial = out, trial
        self.runs = out.with_suffix("")
        self.device = resolve_device("auto")
        self.stop_at = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        self.found: dict[str, Any] = {"settings": {"trial": trial}}
        self.found |= {"searches": {}, "choosing": {}, "trainings": {}}
        joined(self.found, earlier)
        self.split = self.images_of(data)
        self.searched = self.split if search_data is None else self.images_of(search_data)
        self.at_once = at_once or at_once_for(self.device, self.split.image_size)
        self.stopping = False

    def images_of(self, data: str) -> Split:
        """Training and test images alone: a search sets aside its own validation images."""
        split = replace(load_with_base(data)[0], val=None)
        if split.test is None:
            raise SystemExit(f"{data}: there are no test images")
        if self.trial:
            split = reduce(split, min(TRIAL["images"], len(split.train)))
        return split

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.stop_at

    def save(self, *, measured: bool = True) -> None:
        save(self.found, self.out, measured=measured)

    def folder(self, kind: str, key: str) -> Path:
        return self.runs / kind / "".join(c if c.isalnum() else "-" for c in key)

    def run_searches(self, plan: Plan, units: Sequence[Unit]) -> None:
        """Those that are not known yet, of all stages."""
        for arm, seed in units:
            if arm in SEARCHES:
                self.policy(plan, arm, seed)

    def run_units(self, plan: Plan, units: Sequence[Unit], most: int | None) -> None:
        """First the searches, then the trainings, as many as one stack as may be."""
        recipe = recipes.named(plan.train, wants="train")
        left = [unit for unit in units if plan.key(*unit) not in self.found["trainings"]][:most]
        policies = [self.policy(plan, *unit) for unit in left]
        jobs = [
            self.job(recipe, policy, *unit) for policy, unit in zip(policies, left, strict=True)
        ]
        rows = [{"arm": arm, "seed": seed, "recipe": recipe.name} for arm, seed in left]
        self.train(jobs, [plan.key(*unit) for unit in left], rows)

    def train(self, jobs: list[Job], keys: list[str], rows: list[dict[str, Any]]) -> None:
        """All of them side by side, into the file one by one as they end."""
        running, stopped = set[str](), set[str]()

        def told_by(key: str) -> Any:
            def told(metrics: dict[str, Any], epochs: int) -> None:
                running.add(key)
                if metrics["epoch"] == epochs:  # its scores come next
                    running.discard(key)
                elif self.stopping:  # and this one has just written a checkpoint
                    stopped.add(key)
                    if stopped >= running:
                        raise OutOfTimeError

            return told

        if not jobs:
            return
        if self.over:
            raise OutOfTimeError
        ready = [
            replace(job, run=self.opened(key), on_epoch=told_by(key))
            for job, key in zip(jobs, keys, strict=True)
        ]
        of_job = {id(job): place for place, job in enumerate(ready)}
        for job, result in train_many(ready, self.at_once):
            place, top5 = of_job[id(job)], result.scores.top5
            self.found["trainings"][keys[place]] = rows[place] | {
                "error": 100 * result.scores.error,
                "top5_error": None if top5 is None else 100 * (1 - top5),
                "loss": result.scores.loss,
                "training_loss": result.history[-1]["loss"],
                "epochs": len(result.history),
                "seconds": round(result.seconds, 1),
                "at_once": len(jobs),
            }
            print(f"{keys[place]}: error {100 * result.scores.error:.2f}", flush=True)
            self.save()

    def opened(self, key: str) -> RunLog:
        study = self

        class UntilTimeIsUp(RunLog):
            """Writes a checkpoint also when the time is over, however often that costs little."""

            @property
            def wants_checkpoint(self) -> bool:
                study.stopping = study.stopping or study.over
                return study.stopping or super().wants_checkpoint

        return UntilTimeIsUp(self.folder("train", key), resume=True)

    def job(self, recipe: Recipe, policy: Policy, arm: str, seed: int) -> Job:
        assert recipe.train is not None
        config, model = recipe.train, recipe.model
        if self.trial:
            config = changed(config, {name: TRIAL[name] for name in ("epochs", "batch_size")})
            model = TRIAL["model"]
        base = baselines.base_for(arm, config.base, self.split.image_size)
        return self.job_on(self.split, replace(config, base=base), model, policy, seed)

    def job_on(
        self, split: Split, config: TrainConfig, model: str, policy: Policy, seed: int
    ) -> Job:
        shape = split.num_classes, split.channels, split.image_size
        return Job(
            split=split,
            model=models.build(model, *shape, seed=seed),
            policy=policy,
            config=config,
            seed=seed,
            device=self.device,
        )

    def policy(self, plan: Plan, arm: str, seed: int) -> Policy:
        if arm == "randaugment":
            return Policy.load(self.best_randaugment(plan))
        if arm not in SEARCHES:
            return Policy.load(arm)
        name, key = plan.searched_by(arm), plan.search_key(arm, seed)
        if key not in self.found["searches"]:
            if self.over:
                raise OutOfTimeError
            begun = time.perf_counter()
            result = self.search(recipes.named(name, wants="search"), arm, seed, key)
            seconds = time.perf_counter() - begun
            # As text: a hundred sub-policies would make a thousand lines of the file.
            policy = json.dumps(json.loads(result.policy.to_json()))
            held = {"arm": arm, "seed": seed, "recipe": name, "policy": policy}
            self.found["searches"][key] = held | {"seconds": round(result.seconds, 1)}
            print(f"{key}: searched in {seconds:.0f} s", flush=True)
            self.save()
        return Policy.from_json(self.found["searches"][key]["policy"])

    def search(self, recipe: Recipe, arm: str, seed: int, key: str) -> Any:
        """The default search takes no more of the recipe than its part of the data, and its base.

        Searches save as they go (`resume`), and stop between two epochs or repeated ends.
        """
        assert recipe.search is not None
        settings = dict(SEARCHES[arm])
        split = self.searched
        if self.trial:
            settings |= {"epochs": 1, "batch_size": TRIAL["batch_size"], "lookahead": 0.0}
            recipe = replace(recipe, model=TRIAL["model"])
        elif recipe.reduce_to is not None:
            split = reduced(split, recipe, seed)
        if "preset" not in settings:
            settings = paper_settings(recipe.search) | settings

        def told(*_: Any) -> None:
            if self.over:
                raise OutOfTimeError

        return dada.search(
            split,
            model=recipe.model,
            base=recipe.search.base,
            verify=False,
            seed=seed,
            out=self.folder("search", key),
            resume=True,
            on_epoch=told,
            on_lookahead=told,
            **settings,
        )

    def best_randaugment(self, plan: Plan) -> str:
        """n and m by the validation half of the part that is searched on, seed 0."""
        recipe = recipes.named(plan.search, wants="search")
        assert recipe.search is not None
        part = self.searched if self.trial else reduced(self.searched, recipe, 0)
        split = split_off_validation(replace(part, test=None), 0.5, 0)
        config = TrainConfig(epochs=CHOOSING_EPOCHS, base=recipe.search.base)
        model = recipe.model
        if self.trial:
            config, model = replace(config, epochs=1, batch_size=50), TRIAL["model"]
        held = self.found["choosing"].setdefault(plan.search, {})
        left = [
            (n, s) for n in RANDAUGMENTS for s in range(CHOOSING) if f"{n} seed {s}" not in held
        ]
        jobs = [self.job_on(split, config, model, Policy.load(n), s) for n, s in left]
        names = {id(job): f"{n} seed {s}" for job, (n, s) in zip(jobs, left, strict=True)}
        for job, result in train_many(jobs, self.at_once):
            held[names[id(job)]] = result.scores.loss
            self.save()
            if self.over:
                raise OutOfTimeError
        return min(
            RANDAUGMENTS,
            key=lambda n: statistics.mean(held[f"{n} seed {s}"] for s in range(CHOOSING)),
        )


def paper_settings(search: SearchConfig) -> dict[str, Any]:
    """What a recipe of the paper's says besides the preset: its part of the data is already cut."""
    names = ("batch_size", "lr", "weight_decay", "epochs")
    return {"preset": "paper"} | {name: getattr(search, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", choices=list(PLANS), metavar="TABLE")
    parser.add_argument("--data", required=True)
    parser.add_argument("--search-data", help="images to search on, where those are others")
    parser.add_argument("--out", type=Path, required=True, help="JSON; may hold other tables too")
    parser.add_argument("--only", default="", help="arms, with commas between")
    parser.add_argument("--seeds", type=int, nargs="*", help="of the plan's; else all")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other processes")
    parser.add_argument("--searches-only", action="store_true", help="train nothing")
    parser.add_argument("--most", type=int, help="trainings of this call, of every table")
    parser.add_argument("--at-once", type=int, help="trainings or stacks that share the card")
    parser.add_argument("--minutes", type=float, help="stop after so many, with checkpoints")
    parser.add_argument("--trial", action="store_true", help="a few images and epochs, to try it")
    asked = parser.parse_args()
    plans, only = [PLANS[name] for name in asked.tables], [*filter(None, asked.only.split(","))]
    known = {arm for plan in plans for arm, _ in plan.units()}
    if unknown := set(only) - known:
        parser.error(f"--only: {unknown.pop()!r} is none of {', '.join(sorted(known))}")
    study = Study(
        asked.out,
        asked.data,
        asked.search_data,
        minutes=asked.minutes,
        at_once=asked.at_once,
        trial=asked.trial,
        earlier=earlier(asked),
    )
    if asked.join:
        study.save(measured=False)  # also where nothing is left to run
    try:
        for plan in plans:
            units = [
                (arm, seed)
                for arm, seed in plan.units()
                if (not only or arm in only) and (asked.seeds is None or seed in asked.seeds)
            ]
            if asked.searches_only:
                study.run_searches(plan, units)
            else:
                study.run_units(plan, units, asked.most)
    except OutOfTimeError:
        print("stopped: the time is up; the same command goes on from here")
    trainings = study.found["trainings"]
    for name, plan in zip(asked.tables, plans, strict=True):
        keys = [plan.key(*unit) for unit in plan.units()]
        done = [trainings[key] for key in keys if key in trainings]
        print(f"{name}: {len(done)} of {len(keys)} trainings are done")
        print_table(done, ["arm", "seed", "error", "epochs", "seconds"])


if __name__ == "__main__":
    main()
