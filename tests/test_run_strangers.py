"""Run directories and weights of strangers: pipes, links, bombs, names of code."""

from __future__ import annotations

import ast
import json
import os
import re
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
import torch

import dada
from dada import tasks
from dada.models.weights import from_file
from dada.names import is_factory
from dada.policy import Policy
from dada.report import write_report
from dada.runlog import RunLog, read_log, read_summary, read_weights
from dada.safe_files import open_to_append, open_to_read, read_bytes
from dada.trials.records import Records
from fire.cases import bounded

NUMBERS = torch.arange(24).reshape(6, 4)
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")


def run_of(path: Path) -> None:
    with closing(RunLog(path)) as run:
        run.config({"lr": 0.1})
        run.log(step=1)
        run.checkpoint({"step": 1, "weights": torch.ones(3)})
        run.save_text("policy.json", Policy.load("dada-cifar10").to_json())
        run.save_weights("model.safetensors", {"weight": torch.ones(3)})
        run.save_text("model.json", json.dumps({"model": "small", "mean": [0.5], "std": [0.2]}))
        run.finish({"seconds": 1.0})


def resume(path: Path) -> None:
    (path / "finished.json").unlink(missing_ok=True)
    with closing(RunLog(path, resume=True)) as run:
        run.config({"lr": 0.1})
        run.restore()


READERS = {
    "run.json": resume,
    "config.toml": resume,
    "checkpoint.pt": resume,
    "log.jsonl": read_log,
    "finished.json": read_summary,
    "policy.json": Policy.load,
    "model.safetensors": lambda path: read_weights(path / "model.safetensors"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("what", ["pipe", "device"])
def test_a_pipe_or_a_device_in_a_run_directory_is_not_read(name, what, tmp_path):
    path = tmp_path / "run"
    run_of(path)
    (path / name).unlink()
    if what == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).symlink_to("/dev/zero")
    with bounded(10), pytest.raises(ValueError) as error:
        READERS[name](path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_report_of_a_pipe_is_one_line(tmp_path):
    run_of(tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").unlink()
    os.mkfifo(tmp_path / "run" / "log.jsonl")
    with bounded(10), pytest.raises(ValueError, match=r"log\.jsonl is no log: not a file, but"):
        write_report(tmp_path / "run")


def test_nothing_is_written_through_a_link(tmp_path):
    """`log.jsonl` that is a link to a file of the user's, and what lies where a file is made."""
    mine = tmp_path / "mine.txt"
    mine.write_text('{"step": 1}\n')
    path = tmp_path / "run"
    run_of(path)
    (path / "finished.json").unlink()
    (path / "log.jsonl").unlink()
    (path / "log.jsonl").symlink_to(mine)
    with closing(RunLog(path, resume=True)) as run:
        (path / f".note.txt.{os.getpid()}.tmp").symlink_to(mine)
        run.save_text("note.txt", "ours")
        with pytest.raises(OSError, match=r"log\.jsonl: cannot be written"):
            run.log(step=2)
    assert mine.read_text() == '{"step": 1}\n'
    assert (path / "note.txt").read_text() == "ours" and not (path / "note.txt").is_symlink()


def test_trainings_are_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trainings").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="trainings is a link, nothing is written through it"):
        Records(tmp_path / "run", ["uniform"], tasks.named("classification"))


def test_files_are_read_up_to_a_size(tmp_path):
    file = tmp_path / "large"
    file.write_bytes(bytes(3 * 2**20))
    assert len(read_bytes(file, most=4 * 2**20)) == 3 * 2**20
    with pytest.raises(ValueError, match="more than 2 MB"):
        read_bytes(file, most=2 * 2**20)
    with pytest.raises(ValueError, match="not a file"):
        open_to_read(tmp_path)
    with open_to_append(tmp_path / "new") as stream:
        stream.write(b"a")
    with open_to_append(tmp_path / "new") as stream:
        stream.write(b"b")
    assert (tmp_path / "new").read_bytes() == b"ab"


# --- tensors ------------------------------------------------------------------------------------


def compressed(file: Path) -> None:
    """What is in the file, in the same archive, smaller."""
    with zipfile.ZipFile(file) as archive:
        held = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in held.items():
            archive.writestr(name, content)


def test_a_tensor_that_is_stretched_is_refused(tmp_path):
    """A file of a kilobyte whose one number would fill the memory when it is looked at."""
    stretched = torch.zeros(1).expand(10**6, 10**6)
    torch.save({"weight": stretched}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="does not hold the numbers of its shape"):
        from_file(tmp_path / "w.pt", "small")
    run_of(tmp_path / "run")
    content = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    content["state"]["weights"] = stretched
    torch.save(content, tmp_path / "run" / "checkpoint.pt")
    with pytest.raises(ValueError, match="no checkpoint can be read"):
        resume(tmp_path / "run")


def test_a_network_may_keep_a_number_once_for_many_places(tmp_path):
    with closing(RunLog(tmp_path / "run")) as run:
        run.checkpoint({"place": torch.ones(1).expand(500), "angle": torch.ones(2) * 1j})
    with closing(RunLog(tmp_path / "run", resume=True)) as run:
        assert run.restore()["place"].sum() == 500


def test_weights_without_numbers_are_named(tmp_path):
    torch.save({"weight": torch.zeros(3, device="meta")}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="'weight' is no tensor of numbers"):
        from_file(tmp_path / "w.pt", "small")


def test_a_view_of_numbers_that_are_there_is_taken(tmp_path):
    torch.save({"weight": NUMBERS.T[1:], "bias": NUMBERS[2]}, tmp_path / "w.pt")
    _, weights = from_file(tmp_path / "w.pt", "small")
    assert torch.equal(weights.tensors["weight"], NUMBERS.T[1:])


def test_a_compressed_checkpoint_is_not_unpacked(tmp_path):
    torch.save({"weight": torch.zeros(1000)}, tmp_path / "w.pt")
    compressed(tmp_path / "w.pt")
    with pytest.raises(ValueError, match="compressed, which torch does not do"):
        from_file(tmp_path / "w.pt", "small")
    run_of(tmp_path / "run")
    compressed(tmp_path / "run" / "checkpoint.pt")
    with pytest.raises(ValueError, match="no checkpoint can be read"):
        resume(tmp_path / "run")


# --- what a run says of its network -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("wrn40_2", False),
        ("timm:resnet18", False),
        ("fasterrcnn", False),
        ("fasterrcnn:timm:resnet18", False),
        ("evil:make", True),
        ("fasterrcnn:evil:make", True),
        ("maskrcnn:fasterrcnn:evil:make", True),
        (":", True),
        ("", True),
        # What the patterns of builders leave to the last one, which imports.
        ("timm:a\nb", True),
        ("fasterrcnn:a\nb", True),
        ("fasterrcnn:", True),
        ("timm:", True),
        ("timm:os:system", True),
        ("fasterrcnn:" * 5000 + "evil:make", True),
    ],
)
def test_which_networks_are_code(name: str, code: bool) -> None:
    assert is_factory(name) is code


def test_a_network_that_a_file_names_is_never_imported(tmp_path, monkeypatch):
    """`--weights RUN` takes the network's name from model.json, which is a stranger's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\n")
    run_of(tmp_path / "run")
    (tmp_path / "run" / "model.json").write_text('{"model": "evil:make"}')
    with pytest.raises(ValueError, match=r"names the model 'evil:make', which would be imported"):
        dada.train("digits", weights=tmp_path / "run", out=tmp_path / "out", device="cpu")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "about",
    [
        {"model": 7},
        {"mean": ["a"], "std": [1.0]},
        {"mean": [0.5], "std": [0.0]},
        {"mean": [0.5, 0.5], "std": [1.0]},
        {"mean": [10**200], "std": [1.0]},
        {"mean": 0.5, "std": 0.5},
        {"mean": [0.5]},
    ],
)
def test_what_a_run_says_of_its_network_is_checked(about, tmp_path):
    run_of(tmp_path / "run")
    (tmp_path / "run" / "model.json").write_text(json.dumps({"model": "small", **about}))
    with pytest.raises(ValueError, match=r"model\.json"):
        from_file(tmp_path / "run", None)


# Calls that open whatever lies under a name. Who reads a run directory has `safe_files` instead.
OPENS = re.compile(r"(.*\.(read_text|read_bytes)|open|torch\.load|load_file)$")
ROOMS = ("runlog", "report", "comparison", "policy", "policy_search", "trials", "api", "models")
ALLOWED = {
    "runlog/environment.py": "the system's own /proc/cpuinfo",
    "runlog/files.py": "a new file of ours; torch and safetensors, of what was looked at before",
    "models/weights.py": "files that were looked at before",
    "policy/policy.py": "what comes with the package",
    "policy_search/verify/prior.py": "what comes with the package",
    "report/__init__.py": "what comes with the package",
}


@pytest.mark.parametrize("room", ROOMS)
def test_files_of_a_run_are_opened_by_what_looks_first(room):
    source = Path(dada.__file__).parent
    for file in sorted((source / room).rglob("*.py")):
        name = file.relative_to(source).as_posix()
        if name in ALLOWED:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert not OPENS.match(called), f"{name}:{node.lineno}: see safe_files"
