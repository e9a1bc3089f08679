"""`dada list`: what there is to choose from, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from dada import recipes
from dada.names import (
    FREE_POLICIES,
    MODELS,
    did_you_mean,
    found_policies,
    published_policies,
)
from dada.ops import PAPER
from dada.policy import Policy
from dada.policy.space import SPACES, SearchSpace
from dada.report.gallery import in_words
from dada.safe_text import quoted


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One of the things: its name as it is typed, and what it is."""

    name: str
    what: str


def _policies() -> dict[str, str]:
    published = published_policies().items()
    return {
        **{name: f"{len(rows)} sub-policies" for name, rows in published},
        **{name: _found(held) for name, held in found_policies().items()},
        **FREE_POLICIES,
    }


def _found(policy: dict[str, Any]) -> str:
    facts = policy["provenance"]
    images = facts["data"]["train"] + facts["data"]["val"]
    return (
        f"{len(policy['subpolicies'])} sub-policies, found by this package in "
        f"{facts['seconds']:.0f} s on {images:,} images of {facts['data']['name']}"
    )


def _ops() -> dict[str, str]:
    whole = Policy.from_rows([[(op.name, 1.0, (0.0, 1.0)) for op in PAPER]])
    steps = whole.subpolicies[0].ops
    said = {step.op: in_words(whole, step).removeprefix(step.op).strip() for step in steps}
    return {name: what or "has no strength" for name, what in said.items()}


def _space(space: SearchSpace) -> str:
    meaning = "0 is the identity, 1 the strongest" if space.strengths else "over the whole range"
    return f"{len(space.ops)} operations; a magnitude runs from 0 to 1: {meaning}"


def _recipe(recipe: recipes.Recipe) -> str:
    settings = recipe.search or recipe.train
    assert settings is not None
    images = "" if recipe.reduce_to is None else f"{recipe.reduce_to:,} images of "
    verb = "search" if recipe.search is not None else "train"
    length = f"{settings.epochs} epochs, batches of {settings.batch_size}"
    return f"dada {verb}, {images}{recipe.data}, {recipe.model}, {length}"


# Of every kind: what each is, by its name.
KINDS: dict[str, Callable[[], Mapping[str, str]]] = {
    "policies": _policies,
    "models": lambda: MODELS,
    "ops": _ops,
    "spaces": lambda: {name: _space(space) for name, space in SPACES.items()},
    "recipes": lambda: {name: _recipe(recipe) for name, recipe in recipes.RECIPES.items()},
}


def entries(kind: str) -> list[Entry]:
    if kind not in KINDS:
        problem = f"no list of {quoted(kind)}; there are {', '.join(KINDS)}"
        raise ValueError(f"{problem}{did_you_mean(kind, KINDS)}")
    return [Entry(name=name, what=what) for name, what in KINDS[kind]().items()]


def print_entries(found: list[Entry], console: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for entry in found:
        table.add_row(entry.name, entry.what)
    console.print(table, highlight=False)
