"""Habits of the house that a reader would otherwise have to check by eye."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dada

ROOT = Path(__file__).parents[1]
LINE_CEILING = 400
TEXT = {".py", ".md", ".toml", ".json", ".cff", ".yml", ".yaml", ".txt", ".csv", ".html", ".cfg"}
TEXT_NAMES = {"Makefile", "LICENSE", "run", ".gitignore"}

# Someone's own directory, at the start of a path: it exists on one machine only.
MACHINE_PATH = re.compile(r"(?<![\w.~:/-])/(?:home|root|work|Users)/[\w.-]+|[A-Z]:\\Users\\")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")


def project_files() -> list[Path]:
    """What belongs to the project: what git knows or would add; everything, where git is absent."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if listed.returncode == 0:
            files = [ROOT / name for name in listed.stdout.split("\0") if name]
            return [file for file in files if file.is_file()]
    generated = {"__pycache__", "runs", "data", "build", "dist"}
    return [
        file
        for file in ROOT.rglob("*")
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(ROOT).parts[:-1])
        and file.relative_to(ROOT).parts[0] not in generated
    ]


def text_files() -> list[Path]:
    return [f for f in project_files() if f.suffix in TEXT or f.name in TEXT_NAMES]


def lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    found = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if match := pattern.search(line):
                found.append(f"{file}:{number}: {match.group()}")
    return found


def too_long(files: list[Path]) -> list[str]:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    return [f"{file}: {n} lines" for file, n in lengths.items() if n > LINE_CEILING]


# --- public names -------------------------------------------------------------------------------


def test_the_public_names_are_the_checked_in_list():
    """A name, once given, is permanent: adding one here is a decision, removing one a breach."""
    listed = json.loads((Path(__file__).parent / "public_names.json").read_text())
    assert sorted(dada.__all__) == listed


def test_every_public_name_resolves_and_stays_what_it_was():
    """`dada.search` is a function and also a module: importing the module must not replace it."""
    before = {name: getattr(dada, name) for name in dada.__all__}
    for module in pkgutil.walk_packages(dada.__path__, "dada."):
        if module.name != "dada.__main__":
            importlib.import_module(module.name)
    changed = [name for name, value in before.items() if getattr(dada, name) is not value]
    assert changed == []


def test_public_names_are_in_dir():
    assert set(dada.__all__) <= set(dir(dada))


# --- files --------------------------------------------------------------------------------------


def test_source_files_are_small():
    folders = {"src", "benchmarks", "examples"}
    python = [f for f in project_files() if f.suffix == ".py"]
    assert too_long([f for f in python if f.relative_to(ROOT).parts[0] in folders]) == []


def test_no_path_of_one_machine():
    assert lines_with(MACHINE_PATH, text_files()) == []


def test_nothing_is_left_unfinished():
    assert lines_with(UNFINISHED, text_files()) == []


def test_the_project_is_found():
    names = {file.relative_to(ROOT).as_posix() for file in text_files()}
    assert {"pyproject.toml", "Makefile", "src/dada/config.py", "tests/test_house.py"} <= names


@pytest.mark.parametrize(
    "line",
    [
        "open('%shome/ann/x')",
        "see %sroot/data",
        "`%swork/thing`",
        "%sUsers/ann",
        "C:\\" + r"Users\ann",
    ],
)
def test_a_machine_path_is_seen(tmp_path, line):
    file = tmp_path / "planted.md"
    file.write_text("first\n" + line.replace("%s", "/"))  # in pieces, or this file would be found
    assert len(lines_with(MACHINE_PATH, [file])) == 1
    assert lines_with(MACHINE_PATH, [file])[0].startswith(f"{file}:2: ")


@pytest.mark.parametrize(
    "line",
    ["https://example.org/home/ann", "src/work/a.py", "~/work/x", "/path/to/images", "/homework/a"],
)
def test_other_paths_are_not(tmp_path, line):
    file = tmp_path / "planted.md"
    file.write_text(line)
    assert lines_with(MACHINE_PATH, [file]) == []


def test_other_checks_can_fail(tmp_path):
    file = tmp_path / "planted.py"
    file.write_text("# TO" + "DO: later\n" + "x = 1\n" * LINE_CEILING)
    assert lines_with(UNFINISHED, [file]) == [f"{file}:1: TO" + "DO"]
    assert too_long([file]) == [f"{file}: {LINE_CEILING + 1} lines"]
