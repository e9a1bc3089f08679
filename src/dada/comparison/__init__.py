"""Is this policy better than that one on this data? Policies x seeds, with intervals.

trials.py      the trainings, and the ways to run them
records.py     what is on disk of those that have ended
statistics.py  means, intervals, paired differences, words
result.py      Comparison and its file
plot.py        the picture
view.py        what a person sees in a terminal
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dada import models, recipes
from dada.comparison.plot import save_plot
from dada.comparison.result import METRICS, Comparison, summarise
from dada.config import TrainConfig, train_config
from dada.data import Split, judged, load_with_base
from dada.engine import Ranks, joined, resolve_device
from dada.policy import Policy, baselines
from dada.runlog import RunLog, check_run_path
from dada.trials.records import Records
from dada.trials.runners import Outcome, Setting, Trial, default_at_once, run_trials

__all__ = ["Comparison", "compare", "split_names"]

DEFAULT_POLICIES = ("uniform", "trivialaugment", "cutout", "none")

PolicyLike = str | os.PathLike[str] | Policy


def compare(
    data: Any = None,
    policies: Sequence[PolicyLike] = DEFAULT_POLICIES,
    *,
    seeds: int | Sequence[int] = 3,
    model: str | nn.Module | None = None,
    recipe: str | None = None,
    metric: str = "accuracy",
    device: str = "auto",
    image_size: int | tuple[int, int] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    at_once: int | None = 1,
    on_start: Callable[[Split, str, int], None] | None = None,
    on_trial: Callable[[Trial, Outcome], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Train one network for every policy and seed, and say which policy is better.

    `data` is anything `dada.data.load` reads. It is judged on its test images, else on its
    validation images, else on a fifth that is split off. `policies` are names, files, run
    directories or `Policy` objects. `seeds` is how many, or which. `settings` are those of
    `TrainConfig`, over the defaults or over a recipe's.

    With `out`, every training that ends is written there, and `resume` goes on from them.
    `at_once` trainings run side by side; None is as many as there are cores. More than one on a
    CPU means new processes, so a script has to keep its own calls under
    `if __name__ == "__main__":`.
    """
    if out is not None:
        check_run_path(out, resume=resume)
    target = resolve_device(device)
    numbers = _seeds(seeds)
    if metric not in METRICS:
        raise ValueError(f"metric should be one of {', '.join(METRICS)}, got {metric!r}")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once should be 1 or more, got {at_once}")
    chosen = None if recipe is None else recipes.named(recipe, wants="train")
    start = TrainConfig() if chosen is None or chosen.train is None else chosen.train
    config = train_config(start, **settings)
    named = _named(policies)  # unknown names and broken files, before the data is read
    if out is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("under torchrun the processes meet in the run directory: give --out")

    # Everyone is judged on the same images, whatever the seed of the training.
    wanted = None if chosen is None and settings.get("base") is None else config.base
    whole, base = load_with_base(data, wanted, image_size=image_size, seed=0)
    config = replace(config, base=base)
    split, _ = judged(whole, seed=0)
    network = model if model is not None else None if chosen is None else chosen.model
    if network is None:
        network = models.default_model(target.type, split.image_size)
    setting = Setting(split=split, model=network, device=target)
    _check_model(setting, numbers[0])
    trials = _trials(named, config, numbers, split)
    model_name = network if isinstance(network, str) else type(network).__name__
    if on_start is not None:
        on_start(split, model_name, len(trials))
    if at_once is None:
        at_once = default_at_once(target, split.image_size)

    started = time.perf_counter()
    with joined(target) as ranks:
        run = _open(out, resume, ranks, trials, setting, model_name, metric)
        if run is not None and ranks.same(run.finished):
            return Comparison.load(run.path)
        outcomes, taken_over = _outcomes(setting, trials, run, ranks, at_once, on_trial)
        comparison = summarise(
            {
                name: [outcomes[trial] for trial in trials if trial.name == name]
                for name in dict.fromkeys(trial.name for trial in trials)
            },
            data=split.name,
            model=model_name,
            metric=metric,
            classes=split.classes,
            seeds=numbers,
            seconds=round(time.perf_counter() - started + taken_over, 2),
        )
        if isinstance(run, RunLog):
            run.save_text("comparison.json", comparison.to_json())
            save_plot(comparison, run.path / "comparison.png")
            run.finish({"seconds": comparison.seconds, "verdict": comparison.verdict})
    return comparison


def split_names(text: str) -> list[str]:
    """ "a,randaugment:2,0.5,b" -> the three names in it."""
    found = re.findall(r"\s*(randaugment:[^,]*,[^,]*|[^,]+)", text)
    return [name.strip() for name in found if name.strip()]


class _Elsewhere:
    """The run directory as a process sees it that did not make it."""

    def __init__(self, path: Path) -> None:
        self.path, self.finished = path, False


def _open(
    out: str | os.PathLike[str] | None,
    resume: bool,
    ranks: Ranks,
    trials: Sequence[Trial],
    setting: Setting,
    model_name: str,
    metric: str,
) -> RunLog | _Elsewhere | None:
    """The run directory. Under torchrun the first process makes it, the others wait for that."""
    if out is None:
        return None
    if ranks.rank > 0:
        return _Elsewhere(Path(out))
    run = RunLog(out, resume=resume)
    split = setting.split
    by_name = {trial.name: trial for trial in trials}
    run.config(
        {
            "command": "compare",
            "data": split.name,
            "fingerprint": split.fingerprint,
            "model": model_name,
            "metric": metric,
            "seeds": list(dict.fromkeys(trial.seed for trial in trials)),
            "policies": list(by_name),
            "policy_hashes": [_hash(trial.policy) for trial in by_name.values()],
            "cutouts": [trial.config.base.cutout for trial in by_name.values()],
            "device": setting.device.type,
            "train": asdict(trials[0].config) | {"base": _shared(trials)},
        }
    )
    return run


def _shared(trials: Sequence[Trial]) -> dict[str, Any]:
    """What is done besides a policy, less the square that differs among them."""
    return {k: v for k, v in asdict(trials[0].config.base).items() if k != "cutout"}


def _hash(policy: Policy) -> str:
    return hashlib.sha256(replace(policy, provenance={}).to_json().encode()).hexdigest()[:16]


def _outcomes(
    setting: Setting,
    trials: Sequence[Trial],
    run: RunLog | _Elsewhere | None,
    ranks: Ranks,
    at_once: int,
    on_trial: Callable[[Trial, Outcome], None] | None,
) -> tuple[dict[Trial, Outcome], float]:
    """Of every trial, and the seconds spent on those of an earlier session."""
    found: dict[Trial, Outcome] = {}
    records = None
    if run is not None:
        records = Records(run.path, list(dict.fromkeys(trial.name for trial in trials)))
        earlier = {trial: records.read(trial) for trial in trials} if ranks.rank == 0 else {}
        done = ranks.same([i for i, trial in enumerate(trials) if earlier.get(trial) is not None])
        for i in done:
            found[trials[i]] = records.read(trials[i]) or {}
            if on_trial is not None:
                on_trial(trials[i], found[trials[i]])
    taken_over = sum(outcome["seconds"] for outcome in found.values())
    left = [trial for trial in trials if trial not in found]
    for trial, outcome in run_trials(setting, left[ranks.rank :: ranks.world], at_once):
        found[trial] = outcome
        if records is not None:
            records.write(trial, outcome)
        if on_trial is not None:
            on_trial(trial, outcome)
    if records is not None and ranks.world > 1:
        found = records.wait_for(trials)
    return found, taken_over


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise ValueError("there should be one seed or more, got none")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds should differ, got {', '.join(map(str, numbers))}")
    if any(not 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"a seed should be in 0..2^62, got {', '.join(map(str, numbers))}")
    return numbers


def _named(policies: Sequence[PolicyLike]) -> dict[str, Policy]:
    """Name -> policy, in the order given."""
    named: dict[str, Policy] = {}
    for i, given in enumerate([policies] if isinstance(policies, str | Policy) else policies):
        if isinstance(given, Policy):
            name, policy = str(given.provenance.get("name") or f"policy {i + 1}"), given
        else:
            name, policy = os.fspath(given), Policy.load(given)
        if name in named:
            raise ValueError(f"policy {name!r} is named twice; name every policy once")
        named[name] = policy
    if len(named) < 2:
        raise ValueError(
            f"a comparison needs two policies or more, got {', '.join(named) or 'none'}; "
            "add uniform, say"
        )
    return named


def _trials(
    named: dict[str, Policy], config: TrainConfig, seeds: Sequence[int], split: Split
) -> list[Trial]:
    """Seed by seed, so that an early stop has the same seeds of every policy."""
    settled: dict[str, tuple[Policy, TrainConfig]] = {}
    for given, policy in named.items():
        name = baselines.name_for_data(given, split.name, split.image_size)
        if name != given:
            policy = Policy.load(name)
        base = baselines.base_for(name, config.base, split.image_size)
        for other, (same_policy, same_config) in settled.items():
            if (policy, base) == (same_policy, same_config.base):
                raise ValueError(f"{other!r} and {name!r} do the same to these images; drop one")
        settled[name] = (policy, replace(config, base=base))
    return [
        Trial(name=name, policy=policy, config=own, seed=seed)
        for seed in seeds
        for name, (policy, own) in settled.items()
    ]


def _check_model(setting: Setting, seed: int) -> None:
    """A network that cannot be built, or gives no logits, before any training."""
    network = setting.network(seed)
    if isinstance(setting.model, nn.Module):  # one by name is checked when it is built
        example = torch.zeros(2, setting.split.channels, *setting.split.image_size)
        models.check_logits(
            network.to(setting.device), example.to(setting.device), setting.split.num_classes
        )
