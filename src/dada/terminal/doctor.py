"""What this machine has, what is missing, and the one command that brings it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from dada.runlog import versions
from dada.runlog.environment import installed
from dada.safe_text import first_line

GOOD, NOTE, BAD = "ok", "-", "!!"
STYLE = {GOOD: "green", NOTE: "dim", BAD: "bold red"}

NEEDED = (
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "safetensors",
    "scikit-learn",
    "scipy",
    "typer",
    "rich",
)

# What each is for.
OPTIONAL = {
    "timm": "models named timm:NAME; timm exports",
    "kornia": "running exports to Kornia",
    "albumentations": "running exports to Albumentations",
    "datasets": "data named hf:NAME",
    "huggingface_hub": "policies named hf:USER/NAME",
    "matplotlib": "comparison plots as PNG",
    "tensorboard": "--track tensorboard",
    "wandb": "--track wandb",
    "mlflow": "--track mlflow",
}
LEAST_PYTHON, LEAST_TORCH = (3, 11), (2, 8)
LEAST_DISK_GB, LEAST_MEMORY_GB = 1.0, 2.0
COMPLETIONS = {
    "bash": ".bash_completions/dada.sh",
    "zsh": ".zfunc/_dada",
    "fish": ".config/fish/completions/dada.fish",
}


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and what to do about it."""

    topic: str
    name: str
    state: str  # GOOD, NOTE (can do without) or BAD (cannot be used like this)
    found: str
    hint: str = ""


def examine(runs: str | os.PathLike[str] = "runs") -> list[Finding]:
    """Look at everything; `runs` is the folder that searches will write to."""
    looks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _needed,
        _device,
        _optional,
        lambda: _folder(Path(runs)),
        _terminal,
    )
    return [finding for look in looks for finding in look()]


def usable(findings: list[Finding]) -> bool:
    return all(finding.state != BAD for finding in findings)


def _python() -> Iterator[Finding]:
    about = versions()
    good = sys.version_info[:2] >= LEAST_PYTHON
    found = f"{about['python']} on {platform.system()} {platform.machine()}"
    hint = "" if good else "dada needs Python 3.11 or newer"
    yield Finding("software", "python", GOOD if good else BAD, found, hint)
    where = Path(__file__).parents[1]
    yield Finding("software", "dada", GOOD, f"{about['dada']} in {where}")


def _needed() -> Iterator[Finding]:
    for name in NEEDED:
        version = torch.__version__ if name == "torch" else installed(name)
        hint = "" if version else f"pip install {name}"
        if name == "torch":
            numbers = tuple(int(part) for part in torch.__version__.split(".")[:2])
            hint = "" if numbers >= LEAST_TORCH else "pip install --upgrade torch torchvision"
        found = str(version or "not installed")
        yield Finding("software", name, BAD if hint else GOOD, found, hint)


def _device() -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    processor = f"{versions()['cpu']}, {cores} core{'' if cores == 1 else 's'}"
    yield Finding("device", "CPU", GOOD, processor)
    if (free := _free_memory_gb()) is not None:
        little = free < LEAST_MEMORY_GB
        hint = "close other programs, or use --image-size and --batch-size" if little else ""
        yield Finding("device", "memory", NOTE if little else GOOD, f"{free:.1f} GB free", hint)
    if not torch.cuda.is_available():
        yield _no_gpu()
        return
    for index in range(torch.cuda.device_count()):
        left, whole = (size / 1e9 for size in torch.cuda.mem_get_info(index))
        name = torch.cuda.get_device_properties(index).name
        about = f"{name}, {left:.0f} of {whole:.0f} GB free, CUDA {torch.version.cuda}"
        yield Finding("device", f"GPU {index}", GOOD, about)
    yield _triton()


def _no_gpu() -> Finding:
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        hint = "this torch is built without CUDA: see pytorch.org for the build of your card"
    elif shutil.which("nvidia-smi"):
        hint = f"torch wants CUDA {torch.version.cuda}: update the driver"
    else:
        hint = "searches run on the CPU, with the model `small`"
    return Finding("device", "GPU", NOTE, "none that torch sees", hint)


def _triton() -> Finding:
    """Augment a batch on the card with the fused kernels and compare with the CPU's bytes."""
    slower = "without it GPU batches are augmented by plain torch kernels, more slowly"
    if find_spec("triton") is None:
        hint = f"pip install triton; {slower}"
        return Finding("device", "Triton", NOTE, "not installed", hint)
    from dada.policy import Policy

    images_BCHW = torch.arange(4 * 3 * 16 * 16).view(4, 3, 16, 16).remainder(256).to(torch.uint8)
    invert = Policy.from_rows([[("Invert", 1.0, 0.5)]]).transform(seed=0)
    try:
        same = torch.equal(invert(images_BCHW.cuda()).cpu(), 255 - images_BCHW)
    except Exception as error:  # a compiler, a driver, a header that is missing: all kinds
        return Finding("device", "Triton", BAD, f"fails: {first_line(error)}", slower)
    if not same:
        hint = "pip install --upgrade torch triton"
        return Finding("device", "Triton", BAD, "gives wrong pixels", hint)
    return Finding("device", "Triton", GOOD, "works")


def _free_memory_gb() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024 / 1e9
    except (OSError, KeyError, ValueError):
        return None  # not Linux


def _optional() -> Iterator[Finding]:
    for name, purpose in OPTIONAL.items():
        version = installed(name) if find_spec(name) else None
        found, hint = f"{version or 'not installed'}  {purpose}", f"pip install {name}"
        yield Finding("optional", name, GOOD if version else NOTE, found, "" if version else hint)


def _folder(runs: Path) -> Iterator[Finding]:
    """Whether a run can be written, asked of the nearest folder that exists."""
    place = runs.absolute()
    while not place.exists():
        place = place.parent
    writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    free = shutil.disk_usage(place).free / 1e9
    found = f"{runs} can{'' if writable else 'not'} be written, {free:.0f} GB free"
    hint = ""
    if not writable:
        hint = "choose a place of your own with --out"
    elif free < LEAST_DISK_GB:
        hint = "make room, or choose another disk with --out"
    state = BAD if not writable else NOTE if hint else GOOD
    yield Finding("place", "runs folder", state, found, hint)


def _terminal() -> Iterator[Finding]:
    if sys.stdout.isatty():
        yield Finding("place", "terminal", GOOD, f"{shutil.get_terminal_size().columns} columns")
    else:
        yield Finding("place", "terminal", NOTE, "none: plain lines")
    shell = Path(os.environ.get("SHELL", "")).name
    script = COMPLETIONS.get(shell)
    if script is None:
        found, state = f"no shell that is known ({shell or 'SHELL is not set'})", NOTE
    elif (Path.home() / script).is_file():
        found, state = f"installed for {shell}", GOOD
    else:
        found, state = f"not installed for {shell}", NOTE
    hint = "dada --install-completion" if script and state == NOTE else ""
    yield Finding("place", "completion", state, found, hint)


def print_findings(findings: list[Finding], console: Console) -> None:
    """A table by topic where a person looks; a line for each where a program reads."""
    if not console.is_terminal:
        for f in findings:
            words = f"{f.state:2s}  {f.name:14s}  {f.found}" + (f"  ->  {f.hint}" if f.hint else "")
            console.print(words, soft_wrap=True, markup=False, highlight=False)
    else:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold", style="yellow")
        topic = ""
        for f in findings:
            if f.topic != topic:
                table.add_row("", f"[bold]{f.topic}[/bold]", "", "")
                topic = f.topic
            mark = f"[{STYLE[f.state]}]{f.state}[/]"
            table.add_row(mark, f.name, f.found.replace("[", r"\["), f.hint.replace("[", r"\["))
        console.print(table)
    bad = [finding.name for finding in findings if finding.state == BAD]
    verdict = f"cannot be used yet: {', '.join(bad)}" if bad else "ready: try  dada search"
    console.print(verdict, markup=False, highlight=False, style="bold")
