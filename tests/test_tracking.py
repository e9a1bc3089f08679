"""Numbers reach the services that were named, and a service that fails costs no search.

The services are stand-ins that write down how they were called; `test_tensorboard_itself` uses the
real one where it is installed.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

import dada
from dada.terminal.commands import main
from dada.terminal.tracking import Tracker, flat_numbers, tracker

EPOCH = {
    "epoch": 2,
    "loss": 0.5,
    "val_accuracy": 1,
    "op_rate": {"Rotate": 0.25, "Invert": 0.0},
    "note": "words",
    "list": [1, 2],
    "flag": True,
}
NUMBERS = {"loss": 0.5, "val_accuracy": 1.0, "op_rate/Rotate": 0.25, "op_rate/Invert": 0.0}


class Book:
    """Everything the stand-ins were told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def writes(self, name: str, answer: object = None):
        def call(*positional: object, **named: object) -> object:
            self.calls.append((name, (*positional, named) if named else positional))
            return answer

        return call

    def all(self, name: str) -> list[object]:
        return [what for called, what in self.calls if called == name]


@pytest.fixture
def book(monkeypatch) -> Book:
    """The three services, installed as far as `tracker` can see, and replaced by stand-ins."""
    book = Book()
    run = SimpleNamespace(id="w1", log=book.writes("wandb.log"), finish=book.writes("wandb.finish"))
    wandb = ModuleType("wandb")
    wandb.init = book.writes("wandb.init", run)
    mlflow = ModuleType("mlflow")
    mlflow.set_experiment = book.writes("mlflow.set_experiment")
    started = SimpleNamespace(info=SimpleNamespace(run_id="m1"))
    mlflow.start_run = book.writes("mlflow.start_run", started)
    for name in ("log_params", "log_metrics", "end_run"):
        setattr(mlflow, name, book.writes(f"mlflow.{name}"))
    board = ModuleType("torch.utils.tensorboard")
    writer = SimpleNamespace(
        add_scalar=book.writes("tensorboard.scalar"),
        add_text=book.writes("tensorboard.text"),
        flush=book.writes("tensorboard.flush"),
        close=book.writes("tensorboard.close"),
    )
    board.SummaryWriter = book.writes("tensorboard.open", writer)
    for module in (wandb, mlflow, board, ModuleType("tensorboard")):
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    return book


def test_every_service_is_told(book, tmp_path):
    config = {"seed": 3, "search": {"lr": 0.1}}
    with tracker("tensorboard, wandb,mlflow,wandb", tmp_path, config) as tracked:
        assert book.calls == []  # the run directory must not be touched before the run begins
        tracked(EPOCH, 5)
        tracked(EPOCH | {"epoch": 3}, 5)
    scalars = book.all("tensorboard.scalar")
    assert scalars[:4] == [(name, value, 2) for name, value in NUMBERS.items()]
    assert len(scalars) == 8
    assert book.all("tensorboard.open") == [(str(tmp_path / "tensorboard"),)]
    assert book.all("wandb.log") == [(NUMBERS, {"step": 2}), (NUMBERS, {"step": 3})]
    assert book.all("mlflow.log_metrics") == [(NUMBERS, {"step": 2}), (NUMBERS, {"step": 3})]
    assert book.all("mlflow.log_params") == [({"seed": "3", "search/lr": "0.1"},)]
    settings = book.all("wandb.init")[0][0]
    assert settings["config"] == {"seed": 3, "search/lr": 0.1} and settings["project"] == "dada"
    for name in ("tensorboard.close", "wandb.finish", "mlflow.end_run"):
        assert len(book.all(name)) == 1


def test_a_resumed_run_is_the_same_run_there(book, tmp_path):
    for _ in range(2):
        with tracker(["wandb", "mlflow"], tmp_path, {"seed": 1}) as tracked:
            tracked(EPOCH, 5)
    assert json.loads((tmp_path / "tracking.json").read_text()) == {"wandb": "w1", "mlflow": "m1"}
    assert [given[0]["id"] for given in book.all("wandb.init")] == [None, "w1"]
    assert book.all("mlflow.start_run") == [({"run_name": tmp_path.name},), ({"run_id": "m1"},)]
    assert len(book.all("mlflow.log_params")) == 1  # a second time they would be refused


def test_names_of_the_services_own_settings_are_kept(book, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "birds")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "birds")
    with tracker("wandb,mlflow", tmp_path, {}) as tracked:
        tracked(EPOCH, 1)
    assert book.all("wandb.init")[0][0]["project"] == "birds"
    assert book.all("mlflow.set_experiment") == []


def test_nothing_named_is_nothing_tracked(tmp_path):
    for names in ("", " , ", []):
        with tracker(names, tmp_path) as tracked:
            tracked(EPOCH, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_fails_later_is_left_out_and_said_once(book, tmp_path):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("quota")

    with tracker("tensorboard,mlflow", tmp_path, {}) as tracked:
        importlib.import_module("mlflow").log_metrics = fails
        with pytest.warns(UserWarning, match="tracking with mlflow ended in epoch 2: quota; the r"):
            tracked(EPOCH, 5)
        tracked(EPOCH, 5)  # a warning here would be an error
    assert len(book.all("tensorboard.flush")) == 2


def test_a_service_that_does_not_start_is_one_line(book, tmp_path):
    def fails(**_: object) -> None:
        raise RuntimeError("api_key not configured\nmore")

    importlib.import_module("wandb").init = fails
    tracked = tracker("tensorboard,wandb", tmp_path, {})
    says = (
        "tracking with wandb could not start: api_key not configured; set it up, or leave it out "
        "and continue with `resume=True`"
    )
    with pytest.raises(ValueError, match=says):
        tracked(EPOCH, 5)
    assert len(book.all("tensorboard.close")) == 1
    assert isinstance(tracked, Tracker)
    tracked.close()


def test_mistakes_are_said_before_anything_runs(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no tracking with 'tensorbord'; use tensorboard, wand"):
        tracker("tensorbord", tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr("dada.terminal.tracking.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="with mlflow needs a package: pip install mlflow"):
        tracker("mlflow", tmp_path)


def test_numbers_inside_dicts_have_names_with_a_slash():
    assert flat_numbers({k: v for k, v in EPOCH.items() if k != "epoch"}) == NUMBERS


# --- a comparison -------------------------------------------------------------------------------

SCORES = {
    "accuracy": 0.9,
    "top5": None,
    "balanced_accuracy": 0.8,
    "loss": 0.5,
    "images": 20,
    "class_error_C": [0.1, 0.3],
    "seconds": 3.0,
}


def test_the_trainings_of_a_comparison_are_tracked_as_they_end(book, tmp_path):
    with tracker("mlflow", tmp_path, {}) as tracked:
        tracked.trial(SimpleNamespace(name="none", seed=3), SCORES)
        tracked.trial(SimpleNamespace(name="randaugment:2,0.5", seed=3), SCORES)
    numbers = {"accuracy": 0.9, "balanced_accuracy": 0.8, "loss": 0.5, "seconds": 3.0}
    assert book.all("mlflow.log_metrics") == [
        ({f"{name}/none": value for name, value in numbers.items()}, {"step": 1}),
        ({f"{name}/randaugment-2-0.5": value for name, value in numbers.items()}, {"step": 2}),
    ]


def test_dada_compare_tracks(book, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "dada compare --policies none,uniform --seeds 1 --epochs 1 --out run --track mlflow"
    monkeypatch.setattr(sys, "argv", [*line.split(), "--at-once", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err
    told = [numbers for numbers, _ in book.all("mlflow.log_metrics")]
    scores = json.loads((tmp_path / "run/comparison.json").read_text())["policies"]
    assert len(told) == len(scores) == 2
    for row in scores:
        values = [n[f"accuracy/{row['name']}"] for n in told if f"accuracy/{row['name']}" in n]
        assert [100 * value for value in values] == pytest.approx(row["scores"])
    assert book.all("mlflow.log_params")[0][0]["command"] == "compare"
    assert len(book.all("mlflow.end_run")) == 1


# --- a search -----------------------------------------------------------------------------------


def test_a_search_is_tracked_under_its_settings(book, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "dada search digits --epochs 2 --batch-size 324 --lookahead 0 --out run "
    line += "--track mlflow,tensorboard"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err
    logged = [json.loads(text) for text in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    told = book.all("mlflow.log_metrics")
    assert [given[1]["step"] for given in told] == [1, 2]
    assert told[1][0]["loss"] == pytest.approx(logged[1]["loss"])
    assert told[1][0]["op_rate/Rotate"] == pytest.approx(logged[1]["op_rate"]["Rotate"])
    settings = book.all("mlflow.log_params")[0][0]
    assert settings["search/epochs"] == "2" and settings["data"] == "digits"
    assert len(book.all("mlflow.end_run")) == 1


def test_a_search_refuses_what_it_cannot_track(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dada, "search", lambda *_, **__: pytest.fail("it began"))
    monkeypatch.setattr(sys, "argv", ["dada", "search", "--track", "carrier-pigeon"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("dada: no tracking with 'carrier-pigeon'; use")
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_itself(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tracker("tensorboard", tmp_path, {"seed": 1}) as tracked:
        tracked(EPOCH, 5)
    read = events.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("op_rate/Rotate")] == [(2, 0.25)]
