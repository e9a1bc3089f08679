"""What `dada doctor` finds, and that it tells what can be done without from what cannot."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import dada
from dada.terminal import doctor
from dada.terminal.commands import app, main

ROOT = Path(__file__).parents[1]


def by_name(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in findings}


def printed(findings: list[doctor.Finding], *, terminal: bool) -> str:
    file = io.StringIO()
    doctor.print_findings(findings, Console(file=file, force_terminal=terminal, width=120))
    return file.getvalue()


def test_this_machine_is_usable(tmp_path):
    findings = doctor.examine(tmp_path / "runs")
    found = by_name(findings)
    assert doctor.usable(findings)
    assert found["torch"].found == torch.__version__
    assert found["dada"].found == f"{dada.__version__} in {Path(dada.__file__).parent}"
    assert {"python", "dada", "CPU", "runs folder", "terminal", "completion"} <= set(found)
    assert found["runs folder"].state == doctor.GOOD
    assert not (tmp_path / "runs").exists(), "looking should leave nothing behind"


def test_whatever_is_missing_comes_with_its_command(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    found = by_name(doctor.examine())
    for name, purpose in doctor.OPTIONAL.items():
        assert found[name].state == doctor.NOTE
        assert purpose in found[name].found and found[name].hint == f"pip install {name}"
    assert doctor.usable(doctor.examine())


def test_the_optional_packages_are_those_of_the_project():
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    named = set(doctor.OPTIONAL)
    for name in ("timm", "kornia", "albumentations", "datasets", "matplotlib"):
        assert name in named and f'"{name}"' in extras
    needed = (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("]")[0]
    assert sorted(re.findall(r'"([\w-]+)', needed)) == sorted(doctor.NEEDED)


def test_what_is_needed_and_missing_is_bad(monkeypatch):
    real = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "numpy" else real(name))
    findings = doctor.examine()
    assert by_name(findings)["numpy"].hint == "pip install numpy"
    assert not doctor.usable(findings)
    assert printed(findings, terminal=False).endswith("cannot be used yet: numpy\n")


@pytest.mark.parametrize(
    ("version", "good"), [("2.8.0", True), ("2.15.0+cu132", True), ("2.7.1", False)]
)
def test_torch_must_be_new_enough(monkeypatch, version, good):
    monkeypatch.setattr(torch, "__version__", version)
    assert (by_name(list(doctor._needed()))["torch"].state == doctor.GOOD) == good


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    finding = next(doctor._folder(tmp_path / "a" / "b"))
    assert finding.state == doctor.BAD and "cannot be written" in finding.found
    assert "--out" in finding.hint


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "runs").write_text("no")
    assert next(doctor._folder(tmp_path / "runs")).state == doctor.BAD


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "LEAST_DISK_GB", 1e9)
    finding = next(doctor._folder(tmp_path))
    assert finding.state == doctor.NOTE and "make room" in finding.hint


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(tmp_path, monkeypatch, shell):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    before = by_name(list(doctor._terminal()))["completion"]
    assert before.state == doctor.NOTE and before.hint == "dada --install-completion"
    script = tmp_path / doctor.COMPLETIONS[shell]
    script.parent.mkdir(parents=True)
    script.write_text("")
    after = by_name(list(doctor._terminal()))["completion"]
    assert after.state == doctor.GOOD and after.found == f"installed for {shell}"


def test_an_unknown_shell(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/dash")
    finding = by_name(list(doctor._terminal()))["completion"]
    assert finding.state == doctor.NOTE and "dash" in finding.found and not finding.hint


@pytest.mark.parametrize(
    ("cuda", "driver", "hint"),
    [
        (None, "nvidia-smi", "built without CUDA"),
        ("13.2", "nvidia-smi", "update the driver"),
        (None, None, "run on the CPU"),
    ],
)
def test_why_there_is_no_gpu(monkeypatch, cuda, driver, hint):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: driver)
    assert hint in doctor._no_gpu().hint


@pytest.mark.gpu
def test_triton_works_on_this_card():
    assert doctor._triton().found == "works"


def test_triton_that_fails_is_said(monkeypatch):
    def fails(self: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no ptxas\nmore")

    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.Tensor, "cuda", fails)
    finding = doctor._triton()
    assert finding.state == doctor.BAD and finding.found == "fails: no ptxas"
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor._triton().hint.startswith("pip install triton")


def test_a_person_sees_a_table_and_a_program_lines():
    findings = doctor.examine()
    plain, table = printed(findings, terminal=False), printed(findings, terminal=True)
    assert "\x1b[" not in plain and "\x1b[" in table
    assert len(plain.splitlines()) == len(findings) + 1
    for finding in findings:
        assert re.search(rf"^(ok|-|!!) +{re.escape(finding.name)} ", plain, re.MULTILINE)
    strange = doctor.Finding(topic="t", name="n", state=doctor.GOOD, found="[red]x[/nope]")
    assert "[red]x[/nope]" in printed([strange], terminal=True)


@pytest.mark.parametrize(("state", "code"), [(doctor.GOOD, 0), (doctor.NOTE, 0), (doctor.BAD, 1)])
def test_the_exit_code(monkeypatch, capsys, state, code):
    finding = doctor.Finding(topic="t", name="thing", state=state, found="so")
    monkeypatch.setattr(doctor, "examine", lambda: [finding])
    monkeypatch.setattr(sys, "argv", ["dada", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code
    assert "thing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "COMP_WORDS"), ("zsh", "_TYPER_COMPLETE_ARGS")]
)
def test_completion_answers_the_shell(shell, words):
    """What a shell asks when a person types `dada sh` and the tab key."""
    asked = {"_DADA_COMPLETE": f"complete_{shell}", words: "dada sh", "COMP_CWORD": "1"}
    answer = CliRunner().invoke(app, [], prog_name="dada", env=asked)
    assert "show" in answer.output and "apply" not in answer.output
    script = CliRunner().invoke(
        app, [], prog_name="dada", env={"_DADA_COMPLETE": f"source_{shell}"}
    )
    assert "_DADA_COMPLETE" in script.output
