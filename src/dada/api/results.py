"""What search and train return, and how a finished run is read back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dada.data import Split
from dada.policy import Policy
from dada.runlog import RunLog, read_log, read_summary, read_weights
from dada.training.loop import TrainResult
from dada.training.scores import Scores


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
            seconds=float(read_summary(path)["seconds"]),
            out=path,
        )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained network, how good it is, and where it was written."""

    model: nn.Module
    scores: Scores
    history: list[dict[str, Any]]
    seconds: float
    images_per_second: float
    classes: tuple[str, ...]
    out: Path | None = None

    @classmethod
    def load(cls, path: Path, network: nn.Module, split: Split) -> Trained:
        """What a finished training has on disk; `network` gets its weights."""
        network.load_state_dict(read_weights(path / "model.safetensors"))
        summary = read_summary(path)
        return cls(
            model=network,
            scores=Scores(**json.loads((path / "scores.json").read_text(encoding="utf-8"))),
            history=read_log(path),
            seconds=float(summary["seconds"]),
            images_per_second=float(summary["images_per_second"]),
            classes=split.classes,
            out=path,
        )


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
    run.save_weights("model.safetensors", result.model.state_dict())
    run.save_text("model.json", json.dumps(about, indent=2) + "\n")
    run.save_text("scores.json", json.dumps(asdict(result.scores), indent=2) + "\n")
    speed = {"images_per_second": round(result.images_per_second)}
    run.finish({"seconds": round(result.seconds, 2), **speed})
