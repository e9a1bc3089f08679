"""Trainings without a finite loss, memory that is full, processes that die: what is left stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import dada
from dada.comparison import Comparison
from dada.config import TrainConfig
from dada.data import Split
from dada.data.parts import TensorPart
from dada.policy import Policy
from dada.terminal.commands import main
from dada.training.epochs import DivergedError
from dada.trials import runners
from dada.trials.runners import Setting, Trial, TrialDiedError

SETTINGS = {"epochs": 1, "device": "cpu", "model": "small", "batch_size": 16}
FULL = {
    "machine": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    "python": MemoryError(),
    "card": torch.cuda.OutOfMemoryError("CUDA out of memory."),
}


def data(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (count, 1, 8, 8), generator=noise, dtype=torch.uint8)
    return images, torch.arange(count) % 2


@pytest.fixture
def failing(monkeypatch):
    """Trainings named in the set fail, until they are taken out of it."""
    names: set[tuple[str, int]] = set()
    train = runners._train

    def sometimes(setting, trial):
        if (trial.name, trial.seed) in names:
            return DivergedError(f"{trial}: the training loss became nan in epoch 1")
        return train(setting, trial)

    monkeypatch.setattr(runners, "_train", sometimes)
    return names


# --- a comparison goes on -----------------------------------------------------------------------


def test_the_other_trainings_are_compared_and_resume_tries_again(failing, tmp_path):
    failing |= {("none", 1)}
    options = {"seeds": 3, "out": tmp_path / "run", **SETTINGS}
    done = dada.compare(data(), ["uniform", "none"], **options)
    assert done.seeds == (0, 2) and len(done["uniform"].scores) == 2
    assert done.failed == ("none, seed 1: the training loss became nan in epoch 1",)
    assert "1 training failed" in done.verdict and "none, seed 1" in done.verdict
    assert Comparison.load(tmp_path / "run").failed == done.failed
    assert not (tmp_path / "run" / "finished.json").exists()
    failing.clear()
    again = dada.compare(data(), ["uniform", "none"], resume=True, **options)
    assert again.failed == () and again.seeds == (0, 1, 2)
    assert "failed" not in json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert (tmp_path / "run" / "finished.json").exists()


def test_a_policy_that_always_fails_is_left_out(failing):
    failing |= {("none", 0), ("none", 1)}
    done = dada.compare(data(), ["uniform", "none", "cutout"], seeds=2, **SETTINGS)
    assert [row.name for row in done.policies] == ["uniform", "cutout"] and done.seeds == (0, 1)
    failing |= {("cutout", 0), ("uniform", 1)}
    with pytest.raises(ValueError, match="4 of 6 trainings failed, which leaves nothing"):
        dada.compare(data(), ["uniform", "none", "cutout"], seeds=2, **SETTINGS)


def test_the_command_says_so_and_ends_with_2(failing, tmp_path, monkeypatch, capsys):
    failing |= {("none", 1)}
    monkeypatch.chdir(tmp_path)
    line = ["dada", "compare", "digits", "--policies", "uniform,none", "--seeds", "2"]
    options = ["--epochs", "1", "--device", "cpu", "--at-once", "1"]
    monkeypatch.setattr("sys.argv", [*line, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and "none, seed 1: the training loss" in said.out
    assert said.err == "dada: not all trainings ended; --resume tries those that failed again\n"


class Deadly(Setting):
    """Ends the process that trains with seed 1, as the system does when memory is short."""

    def job(self, trial):
        if trial.seed == 1:
            os._exit(9)
        return super().job(trial)


def test_a_worker_that_dies_takes_no_other_training_along():
    images, labels = data()
    part = TensorPart(images, labels)
    split = Split(train=part, val=part, classes=("a", "b"), name="x")
    setting = Deadly(split=split, model="small", device=torch.device("cpu"))
    config = TrainConfig(epochs=1, batch_size=16)
    given = [
        Trial(name="none", policy=Policy(()), config=config, seed=seed) for seed in (1, 2, 3, 4)
    ]
    ended = dict(runners.run_all(setting, given, 2))
    assert isinstance(ended[given[0]], TrialDiedError) and "none, seed 1: its process died" in str(
        ended[given[0]]
    )
    assert all("accuracy" in ended[trial] for trial in given[1:])


@pytest.mark.parametrize("kind", FULL)
def test_full_memory_in_one_training_is_named(kind, monkeypatch):
    def full(job):
        if job.seed == 1:
            raise FULL[kind]
        return run_job(job)

    run_job = runners.run_job
    monkeypatch.setattr(runners, "run_job", full)
    done = dada.compare(data(), ["uniform", "none"], seeds=3, **SETTINGS)
    assert done.seeds == (0, 2) and done.failed[0].startswith("uniform, seed 1: ")


# --- the phases of a search ---------------------------------------------------------------------

PHASES = {
    "measuring": ("measure", "`batch_size`"),
    "looking ahead": ("look_ahead", "`lookahead`"),
    "verifying": ("verify_searched", "`verify_budget`"),
}


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("phase", PHASES)
def test_full_memory_names_the_phase_and_what_to_lower(phase, kind, monkeypatch, quick_lookahead):
    function, setting = PHASES[phase]

    def full(*arguments):
        raise FULL[kind]

    monkeypatch.setattr(f"dada.policy_search.{function}", full)
    with pytest.raises(ValueError) as caught:
        dada.search(data(), verify_budget=20, **SETTINGS)
    whose = "GPU's" if kind == "card" else "machine's"
    assert str(caught.value).startswith(f"{phase}: the {whose} memory is full with batches of 16")
    assert f"; lower {setting}" in str(caught.value)


def test_no_finite_loss_names_the_phase(monkeypatch, quick_lookahead, tmp_path):
    with pytest.raises(
        ValueError, match=r"^measuring: the training loss became nan in epoch \d; lower"
    ):
        dada.search(data(), lr=1e30, **{**SETTINGS, "epochs": 4})

    def nan(setting, trial):
        return DivergedError(f"{trial}: the training loss became inf in epoch 1")

    monkeypatch.setattr(runners, "_train", nan)
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=r"^verifying: .*, seed .*: the training loss became inf"):
        dada.search(data(), verify_budget=300, out=out, **SETTINGS)
    kept = {file.name for file in Path(out).iterdir()}
    assert {"checkpoint.pt", "lookahead.json", "unfinished-policy.json"} <= kept
