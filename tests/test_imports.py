"""Imports point down only, some rooms never meet, and `import dada` is light.

A room is a module or package directly under dada. Every import counts, wherever it stands in a
file, for an import inside a function couples two rooms as much as one at the top. The one
exception is policy.py, whose methods reach up to `transform` and `export` for convenience.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# From the top of the house to its foundation. A room may import from its own floor (but not in a
# circle) and from every floor below.
FLOORS = (
    {"__main__"},
    {"cli"},
    {"progress"},
    {"__init__"},
    {"api"},
    {
        "report",
        "export",
        "imports",
        "compare",
        "verify",
        "recipes",
        "show",
        "folder",
        "doctor",
        "tracking",
    },
    {"shapes"},
    {"lookahead", "stand_in"},
    {"search", "train"},
    {"short", "nominal"},
    {"pixel_effects", "scores"},
    {"search_state", "train_state"},
    {"evidence"},
    {
        "optimisers",
        "augment",
        "estimators",
        "hypergradient",
        "parameters",
        "transform",
        "data",
        "models",
    },
    {"policy", "space", "baselines"},
    {"ops"},
)
LEAVES = {"config", "runlog", "engine"}  # anyone may import them, they import nothing of dada
STRANGERS = {
    ("estimators", "models"),
    ("models", "estimators"),
    ("hypergradient", "ops"),
    ("ops", "hypergradient"),
    ("report", "search"),
}
REACHES_UP_IN_METHODS = {"policy"}

OPTIONAL = (
    "albumentations",
    "datasets",
    "kornia",
    "matplotlib",
    "mmpretrain",
    "nvidia.dali",
    "pandas",
    "rich",
    "scipy",
    "sklearn",
    "timm",
    "torchvision",
    "typer",
)


@dataclass(frozen=True, kw_only=True)
class Import:
    """`importer` names the rooms as in FLOORS; `deferred` means not run when the file is loaded."""

    importer: str
    imported: str
    deferred: bool
    where: str


def room_of(module: str) -> str:
    """dada.ops.table -> ops; the package itself -> __init__."""
    return [*module.split("."), "__init__"][1]


def rooms_in(source: Path) -> set[str]:
    package = source / "dada"
    files = {file.stem for file in package.glob("*.py")}
    return files | {file.parent.name for file in package.glob("*/__init__.py")}


def imports_of(file: Path, source: Path) -> list[Import]:
    """Every import of something of dada in one file."""
    parts = list(file.relative_to(source).with_suffix("").parts)
    importer = room_of(".".join(parts))
    package = parts[:-1]  # what a relative import starts from, for packages and modules alike
    rooms = rooms_in(source)
    found: list[Import] = []

    def visit(node: ast.AST, deferred: bool) -> None:
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "dada":  # `from dada import ops` is of a room, `import Policy` of the root
                names = [alias.name for alias in node.names if alias.name != "__version__"]
                modules = [f"dada.{name}" if name in rooms else "dada" for name in names]
            else:
                modules = [module]
        for module in modules:
            if module.split(".")[0] == "dada" and room_of(module) != importer:
                where = f"{file.relative_to(source)}:{node.lineno}"
                room = room_of(module)
                found.append(
                    Import(importer=importer, imported=room, deferred=deferred, where=where)
                )
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, deferred or function or typing_only)

    visit(ast.parse(file.read_text(encoding="utf-8"), filename=str(file)), deferred=False)
    return found


def floor_of(room: str) -> int | None:
    return next((floor for floor, rooms in enumerate(FLOORS) if room in rooms), None)


def problem_with(link: Import) -> str | None:
    """Why this import may not be, or None."""
    if (link.importer, link.imported) in STRANGERS:
        return "these two are not to know each other"
    if link.importer in LEAVES:
        return f"{link.importer} is a leaf and imports nothing of dada"
    if link.imported in LEAVES:
        return None
    if link.deferred and link.importer in REACHES_UP_IN_METHODS and link.imported != "cli":
        return None
    above, below = floor_of(link.importer), floor_of(link.imported)
    if above is None or below is None:
        return None  # a room without a floor is reported once, by `violations`
    return None if above <= below else "imports point down only"


def circle(links: list[Import]) -> list[str]:
    """Rooms that import each other in a circle when loaded, or nothing."""
    below: dict[str, set[str]] = {}
    for link in links:
        if not link.deferred:
            below.setdefault(link.importer, set()).add(link.imported)
    done: set[str] = set()

    def walk(room: str, path: list[str]) -> list[str]:
        if room in path:
            return [*path[path.index(room) :], room]
        if room in done:
            return []
        for other in sorted(below.get(room, ())):
            if found := walk(other, [*path, room]):
                return found
        done.add(room)
        return []

    return next((found for room in sorted(below) if (found := walk(room, []))), [])


def violations(source: Path) -> list[str]:
    """One line for each thing wrong with the imports under source/dada."""
    links = [
        link for file in sorted(source.glob("dada/**/*.py")) for link in imports_of(file, source)
    ]
    found = [
        f"room {room} has no floor: place it in FLOORS of tests/test_imports.py"
        for room in sorted(rooms_in(source))
        if floor_of(room) is None and room not in LEAVES
    ]
    for link in links:
        if problem := problem_with(link):
            found.append(f"{link.where}: {link.importer} imports {link.imported}: {problem}")
    if rooms := circle(links):
        found.append(f"rooms import each other in a circle: {' -> '.join(rooms)}")
    return found


def test_imports_point_down():
    assert violations(SOURCE) == []


def plant(source: Path, files: dict[str, str]) -> Path:
    for name, text in {"__init__.py": "", "ops/__init__.py": "", **files}.items():
        file = source / "dada" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return source


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"policy.py": "from dada.search import search_step"}, "policy imports search: imports"),
        ({"ops/table.py": "import dada.space"}, "ops imports space: imports point down only"),
        ({"ops/table.py": "from ..space import Draw"}, "ops imports space: imports point down"),
        ({"search.py": "from . import api", "api.py": ""}, "search imports api: imports point"),
        ({"train.py": "def f():\n    from dada import cli", "cli.py": ""}, "train imports cli"),
        ({"space.py": "try:\n    import dada.train\nexcept E: pass"}, "space imports train"),
        ({"space.py": "from dada import Policy"}, "space imports __init__: imports point down"),
        ({"estimators.py": "from dada.models import build"}, "not to know each other"),
        ({"models/small.py": "from dada import estimators", "estimators.py": ""}, "not to know"),
        ({"hypergradient.py": "import dada.ops.table as t"}, "not to know each other"),
        ({"report.py": "def f():\n    import dada.search"}, "not to know each other"),
        ({"config.py": "from dada.ops import apply"}, "config is a leaf"),
        ({"policy.py": "def f():\n    import dada.cli"}, "policy imports cli"),
        ({"__init__.py": "from dada.cli import main", "cli.py": ""}, "__init__ imports cli"),
        ({"helpers.py": ""}, "room helpers has no floor"),
        ({"a/__init__.py": ""}, "room a has no floor"),
        (
            {"train.py": "import dada.search", "search.py": "import dada.train"},
            "in a circle: search -> train -> search",
        ),
    ],
)
def test_the_checker_sees_what_is_planted(tmp_path, files, complaint):
    found = violations(plant(tmp_path, files))
    assert len(found) == 1 and complaint in found[0], found


def test_the_checker_lets_good_imports_be(tmp_path):
    files = {
        "__init__.py": "from dada.api import search",
        "__main__.py": "from dada.cli import main",
        "cli.py": "import dada\ndef f():\n    from dada import api, __version__",
        "api.py": "from dada import search\nfrom .runlog import RunLog",
        "search.py": "import torch\nfrom dada.augment import augment\nfrom . import config",
        "augment.py": "from dada.parameters import P",
        "parameters.py": "from .ops import table",
        "policy.py": "class Policy:\n    def transform(self):\n        import dada.transform",
        "transform.py": "from dada.policy import Policy",
        "ops/table.py": "from dada.ops import spec\nfrom . import spec\nfrom .spec import Op",
        "ops/spec.py": "",
        "runlog.py": "",
        "config.py": "import dadaism",
    }
    assert violations(plant(tmp_path, files)) == []


# --- what importing costs -----------------------------------------------------------------------

PROBE = f"""
import json, sys, time
start = time.perf_counter()
import torch
torch_s = time.perf_counter() - start
cuda_calls = []
start_cuda = torch.cuda._lazy_init
def noticed():
    cuda_calls.append(1)
    start_cuda()
torch.cuda._lazy_init = noticed
start = time.perf_counter()
import dada
print(json.dumps(dict(
    torch_s=torch_s,
    dada_s=time.perf_counter() - start,
    optional=[name for name in {OPTIONAL!r} if name in sys.modules],
    cuda=bool(cuda_calls) or torch.cuda.is_initialized(),
)))
"""


@pytest.fixture(scope="module")
def fresh_imports(tmp_path_factory) -> list[dict]:
    """`import torch`, then `import dada`, three times in new processes and an empty directory."""
    folder = tmp_path_factory.mktemp("empty")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-W", "error", "-c", PROBE]
    answers = []
    for _ in range(3):
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert list(folder.iterdir()) == [], "importing dada wrote a file"
    return answers


def test_import_adds_little_to_torch(fresh_imports):
    best = min(answer["dada_s"] for answer in fresh_imports)
    assert best < 1.5, f"import dada took {best:.2f} s beyond torch's own"


def test_import_starts_no_cuda(fresh_imports):
    assert not any(answer["cuda"] for answer in fresh_imports)


def test_import_loads_nothing_optional(fresh_imports):
    assert fresh_imports[0]["optional"] == []
