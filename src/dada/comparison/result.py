"""What a comparison found: rows, differences, a verdict, and the file comparison.json."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dada import safe_json
from dada.policy import baselines
from dada.safe_html import fill, table
from dada.safe_text import LONGEST_MESSAGE, one_line_errors, printable
from dada.tasks import TASKS
from dada.trials import statistics
from dada.trials.runners import TrialScores
from dada.trials.statistics import Difference, Interval

FORMAT, VERSION = "dada-comparison", 1
METRICS = tuple(metric for task in TASKS.values() for metric in task.metrics)


@dataclass(frozen=True, kw_only=True)
class PolicyScores:
    """One policy: percentages over the seeds, loss as it is."""

    name: str
    mean: float
    interval: Interval | None
    scores: tuple[float, ...]  # by seed
    # None: no images of that class were judged.
    class_error: tuple[float | None, ...] = field(repr=False)
    balanced_accuracy: float | None  # None for tasks other than classification
    loss: float | None  # None where a training came to no finite loss
    top5: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Policies over seeds on one data set. Percentages; differences in points."""

    data: str
    model: str
    metric: str
    policies: tuple[PolicyScores, ...]
    differences: tuple[Difference, ...]
    verdict: str
    classes: tuple[str, ...]
    seeds: tuple[int, ...]
    images: int  # judged on
    seconds: float
    versions: Mapping[str, Any]
    out: Path | None = None  # where it was written
    task: str = "classification"
    failed: tuple[str, ...] = ()  # trainings without a score, and why; `resume` tries them again

    def __repr__(self) -> str:
        rows = sorted(self.policies, key=lambda row: -row.mean)
        means = ", ".join(f"{printable(row.name, 40)} {row.mean:.2f}" for row in rows)
        seeds = "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        about = f"{printable(self.data, 40)}, {seeds}, {self.metric} in %"
        return f"<Comparison on {about}: {means}>"

    def __getitem__(self, policy: str) -> PolicyScores:
        for row in self.policies:
            if row.name == policy:
                return row
        known = ", ".join(row.name for row in self.policies)
        raise KeyError(f"no policy {policy!r} in this comparison; there are {known}")

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, then a row for each policy, the best first."""
        ranked = sorted(self.policies, key=lambda row: -row.mean)
        rows = [
            (
                printable(row.name),
                f"{row.mean:.2f}",
                "" if row.interval is None else "{:.2f} to {:.2f}".format(*row.interval),
                len(row.scores),
            )
            for row in ranked
        ]
        return fill(
            "<p>$verdict</p>$table<p>$facts</p>",
            verdict=printable(self.verdict, LONGEST_MESSAGE),
            table=table(("policy", f"{self.metric}, %", "95% interval", "seeds"), rows),
            facts=printable(f"{self.data}, {self.model}, {self.images} images judged on"),
        )

    def to_json(self) -> str:
        known = {name: value for name, value in asdict(self).items() if name != "out"}
        if not self.failed:
            del known["failed"]
        if self.task == "classification":
            del known["task"]
        content = {"format": FORMAT, "version": VERSION, **_rounded(known)}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @classmethod
    @one_line_errors
    def load(cls, path: str | os.PathLike[str]) -> Comparison:
        """From a file, or from the run directory that holds it."""
        file = Path(path) / "comparison.json" if Path(path).is_dir() else Path(path)
        try:
            content = safe_json.read(file)
        except OSError as error:
            raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f'{file}: not a comparison: "format" should be "{FORMAT}"')
        if (version := content.pop("version", None)) != VERSION:
            raise ValueError(f"{file}: version {version!r}, this dada reads {VERSION}")
        try:
            content["policies"] = tuple(PolicyScores(**_tuples(row)) for row in content["policies"])
            content["differences"] = tuple(
                Difference(**_tuples(entry)) for entry in content["differences"]
            )
            comparison = cls(**_tuples(content))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file}: a field is missing or unknown ({printable(error)})"
            ) from None
        if not comparison._is_whole():
            raise ValueError(f"{file}: damaged, a field is not what it should be")
        return comparison

    def _is_whole(self) -> bool:
        """Whether all that is printed is of the kind it should be."""
        words = (self.data, self.model, self.verdict, *self.classes)
        counts = (self.images, self.seconds, *self.seeds)
        return (
            all(isinstance(word, str) for word in words)
            and self.task in TASKS
            and self.metric in TASKS[self.task].metrics
            and _are_numbers(*counts)
            and len(self.policies) > 0
            and all(
                isinstance(row.name, str)
                and _are_numbers(row.mean, *row.scores)
                and _is_interval(row.interval)
                for row in self.policies
            )
            and all(
                isinstance(found.policy, str)
                and isinstance(found.against, str)
                and _are_numbers(found.mean, found.seeds, found.picked_from)
                and _is_interval(found.interval)
                for found in self.differences
            )
        )


def summarise(
    scores_by_name: Mapping[str, Sequence[TrialScores]], metric: str, failed: Sequence[str]
) -> dict[str, Any]:
    """What the scores of every policy, by seed, come to: fields of a `Comparison`."""
    images = next(iter(scores_by_name.values()))[0]["images"]
    scores = {name: [100 * done[metric] for done in each] for name, each in scores_by_name.items()}
    free = [name for name in scores_by_name if baselines.is_free(name)]
    found = statistics.differences(scores, free, resolution=100 / images)
    best = max(free, key=lambda name: statistics.mean(scores[name]), default=None)
    policies = (_of_policy(name, scores[name], each) for name, each in scores_by_name.items())
    return {
        "policies": tuple(policies),
        "differences": tuple(found),
        "verdict": _verdict(statistics.verdict(found, free, best), failed),
        "images": images,
    }


def _verdict(words: str, failed: Sequence[str]) -> str:
    if not failed:
        return words
    several = "1 training" if len(failed) == 1 else f"{len(failed)} trainings"
    return f"{words} {several} failed, and with it nothing of that seed counts: {failed[0]}."


def _of_policy(name: str, scores: Sequence[float], each: Sequence[TrialScores]) -> PolicyScores:
    def percent(key: str) -> float | None:
        values = [done.get(key) for done in each]
        known = [value for value in values if value is not None]
        return None if len(known) < len(values) else 100 * statistics.mean(known)

    losses = [done["loss"] for done in each]
    finite = all(loss is not None and math.isfinite(loss) for loss in losses)
    ends = statistics.interval(scores)
    by_class = zip(*(done["class_error_C"] for done in each), strict=True)
    return PolicyScores(
        name=name,
        mean=statistics.mean(scores),
        interval=None if ends is None else (max(0.0, ends[0]), min(100.0, ends[1])),
        scores=tuple(scores),
        class_error=tuple(
            None if None in errors else 100 * statistics.mean(errors) for errors in by_class
        ),
        balanced_accuracy=percent("balanced_accuracy"),
        loss=statistics.mean(losses) if finite else None,
        top5=percent("top5"),
    )


def _are_numbers(*values: Any) -> bool:
    return all(safe_json.number(value) is not None for value in values)


def _is_interval(value: Any) -> bool:
    ends = value if isinstance(value, tuple) else ()
    return value is None or (len(ends) == 2 and _are_numbers(*ends))


def _rounded(value: Any) -> Any:
    """A ten-thousandth of a point is finer than any test set."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
