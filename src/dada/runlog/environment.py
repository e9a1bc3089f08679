"""Which software and hardware a run used."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch


def versions() -> dict[str, str | None]:
    """Software and hardware of this process; a package that is not installed is None.

    Nothing is imported and no CUDA context is created for it: where the process has not used CUDA
    the name of the card is what `nvidia-smi` says.
    """
    return {
        # Not the installed metadata: a checkout on PYTHONPATH has none, or another version's.
        "dada": getattr(sys.modules.get("dada"), "__version__", None),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: installed(name) for name in ("torchvision", "numpy", "pillow")},
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "gpu": _gpu_name(),
    }


def installed(package: str) -> str | None:
    """The version of a package, by what `pip install` calls it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    linux = Path("/proc/cpuinfo")
    text = linux.read_text(encoding="utf-8") if linux.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1) if match else platform.processor() or platform.machine()


def _gpu_name() -> str | None:
    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ", ".join(line.strip() for line in answer.stdout.splitlines()) or None
