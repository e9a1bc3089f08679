"""What is told while something runs: bars at 80 columns, lines, the log; and what before it."""

from __future__ import annotations

import io
import logging
import re

import pytest
import torch
from rich.console import Console

import dada
from dada.api import tellers
from dada.api.bars import Bars
from dada.api.progress import CompareProgress, SearchProgress
from dada.comparison.plan import Plan
from dada.config import few_images
from dada.data import load
from dada.policy import Policy
from dada.report.repeat import compare_commands
from dada.trials.runners import Trial
from dada.trials.statistics import smallest_visible

QUICK = {"epochs": 2, "device": "cpu", "model": "small"}


@pytest.fixture
def dots() -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.randint(0, 256, (40, 3, 17, 17), generator=torch.Generator().manual_seed(0))
    return pixels.to(torch.uint8), torch.arange(40) % 2


def on_a_terminal(width: int) -> tuple[Bars, io.StringIO]:
    file = io.StringIO()
    return Bars(Console(file=file, force_terminal=True, width=width)), file


def last_line(file: io.StringIO) -> str:
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if "searching" in line][-1].rstrip()


METRICS = {"epoch": 3, "loss": 1.5, "val_accuracy": 0.25, "entropy": 6.04, "change": 0.1}


@pytest.mark.parametrize("width", [80, 200])
def test_the_bar_and_the_time_left_stay_where_numbers_go(width):
    bars, file = on_a_terminal(width)
    bars.begin()
    SearchProgress(bars).epoch({**METRICS, "seconds": 7.0}, 320)
    bars.stop()
    line = last_line(file)
    assert len(line) <= width
    assert "3/320" in line and re.search(r"(min|s) left", line) and "━" in line
    assert ("change 0.100" in line) == (width == 200)


def test_waiting_is_seen_and_forgotten():
    bars, file = on_a_terminal(80)
    bars.wait("reading photos")
    bars.bars.refresh()
    bars.stop()
    assert "reading photos" in file.getvalue()
    assert bars.bars.tasks == [] and bars.waiting is None


def trial(seed: int, name: str = "none") -> Trial:
    return Trial(name=name, policy=Policy(()), config=dada.TrainConfig(), seed=seed)


def test_a_comparison_tells_how_far_its_trainings_are(monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("dada.api.progress.time.monotonic", lambda: float(next(clock)))
    said: list[tuple] = []

    class Heard(tellers.Log):
        def __init__(self):
            super().__init__()
            self.advance = lambda *what, ended: said.append((*what, ended))

    progress = CompareProgress(Heard())
    progress.start(load("digits"), "small", 4)
    progress.trial(trial(9), {"accuracy": 0.5, "seconds": 9.0})  # of an earlier session
    progress.epoch(trial(0), 1, 2)
    progress.trial(trial(0), {"accuracy": 0.5, "seconds": 9.0})
    assert said[0] == ("training", 1, 4, "none, seed 9: 50.00% in 9 s", None, True)
    assert said[1] == ("training", 1.5, 4, "none, seed 0, epoch 1/2", None, False)
    assert said[2] == ("training", 2, 4, "none, seed 0: 50.00% in 9 s", 10 * 2 / 0.5, True)


def test_lines_come_now_and_then(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(tellers.time, "monotonic", lambda: now[0])
    lines: list[str] = []
    teller = tellers.Lines(lines.append)
    teller.last = -100.0
    for second in range(12):
        now[0] = float(second)
        teller.advance("epoch", second, 100, "loss 1", 60.0, ended=False)
    assert lines == [f"epoch {n}/100  60 s left  loss 1" for n in (0, 5, 10)]
    teller.advance("epoch", 100, 100, "loss 1", None, ended=False)
    assert lines[-1] == "epoch 100/100  loss 1"


# --- in Python ----------------------------------------------------------------------------------


def test_python_is_told_by_logging(dots, caplog):
    caplog.set_level(logging.INFO, "dada")
    dada.train(dots, **QUICK)
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("training, epoch 2/2  loss ") for line in lines)
    assert lines[0].startswith("data    arrays: 32 train")


def test_without_a_level_nothing_is_printed(dots, capsys):
    dada.train(dots, **QUICK)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["search", "train", "compare"])
def test_progress_is_shown_and_callbacks_are_called(dots, capsys, name):
    seen: list[object] = []
    own = {"on_trial" if name == "compare" else "on_epoch": lambda *what: seen.append(what)}
    more = {
        "search": {"lookahead": 0},
        "train": {},
        "compare": {"policies": ["none", "uniform"], "seeds": 1},
    }
    getattr(dada, name)(dots, **QUICK, **more[name], **own, progress=True)
    assert len(seen) == 2
    out = capsys.readouterr().out
    assert "data" in out and "2/2" in out


def test_the_log_gives_way_to_the_callers_callbacks(dots, caplog):
    caplog.set_level(logging.INFO, "dada")
    given = dict.fromkeys(("on_start", "on_epoch", "on_note"), lambda *what: None)
    dada.train(dots, **QUICK, **given)
    assert caplog.records == []
    some = {"on_start": lambda *what: None}  # the others are the log's, and do without it
    dada.compare(dots, ["none", "uniform"], seeds=1, **QUICK, **some)
    assert caplog.records


def test_reprs_are_short(dots):
    policy = Policy.load("dada-cifar10")
    assert repr(policy).startswith("<Policy dada-cifar10, 25 sub-policies: Rotate 11%")
    assert repr(Policy(())) == "<Policy paper, 0 sub-policies>"
    hostile = Policy.from_rows([[("Invert", 1.0, 0.5)]], name="a\nb\x1b[31m" * 99)
    assert "\n" not in repr(hostile) and "\x1b" not in repr(hostile)
    found = dada.search(dots, lookahead=0, **QUICK)
    trained = dada.train(dots, **QUICK)
    compared = dada.compare(dots, ["none", "uniform"], seeds=1, **QUICK)
    for value, start in (
        (found, "<Result of "),
        (trained, "<Trained Small, "),
        (compared, "<Comparison on arrays, 1 seed,"),
    ):
        assert repr(value).startswith(start) and len(repr(value)) < 250
    assert "confusion" not in repr(trained.scores) and "class_error" not in repr(compared["none"])


# --- before a comparison ------------------------------------------------------------------------


def test_few_images_make_small_batches_and_no_thousand_epochs():
    for images in (10, 20, 100, 243, 1000):
        config = dada.TrainConfig(**few_images(images))
        steps = max(1, images // config.batch_size)
        assert 16 <= config.batch_size < 128 and config.epochs_for(steps) <= 200
    assert few_images(1024) == few_images(50_000) == {}
    assert few_images(243)["batch_size"] == 30


def test_a_search_keeps_its_settings(dots, tmp_path):
    dada.search(dots, lookahead=0, out=tmp_path / "run", **QUICK)
    assert "batch_size = 128" in (tmp_path / "run" / "config.toml").read_text()


def test_what_images_and_seeds_can_show():
    assert smallest_visible(16, 3) == pytest.approx(19.6, abs=0.1)
    assert smallest_visible(10_000, 5) < 0.5
    assert smallest_visible(16, 1) is None
    assert smallest_visible(100, 1000) == 1.0  # not less than one image


def test_a_plan_is_told_before_the_trainings(dots, caplog):
    plans: list[Plan] = []
    policies = ["none", "uniform"]
    dada.compare(dots, policies, seeds=2, on_plan=plans.append, **QUICK)
    (plan,) = plans
    assert (plan.trainings, plan.seeds, plan.epochs, plan.images) == (4, 2, 2, 8)
    assert plan.hopeless and plan.seconds > 0
    assert plan.seconds_with(4) == pytest.approx(2 * plan.seconds)


@pytest.mark.parametrize(
    ("seconds", "seeds", "says"),
    [
        (840.0, 5, "188 epochs each, about 14 min in all (counted, not measured); 3 seeds take 8"),
        (840.0, 3, "94 epochs take half of it"),
        (20.0, 5, "about 20 s in all (counted, not measured)"),
    ],
)
def test_an_estimate_in_words(caplog, seconds, seeds, says):
    caplog.set_level(logging.INFO, "dada")
    plan = Plan(trainings=20, seeds=seeds, epochs=188, images=16, seconds=seconds, visible=19.6)
    CompareProgress(tellers.Log()).plan(plan)
    first, second = (record.getMessage() for record in caplog.records)
    assert says in first
    assert second.startswith(f"16 images to judge on and {seeds} seeds will hardly show a differ")


def test_commands_carry_what_the_run_was_asked():
    config = {
        "command": "search",
        "source": "my photos",
        "data": "my photos",
        "model": "timm:resnet18",
        "image_size": 96,
        "weights": {"source": "w e.safetensors", "freeze": "backbone"},
        "search": {"preset": "dada", "base": {"scale": 0.35, "flip": True}},
    }
    first, second = compare_commands(config, "runs/a b")
    assert first == (
        "dada compare 'my photos' --policies 'runs/a b,uniform,none' --seeds 5 "
        "--model timm:resnet18 --image-size 96 --weights 'w e.safetensors' --freeze backbone "
        "--base photo --out 'runs/a b-compared'"
    )
    assert second == "dada report 'runs/a b' --comparison 'runs/a b-compared'"
    config["search"] = {"preset": "dada", "base": {"crop": 3, "flip": True}}
    assert "--base none --crop 3 --flip --out" in compare_commands(config, "r")[0]
    config["search"] = {"preset": "dada", "base": {"turn": True}}
    assert "--base none --turn --out" in compare_commands(config, "r")[0]
