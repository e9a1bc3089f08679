"""Old names that still work, with a warning, for one release.

Three tables, old -> new. A row is all that a renaming needs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

MODULES = {
    "dada.augment": "dada.policy.augment",
    "dada.baselines": "dada.policy.baselines",
    "dada.cli": "dada.terminal.commands",
    "dada.doctor": "dada.terminal.doctor",
    "dada.estimators": "dada.policy_search.estimators",
    "dada.export": "dada.exchange.exports",
    "dada.folder": "dada.exchange.folder",
    "dada.hypergradient": "dada.policy_search.hypergradient",
    "dada.imports": "dada.exchange.imports",
    "dada.lookahead": "dada.policy_search.lookahead.runs",
    "dada.optimisers": "dada.training.optimisers",
    "dada.parameters": "dada.policy_search.parameters",
    "dada.scores": "dada.training.scores",
    "dada.show": "dada.report.contact_sheet",
    "dada.space": "dada.policy.space",
    "dada.tracking": "dada.terminal.tracking",
    "dada.transform": "dada.policy.transform",
}
"""Modules that moved; what lies in an old package is found in the new one."""

NAMES = {
    "dada.augment.before_policy": "dada.training.base.before_policy",
    "dada.augment.cover_square": "dada.training.base.cover_square",
    "dada.show.print_policy": "dada.terminal.policy_table.print_policy",
}
"""Names that went elsewhere than the rest of their old module."""

FLAGS = {"import": {"--drop": "--exclude"}}
"""Flags of a command."""


def warn(old: str, new: str) -> None:
    """Say that `old` is `new` now, about the line outside of dada that asked for it."""
    frame = sys._getframe(1)
    while frame.f_back and _passes_on(_module_of(frame)):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{old} is now {new}; the old name goes in the next release",
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=_module_of(frame),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "<unknown>"))


def _passes_on(module: str) -> bool:
    return module.partition(".")[0] in ("dada", "importlib")


def new_flags(arguments: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The words of a command line with old flags replaced; `say` is told of each."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    replaced = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        new = FLAGS.get(command, {}).get(flag)
        if new is not None:
            say(f"{flag} is now {new}; the old name goes in the next release")
        replaced.append(word if new is None else f"{new}{equals}{value}")
    return replaced


def _new_module(old: str) -> str | None:
    """dada.export.inline -> dada.exchange.exports.inline; None for what has not moved."""
    parts = old.split(".")
    for count in range(len(parts), 1, -1):
        if (new := MODULES.get(".".join(parts[:count]))) is not None:
            return ".".join([new, *parts[count:]])
    return None


class _OldModule(ModuleType):
    """An old module: it has nothing of its own and looks everything up in the new one.

    Not the new module under a second name, for the import system would then give that module the
    old name's `__spec__`, and load what lies in a package twice.
    """

    def __getattr__(self, name: str) -> Any:
        old = self.__name__
        if (new := NAMES.get(f"{old}.{name}")) is not None:
            warn(f"{old}.{name}", new)
            where, _, name = new.rpartition(".")
            return getattr(import_module(where), name)
        if name.startswith("__"):  # of a module's own: `inspect` would take this one for the other
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        module = _new_module(old)
        assert module is not None
        return getattr(import_module(module), name)


class _OldModules(MetaPathFinder, Loader):
    """Finds the modules of the table where `import` asks for them by an old name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("dada.") or _new_module(name) is None:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _OldModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        new = _new_module(module.__name__)
        assert new is not None
        target = import_module(new)
        module.__doc__ = target.__doc__
        public = [name for name in vars(target) if not name.startswith("_")]
        vars(module)["__all__"] = getattr(target, "__all__", public)
        warn(module.__name__, new)


def install() -> None:
    """Let `import` find old modules: asked first, or a package's path would be searched twice."""
    if not any(type(finder).__name__ == _OldModules.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldModules())
