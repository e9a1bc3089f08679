"""Is the harness sound? CIFAR-10 by the paper's recipe, against the published errors.

    python benchmarks/studies/cifar10.py DATA [--policies none,cutout,...] [--out FILE]

DATA is anything `dada.data.load` reads with CIFAR-10's images in it (cifar10:ROOT, an .npz). Every
training keeps a run directory under --runs, so a run that was stopped goes on from its last
checkpoint, and those already in the file are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dada import Policy, models, recipes
from dada.config import changed
from dada.data import load
from dada.engine import resolve_device
from dada.policy import baselines
from dada.runlog import RunLog
from dada.training.loop import Job, train_many

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from measure import machine, print_table

# Error in percent of WRN-40-2: the DADA paper's table, and TrivialAugment's own.
PUBLISHED = {
    "none": 5.3,
    "cutout": 4.1,
    "autoaugment:cifar10": 3.7,
    "trivialaugment": 3.7,
    "fastaa-cifar10": 3.6,
    "dada-cifar10": 3.6,
}
DEFAULT = "none,cutout,autoaugment:cifar10,trivialaugment,dada-cifar10"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--policies", default=DEFAULT)
    parser.add_argument("--recipe", default="cifar10_wrn40_2")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="fewer than the recipe's, to try it out")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/cifar10"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    recipe = recipes.named(arguments.recipe, wants="train")
    assert recipe.train is not None
    config = changed(recipe.train, {"epochs": arguments.epochs})
    split = load(arguments.data)
    assert split.test is not None
    device = resolve_device("auto")
    results: dict[str, dict[str, Any]] = {}
    if arguments.out and arguments.out.exists():
        results = json.loads(arguments.out.read_text())["trainings"]
    jobs, names = [], {}
    for seed in range(arguments.seeds):
        for name in arguments.policies.split(","):
            key = f"{name} seed {seed}"
            if key in results:
                continue
            base = baselines.base_for(name, config.base, split.image_size)
            run = RunLog(arguments.runs / key.replace(":", "-").replace(" ", "-"), resume=True)
            job = Job(
                split=split,
                model=models.build(recipe.model, split.num_classes, seed=seed),
                policy=Policy.load(name),
                config=replace(config, base=base),
                seed=seed,
                device=device,
                run=run,
            )
            jobs.append(job)
            names[id(job)] = (key, name)
    for job, result in train_many(jobs, arguments.at_once):
        key, name = names[id(job)]
        results[key] = {
            "policy": name,
            "seed": job.seed,
            "error": 100 * result.scores.error,
            "published": PUBLISHED.get(name),
            "loss": result.scores.loss,
            "training_loss": result.history[-1]["loss"],
            "epochs": len(result.history),
            "seconds": result.seconds,
            "at_once": arguments.at_once,
        }
        print(key, json.dumps(results[key]), flush=True)
        if arguments.out:
            text = {"machine": machine(), "recipe": recipe.name, "trainings": results}
            arguments.out.write_text(json.dumps(text, indent=1) + "\n")
    print_table(
        list(results.values()), ["policy", "seed", "error", "published", "epochs", "seconds"]
    )


if __name__ == "__main__":
    main()
