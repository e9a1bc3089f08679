"""The README tells the truth: its numbers are the measured ones, its Python runs as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_table_is_the_measured_one() -> None:
    check = [sys.executable, str(ROOT / "benchmarks" / "tools" / "tables.py"), "--check"]
    subprocess.run(check, check=True)


def test_there_is_something_to_run() -> None:
    assert len(BLOCKS) >= 2


@pytest.mark.usefixtures("quick_lookahead")
@pytest.mark.parametrize("block", BLOCKS)
def test_python_runs_as_written(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
