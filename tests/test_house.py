"""Habits of the house that a reader would otherwise have to check by eye."""

from __future__ import annotations

import ast
import importlib
import inspect
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

PINNED: list[str] = json.loads((Path(__file__).parent / "public_names.json").read_text())
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSIDE = "architecture.md"  # for those who change the code: what it names may move
DOCS = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != INSIDE]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def dotted(node: ast.expr) -> list[str]:
    """dada.Policy.load -> its three parts; nothing for what does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return [*before, node.attr] if before else []
    return [node.id] if isinstance(node, ast.Name) else []


def names_in_code(code: str) -> set[str]:
    """Every name of dada that Python code imports or reaches through what it imported."""
    meant, used = {}, set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "dada":
                    meant[alias.asname or "dada"] = alias.name if alias.asname else "dada"
                    used.add(alias.name)
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "dada":
            for alias in node.names:
                meant[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                used.add(f"{node.module}.{alias.name}")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and (parts := dotted(node)) and parts[0] in meant:
            used.add(".".join([meant[parts[0]], *parts[1:]]))
    return used - {"dada"}


def names_in_page(text: str) -> set[str]:
    """Those of its Python blocks, which share their names, and those named in the text."""
    code = "\n".join(body for language, body in FENCE.findall(text) if language == "python")
    spans = re.findall(r"(?<!`)`([^`]+)`", FENCE.sub("", text))
    named = {name for span in spans for name in re.findall(r"\bdada(?:\.[A-Za-z_]\w*)+", span)}
    return names_in_code(code) | named


def documented_names() -> set[str]:
    pages = [names_in_page(page.read_text(encoding="utf-8")) for page in PAGES]
    scripts = [names_in_code(script.read_text(encoding="utf-8")) for script in EXAMPLES]
    return set().union(*pages, *scripts)


def resolve(name: str) -> object:
    """The thing of that name, or the field of a dataclass."""
    thing: object = dada
    for part in name.split(".")[1:]:
        if part in getattr(thing, "__dataclass_fields__", {}):
            return thing.__dataclass_fields__[part]
        if inspect.ismodule(thing) and not hasattr(thing, part):
            importlib.import_module(f"{thing.__name__}.{part}")
        thing = getattr(thing, part)
    return thing


def test_every_name_that_the_docs_use_is_pinned():
    """A name, once given, is permanent: adding one here is a decision, removing one a breach."""
    assert sorted(set(PINNED)) == PINNED
    assert documented_names() - set(PINNED) == set()
    assert {f"dada.{name}" for name in dada.__all__} - set(PINNED) == set()


def test_every_pinned_name_resolves():
    """Without a warning, which is an error here: an old name is not what the docs should use."""
    assert len(PINNED) > 50
    for name in PINNED:
        assert resolve(name) is not None, name


def test_the_docs_are_searched_for_names():
    text = "`dada.a` `x dada.b.c()` dada.no\n\n```python\nimport dada\nfrom dada import d\n```\n"
    text += "\n```python\nfrom dada.e import f as g\nd.h(dada.i.j().k, g.l, m.n)\n```\n"
    names = {"a", "b.c", "d", "e.f", "d.h", "i.j", "i", "e.f.l"}
    assert names_in_page(text) == {f"dada.{name}" for name in names}
    assert {"dada.Policy.load", "dada.policy.space.register", "dada.search"} <= documented_names()


def test_the_public_names_are_where_the_table_says():
    assert set(dada._MODULE_OF) == set(dada.__all__) - {"__version__", "ops"}
    for name, module in dada._MODULE_OF.items():
        assert getattr(dada, name) is getattr(importlib.import_module(module), name)
    assert set(dada.__all__) <= set(dir(dada))


def test_no_function_has_the_name_of_a_module():
    """Importing a module sets it on its package: it would take the place of the function."""
    modules = {module.name for module in pkgutil.walk_packages(dada.__path__, "dada.")}
    assert {"dada.policy.space", "dada.terminal.commands"} <= modules
    shadowed = []
    for name in sorted({"dada", *modules} - {"dada.__main__"}):
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            if f"{name}.{attribute}" in modules and not inspect.ismodule(value):
                shadowed.append(f"{name}.{attribute}")
    assert shadowed == []
    assert {f"dada.{name}" for name in dada._MODULE_OF} & modules == set()


# --- errors -------------------------------------------------------------------------------------

COMMAND_LINE = re.compile(r"\b(?:dada|pip) [^;]*")  # whole commands, as one types them


def flags_in_errors(code: str) -> list[str]:
    """Flags of the command line that a raised error names; a library knows parameters only."""
    raised = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Raise)]
    texts = [
        part.value
        for node in raised
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return [flag for text in texts for flag in re.findall(r"--[a-z]+", COMMAND_LINE.sub("", text))]


def test_errors_of_the_library_name_parameters():
    """`batch_size`, in backticks: dada.terminal.errors makes a flag of it."""
    source = ROOT / "src" / "dada"
    files = [file for file in source.rglob("*.py") if "terminal" not in file.parts]
    found = {file.name: flags_in_errors(file.read_text(encoding="utf-8")) for file in files}
    assert {name: flags for name, flags in found.items() if flags} == {}


def test_a_flag_in_an_error_is_seen():
    code = """
def f(path, lr):
    raise ValueError(f"{path} exists; choose another --out")
    raise ValueError("no; as of dada search --space x; lower " "--lr") from None
    print("--fine")
"""
    assert flags_in_errors(code) == ["--out", "--lr"]


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
    assert {"pyproject.toml", "Makefile", "src/dada/recipes.py", "tests/test_house.py"} <= names


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
