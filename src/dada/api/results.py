"""What search and train return, and how a finished run is read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dada import safe_json
from dada.data import Split
from dada.policy import Policy
from dada.policy.notebook import policy_html
from dada.runlog import RunLog, read_log, read_summary, read_weights
from dada.safe_html import fill
from dada.safe_text import LONGEST_MESSAGE, printable
from dada.training.loop import TrainResult
from dada.training.scores import Scores


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
    number = read_summary(path).get(name)
    if isinstance(number, bool) or not isinstance(number, int | float):
        file = path / "finished.json"
        raise ValueError(f"{file} is damaged: no number {name}; delete it and resume")
    return float(number)


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

    def __repr__(self) -> str:
        where = "" if self.out is None else f" in {self.out}"
        score = f"{self.scores.accuracy:.2%} of {self.scores.images:,} images"
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
            scores=_scores(path / "scores.json", split.num_classes),
            history=read_log(path),
            seconds=_number(path, "seconds"),
            images_per_second=_number(path, "images_per_second"),
            classes=split.classes,
            out=path,
        )


def _scores(file: Path, num_classes: int) -> Scores:
    try:
        scores = Scores(**safe_json.read_object(file))
        rows = [[*map(int, row)] for row in scores.confusion_CC]
        assert len(rows) == len(scores.class_error_C) == num_classes
        assert all(len(row) == num_classes for row in rows)
        known = (n for n in (scores.top5, *scores.class_error_C) if n is not None)
        numbers = (scores.accuracy, scores.balanced_accuracy, scores.loss, scores.images, *known)
        assert all(map(math.isfinite, numbers))
    except (TypeError, AssertionError):
        raise ValueError(f"{file} is damaged; choose another `out`") from None
    return scores


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
