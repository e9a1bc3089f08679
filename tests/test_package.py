"""What goes to a package index: a page whose links lead somewhere, and every file needed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import dada

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RELATIVE = re.compile(r"\]\((?!https?://|#)[^)]*\)")


def builder() -> ModuleType:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_an_index_has_no_link_into_the_repository() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(readme) is not None  # there is something to do
    page = builder().index_page(readme)
    assert RELATIVE.search(page) is None and "ten-minute tutorial" in page
    absolute = builder().index_page(readme, "https://example.org/dada/blob/main/")
    assert RELATIVE.search(absolute) is None
    assert "](https://example.org/dada/blob/main/docs/tutorial.md)" in absolute
    assert absolute.count("](") == readme.count("](")


def test_links_of_every_kind() -> None:
    text = "[a](docs/a.md#x) ![b](c.png) [d](https://e.org) [f](#g)"
    assert builder().index_page(text) == "a (b) [d](https://e.org) [f](#g)"


def test_the_workflow_calls_make_test() -> None:
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert "run: make test\n" in workflow
    listed = set(re.findall(r'"(3\.\d+)"', workflow))
    classifiers = PROJECT["project"]["classifiers"]
    assert listed == {c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)}


def test_one_version_everywhere() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (latest,) = re.findall(r"^## (\S+)$", changes, re.MULTILINE)[:1]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {dada.__version__}\n" in citation
    assert latest in (dada.__version__, "Unreleased")


def test_the_extras_of_all_are_extras() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (names,) = re.findall(r"\[(.*)\]", extras["all"][0])
    assert set(names.split(",")) <= set(extras)


@pytest.mark.slow
def test_a_wheel_holds_what_the_program_reads(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    pytest.importorskip("build")
    copy = tmp_path / "project"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "results")
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {f.relative_to(source).as_posix() for f in source.glob("dada/**/*.*") if f.is_file()}
    assert {name for name in wanted if "__pycache__" not in name} <= inside
    about = next(name for name in inside if name.endswith("/METADATA"))
    text = zipfile.ZipFile(wheel).read(about).decode()
    assert RELATIVE.search(text) is None and "Project-URL: Paper" in text
