"""Turns a body, a Python file that runs inside this package, into one that runs without it.

A body is ordinary, checked source, whose docstring says how the file is used. It imports kernels
with `from dada... import names` and holds an empty SUBPOLICIES. An export replaces the imports by
the source of those names and of everything they use, so every kernel is written once, and fills
SUBPOLICIES with the policy.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from dada.exchange.exports.physical_policy import PhysicalPolicy

TABLE = "SUBPOLICIES"
# Python looks for an encoding in the first two lines of a file: they hold nothing of a policy.
FIRST_LINES = [
    "# An image augmentation policy, written by dada-augment.",
    "# This file needs no dada-augment to run.",
]


def render(target: str, policy: PhysicalPolicy) -> str:
    """The file's text: the body's docstring as comments, its source, the kernels and the policy."""
    parsed = _body(f"{target}_body.py")
    wanted, lines = parsed.sources, parsed.lines
    about = parsed.nodes[0]
    assert isinstance(about, ast.Expr) and isinstance(about.value, ast.Constant)
    written = heading(policy, str(about.value.value).rstrip().splitlines())
    position = about.end_lineno or 0
    further = [_import_line(*new) for new in sorted(wanted.imports.items())]
    for node in parsed.nodes:
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            replacement, further = further, []  # at the first of them
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == TABLE:
            replacement = [
                *table(policy),
                *(line for piece in wanted.pieces.values() for line in piece),
            ]
        else:
            continue
        assert node.end_lineno is not None
        written += [*lines[position : node.lineno - 1], *replacement]
        position = node.end_lineno
    text = "\n".join([*written, *lines[position:]]) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)  # two empty lines between definitions, not four


def heading(policy: PhysicalPolicy, lines: list[str]) -> list[str]:
    """The comments at the top of a file; the policy's title is safe inside a comment."""
    return [*FIRST_LINES, *(f"# {line}".rstrip() for line in [policy.title, *lines])]


def table(policy: PhysicalPolicy) -> list[str]:
    """The policy as Python literals, a line for every sub-policy."""
    rows = [f"{TABLE}: list = ["]
    for weight, steps in zip(policy.weights, policy.subpolicies, strict=True):
        written = [(step.op, step.probability, step.ranges) for step in steps]
        rows.append(f"    ({weight!r}, {written!r}),")
    return [*rows, "]"]


def _is_ours(module: str | None) -> bool:
    return (module or "").split(".")[0] == "dada"


def _imported(node: ast.stmt) -> dict[str, tuple[str, str]]:
    """Name -> (module, what of it; "" for the module itself)."""
    if isinstance(node, ast.ImportFrom):
        return {a.asname or a.name: (str(node.module), a.name) for a in node.names}
    if isinstance(node, ast.Import):
        return {a.asname or a.name: (a.name, "") for a in node.names}
    return {}


def _import_line(name: str, origin: tuple[str, str]) -> str:
    module, original = origin
    line = f"from {module} import {original}" if original else f"import {module}"
    return line if name == (original or module) else f"{line} as {name}"


@dataclass(kw_only=True)
class _Module:
    """A module's top level: its definitions and what it imports."""

    lines: list[str]
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@cache
def _module(name: str) -> _Module:
    source = inspect.getsource(importlib.import_module(name))
    found = _Module(lines=source.splitlines())
    for node in ast.parse(source).body:
        found.imports |= _imported(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found.definitions[ast.unparse(target)] = node
    return found


@dataclass
class _Sources:
    """Definitions of this package, each after what it uses, and the imports of others."""

    pieces: dict[str, list[str]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)

    def collect(self, module_name: str, name: str) -> None:
        if name in self.pieces:
            return
        module = _module(module_name)
        node = module.definitions[name]
        self.pieces[name] = []  # a name that uses itself is being collected already
        for used in ast.walk(node):
            if not isinstance(used, ast.Name):
                continue
            if used.id in module.definitions and used.id != name:
                self.collect(module_name, used.id)
            elif used.id in module.imports:
                origin = module.imports[used.id]
                if _is_ours(origin[0]):
                    assert used.id == origin[1], f"{module_name} renames {origin[1]}"
                    self.collect(*origin)
                else:
                    self.imports[used.id] = origin
        decorators = [d.lineno for d in getattr(node, "decorator_list", [])]
        start = min([node.lineno, *decorators])
        block = isinstance(node, ast.FunctionDef | ast.ClassDef)
        space = ["", ""] if block else []
        del self.pieces[name]  # to come after what it uses
        self.pieces[name] = [*space, *module.lines[start - 1 : node.end_lineno], *space]


@dataclass(kw_only=True)
class _Body:
    lines: list[str]
    nodes: list[ast.stmt]
    sources: _Sources


@cache
def _body(name: str) -> _Body:
    source = (
        resources.files("dada.exchange.exports")
        .joinpath("bodies", name)
        .read_text(encoding="utf-8")
    )
    nodes = ast.parse(source).body
    sources = _Sources()
    present = {}
    for node in nodes:
        for known, (module, original) in _imported(node).items():
            present[known] = (module, original)
            if _is_ours(module):
                assert known == original, f"{name} should not rename {original}"
                sources.collect(module, original)
    sources.imports = {k: v for k, v in sources.imports.items() if present.get(k) != v}
    return _Body(lines=source.splitlines(), nodes=nodes, sources=sources)
