"""docs/architecture.md says what is so: floors as the import test has them, a walk that exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

from test_imports import FLOORS, LEAVES, SOURCE, modules_in, room_of

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
AROUND = {"__init__", "__main__", "renamed"}  # the package itself, not rooms of the house
MOST_FILES = 25


def between(name: str) -> str:
    return PAGE.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def test_the_floors_are_those_that_imports_are_checked_against():
    rows = re.findall(r"^\| (\d+|leaf) \| `(\w+)` \| .+ \|$", between("floors"), re.M)
    by_floor: dict[str, set[str]] = {}
    for floor, room in rows:
        by_floor.setdefault(floor, set()).add(room)
    leaves = by_floor.pop("leaf")
    floors = [rooms - AROUND for rooms in FLOORS if rooms - AROUND]
    assert [by_floor[str(i + 1)] for i in range(len(by_floor))] == floors
    assert leaves == LEAVES - AROUND
    rooms = {room_of(module) for module in modules_in(SOURCE)} - AROUND
    assert rooms == {room for _, room in rows}


def found(name: str) -> tuple[ModuleType, object]:
    """A dotted name: its module, and what it is."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        thing: object = module
        for part in parts[length:]:
            thing = getattr(thing, part)
        return module, thing
    raise AssertionError(f"{name}: no such module")


def test_the_walk_names_functions_and_few_files():
    names = re.findall(r"`(dada\.[\w.]+)`", between("walk"))
    assert len(names) > 20
    files = set()
    for name in names:
        module, thing = found(name)
        assert callable(thing), name
        files.add(module.__file__)
    assert len(files) <= MOST_FILES
