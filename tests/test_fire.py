"""The quickest of every fuzzer, and that each reports a fault which is made on purpose."""

from __future__ import annotations

import json
import os
import random

import pytest
import torch

from dada.policy import Policy, PolicyOp, SubPolicy
from dada.runlog import RunLog
from dada.training.state import RunState
from fire import __main__ as runner
from fire.annotations import Annotations
from fire.cases import FaultError, Fuzzer, check_line, check_said
from fire.commands import Images, Options
from fire.exports import ExportImports, ExportTrees
from fire.files import Checkpoints, Data, Imports, Policies, RunFiles, WeightFiles
from fire.kills import Kills, Soak, results
from fire.mutations import damaged_bytes, damaged_json

QUICK = [Policies, Imports, Data, Annotations, Images, Options]
QUICK += [RunFiles, Checkpoints, WeightFiles, ExportTrees]
FORKS = [Kills, Soak]


def faults(kind: type[Fuzzer], folder, count: int | None = None) -> list[str]:
    fuzzer = kind(folder)
    fuzzer.prepare()
    found = [fuzzer.run(number) for number in range(kind.quick if count is None else count)]
    try:
        fuzzer.finish()
    except FaultError as fault:
        found.append(str(fault))
    return [fault for fault in found if fault is not None]


@pytest.mark.parametrize("kind", QUICK, ids=lambda kind: kind.name)
def test_no_fault_in_the_first_cases(kind, tmp_path):
    assert faults(kind, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ExportImports, *FORKS], ids=lambda kind: kind.name)
def test_no_fault_in_processes(kind, tmp_path):
    assert faults(kind, tmp_path) == []


# --- a fault that is put back is found ----------------------------------------------------------


def test_policies_find_a_reader_that_raises_something_else(tmp_path, monkeypatch):
    def careless(entry, where):
        return SubPolicy(entry["weight"], tuple(PolicyOp(**op) for op in entry["ops"]))

    monkeypatch.setattr("dada.policy.policy._read_subpolicy", careless)
    assert any("KeyError" in fault or "TypeError" in fault for fault in faults(Policies, tmp_path))


def test_policies_find_what_loads_and_cannot_be_saved(tmp_path, monkeypatch):
    def lossy(self):
        raise ValueError("Out of range float values are not JSON compliant")

    fuzzer = Policies(tmp_path)
    fuzzer.prepare()
    monkeypatch.setattr(Policy, "to_json", lossy)
    found = [fuzzer.run(number) for number in range(60)]
    assert any("loaded, but ValueError: Out of range" in fault for fault in found if fault)


def test_imports_find_a_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("fire.files.import_policy", lambda name, source: 10**400 / 1.5)
    assert any("OverflowError" in fault for fault in faults(Imports, tmp_path, 5))


def test_data_finds_a_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("fire.files.load", lambda name: {}["images"])
    assert any("KeyError" in fault for fault in faults(Data, tmp_path, 5))


def test_annotations_find_a_reader_that_believes(tmp_path, monkeypatch):
    """Without a look at ids, any value of a file is looked up as one."""
    monkeypatch.setattr("dada.data.coco._is_identity", lambda value: True)
    assert any("TypeError" in fault for fault in faults(Annotations, tmp_path, 150))


def test_images_find_a_flood(tmp_path, monkeypatch):
    def careless(path):
        raise OSError("a\nb")

    monkeypatch.setattr("dada.terminal.commands.echo", lambda line, error=False: None)
    monkeypatch.setattr("dada.Policy.load", careless)
    assert any("0 lines of ours" in fault for fault in faults(Images, tmp_path, 6))


def test_options_find_a_run_that_was_begun(tmp_path, monkeypatch):
    def begun(path, *, resume=False):
        os.makedirs(path, exist_ok=True)
        open(os.path.join(path, "run.json"), "w").close()
        raise ValueError("refused too late")

    monkeypatch.setattr("dada.api.preparation.check_run_path", begun)
    assert any("refused, but it left" in fault for fault in faults(Options, tmp_path, 20))


def test_run_files_find_a_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("fire.files.write_report", lambda run: {}["seconds"])
    assert any("KeyError" in fault for fault in faults(RunFiles, tmp_path, 6))


def test_checkpoints_find_what_was_never_saved(tmp_path, monkeypatch):
    """Without the checksums, which torch does not compare, and with a reader that runs pickles."""

    def careless(file):
        return torch.load(file, map_location="cpu", weights_only=True)

    monkeypatch.setattr("dada.runlog._load", careless)
    found = faults(Checkpoints, tmp_path, 120)
    assert any("never saved" in fault for fault in found)

    def trusting(file):
        return torch.load(file, map_location="cpu", weights_only=False)

    monkeypatch.setattr("dada.runlog._load", trusting)
    assert any("code of a checkpoint ran" in fault for fault in faults(Checkpoints, tmp_path, 60))


def test_weights_find_a_reader_that_believes(tmp_path, monkeypatch):
    """Without a look at what stands beside the weights, a mean may be anything."""

    def careless(file):
        return json.loads(file.with_name("model.json").read_text())

    monkeypatch.setattr("dada.models.weights._about", careless)
    assert any("Error" in fault for fault in faults(WeightFiles, tmp_path, 60))


def test_exports_find_a_name_that_becomes_code(tmp_path, monkeypatch):
    fuzzer = ExportTrees(tmp_path)
    fuzzer.prepare()
    monkeypatch.setattr("dada.exchange.exports.physical_policy.comment_text", str)
    assert any(fuzzer.run(number) for number in range(120))


@pytest.mark.slow
def test_imports_of_exports_find_code_that_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fire.exports.export", lambda policy, target: "import os; os.system('true')"
    )
    assert any("forbidden: os.system" in fault for fault in faults(ExportImports, tmp_path))


@pytest.mark.slow
def test_kills_find_ranks_that_do_not_agree(tmp_path, monkeypatch):
    """The fault that this fuzzer found first: statistics of one process in everyone's place."""
    monkeypatch.setattr(RunState, "agree_on_statistics", lambda self: None)
    monkeypatch.setattr("fire.kills.RUNS", {"search-ranks": _ranks()})
    assert any("other results in" in fault for fault in faults(Kills, tmp_path, 8))


def _ranks():
    from fire.kills import RUNS

    return RUNS["search-ranks"]


@pytest.mark.slow
def test_the_soak_finds_a_lost_state(tmp_path, monkeypatch):
    """A run that begins anew, after the log that it wrote before it was killed."""
    monkeypatch.setattr(RunLog, "restore", lambda self: None)
    monkeypatch.setattr(Soak, "troubles", ("kill",))
    assert any("other results" in fault for fault in faults(Soak, tmp_path, 8))


# --- the runner and its tools -------------------------------------------------------------------


def test_a_case_is_the_same_every_time():
    def drawn():
        noise = random.Random("policies 0 7")
        return damaged_json({"a": [1, 2, {"b": "c"}]}, noise), damaged_bytes(b"x" * 99, noise)

    assert drawn() == drawn()


@pytest.mark.parametrize("message", ["", "a\nb", "\x1b[31m", "x" * 501])
def test_a_message_that_is_no_line_is_a_fault(message):
    with pytest.raises(FaultError):
        check_line(message)


def test_what_the_command_may_say():
    assert check_said(2, "dada: a: b; c\n") == (2, "dada: a: b; c\n")
    for code, err in ((1, ""), (2, ""), (2, "dada: a\ndada: b\n"), (2, f"dada: {'x' * 501}\n")):
        with pytest.raises(FaultError):
            check_said(code, err)


def test_the_runner_counts_goes_on_and_keeps_examples(tmp_path, monkeypatch):
    class Odd(Fuzzer):
        name, what, full, quick = "odd", "odd numbers", 10, 2

        def case(self, noise):
            if self.number % 2:
                raise FaultError("odd")

    monkeypatch.setattr(runner, "RESULTS", tmp_path / "reliability.json")
    asked = runner.argparse.Namespace(count=4, minutes=None, seed=0, fresh=False)
    assert runner.run(Odd(tmp_path), asked, {}) == 2
    asked.count = None
    assert runner.run(Odd(tmp_path), asked, {}) == 3
    record = json.loads((tmp_path / "reliability.json").read_text())["fuzzers"]["odd"]
    assert (record["cases"], record["wanted"], record["faults"]) == (10, 10, 5)
    assert record["examples"][0] == "case 1: odd"
    asked.seed = 7  # other cases: all of them, and none is recorded
    assert runner.run(Odd(tmp_path), asked, {}) == 5
    assert json.loads((tmp_path / "reliability.json").read_text())["fuzzers"]["odd"] == record


def test_results_leave_out_clocks_only(tmp_path):
    (tmp_path / "scores.json").write_text('{"accuracy": 1, "seconds": 2}')
    (tmp_path / "log.jsonl").write_text('{"loss": 1, "seconds": 3}\n')
    assert results(tmp_path) == {"scores.json": {"accuracy": 1}, "log.jsonl": [{"loss": 1}]}
