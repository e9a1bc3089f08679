"""What search and train return, and how a finished run is read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dada import safe_json, tasks
from dada.data import Split
from dada.policy import Policy
from dada.policy.notebook import policy_html
from dada.runlog import RunLog, read_log, read_summary, read_weights
from dada.safe_html import fill
from dada.safe_text import LONGEST_MESSAGE, printable
from dada.tasks import TaskScores
from dada.training.loop import TrainResult


@dataclass(frozen=True, kw_only=True)
class Result:
    """The policy that was found, what was seen on the way, and where it was written."""

    policy: Policy
    history: list[dict[str, Any]]
    seconds: float
    out: Path | None = None

    def __repr__(self) -> str:
        where = "" if self.out is None else f" in {self.out}"
        return f"<Result of {self.seconds:.0f} s{where}: {self.policy!r}>"

    def _repr_html_(self) -> str:
        """For notebooks: what is known of the policy, and the policy."""
        verified = self.policy.provenance.get("verification")
        said = verified.get("verdict") if isinstance(verified, Mapping) else None
        return fill(
            "<p>$verdict</p>$policy<p>$cost</p>",
            verdict=printable(said or "Not compared yet: dada.compare does.", LONGEST_MESSAGE),
            policy=policy_html(self.policy),
            cost=f"{self.seconds:.0f} s" + (f", in {printable(self.out)}" if self.out else ""),
        )

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
    number = safe_json.number(read_summary(path).get(name))
    if number is None:
        file = path / "finished.json"
        raise ValueError(f"{file} is damaged: no number {name}; delete it and resume")
    return number


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

    def __repr__(self) -> str:
        where = "" if self.out is None else f" in {self.out}"
        decides = tasks.named(self.task).decides
        score = f"{decides} {getattr(self.scores, decides):.2%}, {self.scores.images:,} images"
        return f"<Trained {type(self.model).__name__}, {score}, {self.seconds:.0f} s{where}>"

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
