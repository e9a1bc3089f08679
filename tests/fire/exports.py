"""Hostile names in exported code: by syntax tree, and by importing it."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from importlib.util import find_spec

from dada.exchange.exports import export
from dada.names import EXPORT_TARGETS
from dada.policy import Policy, PolicyOp, SubPolicy

from .cases import FaultError, Fuzzer, accepted
from .mutations import HOSTILE, anything, text

STEPS = (PolicyOp("Rotate", 0.5, 0.25), PolicyOp("Invert", 0.5))
# What an import of each needs.
IMPORTABLE = {"torchvision": "torchvision", "timm": "timm", "kornia": "kornia", "mmpretrain": ""}
FILES_A_PROCESS = 40

# Run in a process of its own: nothing may be started, written or connected to by what is imported.
SANDBOX = """
import importlib, json, sys
files = json.loads(sys.stdin.read())
for needed in ("torch", "torchvision", "PIL.Image", "timm.data.auto_augment", "kornia", "numpy"):
    try:
        importlib.import_module(needed)
    except ImportError:
        pass
FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.putenv", "os.remove",
             "os.rename", "os.rmdir", "os.mkdir", "os.kill", "subprocess.Popen", "socket.connect",
             "shutil.", "ctypes.", "webbrowser.open")
def hook(event, arguments):
    if event.startswith(FORBIDDEN):
        print("forbidden:", event, arguments); sys.stdout.flush()
        import os; os._exit(8)
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        if "__pycache__" not in str(arguments[0]):
            print("written:", arguments[0]); sys.stdout.flush()
            import os; os._exit(8)
sys.dont_write_bytecode = True
sys.addaudithook(hook)
sys.path.insert(0, ".")
for name in files:
    importlib.import_module(name)
print("imported", len(files))
"""


def hostile(noise: random.Random) -> Policy:
    name = "".join(
        noise.choice([noise.choice(HOSTILE), text(noise)]) for _ in range(noise.choice((1, 2)))
    )
    provenance = {"name": name[:5000], text(noise): anything(noise)}
    return Policy((SubPolicy(1.0, STEPS),), "paper", "weighted", provenance)


def same_shape(one: object, other: object) -> bool:
    """Whether two syntax trees differ in constants only."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        kind = type(one)
        if kind is not type(other):
            return False
        if kind is ast.Constant:
            continue
        if isinstance(one, ast.AST):
            pairs += [(getattr(one, name), getattr(other, name)) for name in kind._fields]
        elif kind is list:
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif one != other:
            return False
    return True


class ExportTrees(Fuzzer):
    name = "exports by syntax tree"
    what = "a policy with a hostile name is exported to one target; only constants may differ"
    full, quick = 60_000, 60  # 10,000 for each of six

    def prepare(self) -> None:
        plain = Policy((SubPolicy(1.0, STEPS),), "paper", "weighted", {"name": "plain"})
        self.plain = {
            target: ast.parse(export(plain, target))
            for target in EXPORT_TARGETS
            if target != "albumentations"
        }

    def case(self, noise: random.Random) -> None:
        target = EXPORT_TARGETS[self.number % len(EXPORT_TARGETS)]
        written, code = accepted(lambda: export(hostile(noise), target))
        if not written:
            return
        if target == "albumentations":
            json.loads(code)
            return
        try:
            # As Python reads a file: bytes, with whatever encoding its first lines name.
            read = ast.parse(code.encode())
        except (SyntaxError, ValueError) as error:
            raise FaultError(f"{target}: {type(error).__name__}: {error}") from error
        if not same_shape(read, self.plain[target]):
            raise FaultError(f"{target}: the exported code has another shape")


class ExportImports(Fuzzer):
    name = "exports by import"
    what = "exported files with hostile names are imported where nothing may be written or started"
    full, quick = 800, 3  # 200 for each of four

    def prepare(self) -> None:
        self.targets = [t for t, needs in IMPORTABLE.items() if not needs or find_spec(needs)]
        self.waiting: list[str] = []
        self.count = 0

    def case(self, noise: random.Random) -> None:
        target = self.targets[self.number % len(self.targets)]
        written, code = accepted(lambda: export(hostile(noise), target))
        if not written:
            return
        self.count += 1
        file = self.folder / f"exported_{self.count}.py"
        file.write_bytes(code.encode())
        self.waiting.append(file.stem)
        if len(self.waiting) >= FILES_A_PROCESS:
            self.finish()

    def finish(self) -> None:
        names, self.waiting = self.waiting, []
        if not names:
            return
        done = subprocess.run(
            [sys.executable, "-c", SANDBOX],
            input=json.dumps(names),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.stdout != f"imported {len(names)}\n":
            said = f"{done.stdout[-200:]} {done.stderr[-200:]}"
            raise FaultError(f"{names[0]} to {names[-1]}: exit code {done.returncode}: {said}")


__all__ = ["ExportImports", "ExportTrees"]
