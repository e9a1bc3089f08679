"""Numbers of a run to TensorBoard, Weights & Biases or MLflow, through one callback.

A run writes its own files whether or not it is tracked. The epochs of a search or a training are
tracked under the names of log.jsonl, with a slash inside: `loss`, `val_accuracy`,
`op_rate/Rotate`. The trainings of a comparison are tracked as they end: `accuracy/uniform`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dada import safe_json
from dada.comparison import METRICS
from dada.names import did_you_mean
from dada.runlog import flat, read_toml, write_text
from dada.safe_text import first_line, quoted
from dada.trials.runners import Trial

Settings = Mapping[str, Any]

PROJECT = "dada"
_STATE = "tracking.json"  # which run of a service this directory is, for when it is resumed
_NOT_FOR_NAMES = re.compile(r"[^\w./ -]")  # MLflow refuses them: the colon of randaugment:2,0.5


@dataclass(frozen=True)
class Sink:
    """One service, opened: where numbers go, and how it is told that there are no more."""

    log: Callable[[dict[str, float], int], object]
    close: Callable[[], object]


def _tensorboard(run_dir: Path, settings: Settings, known: dict[str, str]) -> Sink:
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(
        str(run_dir / "tensorboard")
    )
    if settings:
        writer.add_text("settings", "\n".join(f"    {k} = {v!r}" for k, v in settings.items()))

    def log(numbers: dict[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()  # so that it can be watched

    return Sink(log, writer.close)


def _wandb(run_dir: Path, settings: Settings, known: dict[str, str]) -> Sink:
    wandb = importlib.import_module("wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run_dir.name,
        dir=str(run_dir),
        config=dict(settings),
        id=known.get("wandb"),
        resume="allow",
    )
    known["wandb"] = str(run.id)
    return Sink(lambda numbers, epoch: run.log(numbers, step=epoch), run.finish)


def _mlflow(run_dir: Path, settings: Settings, known: dict[str, str]) -> Sink:
    mlflow = importlib.import_module("mlflow")
    if "MLFLOW_EXPERIMENT_NAME" not in os.environ and "MLFLOW_EXPERIMENT_ID" not in os.environ:
        mlflow.set_experiment(PROJECT)
    if "mlflow" in known:
        mlflow.start_run(run_id=known["mlflow"])
    else:
        known["mlflow"] = str(mlflow.start_run(run_name=run_dir.name).info.run_id)
        # A value longer than this is refused by older servers.
        mlflow.log_params({name: str(value)[:500] for name, value in settings.items()})
    return Sink(lambda numbers, epoch: mlflow.log_metrics(numbers, step=epoch), mlflow.end_run)


SCORES = (*METRICS, "top5", "loss", "seconds")

SERVICES: dict[str, Callable[[Path, Settings, dict[str, str]], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


class Tracker:
    """An `on_epoch` that passes numbers on; `with` closes it. Nothing is opened before an epoch."""

    def __init__(self, names: tuple[str, ...], run_dir: Path, config: Settings | None) -> None:
        self.names, self.run_dir, self.config = names, run_dir, config
        self.sinks: dict[str, Sink] | None = None
        self.trials = 0

    def __call__(self, metrics: dict[str, Any], epochs: int) -> None:
        """Pass on one epoch."""
        numbers = {name: value for name, value in metrics.items() if name != "epoch"}
        self.log(numbers, int(metrics["epoch"]), "epoch")

    def trial(self, trial: Trial, scores: dict[str, Any]) -> None:
        """Pass on the scores of a training that has ended; the steps count these trainings."""
        self.trials += 1
        policy = _NOT_FOR_NAMES.sub("-", trial.name)
        tracked = {name: {policy: scores[name]} for name in SCORES if name in scores}
        self.log(tracked, self.trials, "training")

    def log(self, metrics: Settings, step: int, counted: str) -> None:
        """A service that fails later on is warned about once and left out."""
        if self.sinks is None:
            self.sinks = self._open()
        numbers = flat_numbers(metrics)
        for name, sink in list(self.sinks.items()):
            try:
                sink.log(numbers, step)
            except Exception as error:  # a network, a quota, a full disk: the run is worth more
                del self.sinks[name]
                problem = f"tracking with {name} ended in {counted} {step}: {error}"
                warnings.warn(f"{problem}; the run goes on", stacklevel=2)

    def close(self) -> None:
        for name, sink in (self.sinks or {}).items():
            try:
                sink.close()
            except Exception as error:
                warnings.warn(f"{name} could not be closed: {error}", stacklevel=2)
        self.sinks = {}

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _open(self) -> dict[str, Sink]:
        settings = flat(self.config if self.config is not None else _settings(self.run_dir), "/")
        state = self.run_dir / _STATE
        known = safe_json.read_object(state) if state.is_file() else {}
        before = dict(known)
        sinks = {}
        for name in self.names:
            try:
                sinks[name] = SERVICES[name](self.run_dir, settings, known)
            except Exception as error:
                for sink in sinks.values():
                    sink.close()
                raise ValueError(
                    f"tracking with {name} could not start: {first_line(error)}; set it up, or "
                    "leave it out and continue with `resume=True`"
                ) from error
        if known != before:
            write_text(state, json.dumps(known, indent=1) + "\n")
        return sinks


def tracker(
    names: str | Iterable[str], run_dir: str | os.PathLike[str], config: Settings | None = None
) -> Tracker:
    """A callback for `on_epoch` that tracks a run with the services named, "tensorboard,wandb".

    No name tracks nothing. Without `config` the settings are read from the run's config.toml when
    the first epoch has ended, so the directory need not exist yet.
    """
    listed = names.split(",") if isinstance(names, str) else names
    chosen = tuple(dict.fromkeys(filter(None, (name.strip() for name in listed))))
    for name in chosen:
        if name not in SERVICES:
            raise ValueError(
                f"no tracking with {quoted(name)}; use {', '.join(SERVICES)}"
                f"{did_you_mean(name, SERVICES)}"
            )
        if find_spec(name) is None:
            raise ValueError(f"tracking with {name} needs a package: pip install {name}")
    return Tracker(chosen, Path(run_dir), config)


def flat_numbers(metrics: Settings) -> dict[str, float]:
    """What can be drawn: numbers, those inside dicts too; words and lists are left to the log."""
    return {
        name: float(value)
        for name, value in flat(metrics, "/").items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _settings(run_dir: Path) -> Settings:
    file = run_dir / "config.toml"
    return read_toml(file) if file.is_file() else {}
