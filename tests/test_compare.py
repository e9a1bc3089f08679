"""Comparisons: what is trained, what is kept, how it goes on, and what a person is told."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import dada
from dada import compare
from dada.comparison import Comparison, plot
from dada.comparison.result import PolicyScores
from dada.config import Base
from dada.data import Split, TensorPart
from dada.policy import Policy
from dada.terminal.commands import split_names
from dada.trials import runners as trials

ROOT = Path(__file__).parents[1]

GAIN = {"uniform": 0.05, "dada-cifar10": 0.09, "none": 0.0}


@pytest.fixture
def stripes() -> tuple[torch.Tensor, torch.Tensor]:
    """Sixty 8x8 images, stripes that lie or stand: a network learns them in a few steps."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 90, (60, 1, 8, 8), generator=generator, dtype=torch.uint8)
    images[:30, :, ::2] += 150
    images[30:, :, :, ::2] += 150
    return images, torch.arange(60) // 30


@pytest.fixture
def trained(monkeypatch) -> list[tuple[str, int]]:
    """No training: scores made up from the name and the seed, and a list of what was asked for."""
    asked: list[tuple[str, int]] = []

    def made_up(setting, trial):
        asked.append((trial.name, trial.seed))
        wobble = ((7 * trial.seed + 3 * len(trial.name)) % 5) / 500
        accuracy = 0.85 + 0.02 * trial.seed + GAIN.get(trial.name, 0.01) + wobble
        return {
            "accuracy": accuracy,
            "top5": None,
            "balanced_accuracy": accuracy - 0.1,
            "loss": 1 - accuracy,
            "images": 500,
            "class_error_C": [1 - accuracy, None],
            "seconds": 10.0,
        }

    monkeypatch.setattr(trials, "_train", made_up)
    return asked


# --- what is trained ----------------------------------------------------------------------------


def test_every_policy_with_every_seed(stripes, trained):
    done = compare(stripes, ["dada-cifar10", "uniform", "none"], seeds=3)
    assert trained == [(name, s) for s in range(3) for name in ("dada-cifar10", "uniform", "none")]
    assert [row.name for row in done.policies] == ["dada-cifar10", "uniform", "none"]
    assert done.seeds == (0, 1, 2) and done.images == 500 and done.model == "small"
    row = done["uniform"]
    assert row.scores == pytest.approx([90.2, 92.6, 94.0])
    assert row.mean == pytest.approx(sum(row.scores) / 3)
    assert row.interval[0] < row.mean < row.interval[1] <= 100
    assert row.balanced_accuracy == pytest.approx(row.mean - 10)
    assert row.class_error == (pytest.approx(100 - row.mean), None)
    assert row.top5 is None and row.loss == pytest.approx(1 - row.mean / 100)
    against = {(d.policy, d.against): d for d in done.differences}
    assert set(against) == {("dada-cifar10", "uniform"), ("none", "uniform")}
    paired = [a - b for a, b in zip(done["none"].scores, row.scores, strict=True)]
    assert against["none", "uniform"].mean == pytest.approx(sum(paired) / 3)
    assert done.verdict.startswith("dada-cifar10 is better than uniform by ")


def test_seeds_may_be_named(stripes, trained):
    assert compare(stripes, ["uniform", "none"], seeds=[7, 3]).seeds == (7, 3)
    assert {seed for _, seed in trained} == {7, 3}


def test_balanced_accuracy_can_be_what_counts(stripes, trained):
    done = compare(stripes, ["uniform", "none"], metric="balanced_accuracy")
    assert done.metric == "balanced_accuracy"
    assert done["uniform"].mean == done["uniform"].balanced_accuracy


def test_paired_seeds_start_from_the_same_weights(stripes):
    images, labels = stripes
    split = Split(train=TensorPart(images, labels), classes=("lies", "stands"), name="x")
    setting = trials.Setting(split=split, model="small", device=torch.device("cpu"))

    def weights(seed):
        return torch.cat([w.flatten() for w in setting.network(seed).parameters()])

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    setting = trials.Setting(split=split, model=own, device=torch.device("cpu"))
    assert torch.equal(weights(1), weights(2))
    assert setting.network(1) is not own


def planned(stripes, policies, monkeypatch, **options) -> dict:
    """Name -> trial of seed 0, without training."""
    seen = {}

    class EnoughError(Exception):
        pass

    def stop(setting, given, at_once):
        seen.update({trial.name: trial for trial in given if trial.seed == 0})
        raise EnoughError

    monkeypatch.setattr("dada.comparison.run_all", stop)
    with pytest.raises(EnoughError):
        compare(stripes, policies, **options)
    return seen


def test_none_and_cutout_differ_in_the_square(stripes, monkeypatch):
    base = Base(crop=1, cutout=3)
    seen = planned(stripes, ["none", "cutout", "uniform"], monkeypatch, base=base, epochs=5)
    assert {name: t.config.base.cutout for name, t in seen.items()} == {
        "none": 0,
        "cutout": 3,
        "uniform": 3,
    }
    assert {(t.config.base.crop, t.config.epochs) for t in seen.values()} == {(1, 5)}
    seen = planned(stripes, ["none", "cutout"], monkeypatch)
    assert seen["cutout"].config.base.cutout == 4  # half of 8


def test_autoaugment_is_settled_by_the_data(stripes, monkeypatch):
    seen = planned(stripes, ["autoaugment", "none"], monkeypatch)
    assert seen["autoaugment:cifar10"].policy == Policy.load("autoaugment:cifar10")
    large = torch.zeros(20, 1, 65, 65, dtype=torch.uint8), torch.arange(20) % 2
    seen = planned(large, ["autoaugment", "none"], monkeypatch)
    assert seen["autoaugment:imagenet"].policy == Policy.load("autoaugment:imagenet")


def test_a_recipe_gives_network_and_settings(stripes, monkeypatch):
    options = {"recipe": "cifar10_wrn40_2", "epochs": 3, "model": "small"}
    trial = planned(stripes, ["uniform", "none"], monkeypatch, **options)["uniform"]
    config = trial.config
    assert (config.epochs, config.batch_size, config.base.cutout) == (3, 512, 16)


def test_policies_may_be_objects_and_run_directories(stripes, trained, tmp_path):
    Policy.load("dada-svhn").save(tmp_path / "policy.json")
    nameless = Policy.from_rows([[("Rotate", 0.5, 0.7)]])
    done = compare(stripes, [tmp_path, nameless, Policy.load("none")], seeds=1)
    assert [row.name for row in done.policies] == [str(tmp_path), "policy 2", "none"]


# --- mistakes -----------------------------------------------------------------------------------

MISTAKES = {
    "unknown policy": ({"policies": ["uniform", "unifrom"]}, "no policy 'unifrom': neither a file"),
    "one policy": ({"policies": ["uniform"]}, "a comparison needs two policies or more, got ['uni"),
    "no policy": ({"policies": []}, "a comparison needs two policies or more, got []; add unif"),
    "twice": ({"policies": ["none", "none"]}, "policy 'none' is named twice"),
    "the same": (
        {"policies": ["randaugment", "randaugment:1,0.5"]},
        "'randaugment' and 'randaugment:1,0.5' do the same to these images; add one",
    ),
    "settles to the same": (
        {"policies": ["autoaugment:cifar10", "autoaugment"]},
        "'autoaugment:cifar10' and 'autoaugment' do the same",
    ),
    "no seeds": ({"seeds": 0}, "`seeds` should be one or more"),
    "negative seeds": ({"seeds": -2}, "`seeds` should be one or more"),
    "a seed twice": ({"seeds": [1, 1]}, "`seeds` should differ, got 1, 1"),
    "a negative seed": ({"seeds": [-1]}, "a seed should be in 0..2^62, got -1"),
    "metric": (
        {"metric": "f1"},
        "`metric` should be one of accuracy, balanced_accuracy, mean_average_precision",
    ),
    "at once": ({"at_once": 0}, "`at_once` should be 1 or more, got 0"),
    "model": ({"model": "wrn"}, "model 'wrn': no such model"),
    "own model": ({"model": nn.Flatten()}, "(2, 64)"),
    "recipe": ({"recipe": "cifar"}, "no recipe 'cifar' to train with; there are cifar10_wrn40_2"),
    "search recipe": ({"recipe": "reduced_svhn_wrn28_10"}, "to train with; did you mean svhn_"),
    "setting": ({"epoch": 3}, "unknown setting 'epoch'; there are base, batch_size"),
    "nearly a setting": ({"optimiser": "sgd"}, "; did you mean optimizer?"),
    "value": ({"lr": -1.0}, "`lr` should be positive, got -1.0"),
    "device": ({"device": "tpu"}, "device 'tpu' is not known"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_before_any_training(mistake, stripes, trained, tmp_path):
    options, says = MISTAKES[mistake]
    options = {"policies": ["uniform", "none"], **options}
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        compare(stripes, options.pop("policies"), out=tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert trained == [] and not (tmp_path / "run").exists()


def test_under_torchrun_there_must_be_a_directory(stripes, trained, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="under torchrun the processes meet in the run directory"):
        compare(stripes, ["uniform", "none"])


def test_a_training_that_fails_is_named(stripes):
    with pytest.raises(ValueError, match=r"2 of 2 .*uniform, seed 0: the training loss"):
        compare(stripes, ["uniform", "none"], seeds=1, lr=1e30, clip=0.0, epochs=3)


# --- the run directory --------------------------------------------------------------------------


def test_the_file_has_the_documented_shape(stripes, trained, tmp_path):
    done = compare(stripes, ["uniform", "none"], seeds=2, out=tmp_path / "run")
    content = json.loads((tmp_path / "run" / "comparison.json").read_text())
    head = ["format", "version", "data", "model", "metric", "policies", "differences", "verdict"]
    assert list(content) == [*head, "classes", "seeds", "images", "seconds", "versions"]
    assert (content["format"], content["version"]) == ("dada-comparison", 1)
    assert list(content["policies"][0]) == [
        *("name", "mean", "interval", "scores"),
        *("class_error", "balanced_accuracy", "loss", "top5"),
    ]
    assert list(content["differences"][0]) == [
        *("policy", "against", "mean", "interval", "seeds", "picked_from"),
    ]
    read = Comparison.load(tmp_path / "run")
    assert read.verdict == done.verdict and read.seeds == done.seeds
    assert read["none"].scores == pytest.approx(done["none"].scores, abs=1e-4)
    assert read.differences[0].interval == pytest.approx(done.differences[0].interval, abs=1e-4)
    with pytest.raises(KeyError, match="no policy 'cutout' in this comparison; there are uniform"):
        read["cutout"]
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    fields = {*content["policies"][0], *content["differences"][0], *list(content)[5:]}
    assert [name for name in fields if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", '"format" should be "dada-comparison"'),
        ('{"format": "dada-comparison", "version": 2}', "version 2, this dada reads 1"),
        ('{"format": "dada-comparison", "version": 1}', "a field is missing or unknown"),
    ],
)
def test_a_file_that_is_no_comparison(tmp_path, text, says):
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(says)):
        Comparison.load(tmp_path)


def stopped_after(count: int, stripes, out: Path, **options) -> None:
    left = [count]

    def stop(trial, outcome):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(stripes, ["uniform", "none"], seeds=3, out=out, on_trial=stop, **options)


def test_it_goes_on_where_it_stopped(stripes, trained, tmp_path):
    whole = compare(stripes, ["uniform", "none"], seeds=3, out=tmp_path / "whole")
    every, trained[:] = list(trained), []
    stopped_after(4, stripes, tmp_path / "run")
    assert trained == every[:4] and not (tmp_path / "run" / "comparison.json").exists()
    told = []
    again = compare(
        stripes,
        ["uniform", "none"],
        seeds=3,
        out=tmp_path / "run",
        resume=True,
        on_trial=lambda trial, outcome: told.append((trial.name, trial.seed)),
    )
    assert trained == every and told == every  # four taken over, two trained
    assert again.policies == whole.policies and again.differences == whole.differences
    assert again.seconds > 40 > whole.seconds  # the seconds of those taken over count
    once_more = compare(stripes, ["uniform", "none"], seeds=3, out=tmp_path / "run", resume=True)
    assert trained == every and once_more.verdict == again.verdict


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seeds": 4}, "seeds"),
        ({"policies": ["uniform", "cutout"]}, "policies"),
        ({"epochs": 9}, "train.epochs"),
        ({"base": Base(crop=2)}, "train.base.crop"),
        ({"metric": "balanced_accuracy"}, "metric"),
        ({"model": "wrn10_1"}, "model"),
    ],
)
def test_it_goes_on_with_the_same_settings_only(stripes, trained, tmp_path, changed, says):
    stopped_after(2, stripes, tmp_path / "run")
    options = {"policies": ["uniform", "none"], "seeds": 3, **changed}
    with pytest.raises(ValueError, match=rf"config.toml was written with {says} = "):
        compare(stripes, options.pop("policies"), out=tmp_path / "run", resume=True, **options)
    assert len(trained) == 2


def test_a_policy_file_that_changed_is_another_policy(stripes, trained, tmp_path):
    file = Policy.load("dada-svhn").save(tmp_path / "p.json")
    policies = [file, "none"]
    compare(stripes, policies, seeds=1, out=tmp_path / "run")
    Policy.load("dada-cifar10").save(file)
    with pytest.raises(ValueError, match="policy_hashes"):
        compare(stripes, policies, seeds=1, out=tmp_path / "run", resume=True)


def test_an_existing_directory_needs_resume(stripes, trained, tmp_path):
    stopped_after(1, stripes, tmp_path / "run")
    with pytest.raises(ValueError, match="exists; pass `resume=True` to continue it"):
        compare(stripes, ["uniform", "none"], seeds=3, out=tmp_path / "run")


def test_a_damaged_record_is_named(stripes, trained, tmp_path):
    stopped_after(2, stripes, tmp_path / "run")
    file = tmp_path / "run" / "trainings" / "01-none-seed0.json"
    file.write_text('{"policy": "none"}')
    with pytest.raises(ValueError, match=re.escape(f"{file} is damaged; delete it")):
        compare(stripes, ["uniform", "none"], seeds=3, out=tmp_path / "run", resume=True)
    file.unlink()
    compare(stripes, ["uniform", "none"], seeds=3, out=tmp_path / "run", resume=True)


# --- real trainings -----------------------------------------------------------------------------


def test_a_real_comparison_repeats_and_does_not_depend_on_how_it_is_run(stripes, tmp_path):
    options = {"seeds": 1, "epochs": 4, "batch_size": 16}
    alone = compare(stripes, ["uniform", "none"], **options)
    together = compare(stripes, ["uniform", "none"], at_once=2, out=tmp_path / "run", **options)
    assert together.policies == alone.policies and together.images == 12
    assert len(list((tmp_path / "run" / "trainings").iterdir())) == 2
    assert alone["none"].mean > 60


def test_taking_turns_on_one_device_changes_nothing(stripes, device, monkeypatch):
    given = list(planned(stripes, ["uniform", "none", "init"], monkeypatch, epochs=2).values())
    images, labels = stripes
    part = TensorPart(images, labels)
    split = Split(train=part, val=part, classes=("lies", "stands"), name="x")
    setting = trials.Setting(split=split, model="small", device=device)
    alone = dict(trials.in_turn(setting, given))
    together = dict(trials.on_one_card(setting, given, 2))
    assert set(together) == set(alone) == set(given)
    for trial in given:
        del alone[trial]["seconds"], together[trial]["seconds"]
        assert alone[trial] == together[trial]
    assert len({outcome["loss"] for outcome in alone.values()}) == 3


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 2)
        self.keep = lambda x: x  # cannot be pickled

    def forward(self, images_BCHW):
        return self.head(images_BCHW.flatten(1))


def test_what_cannot_travel_is_trained_here(stripes, monkeypatch):
    monkeypatch.setattr(trials, "in_processes", None)  # would be called, and fail
    done = compare(stripes, ["uniform", "none"], seeds=1, epochs=1, model=Own(), at_once=2)
    assert done.model == "Own" and len(done.policies) == 2


def test_how_many_at_once():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert 1 <= trials.default_at_once(cpu, (32, 32)) <= os.cpu_count()
    assert trials.default_at_once(cuda, (32, 32)) > 1 == trials.default_at_once(cuda, (224, 224))


@pytest.mark.slow
def test_torchrun_spreads_the_trainings(tmp_path):
    """Two processes: each trains half, both come to one result, the same as one process does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    arguments = ["compare", "digits", "--policies", "uniform,none", "--seeds", "2", "--epochs", "1"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--master-port", "29557", "-m", "dada", *arguments, "--out", "run"]
    done = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("differences in points") == 1  # one of them speaks
    alone = compare("digits", ["uniform", "none"], seeds=2, epochs=1)
    read = Comparison.load(tmp_path / "run")
    for row in alone.policies:
        assert read[row.name].scores == pytest.approx(row.scores, abs=1e-4)


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_and_a_directory_to_go_on_from(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "dada", "compare", "digits", "--policies", "uniform,none"]
    command += ["--seeds", "3", "--epochs", "40", "--at-once", "2", "--out", "run"]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    folder = tmp_path / "run" / "trainings"
    deadline = time.monotonic() + 300
    while not (folder.exists() and list(folder.glob("*.json"))):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.1)
    os.killpg(running.pid, 2)
    assert running.wait(timeout=60) != 0
    deadline = time.monotonic() + 20  # the dead are there until init has looked at them
    with pytest.raises(ProcessLookupError):  # nobody is left of that session
        while time.monotonic() < deadline:
            os.killpg(running.pid, 0)
            time.sleep(0.2)
    kept = {file.name for file in folder.iterdir()}
    command += ["--resume"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=600)
    assert kept < {file.name for file in folder.iterdir()}
    assert len(Comparison.load(tmp_path / "run").policies) == 2


# --- as a person meets it -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("uniform,none", ["uniform", "none"]),
        (" uniform , none,", ["uniform", "none"]),
        ("a,randaugment:2,0.5,b", ["a", "randaugment:2,0.5", "b"]),
        ("randaugment:1,0.3,randaugment", ["randaugment:1,0.3", "randaugment"]),
        ("runs/my run,none", ["runs/my run", "none"]),
        (",", []),
    ],
)
def test_names_with_commas_between(text, names):
    assert split_names(text) == names


@pytest.fixture
def command(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return partial(command, "compare")


def test_the_command(command, trained, tmp_path):
    policies = "dada-cifar10,uniform,none"
    code, out, err = command("digits", "--policies", policies, "--seeds", "3", "--at-once", "1")
    assert code == 0 and err == ""
    assert "data     digits: 1,297 train, 500 test" in out and "compare  small; 9 trainings" in out
    assert "training 9/9  none, seed 2: 89." in out
    assert re.search(r"dada-cifar10 +│ 9\d\.\d\d │ \d+\.\d\d to \d+\.\d\d │ ━{12} │ 9", out)
    assert re.search(r"none +│ uniform │ -\d\.\d\d │ -\d\.\d\d to -\d\.\d\d +│ worse", out)
    assert "dada-cifar10 is better than uniform by " in out
    folder = Path("runs/compare-digits")
    assert f"{folder}/comparison.json  all numbers" in out
    with Image.open(tmp_path / folder / "comparison.png") as picture:
        assert picture.format == "PNG" and picture.width > 800
    code, again, _ = command("digits", "--policies", policies, "--at-once", "1", "--resume")
    assert code == 0 and len(trained) == 9
    assert again.split("accuracy in %")[1] == out.split("accuracy in %")[1]


def test_a_mistake_in_the_command_is_one_line(command, trained):
    for arguments, says in (
        (["--policies", "uniform,nonee"], "no policy 'nonee'"),
        (["--seeds", "0"], "--seeds should be one or more"),
        (["no/such/folder"], "no such file or folder"),
        (["--model", "vgg"], "model 'vgg': no such model"),
    ):
        code, out, err = command(*arguments)
        assert code == 2 and out == "" and says in err and len(err.splitlines()) == 1
    assert not Path("runs").exists() and trained == []


def test_an_interrupted_command_says_how_to_go_on(command, trained, monkeypatch):
    made_up = trials._train

    def interrupted(setting, trial):
        if len(trained) == 2:
            raise KeyboardInterrupt
        return made_up(setting, trial)

    monkeypatch.setattr(trials, "_train", interrupted)
    code, out, err = command("digits", "--at-once", "1")
    assert code != 0 and "Traceback" not in err
    said = " ".join(out.split())
    assert "stopped after 2 of 12 trainings; the same command with --resume continues from" in said


def test_one_seed_has_no_interval(command, trained):
    _, out, _ = command("digits", "--policies", "uniform,none", "--seeds", "1", "--at-once", "1")
    assert "one seed: no interval" in out and "One seed gives no interval" in out


def test_a_name_is_no_formula_in_the_picture(tmp_path):
    """matplotlib reads what is between dollars as mathematics, and stumbles over most of it."""
    row = PolicyScores(
        name=r"$\frac{$\n", mean=50.0, interval=None, scores=(50.0,), class_error=(0.5,),
        balanced_accuracy=50.0, loss=None, top5=None,
    )  # fmt: skip
    drawn = Comparison(
        data="$x_$", model=r"$\$", metric="accuracy", policies=(row,), differences=(), verdict="",
        classes=("a",), seeds=(0,), images=1, seconds=0.0, versions={},
    )  # fmt: skip
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".x.png.tmp").symlink_to(tmp_path / "mine")
    assert plot.save_plot(drawn, tmp_path / "x.png") == tmp_path / "x.png"
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.size[0] == 1200
    assert (tmp_path / "mine").read_text() == "mine"


def test_without_matplotlib_there_is_no_picture(stripes, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    compare(stripes, ["uniform", "none"], seeds=1, out=tmp_path / "run")
    assert not (tmp_path / "run" / "comparison.png").exists()


def test_the_page_lists_every_recipe():
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for name, recipe in importlib.import_module("dada.recipes").RECIPES.items():
        (row,) = (row for row in rows if f"`{name}`" in row)
        if (train := recipe.train) is not None:
            assert f"{train.epochs} epochs, batch {train.batch_size}" in row, name


@pytest.mark.usefixtures("quick_lookahead")
def test_the_example_runs_on_a_folder(tmp_path, monkeypatch, capsys):
    assert len((ROOT / "examples" / "search_from_scratch.py").read_text().splitlines()) < 150
    generator = np.random.default_rng(0)
    for label in ("lies", "stands"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(20):
            pixels = generator.integers(0, 90, (8, 8, 3), dtype=np.uint8)
            pixels[:: 2 if label == "lies" else 1, :: 1 if label == "lies" else 2] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dada, "compare", compare, raising=False)
    monkeypatch.setattr("dada.api.comparing.default_at_once", lambda device, image_size: 1)
    arguments = ["search_from_scratch.py", "photos", "--epochs", "1", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(ROOT / "examples" / "search_from_scratch.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "often done:" in out and " over 2 seeds" in out
    assert Policy.load("runs/from-scratch/search").subpolicies
    assert Comparison.load("runs/from-scratch/compare").seeds == (0, 1)


def test_a_policy_that_is_another_is_trained_once(tmp_path):
    """As where a search returns `uniform`; the free one keeps its name, and a line says so."""
    (tmp_path / "policy.json").write_text(Policy.load("uniform").to_json())
    notes: list[str] = []
    done = dada.compare(
        "digits",
        [tmp_path, "uniform", "none"],
        seeds=1,
        epochs=1,
        device="cpu",
        on_note=notes.append,
    )
    assert [row.name for row in done.policies] == ["uniform", "none"]
    assert any("does the same to these images as uniform: trained once" in note for note in notes)
