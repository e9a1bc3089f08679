"""What search and train return, and how a finished run is read back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dada import safe_json, tasks
from dada.data import Split
from dada.policy import Policy
from dada.runlog import RunLog, read_log, read_summary, read_weights
from dada.safe_text import printable
from dada.tasks import TaskScores
from dada.training.loop import TrainResult


@dataclass(frozen=True, kw_only=True)
class Result:
    """The policy that was found, what was seen on the way, and where it was written."""

    policy: Policy
    history: list[dict[str, Any]]
    seconds: float
    out: Path | None = None

    @classmethod
    def load(cls, path: Path) -> Result:
        """What a finished search has on disk."""
        return cls(
            policy=Policy.load(path),
            history=read_log(path),
            seconds=_number(path, "seconds"),
            out=path,
        )


def _number(path: Path, name: str) -> float:
    """A number of finished.json."""
    number = read_summary(path).get(name)
    if isinstance(number, bool) or not isinstance(number, int | float):
        file = path / "finished.json"
        raise ValueError(f"{file} is damaged: no number {name}; delete it and resume")
    return float(number)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained network, how good it is, and where it was written."""

    model: nn.Module
    scores: Any  # of the task: `dada.tasks` has the kinds
    history: list[dict[str, Any]]
    seconds: float
    images_per_second: float
    classes: tuple[str, ...]
    task: str = "classification"
    out: Path | None = None

    @classmethod
    def load(cls, path: Path, network: nn.Module, split: Split) -> Trained:
        """What a finished training has on disk; `network` gets its weights."""
        weights = path / "model.safetensors"
        try:
            network.load_state_dict(read_weights(weights))
        except RuntimeError as error:
            reason = printable(str(error).splitlines()[-1].strip())
            problem = f"{weights} does not belong to this run: {reason}"
            raise ValueError(f"{problem}; choose another `out`") from None
        return cls(
            model=network,
            scores=_scores(path / "scores.json", split),
            history=read_log(path),
            seconds=_number(path, "seconds"),
            images_per_second=_number(path, "images_per_second"),
            classes=split.classes,
            task=split.task,
            out=path,
        )


def _scores(file: Path, split: Split) -> TaskScores:
    try:
        return tasks.named(split.task).read(safe_json.read_object(file), split.num_classes)
    except (TypeError, AssertionError):
        raise ValueError(f"{file} is damaged; choose another `out`") from None


def write_training(run: RunLog, result: TrainResult, model_name: str, split: Split) -> None:
    """The files of a training that has ended; the last one marks it as finished."""
    mean, std = split.mean_std()
    about = {  # what one needs beside the weights to use them
        "model": model_name,
        "classes": split.classes,
        "channels": split.channels,
        "image_size": split.image_size,
        "mean": mean,
        "std": std,
    }
    if split.task != "classification":
        about["task"] = split.task
    scores: Any = result.scores
    run.save_weights("model.safetensors", result.model.state_dict())
    run.save_text("model.json", json.dumps(about, indent=2) + "\n")
    run.save_text("scores.json", json.dumps(asdict(scores), indent=2) + "\n")
    speed = {"images_per_second": round(result.images_per_second)}
    run.finish({"seconds": round(result.seconds, 2), **speed})
