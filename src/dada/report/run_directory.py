"""What a run directory holds. Only a policy or a comparison must be there."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dada import safe_json
from dada.policy import Policy
from dada.report.samples import Sample, read_samples
from dada.runlog import POLICY, UNFINISHED_POLICY, read_log, read_toml
from dada.safe_json import mapping, number, sequence

COMPARISON, COMPARISON_FORMAT = "comparison.json", "dada-comparison"


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """The parts of a run that a report can show; empty where the directory has none."""

    path: Path
    policy: Policy | None
    comparison: dict[str, Any]
    samples: list[Sample]
    unfinished: bool = False  # a search that can be resumed; `policy` is what it has learned so far
    log: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    finished: dict[str, Any] = field(default_factory=dict)

    @property
    def search_settings(self) -> Mapping[str, Any]:
        return mapping(self.config.get("search"))

    @property
    def excluded(self) -> set[str]:
        """The operations that the search left out."""
        return set(map(str, sequence(self.search_settings.get("exclude"))))

    @property
    def data_facts(self) -> Mapping[str, Any]:
        return mapping(self.policy.provenance.get("data")) if self.policy else {}

    @property
    def verification(self) -> Mapping[str, Any]:
        return mapping(self.policy.provenance.get("verification")) if self.policy else {}

    @property
    def seconds(self) -> float | None:
        """Spent on the search: all of it once it has finished, else the sum over its epochs."""
        total = number(self.finished.get("seconds"))
        epochs = [number(line.get("seconds")) for line in self.log]
        return total if total is not None else math.fsum(filter(None, epochs)) or None


def read_run_directory(
    path: str | os.PathLike[str], comparison_path: str | os.PathLike[str] | None = None
) -> RunDirectory:
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path}: no such run directory; name the `out` of a search")
    comparison = _comparison(path, comparison_path)
    named = (path / POLICY, path / UNFINISHED_POLICY)
    policy_file = next((file for file in named if file.is_file()), None)
    if policy_file is None and not comparison:
        raise ValueError(
            f"{path}: holds neither {POLICY} nor {COMPARISON}; there is nothing to report yet"
        )
    config = _toml(path / "config.toml")
    # Earlier versions wrote policy.json after every epoch; of a finished search there is the third.
    resumable = config.get("command") == "search" and (path / "checkpoint.pt").is_file()
    unfinished = resumable and not (path / "finished.json").is_file()
    return RunDirectory(
        path=path,
        policy=Policy.load(policy_file) if policy_file else None,
        unfinished=unfinished or policy_file == path / UNFINISHED_POLICY,
        log=read_log(path),
        config=config,
        sessions=[s for s in sequence(_json(path / "run.json").get("sessions")) if mapping(s)],
        finished=_json(path / "finished.json"),
        comparison=comparison,
        samples=read_samples(path) if policy_file else [],
    )


def read_policy_alone(
    source: str | os.PathLike[str],
    comparison_path: str | os.PathLike[str] | None,
    samples: list[Sample],
) -> RunDirectory:
    """A policy that is not of a run, as if it were one of which nothing else is known."""
    return RunDirectory(
        path=Path(source),
        policy=Policy.load(source),
        comparison=_comparison(Path(os.devnull), comparison_path),
        samples=samples,
    )


def _comparison(path: Path, comparison_path: str | os.PathLike[str] | None) -> dict[str, Any]:
    file = Path(comparison_path or path) / COMPARISON
    if comparison_path is not None and not file.is_file():
        raise ValueError(f"{file}: no such file; name the `out` of a finished dada compare")
    comparison = _json(file)
    if comparison and comparison.get("format") != COMPARISON_FORMAT:
        raise ValueError(f'{file}: "format" should be "{COMPARISON_FORMAT}"')
    return comparison


def _json(file: Path) -> dict[str, Any]:
    return safe_json.read_object(file) if file.is_file() else {}


def _toml(file: Path) -> dict[str, Any]:
    return read_toml(file) if file.is_file() else {}


def interval(value: Any) -> tuple[float, float] | None:
    ends = [number(end) for end in sequence(value)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] > ends[1]:
        return None
    return ends[0], ends[1]
