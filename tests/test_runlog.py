"""The run directory: what is written, and what survives a kill at any moment."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dada.runlog
from dada.runlog import (
    RunLog,
    check_run_path,
    files,
    read_log,
    read_summary,
    to_toml,
    versions,
    write_text,
)

SOURCE = str(Path(dada.runlog.__file__).parents[2])


def snapshot(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# --- opening ------------------------------------------------------------------------------------


def test_opening_creates_the_directory_and_says_what_wrote_it(tmp_path):
    run = RunLog(tmp_path / "a" / "b")
    about = json.loads((run.path / "run.json").read_text())
    assert about["format"] == "dada-run" and about["version"] == 1
    assert about["sessions"] == [versions()]
    assert not run.finished


def test_an_empty_directory_may_be_used(tmp_path):
    assert RunLog(tmp_path).path == tmp_path


def test_an_existing_run_needs_resume(tmp_path):
    out = tmp_path / "run"
    RunLog(out)
    before = snapshot(out)
    with pytest.raises(ValueError) as error:
        RunLog(out)
    assert str(error.value) == (
        f"{out} exists; pass `resume=True` to continue it or choose another `out`"
    )
    assert snapshot(out) == before


def test_resume_starts_where_there_is_nothing_and_records_each_session(tmp_path):
    out = tmp_path / "run"
    RunLog(out, resume=True)
    RunLog(out, resume=True)
    assert len(json.loads((out / "run.json").read_text())["sessions"]) == 2


def test_resume_leaves_a_directory_alone_that_holds_no_run(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        RunLog(tmp_path, resume=True)
    assert snapshot(tmp_path) == {"thesis.txt": b"precious"}


def test_a_file_or_an_impossible_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, a run needs a directory"):
        RunLog(tmp_path / "file")
    with pytest.raises(ValueError, match=r"cannot write to .*file.run .*choose another `out`"):
        RunLog(tmp_path / "file" / "run")


def test_a_run_of_a_later_format_is_refused(tmp_path):
    RunLog(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "dada-run", "version": 99}')
    with pytest.raises(ValueError, match=r"run\.json has version 99, this dada reads version 1"):
        RunLog(tmp_path, resume=True)


def test_check_run_path_touches_nothing(tmp_path):
    check_run_path(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    RunLog(tmp_path / "old")
    with pytest.raises(ValueError, match="exists; pass `resume=True`"):
        check_run_path(tmp_path / "old")
    check_run_path(tmp_path / "old", resume=True)


def test_a_finished_run_is_left_as_it_is(tmp_path):
    out = tmp_path / "run"
    run = RunLog(out)
    run.config({"epochs": 2, "device": "cuda"})
    run.log(epoch=0)
    run.finish({"error": torch.tensor(0.25), "policy": Path("policy.json")})
    assert run.finished
    before = snapshot(out)
    again = RunLog(out, resume=True)
    again.config({"epochs": 2, "device": "cuda"})
    assert again.finished
    assert read_summary(again.path) == {"error": 0.25, "policy": "policy.json"}
    assert snapshot(out) == before


# --- config.toml --------------------------------------------------------------------------------

SETTINGS = {
    "model": "wrn40_2",
    "preset": None,
    "seed": 0,
    "big": 2**70,
    "rates": [0.1, 1e-5, 1e300, -0.0],
    "exclude": ("Invert", "Solarize"),
    "nested": [[1, 2], []],
    "resume": False,
    "limit": math.inf,
    "out": Path("runs") / "a",
    'a key with "quotes"': 1,
    "text": 'tab\t newline\n quote" backslash\\ bell\x07 delete\x7f nul\x00 é 日本 \U0001f600',
    "search": {"epochs": 20, "none": None, "policy": {"lr": 5e-3, "a.b": {"c": True}}},
    "empty": {},
    "last": 1,
}


def test_toml_reads_back_as_it_was():
    expected = {key: value for key, value in SETTINGS.items() if value is not None}
    expected["exclude"] = ["Invert", "Solarize"]
    expected["out"] = os.path.join("runs", "a")
    expected["search"] = {"epochs": 20, "policy": {"lr": 5e-3, "a.b": {"c": True}}}
    read = tomllib.loads(to_toml(SETTINGS))
    assert read == expected
    assert read["resume"] is False and isinstance(read["seed"], int)


def test_toml_of_numpy_numbers_and_of_nan():
    read = tomllib.loads(to_toml({"x": np.float64(0.1), "y": math.nan}))
    assert read["x"] == 0.1 and math.isnan(read["y"])


@pytest.mark.parametrize("value", [{1, 2}, 1j, [None], torch.ones(2)], ids=str)
def test_toml_refuses_what_it_cannot_hold_by_name(value):
    with pytest.raises(ValueError, match=r"setting search\.odd holds a"):
        to_toml({"search": {"odd": value}})


def test_config_is_written_and_accepted_again(tmp_path):
    settings = {**SETTINGS, "nan": math.nan}
    RunLog(tmp_path).config(settings)
    RunLog(tmp_path, resume=True).config(settings)
    assert tomllib.loads((tmp_path / "config.toml").read_text())["search"]["epochs"] == 20


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": 1, "b": {"c": 3}}, "b.c = 2, this run has 3"),
        ({"a": True, "b": {"c": 2}}, "a = 1, this run has True"),
        ({"a": 1, "b": {}}, "b.c = 2, this run has None"),
        ({"a": 1, "b": {"c": 2}, "d": "x"}, "d = None, this run has 'x'"),
    ],
)
def test_a_resumed_run_must_have_the_same_settings(tmp_path, changed, message):
    RunLog(tmp_path).config({"a": 1, "b": {"c": 2}})
    before = (tmp_path / "config.toml").read_text()
    with pytest.raises(ValueError) as error:
        RunLog(tmp_path, resume=True).config(changed)
    assert message in str(error.value)
    assert str(tmp_path / "config.toml") in str(error.value)
    assert (tmp_path / "config.toml").read_text() == before


def test_a_run_begun_before_there_were_turns_is_resumed_without(tmp_path):
    old = RunLog(tmp_path)
    old.config({"train": {"base": {"flip": True}}})
    old.checkpoint({"epoch": 1})
    del old
    again = RunLog(tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"train\.base\.turn = False, this run has True"):
        again.config({"train": {"base": {"flip": True, "turn": True}}})
    again.config({"train": {"base": {"flip": True, "turn": False}}})
    assert again.restore()["epoch"] == 1


def test_an_unreadable_config_is_named(tmp_path):
    RunLog(tmp_path).config({"a": 1})
    (tmp_path / "config.toml").write_text("a = = 1")
    with pytest.raises(ValueError, match=r"config\.toml is not readable as TOML"):
        RunLog(tmp_path, resume=True).config({"a": 1})


# --- log.jsonl ----------------------------------------------------------------------------------


def test_log_lines_are_strict_json_and_on_disk_at_once(tmp_path):
    run = RunLog(tmp_path)
    run.log(step=torch.tensor(3), loss=np.float32(0.5), rates=torch.tensor([1.0, math.inf]))
    run.log(loss=math.nan, name="a\nb é", nothing=None, nested={"x": (1, 2)})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    first, second = (json.loads(line, parse_constant=refuse) for line in lines)
    assert first == {"step": 3, "loss": 0.5, "rates": [1.0, "inf"]}
    assert math.isnan(float(second["loss"]))
    assert second["name"] == "a\nb é" and second["nested"] == {"x": [1, 2]}
    assert read_log(tmp_path) == [first, second]


def test_read_log_skips_a_half_written_line_and_names_a_broken_one(tmp_path):
    assert read_log(tmp_path) == []
    (tmp_path / "log.jsonl").write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert read_log(tmp_path) == [{"step": 0}, {"step": 1}]
    (tmp_path / "log.jsonl").write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2 is not JSON"):
        read_log(tmp_path)


def test_resume_drops_a_half_written_last_line(tmp_path):
    RunLog(tmp_path).log(step=0)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 1, "lo')
    RunLog(tmp_path, resume=True).log(step=1)
    assert read_log(tmp_path) == [{"step": 0}, {"step": 1}]


def test_restore_drops_the_lines_after_the_checkpoint(tmp_path):
    run = RunLog(tmp_path)
    for step in range(5):
        run.log(step=step)
        if step == 2:
            run.checkpoint({"step": step})
    resumed = RunLog(tmp_path, resume=True)
    assert len(read_log(tmp_path)) == 5
    state = resumed.restore()
    assert state == {"step": 2}
    for step in range(state["step"] + 1, 7):
        resumed.log(step=step)
        resumed.checkpoint({"step": step})
    assert [line["step"] for line in read_log(tmp_path)] == list(range(7))
    assert RunLog(tmp_path, resume=True).restore() == {"step": 6}
    assert len(read_log(tmp_path)) == 7


def test_restore_without_a_checkpoint_begins_at_the_start(tmp_path):
    RunLog(tmp_path).log(step=0)
    resumed = RunLog(tmp_path, resume=True)
    assert resumed.restore() is None
    assert read_log(tmp_path) == []


# --- checkpoints --------------------------------------------------------------------------------


def training_state() -> dict[str, object]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 3])
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "generator": torch.Generator().manual_seed(7).get_state(),
        "plain": [1, 2.5, "x", None, True, b"bytes", (torch.float32, torch.device("cpu"))],
        "maps": OrderedDict(counter=Counter([1, 1]), size=torch.Size([1, 2])),
    }


def test_a_training_state_comes_back(tmp_path):
    state = training_state()
    RunLog(tmp_path).checkpoint(state)
    back = RunLog(tmp_path, resume=True).restore()
    assert list(back) == list(state)
    torch.testing.assert_close(back["model"], state["model"], rtol=0, atol=0)
    assert back["plain"] == state["plain"] and back["maps"] == state["maps"]
    assert back["scheduler"]["milestones"] == Counter([2, 3])
    assert torch.equal(back["generator"], state["generator"])
    moments = state["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(back["optimizer"]["state"][0]["exp_avg"], moments)


def test_the_previous_checkpoint_is_kept(tmp_path):
    run = RunLog(tmp_path)
    for step in range(3):
        run.checkpoint({"step": step})
    assert sorted(file.name for file in tmp_path.glob("*.pt")) == [
        "checkpoint.previous.pt",
        "checkpoint.pt",
    ]
    assert run.restore() == {"step": 2}
    (tmp_path / "checkpoint.pt").unlink()
    assert run.restore() == {"step": 1}


class Custom:
    pass


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"a": {"b": [0, Custom()]}}, r"state\['a'\]\['b'\]\[1\] is a .*Custom"),
        ({"loss": np.float64(1)}, r"state\['loss'\] is a numpy\.float64"),
        ({Custom(): 1}, r"a key of state is a .*Custom"),
        ({"f": print}, r"state\['f'\] is a builtins\.builtin_function"),
    ],
)
def test_a_state_that_could_not_be_restored_is_refused_when_saved(tmp_path, state, name):
    run = RunLog(tmp_path)
    run.checkpoint({"step": 1})
    with pytest.raises(ValueError, match=name):
        run.checkpoint(state)
    assert run.restore() == {"step": 1}


def test_a_checkpoint_runs_no_code(tmp_path):
    class Strangers:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    run = RunLog(tmp_path)
    content = {"format": "dada-checkpoint", "version": 1, "log_lines": 0, "state": Strangers()}
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"no checkpoint can be read: .*checkpoint\.pt \(Unpick"):
        run.restore()
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_of_a_later_version_is_not_taken_for_damaged(tmp_path):
    run = RunLog(tmp_path)
    content = {"format": "dada-checkpoint", "version": 2, "log_lines": 0, "state": {}}
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="has version 2, this dada reads version 1"):
        run.restore()


# --- killed in the middle -----------------------------------------------------------------------


def two_checkpoints(path: Path) -> RunLog:
    run = RunLog(path)
    for step in range(2):
        run.log(step=step)
        run.checkpoint({"step": step, "weights": torch.full((500,), float(step))})
    run.log(step=2)
    return run


def damage(file: Path) -> list[bytes]:
    """The same file cut at many places, and with single bytes flipped in its header and data."""
    whole = file.read_bytes()
    cut = [whole[:length] for length in range(0, len(whole), len(whole) // 12)]
    flipped = []
    data = whole.index(torch.full((500,), 1.0).numpy().tobytes())
    for position in (0, data, data + 777, data + 1999):
        copy = bytearray(whole)
        copy[position] ^= 0xFF
        flipped.append(bytes(copy))
    return [*cut, *flipped]


def test_a_damaged_checkpoint_falls_back_to_the_previous(tmp_path):
    two_checkpoints(tmp_path)
    newest = tmp_path / "checkpoint.pt"
    log = (tmp_path / "log.jsonl").read_bytes()
    for content in damage(newest):
        newest.write_bytes(content)
        (tmp_path / "log.jsonl").write_bytes(log)
        resumed = RunLog(tmp_path, resume=True)
        with pytest.warns(UserWarning, match=r"checkpoint\.pt .* is damaged; continuing from"):
            state = resumed.restore()
        assert state["step"] == 0 and not state["weights"].any()
        assert read_log(tmp_path) == [{"step": 0}]


def test_damage_without_a_previous_is_an_error_that_says_what_to_do(tmp_path):
    run = two_checkpoints(tmp_path)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"no checkpoint can be read: .*; delete them to start"):
        run.restore()


@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_a_checkpoint_killed_between_its_renames_loses_nothing(tmp_path, monkeypatch, killed_after):
    class Killed(BaseException):
        pass

    run = two_checkpoints(tmp_path)
    rename, renames = os.replace, []

    def kill_at(*names: Path) -> None:
        if len(renames) == killed_after:
            raise Killed
        renames.append(names)
        rename(*names)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", kill_at)
        run.checkpoint({"step": 2})
    state = RunLog(tmp_path, resume=True).restore()
    assert state["step"] == (1 if killed_after == 0 else 2)
    assert len(read_log(tmp_path)) == state["step"] + 1


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    write_text(tmp_path / "policy.json", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "policy.json", "new \ud800")
    assert snapshot(tmp_path) == {"policy.json": b"old"}


def test_save_text_writes_utf8_with_ordinary_permissions(tmp_path):
    file = RunLog(tmp_path).save_text("report.html", "é\n")
    assert file.read_bytes() == b"\xc3\xa9\n"
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_litter_of_a_killed_first_write_does_not_stand_in_the_way(tmp_path):
    for name in (".run.json.tmp", ".checkpoint.next.pt.tmp"):
        (tmp_path / name).write_text('{"form')
    RunLog(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_killed_for_real_can_be_resumed(tmp_path):
    """SIGKILL at an arbitrary instant, then resume: the log is as if nothing had happened."""
    out = tmp_path / "run"
    script = textwrap.dedent("""
        import sys, torch
        from dada.runlog import RunLog
        run = RunLog(sys.argv[1])
        run.config({"epochs": 3})
        print("started", flush=True)
        step = 0
        while True:
            run.log(step=step, text="x" * 2000)
            run.checkpoint({"step": step, "weights": torch.full((2000,), float(step))})
            step += 1
            if step == 5:
                print("running", flush=True)
    """)
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-c", script, str(out)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        assert process.stdout.readline() == "running\n"
        process.kill()
    run = RunLog(out, resume=True)
    run.config({"epochs": 3})
    state = run.restore()
    assert state["step"] >= 4 and torch.all(state["weights"] == state["step"])
    assert [line["step"] for line in read_log(out)] == list(range(state["step"] + 1))


# --- versions -----------------------------------------------------------------------------------


def test_versions_name_this_machine():
    found = versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["torch"] == torch.__version__ and type(found["torch"]) is str
    assert found["numpy"] == np.__version__
    assert found["dada"] == dada.__version__
    assert found["cpu"] and found["platform"] and found["pillow"] and found["torchvision"]


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for nvidia-smi")
@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("echo 'Card A'; echo 'Card B'", "Card A, Card B"),
        ("echo broken driver; exit 9", None),
        ("true", None),
    ],
)
def test_the_card_is_named_without_touching_cuda(tmp_path, monkeypatch, script, name):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def start_cuda() -> None:
        raise AssertionError("a CUDA context was asked for")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)  # other tests may use it
    monkeypatch.setattr(torch.cuda, "_lazy_init", start_cuda)
    assert versions()["gpu"] == name


def test_no_card_no_name(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert versions()["gpu"] is None


def test_a_checkpoint_is_wanted_as_often_as_costs_little(tmp_path, monkeypatch):
    """One that took 0.1 s is not wanted again for 5 s, one that took 0.01 s at once."""
    now = 100.0
    monkeypatch.setattr("dada.runlog.time.perf_counter", lambda: now)

    def taking(seconds: float) -> Any:
        def save(content: Any, file: Any) -> None:
            nonlocal now
            now += seconds
            real(content, file)

        return save

    real = torch.save
    run = RunLog(tmp_path / "run")
    assert run.wants_checkpoint
    monkeypatch.setattr("dada.runlog.torch.save", taking(0.01))
    run.checkpoint({"epoch": 1})
    assert run.wants_checkpoint
    monkeypatch.setattr("dada.runlog.torch.save", taking(0.1))
    run.checkpoint({"epoch": 2})
    assert not run.wants_checkpoint
    now += 4.9
    assert not run.wants_checkpoint
    now += 0.2
    assert run.wants_checkpoint
    run.checkpoint({"epoch": 3}, writers=9)  # what the other eight take counts as well
    now += 44.9
    assert not run.wants_checkpoint
    now += 0.2
    assert run.wants_checkpoint


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_names_the_file_and_says_how_to_go_on(tmp_path, monkeypatch, code):
    run = RunLog(tmp_path / "run")
    run.checkpoint({"epoch": 1})

    def full(descriptor):
        raise OSError(code, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda: run.checkpoint({"epoch": 2}), lambda: run.save_text("a.txt", "x")):
        with pytest.raises(OSError) as caught:
            write()
        message = str(caught.value)
        assert re.search(r"run/[a-z.]+: cannot be written \(No space left on device\)", message)
        assert message.endswith("make room, then `resume=True` continues the run")
        assert caught.value.errno == code
    monkeypatch.undo()
    assert RunLog(tmp_path / "run", resume=True).restore() == {"epoch": 1}


def test_a_disk_that_fills_while_torch_writes_does_not_end_the_process(tmp_path):
    """It would: an exception inside the writer of torch calls std::terminate."""
    script = f"""
import resource, torch
from dada.runlog import RunLog
run = RunLog({str(tmp_path / "run")!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    run.checkpoint({{"weights": torch.zeros(100_000)}})
except OSError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "checkpoint.next.pt: cannot be written (File too large); make room, then" in done.stdout


def test_a_checkpoint_of_a_run_with_other_settings_is_refused(tmp_path):
    for name, seed in (("one", 1), ("two", 2)):
        run = RunLog(tmp_path / name)
        run.config({"seed": seed})
        run.checkpoint({"epoch": 1})
    shutil.copy(tmp_path / "one" / "checkpoint.pt", tmp_path / "two" / "checkpoint.pt")
    again = RunLog(tmp_path / "two", resume=True)
    again.config({"seed": 2})
    with pytest.raises(ValueError, match=r"checkpoint\.pt is of a run with other settings; delete"):
        again.restore()


DAMAGE = ("", "{", "[]", "null", '{"a": NaN}', "\x00", '{"sessions": 3}')


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_of_a_run_are_named(tmp_path, damage):
    run = RunLog(tmp_path / "run")
    run.finish({"seconds": 1.0})
    (run.path / "finished.json").write_text(damage)
    if not damage.startswith('{"s'):
        with pytest.raises(ValueError, match=r"finished\.json is damaged"):
            read_summary(run.path)
    (run.path / "log.jsonl").write_text(f"{damage}\n")
    if not damage.startswith('{"s'):
        with pytest.raises(ValueError, match=r"log\.jsonl, line 1 is"):
            read_log(run.path)
    (run.path / "finished.json").unlink()
    (run.path / "run.json").write_text(damage)
    with pytest.raises(ValueError, match=r"holds no run \(no readable run\.json\)"):
        RunLog(run.path, resume=True)


def test_sessions_of_another_kind_do_not_stand_in_the_way(tmp_path):
    run = RunLog(tmp_path / "run")
    about = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(about | {"sessions": 3}))
    assert len(json.loads((RunLog(run.path, resume=True).path / "run.json").read_text())) == 3


def test_weights_that_a_card_has_channel_by_channel_are_written(tmp_path: Path) -> None:
    """Newer versions of the library refuse to guess how such numbers lie in memory."""
    weight = torch.arange(24.0).view(2, 3, 2, 2)
    files.write_weights(tmp_path / "a", {"conv": weight.to(memory_format=torch.channels_last)})
    assert torch.equal(files.read_weights(tmp_path / "a")["conv"], weight)
