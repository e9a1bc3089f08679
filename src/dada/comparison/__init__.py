"""Is this policy better than that one on this data? Policies x seeds, with intervals.

result.py      Comparison and its file
plot.py        the picture

The trainings and their statistics are in dada.trials.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dada.comparison.plot import save_plot
from dada.comparison.result import METRICS, Comparison, summarise
from dada.config import TrainConfig
from dada.data import Split
from dada.engine import Ranks, joined, memory_kept
from dada.policy import Policy, baselines
from dada.runlog import opened_run, versions
from dada.safe_text import quoted
from dada.trials.records import FAILED, Records, in_one_line
from dada.trials.runners import Setting, Trial, TrialScores, run_all

__all__ = [
    "METRICS",
    "Comparison",
    "ComparisonJob",
    "OnTrial",
    "named_policies",
    "run_comparison",
    "trials_of",
]

PolicyLike = str | os.PathLike[str] | Policy
OnTrial = Callable[[Trial, TrialScores], None]


@dataclass(frozen=True, kw_only=True)
class ComparisonJob:
    """A comparison, ready to begin."""

    setting: Setting
    model_name: str
    trials: Sequence[Trial]
    """Seed by seed, so that an early stop has the same seeds of every policy."""
    metric: str
    at_once: int
    out: Path | None
    resume: bool
    on_trial: OnTrial | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(trial.seed for trial in self.trials))

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(trial.name for trial in self.trials))

    def facts(self) -> dict[str, Any]:
        """What a run was asked; a resumed run must be asked the same."""
        split, base = self.setting.split, asdict(self.trials[0].config.base)
        by_name = {trial.name: trial for trial in self.trials}
        return {
            "command": "compare",
            "data": split.name,
            "fingerprint": split.fingerprint,
            "model": self.model_name,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "policies": list(by_name),
            "policy_hashes": [_hash(trial.policy) for trial in by_name.values()],
            "cutouts": [trial.config.base.cutout for trial in by_name.values()],
            "device": self.setting.device.type,
            # The square differs among policies.
            "train": asdict(self.trials[0].config)
            | {"base": {k: v for k, v in base.items() if k != "cutout"}},
        }


def run_comparison(job: ComparisonJob) -> Comparison:
    """Train every trial that is not on disk yet, and summarise all."""
    started = time.perf_counter()
    # Under torchrun the first process makes the run directory, the others wait for that.
    with (
        memory_kept(job.setting.device),
        joined(job.setting.device) as ranks,
        opened_run(None if ranks.rank else job.out, job.facts, resume=job.resume) as run,
    ):
        if ranks.same(run is not None and run.finished):
            assert job.out is not None
            return replace(Comparison.load(job.out), out=job.out)
        scores, seconds_before = _scores_of_all(job, ranks)
        failed = {trial: each[FAILED] for trial, each in scores.items() if FAILED in each}
        kept, seeds = _comparable(job, failed)
        by_name = {name: [scores[kept[name, seed]] for seed in seeds] for name, _ in kept}
        problems = tuple(failed.values())
        comparison = Comparison(
            data=job.setting.split.name,
            model=job.model_name,
            metric=job.metric,
            task=job.setting.split.task,
            classes=job.setting.split.classes,
            seeds=tuple(seeds),
            failed=problems,
            seconds=round(time.perf_counter() - started + seconds_before, 2),
            versions=versions(),
            out=job.out,
            **summarise(by_name, job.metric, problems),
        )
        if run is not None:
            run.save_text("comparison.json", comparison.to_json())
            save_plot(comparison, run.path / "comparison.png")
            if not failed:  # else `resume` tries them again
                run.finish({"seconds": comparison.seconds, "verdict": comparison.verdict})
    return comparison


def _comparable(
    job: ComparisonJob, failed: Mapping[Trial, str]
) -> tuple[dict[tuple[str, int], Trial], list[int]]:
    """The trainings that can be compared, by policy and seed, and these seeds.

    A policy that failed with every seed is left out; then a seed with which any other failed is,
    because differences are taken seed by seed.
    """
    ended = [trial for trial in job.trials if trial not in failed]
    names = {trial.name for trial in ended}
    lost = {trial.seed for trial in failed if trial.name in names}
    seeds = [seed for seed in job.seeds if seed not in lost]
    kept = {(trial.name, trial.seed): trial for trial in ended if trial.seed in seeds}
    if len({name for name, _ in kept}) < 2:
        raise ValueError(
            f"{len(failed)} of {len(job.trials)} trainings failed, which leaves nothing to "
            f"compare: {'; '.join(list(failed.values())[:2])}"
        )
    return kept, seeds


def _scores_of_all(job: ComparisonJob, ranks: Ranks) -> tuple[dict[Trial, TrialScores], float]:
    """Of every trial, and the seconds spent on those of an earlier session."""
    found: dict[Trial, TrialScores] = {}
    records = None if job.out is None else Records(job.out, job.names, job.setting.task)

    def ended(trial: Trial, scores: TrialScores) -> None:
        found[trial] = scores
        if job.on_trial is not None and FAILED not in scores:
            job.on_trial(trial, scores)

    if records is not None:
        earlier = [records.of_before(trial) for trial in job.trials] if ranks.rank == 0 else []
        for trial, scores in zip(job.trials, ranks.same(earlier), strict=True):
            if scores is not None:
                ended(trial, scores)
    seconds_before = sum(scores["seconds"] for scores in found.values())
    left = [trial for trial in job.trials if trial not in found]
    mine = left[ranks.rank :: ranks.world]
    for trial, outcome in run_all(job.setting, mine, job.at_once):
        scores = {FAILED: in_one_line(outcome)} if isinstance(outcome, Exception) else outcome
        if records is not None:
            records.write(trial, scores)
        ended(trial, scores)
    if records is not None and ranks.world > 1:
        found = records.wait_for(job.trials)
    return found, seconds_before


def _hash(policy: Policy) -> str:
    return hashlib.sha256(replace(policy, provenance={}).to_json().encode()).hexdigest()[:16]


def named_policies(policies: Sequence[PolicyLike]) -> dict[str, Policy]:
    """Name -> policy, in the order given."""
    named: dict[str, Policy] = {}
    if not isinstance(policies, Iterable) and not isinstance(policies, Policy):
        raise TypeError(f"`policies` should be a list of policies, got {quoted(policies)}")
    for i, given in enumerate([policies] if isinstance(policies, str | Policy) else policies):
        if isinstance(given, Policy):
            name, policy = str(given.provenance.get("name") or f"policy {i + 1}"), given
        else:
            policy = Policy.load(given)
            name = os.fspath(given)
        if name in named:
            raise ValueError(f"policy {quoted(name)} is named twice; name every policy once")
        named[name] = policy
    if len(named) < 2:
        raise ValueError(
            f"a comparison needs two policies or more, got {quoted(list(named))}; add uniform, say"
        )
    return named


def trials_of(
    named: Mapping[str, Policy],
    config: TrainConfig,
    seeds: Sequence[int],
    split: Split,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Trial]:
    """Every policy with every seed; each has what is done to all images besides as its own.

    Of two that do the same, as where a search returned `uniform`, the free one is trained, and
    `tell` is given a line.
    """
    settled: dict[str, tuple[Policy, TrainConfig]] = {}
    for given, policy in sorted(named.items(), key=lambda item: not baselines.is_free(item[0])):
        name = baselines.name_for_data(given, split.name, split.image_size)
        if name != given:
            policy = Policy.load(name)
        base = baselines.base_for(name, config.base, split.image_size)
        same = [k for k, held in settled.items() if held == (policy, replace(config, base=base))]
        if same:
            tell(f"{quoted(name)} does the same to these images as {same[0]}: trained once")
        else:
            settled[name] = (policy, replace(config, base=base))
    if len(settled) < 2:
        raise ValueError(f"{' and '.join(map(quoted, named))} do the same to these images; add one")
    order = [baselines.name_for_data(given, split.name, split.image_size) for given in named]
    settled = {name: settled[name] for name in order if name in settled}
    return [
        Trial(name=name, policy=policy, config=own, seed=seed)
        for seed in seeds
        for name, (policy, own) in settled.items()
    ]
