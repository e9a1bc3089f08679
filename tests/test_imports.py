"""Imports point down only, some modules never meet, and `import dada` is light.

A room is a module or package directly under dada; docs/architecture.md shows them. Every import
counts, wherever it stands in a file, for an import inside a function couples two rooms as much as
one at the top. The one exception is policy/policy.py, whose methods `transform`, `export`,
`load` and `push_to_hub` reach up for convenience.
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

# From the top of the house to its foundation. A room may import from every floor below.
FLOORS = (
    {"__main__"},
    {"terminal"},
    {"__init__"},
    {"api", "explorer", "hub"},
    {"report", "exchange", "comparison"},
    {"policy_search"},
    {"trials"},
    {"training"},
    {"tasks", "models", "data"},
    {"policy"},
    {"ops"},
)
# For anyone; they import only each other.
LEAVES = {
    *("config", "recipes", "runlog", "engine", "safe_text", "safe_json", "safe_html"),
    *("safe_files", "renamed", "names"),
}
STRANGERS = (
    ("dada.policy_search.estimators", "dada.models"),
    ("dada.models", "dada.policy_search.estimators"),
    ("dada.policy_search.hypergradient", "dada.ops"),
    ("dada.report", "dada.policy_search"),
)
REACHES_UP_IN_METHODS = "dada.policy.policy"

OPTIONAL = (
    "albumentations",
    "datasets",
    "huggingface_hub",
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
    """Two modules by their dotted names; `deferred` means not run when the file is loaded."""

    importer: str
    imported: str
    deferred: bool
    where: str


def room_of(module: str) -> str:
    """dada.ops.table -> ops; the package itself -> __init__."""
    return [*module.split("."), "__init__"][1]


def modules_in(source: Path) -> set[str]:
    """Every module and package, by its dotted name."""
    found = set()
    for file in source.glob("dada/**/*.py"):
        parts = file.relative_to(source).with_suffix("").parts
        found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def imports_of(file: Path, source: Path, modules: set[str]) -> list[Import]:
    """Every import of something of dada in one file."""
    parts = list(file.relative_to(source).with_suffix("").parts)
    package = parts[:-1]  # what a relative import starts from, for packages and modules alike
    importer = ".".join(package if parts[-1] == "__init__" else parts)
    found: list[Import] = []

    def visit(node: ast.AST, deferred: bool) -> None:
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:  # `from dada import ops` is of a module, `Policy` of the root
                inner = f"{module}.{alias.name}"
                if alias.name != "__version__":
                    named.append(inner if inner in modules else module)
        for module in dict.fromkeys(named):
            if module.split(".")[0] == "dada" and module != importer:
                where = f"{file.relative_to(source)}:{node.lineno}"
                found.append(
                    Import(importer=importer, imported=module, deferred=deferred, where=where)
                )
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, deferred or function or typing_only)

    visit(ast.parse(file.read_text(encoding="utf-8"), filename=str(file)), deferred=False)
    return found


def floor_of(room: str) -> int | None:
    return next((floor for floor, rooms in enumerate(FLOORS) if room in rooms), None)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def problem_with(link: Import) -> str | None:
    """Why this import may not be, or None."""
    importer, imported = room_of(link.importer), room_of(link.imported)
    for one, other in STRANGERS:
        if within(link.importer, one) and within(link.imported, other):
            return "these two are not to know each other"
    if importer == imported or imported in LEAVES:
        return None
    if importer in LEAVES:
        return f"{importer} is a leaf and imports no room of dada"
    if link.deferred and link.importer == REACHES_UP_IN_METHODS and imported != "terminal":
        return None
    above, below = floor_of(importer), floor_of(imported)
    if above is None or below is None:
        return None  # a room without a floor is reported once, by `violations`
    return None if above < below else "imports point down only"


def circle(links: list[Import]) -> list[str]:
    """Modules that import each other in a circle, or nothing; a deferred import counts."""
    below: dict[str, set[str]] = {}
    for link in links:
        if not (link.deferred and link.importer == REACHES_UP_IN_METHODS):
            below.setdefault(link.importer, set()).add(link.imported)
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(below.get(module, ())):
            if found := walk(other, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(below) if (found := walk(module, []))), [])


def violations(source: Path) -> list[str]:
    """One line for each thing wrong with the imports under source/dada."""
    modules = modules_in(source)
    links = [
        link
        for file in sorted(source.glob("dada/**/*.py"))
        for link in imports_of(file, source, modules)
    ]
    found = [
        f"room {room} has no floor: place it in FLOORS of tests/test_imports.py"
        for room in sorted({room_of(module) for module in modules})
        if floor_of(room) is None and room not in LEAVES
    ]
    for link in links:
        if problem := problem_with(link):
            found.append(f"{link.where}: {link.importer} imports {link.imported}: {problem}")
    if modules_in_circle := circle(links):
        found.append(f"modules import each other in a circle: {' -> '.join(modules_in_circle)}")
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
        ({"policy/space.py": "from dada.training import train"}, "imports point down only"),
        ({"ops/table.py": "import dada.policy.space"}, "imports point down only"),
        ({"ops/table.py": "from ..policy import Draw"}, "imports point down only"),
        ({"models/a.py": "from dada.data import load"}, "imports point down only"),
        ({"trials/a.py": "from .. import api", "api.py": ""}, "imports point down only"),
        ({"training/a.py": "def f():\n    from dada import terminal"}, "imports dada"),
        ({"policy/space.py": "try:\n    import dada.training\nexcept E: pass"}, "point down only"),
        ({"policy/space.py": "from dada import Policy"}, "imports dada: imports point down"),
        ({"policy_search/estimators/a.py": "from dada.models import build"}, "not to know"),
        ({"models/small.py": "import dada.policy_search.estimators.gumbel"}, "not to know"),
        ({"policy_search/hypergradient.py": "import dada.ops.table as t"}, "not to know"),
        ({"report/a.py": "def f():\n    import dada.policy_search.step"}, "not to know"),
        ({"config.py": "from dada.ops import apply"}, "config is a leaf"),
        ({"policy/policy.py": "def f():\n    import dada.terminal.main"}, "point down only"),
        ({"__init__.py": "from dada.terminal import main"}, "dada imports dada.terminal"),
        ({"helpers.py": ""}, "room helpers has no floor"),
        ({"a/__init__.py": ""}, "room a has no floor"),
        (
            {"data/a.py": "import dada.data.b", "data/b.py": "def f():\n    import dada.data.a"},
            "in a circle: dada.data.a -> dada.data.b -> dada.data.a",
        ),
    ],
)
def test_the_checker_sees_what_is_planted(tmp_path, files, complaint):
    found = violations(plant(tmp_path, files))
    assert len(found) == 1 and complaint in found[0], found


def test_the_checker_lets_good_imports_be(tmp_path):
    files = {
        "__init__.py": "from dada.api import search",
        "__main__.py": "from dada.terminal import main",
        "terminal/__init__.py": "import dada\ndef f():\n    from dada import api, __version__",
        "api.py": "from dada import policy_search\nfrom .runlog import RunLog",
        "policy_search/__init__.py": "import torch\nfrom dada.training import loop",
        "training/loop.py": "from dada.policy import Policy\nfrom . import state",
        "training/state.py": "from ..ops import table",
        "policy/__init__.py": "from dada.policy.policy import Policy",
        "policy/policy.py": "class Policy:\n    def f(self):\n        import dada.policy.transform",
        "policy/transform.py": "from dada.policy.policy import Policy",
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
import dada
import_s = time.perf_counter() - start
alone = [name for name in ("torch", "numpy", "PIL") if name in sys.modules]
import torch
cuda_calls = []
start_cuda = torch.cuda._lazy_init
def noticed():
    cuda_calls.append(1)
    start_cuda()
torch.cuda._lazy_init = noticed
start = time.perf_counter()
for name in dada.__all__:
    getattr(dada, name)
print(json.dumps(dict(
    import_s=import_s,
    alone=alone,
    names_s=time.perf_counter() - start,
    optional=[name for name in {OPTIONAL!r} if name in sys.modules],
    cuda=bool(cuda_calls) or torch.cuda.is_initialized(),
)))
"""


def in_a_new_process(folder: Path, *arguments: str) -> str:
    """What Python says, run in a folder with warnings as errors; it should leave nothing there."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == [], "a file was written"
    return done.stdout


@pytest.fixture(scope="module")
def fresh_imports(tmp_path_factory) -> list[dict]:
    """`import dada`, then every name of it, three times in new processes."""
    folder = tmp_path_factory.mktemp("empty")
    return [json.loads(in_a_new_process(folder, "-c", PROBE)) for _ in range(3)]


def test_import_costs_nothing(fresh_imports):
    best = min(answer["import_s"] for answer in fresh_imports)
    assert best < 0.1, f"import dada took {best:.2f} s"
    assert fresh_imports[0]["alone"] == []


def test_the_public_names_add_little_to_torch(fresh_imports):
    best = min(answer["names_s"] for answer in fresh_imports)
    assert best < 1.5, f"the names of dada took {best:.2f} s beyond torch's own"


def test_import_starts_no_cuda(fresh_imports):
    assert not any(answer["cuda"] for answer in fresh_imports)


def test_import_loads_nothing_optional(fresh_imports):
    assert fresh_imports[0]["optional"] == []


WITHOUT_TORCH = """
import os, sys
sys.modules["torch"] = None  # importing it is an error
sys.modules["numpy"] = None
if {quick}:
    sys.modules["rich"] = None
from dada.terminal.commands import main
sys.argv = ["dada", *{arguments!r}]
os.environ.update({environment!r})
main()
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--version"], {}, "dada "),
        (["--help"], {}, "Learn a policy"),
        (["search", "--help"], {}, "--batch-size"),
        ([], {"_DADA_COMPLETE": "complete_bash", "COMP_WORDS": "dada se", "COMP_CWORD": "1"}, "se"),
    ],
)
def test_the_command_answers_without_torch(tmp_path, arguments, environment, says):
    quick = arguments == ["--version"]
    code = WITHOUT_TORCH.format(arguments=arguments, environment=environment, quick=quick)
    assert says in in_a_new_process(tmp_path, "-c", code)
