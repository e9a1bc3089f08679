"""A policy: frozen, validated, and a JSON file that says what it means.

A policy is a list of sub-policies; for every image one of them is drawn and its operations are
done one after another, each with its own probability and magnitude.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dada import safe_json
from dada.names import FREE_POLICIES, did_you_mean, found_policies, published_policies
from dada.policy.space import SPACES
from dada.policy.steps import Magnitude, PolicyOp, SubPolicy
from dada.runlog import POLICY, UNFINISHED_POLICY, write_text
from dada.safe_text import one_line_errors, printable, quoted

if TYPE_CHECKING:
    from dada.policy.transform import PolicyTransform

FORMAT = "dada-policy"
VERSION = 1
SAMPLINGS = ("uniform", "weighted")
WEIGHT_TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-3  # of all weights, however many: ten million nothings are not one


@dataclass(frozen=True)
class Policy:
    """Sub-policies in a space; see `docs/policy-format.md` for the file.

    Two policies are equal when they do the same: where they come from does not count.
    """

    subpolicies: tuple[SubPolicy, ...]
    space: str = "paper"
    sampling: str = "uniform"
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subpolicies", tuple(self.subpolicies))
        if not isinstance(self.space, str) or self.space not in SPACES:
            raise ValueError(
                f"space should be one of {', '.join(SPACES)}, got {quoted(self.space)}"
            )
        if self.sampling not in SAMPLINGS:
            raise ValueError(
                f"sampling should be one of {', '.join(SAMPLINGS)}, got {quoted(self.sampling)}"
            )
        for i, subpolicy in enumerate(self.subpolicies):
            for j, step in enumerate(subpolicy.ops):
                try:
                    SPACES[self.space].op(step.op)
                except ValueError as error:
                    raise ValueError(f"subpolicies[{i}].ops[{j}].op: {error}") from None
        weights = [subpolicy.weight for subpolicy in self.subpolicies]
        tolerance = min(WEIGHT_TOLERANCE * len(weights), SUM_TOLERANCE)
        if weights and abs(math.fsum(weights) - 1) > tolerance:
            raise ValueError(f"weights should sum to 1, they sum to {math.fsum(weights):.6g}")
        if self.sampling == "uniform" and weights:
            share = 1 / len(weights)
            for i, weight in enumerate(weights):
                if abs(weight - share) > WEIGHT_TOLERANCE:
                    raise ValueError(
                        f"subpolicies[{i}].weight is {weight:g}, but sampling 'uniform' means "
                        f"1/{len(weights)} for all; use sampling 'weighted'"
                    )

    def __repr__(self) -> str:
        name = printable(self.provenance.get("name") or self.space, 40)
        often = sorted(self.op_probabilities().items(), key=lambda item: -item[1])[:3]
        done = ", ".join(f"{op} {share:.0%}" for op, share in often if share > 0)
        more = f": {done}, ..." if done else ""
        return f"<Policy {name}, {len(self.subpolicies)} sub-policies{more}>"

    @classmethod
    def from_rows(cls, rows: Any, space: str = "paper", **provenance: Any) -> Policy:
        """From rows of (op, probability, magnitude), every sub-policy as likely as the others."""
        try:
            rows = [tuple(PolicyOp(*step) for step in row) for row in rows]
        except TypeError:
            raise ValueError(
                "`rows` should be a list of sub-policies, each a list of (op, probability, "
                f"magnitude), got {quoted(rows)}"
            ) from None
        subpolicies = tuple(SubPolicy(1 / len(rows), row) for row in rows)
        return cls(subpolicies, space, "uniform", provenance)

    @classmethod
    def uniform(cls, rows: Any, space: str = "paper", **provenance: Any) -> Policy:
        """The old name of `from_rows`; it is not the policy called `uniform`."""
        warnings.warn(
            "Policy.uniform(rows) is now Policy.from_rows(rows); the old name goes with the next "
            "release",
            DeprecationWarning,
            stacklevel=2,
        )
        return cls.from_rows(rows, space, **provenance)

    # The file

    def to_json(self) -> str:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "space": self.space,
            "sampling": self.sampling,
            "subpolicies": [asdict(subpolicy) for subpolicy in self.subpolicies],
            "provenance": dict(self.provenance),
        }
        try:
            return json.dumps(content, indent=1, allow_nan=False) + "\n"
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"provenance cannot be written as JSON: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file whole or not at all."""
        write_text(path, self.to_json())
        return Path(path)

    @classmethod
    @one_line_errors
    def load(cls, source: str | os.PathLike[str]) -> Policy:
        """A policy from a file, a run directory, or a name (`dada.policy.names()` lists them).

        "hf:user/name" is one that somebody has pushed to the Hugging Face Hub.
        """
        if not isinstance(source, str | os.PathLike):
            raise TypeError(f"`policy` should be a name, a path or a Policy, got {quoted(source)}")
        if isinstance(source, str) and source.startswith("hf:"):
            from dada.hub import pull

            return pull(source)
        path = Path(source)
        if os.path.isdir(path):
            path = _policy_of_run(path)
        if os.path.isfile(path):  # of os.path, which has False for a name that is too long
            try:
                return cls._from_content(safe_json.read(path))
            except ValueError as error:
                raise ValueError(f"{printable(path)}: {error}") from None
        from dada.policy import baselines  # which is made of policies

        name = str(source)
        if (free := baselines.by_name(name)) is not None:
            return free
        if name in (published := published_policies()):
            return cls.from_rows(published[name], name=name, published=True)
        if name not in (found := found_policies()):
            raise ValueError(
                f"no policy {quoted(name)}: neither a file, nor a run directory, nor one of "
                f"{', '.join(names())}{did_you_mean(source, names())}"
            )
        return cls._from_content(found[name])

    @classmethod
    @one_line_errors
    def from_json(cls, text: str) -> Policy:
        """Read the file's text; whatever is not understood is refused by name."""
        return cls._from_content(safe_json.parse(text))

    @classmethod
    def _from_content(cls, content: Any) -> Policy:
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f'not a policy file: "format" should be "{FORMAT}"')
        version = content.get("version")
        if isinstance(version, int) and version > VERSION:
            raise ValueError(
                f"version {quoted(version)} is newer than this program reads ({VERSION}); "
                "pip install --upgrade dada-augment"
            )
        if version != VERSION or isinstance(version, bool):
            raise ValueError(f"version should be {VERSION}, got {quoted(version)}")
        fields = _fields(
            content, "", required=("format", "version", "space", "sampling", "subpolicies")
        )
        if not isinstance(fields["subpolicies"], list):
            raise ValueError("subpolicies should be a list")
        subpolicies = tuple(
            _read_subpolicy(entry, f"subpolicies[{i}]")
            for i, entry in enumerate(fields["subpolicies"])
        )
        provenance = fields.get("provenance", {})
        if not isinstance(provenance, dict):
            raise ValueError("provenance should be an object")
        return cls(subpolicies, fields["space"], fields["sampling"], provenance)

    # What it does

    def transform(self, *, seed: int | None = None) -> PolicyTransform:
        """A callable for PIL images, tensors, numpy arrays, batches and tv_tensors."""
        from dada.policy.transform import PolicyTransform

        return PolicyTransform(self, seed=seed)

    def export(self, target: str) -> str:
        """The text of a file that does the same in another library, without this package.

        The targets are torchvision, timm, albumentations, kornia, dali, mmpretrain, ultralytics
        and rfdetr.
        """
        from dada.exchange.exports import export

        return export(self, target)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from dada.policy.notebook import policy_html

        return policy_html(self)

    def push_to_hub(
        self,
        repo: str,
        *,
        data: str | None = None,
        license: str | None = None,
        private: bool = False,
        token: str | None = None,
    ) -> str:
        """Publish it on the Hugging Face Hub as "user/name", with a card; returns the address.

        The card shows the built-in images; with `data`, images of yours, for everybody to see.
        """
        from dada.hub import push

        return push(self, repo, data, license, private, token)

    def op_probabilities(self) -> dict[str, float]:
        """How often each operation is done to an image: weight x probability, summed."""
        totals = {op.name: 0.0 for op in SPACES[self.space].ops}
        for subpolicy in self.subpolicies:
            for step in subpolicy.ops:
                totals[step.op] += subpolicy.weight * step.probability
        return totals

    def describe(self) -> str:
        """The policy in words and physical units, a line for every sub-policy."""
        if not self.subpolicies:
            return "no augmentation"
        lines = [
            f"{len(self.subpolicies)} sub-polic{'y' if len(self.subpolicies) == 1 else 'ies'}, "
            "one drawn for every image "
            f"({self.sampling}; space {self.space!r})"
        ]
        for i, subpolicy in enumerate(self.subpolicies, 1):
            steps = [
                f"{self.describe_op(step)} with probability {step.probability:.2f}"
                for step in subpolicy.ops
            ]
            lines.append(f"{i:4d}. {subpolicy.weight:6.2%}  {', then '.join(steps) or 'nothing'}")
        return "\n".join(lines)

    def describe_op(self, step: PolicyOp) -> str:
        """One step in physical units, e.g. "Rotate by +-3.4 degrees"."""
        space = SPACES[self.space]
        op = space.op(step.op)
        directions = (-1, 1) if space.strengths and op.two_sided and not op.signed else (1,)
        written = []
        for direction in directions:
            values = [space.value(op, m, direction) for m in step.magnitude_range]
            ends = [op.neutral if value is None else value for value in values]
            written.append(op.describe_values([end for end in ends if end is not None]))
        return op.describe(written)

    def to_space(self, name: str) -> Policy:
        """The same policy in another space; only `strength` to `paper`, where it is exact.

        An operation whose direction is drawn at random has no single place in the paper's range:
        the sub-policy is split into its two directions at half weight.
        """
        if name == self.space:
            return self
        if (self.space, name) != ("strength", "paper"):
            raise ValueError(
                f"a policy of space {self.space!r} cannot be written in space {name!r}; "
                "only 'strength' to 'paper' is exact"
            )
        converted = []
        for subpolicy in self.subpolicies:
            kept = [step for step in subpolicy.ops if not self._does_nothing(step)]
            versions = list(product(*(_in_paper_space(step) for step in kept)))
            share = subpolicy.weight / len(versions)
            converted += [SubPolicy(share, version) for version in versions]
        equal = len({round(subpolicy.weight, 12) for subpolicy in converted}) <= 1
        sampling = self.sampling if equal else "weighted"
        return Policy(tuple(converted), "paper", sampling, self.provenance)

    def _does_nothing(self, step: PolicyOp) -> bool:
        return SPACES[self.space].op(step.op).has_strength and step.magnitude_range[1] == 0


def names() -> list[str]:
    """The policies that have a name: published ones, those found here, those that cost nothing."""
    return [*published_policies(), *found_policies(), *FREE_POLICIES]


def _policy_of_run(directory: Path) -> Path:
    if (directory / POLICY).is_file():
        return directory / POLICY
    if (directory / UNFINISHED_POLICY).is_file():
        raise ValueError(
            f"{directory}: the search there has not finished; `dada search ... --resume` continues "
            f"it, and {directory / UNFINISHED_POLICY} is its policy so far"
        )
    raise ValueError(f"{directory}: no {POLICY} in this directory")


def _in_paper_space(step: PolicyOp) -> list[PolicyOp]:
    """One step of space `strength` as one step, or one for each direction, of space `paper`."""
    op = SPACES["paper"].op(step.op)
    low, high = step.magnitude_range

    def in_order(first: float, second: float) -> Magnitude:
        return first if first == second else (min(first, second), max(first, second))

    if not op.has_strength:
        magnitudes = [step.magnitude]
    elif op.two_sided:
        directions = (1,) if op.signed else (-1, 1)
        magnitudes = [in_order(0.5 + 0.5 * low * d, 0.5 + 0.5 * high * d) for d in directions]
    elif op.neutral == op.high:
        magnitudes = [in_order(1 - low, 1 - high)]
    else:
        magnitudes = [step.magnitude]
    return [PolicyOp(step.op, step.probability, magnitude) for magnitude in magnitudes]


def _fields(entry: Any, where: str, *, required: tuple[str, ...]) -> dict[str, Any]:
    """The entry's fields, every required one there and none that is unknown."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where} should be an object, got {quoted(entry)}")
    prefix = f"{where}." if where else ""
    optional = () if where else ("provenance",)
    for name in required:
        if name not in entry:
            raise ValueError(f"{prefix}{name} is missing")
    for name in entry:
        if name not in (*required, *optional):
            raise ValueError(f"{prefix}{printable(name)} is not a field of this format")
    return entry


def _read_subpolicy(entry: Any, where: str) -> SubPolicy:
    fields = _fields(entry, where, required=("weight", "ops"))
    if not isinstance(fields["ops"], list):
        raise ValueError(f"{where}.ops should be a list")
    steps = []
    for j, step in enumerate(fields["ops"]):
        here = f"{where}.ops[{j}]"
        values = _fields(step, here, required=("op", "probability", "magnitude"))
        if not isinstance(values["op"], str):
            raise ValueError(f"{here}.op should be a name, got {quoted(values['op'])}")
        try:
            steps.append(PolicyOp(**values))
        except ValueError as error:
            raise ValueError(f"{here}.{error}") from None
    try:
        return SubPolicy(fields["weight"], tuple(steps))
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None
