"""`dada.search` and `dada search` as a person meets them: repeatable, resumable, clear when wrong.

Shapes: B images, C channels, H height, W width.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import dada
from dada.api.preparation import SharedOptions, prepare
from dada.api.settings import without_idle_operations
from dada.config import VERIFY, VerifyConfig, search_config
from dada.data import Split, TensorPart, load
from dada.policy_search import SearchJob
from dada.runlog import UNFINISHED_POLICY, read_log
from dada.terminal.commands import main
from quick import QUICK_LOOKAHEAD, StopError, stop_after

SOURCE = Path(__file__).parents[1] / "src"
PRESETS = ("dada", "paper")


@pytest.mark.parametrize("function", [dada.search, dada.train, dada.compare])
def test_what_all_three_are_asked_is_asked_alike(function):
    """`SharedOptions.of(locals())` takes an option by its name: one misspelt would be lost."""
    own = inspect.signature(function).parameters
    for option in fields(SharedOptions):
        if option.name == "settings":
            assert own["settings"].kind is inspect.Parameter.VAR_KEYWORD
        elif (function, option.name) != (dada.compare, "seed"):  # which has `seeds`
            assert own[option.name].default == option.default, option.name
            assert own[option.name].annotation == option.type, option.name


def some_digits(count: int = 192) -> tuple[Tensor, Tensor]:
    """The first of the embedded digits, 8x8 grey, all ten classes."""
    return load("digits").train.batch(torch.arange(count))


def quick_search(preset: str = "dada", **changes: Any) -> dada.Result:
    settings = {"epochs": 4, "batch_size": 32, "device": "cpu", "seed": 3}
    settings |= {"lookahead": QUICK_LOOKAHEAD} if preset == "dada" else {}
    return dada.search(some_digits(), preset=preset, **settings | changes)


def test_images_are_decoded_once_though_the_network_chooses_their_size(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (130, 120), (60 * i, 0, 0)).save(tmp_path / name / f"{i}.png")
    decoded = []
    real = dada.data.parts.open_file
    monkeypatch.setattr(
        "dada.data.parts.open_file", lambda path, **how: decoded.append(path) or real(path, **how)
    )
    choice = dada.models.Choice(name="small", side=96)
    monkeypatch.setattr("dada.models.default_network", lambda *about: choice)
    asked = prepare("train", str(tmp_path), SharedOptions(device="cpu"))
    asked, split, _ = asked.load(dada.config.Base(), seed=0)
    assert split.image_size == asked.image_size == (96, 104) and asked.model == "small"
    assert len(decoded) == len(set(decoded)) == 4


# --- the same seed, the same policy -------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_seed_gives_the_same_policy_byte_for_byte(tmp_path, preset):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        quick_search(preset, seed=seed, out=tmp_path / name)
    one, two, other = (
        (tmp_path / name / "policy.json").read_bytes() for name in ("one", "two", "other")
    )
    assert one == two
    # Not only the seed that is written in it.
    assert json.loads(one)["subpolicies"] != json.loads(other)["subpolicies"]


class WithDropout(nn.Module):
    """Draws from torch's own generator in every training pass."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
            )

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.layers(images_BCHW)
        return logits


@pytest.mark.parametrize("hypergradient", ["finite_difference", "forward"])
def test_dropout_repeats_and_the_callers_generator_is_left_alone(tmp_path, hypergradient):
    policies = []
    for start in (1, 2):
        torch.manual_seed(start)
        before = torch.get_rng_state()
        found = quick_search(model=WithDropout(), hypergradient=hypergradient)
        assert torch.equal(torch.get_rng_state(), before)
        policies.append(found.policy)
    assert policies[0] == policies[1]
    with pytest.raises(StopError):
        quick_search(
            model=WithDropout(),
            hypergradient=hypergradient,
            out=tmp_path / "run",
            on_epoch=stop_after(2),
        )
    torch.manual_seed(5)
    resumed = quick_search(
        model=WithDropout(), hypergradient=hypergradient, out=tmp_path / "run", resume=True
    )
    assert resumed.policy == policies[0]


# --- a run that was interrupted -----------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path, monkeypatch, preset):
    # On a busy machine a checkpoint may take long, and the next one would be put off.
    monkeypatch.setattr("dada.runlog.CHEAP_SECONDS", math.inf)
    quick_search(preset, out=tmp_path / "whole")
    torn, epochs_done = tmp_path / "torn", []
    for stop in (1, 3):
        with pytest.raises(StopError):
            quick_search(preset, out=torn, resume=True, on_epoch=stop_after(stop))
        assert len(read_log(torn)) == stop
        assert not (torn / "finished.json").exists()
        assert dada.Policy.load(torn / UNFINISHED_POLICY).provenance["epochs"] == stop

    def remember(metrics: dict[str, Any], epochs: int) -> None:
        epochs_done.append(metrics["epoch"])

    resumed = quick_search(preset, out=torn, resume=True, on_epoch=remember)
    assert epochs_done == [4], "epochs that were done are not repeated"
    assert [line["epoch"] for line in read_log(torn)] == [1, 2, 3, 4]
    assert [entry["epoch"] for entry in resumed.history] == [1, 2, 3, 4]
    whole = tmp_path / "whole"
    assert (torn / "policy.json").read_bytes() == (whole / "policy.json").read_bytes()
    for mine, other in zip(read_log(torn), read_log(whole), strict=True):
        assert {**mine, "seconds": 0} == {**other, "seconds": 0}
    total = sum(entry["seconds"] for entry in resumed.history)
    assert resumed.seconds >= total * 0.99, "the time of earlier sessions counts"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_killed_at_any_instant_can_be_resumed(tmp_path, monkeypatch, preset):
    """A real kill, as soon as the log shows two epochs: most likely before their checkpoint."""
    images, labels = some_digits()
    np.savez(tmp_path / "data.npz", images=images.numpy(), labels=labels.numpy())
    command = ["search", "data.npz", "--preset", preset, "--epochs", "12", "--batch-size", "32"]
    command += ["--device", "cpu", "--seed", "3", "--lookahead", "0"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    torn = tmp_path / "torn"
    with subprocess.Popen(
        [sys.executable, "-m", "dada", *command, "--out", "torn"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
    ) as process:
        log, deadline = torn / "log.jsonl", time.monotonic() + 90
        while not log.exists() or log.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline, "it wrote no log"
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL
    done = len(read_log(torn))
    assert 2 <= done < 12
    assert dada.Policy.load(torn / UNFINISHED_POLICY).provenance["epochs"] <= done

    monkeypatch.chdir(tmp_path)
    for name in ("torn", "whole"):
        monkeypatch.setattr(sys, "argv", ["dada", *command, "--out", name, "--resume"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    assert [line["epoch"] for line in read_log(torn)] == list(range(1, 13))
    whole = tmp_path / "whole" / "policy.json"
    assert (torn / "policy.json").read_bytes() == whole.read_bytes()
    sessions = json.loads((torn / "run.json").read_text())["sessions"]
    assert len(sessions) == 2


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run, calls = tmp_path / "run", []
    first = quick_search(out=run)
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.iterdir()}
    again = quick_search(out=run, resume=True, on_epoch=lambda *_: calls.append(1))
    after = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.iterdir()}
    assert before == after and calls == []
    assert again.policy == first.policy and again.out == run
    assert again.seconds == pytest.approx(first.seconds, abs=0.01)
    assert [entry["epoch"] for entry in again.history] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="run exists; pass `resume=True` to continue it or choose"):
        quick_search(out=run)


OTHER_SETTINGS = [
    ({"lr": 0.05}, r"search.lr = 0.1, this run has 0.05"),
    ({"seed": 4}, r"(seed|fingerprint) = "),
    ({"preset": "paper"}, r"search.preset = 'dada', this run has 'paper'"),
    ({"epochs": 5}, r"search.epochs = 4, this run has 5"),
    ({"model": "wrn10_1"}, r"model = 'small', this run has 'wrn10_1'"),
    ({"exclude": ("Invert",)}, r"search.exclude = \[.*\], this run has \['Invert', "),
]


def test_a_run_is_resumed_with_its_own_settings_only(tmp_path):
    with pytest.raises(StopError):
        quick_search(out=tmp_path / "run", on_epoch=stop_after(1))
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    for changes, says in OTHER_SETTINGS:
        with pytest.raises(ValueError, match=f"config.toml was written with {says}"):
            quick_search(**changes, out=tmp_path / "run", resume=True)
        assert (tmp_path / "run" / "log.jsonl").read_bytes() == log, changes


def test_other_data_is_not_resumed(tmp_path):
    with pytest.raises(StopError):
        quick_search(out=tmp_path / "run", on_epoch=stop_after(1))
    with pytest.raises(ValueError, match="fingerprint = "):
        dada.search(
            some_digits(180), epochs=4, batch_size=32, device="cpu", seed=3,
            out=tmp_path / "run", resume=True,
        )  # fmt: skip


def test_an_existing_directory_is_not_written_to(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious")
    for resume, says in ((False, "exists; pass `resume=True`"), (True, "holds no run")):
        with pytest.raises(ValueError, match=says):
            quick_search(out=tmp_path / "run", resume=resume)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["mine.txt"]


@pytest.mark.gpu
def test_a_run_on_a_gpu_can_be_resumed(tmp_path):
    """Sums on a GPU have no fixed order, so the end is compared only roughly."""
    before = torch.cuda.get_rng_state()
    settings = {"device": "cuda", "model": "small"}
    whole = quick_search(**settings).policy.op_probabilities()
    with pytest.raises(StopError):
        quick_search(**settings, out=tmp_path / "run", on_epoch=stop_after(2))
    resumed = quick_search(**settings, out=tmp_path / "run", resume=True)
    assert [line["epoch"] for line in read_log(tmp_path / "run")] == [1, 2, 3, 4]
    assert resumed.policy.op_probabilities() == pytest.approx(whole, abs=0.1)
    assert torch.equal(torch.cuda.get_rng_state(), before)


# --- what may be passed -------------------------------------------------------------------------


def test_validation_data_of_its_own_is_used():
    images, labels = some_digits()
    train, val = (images[:128], labels[:128]), (images[128:], labels[128:])
    facts = dada.search(train, val, epochs=1, device="cpu", lookahead=0).policy.provenance["data"]
    assert (facts["train"], facts["val"]) == (128, 64)
    facts = dada.search(train, epochs=1, device="cpu", lookahead=0).policy.provenance["data"]
    assert facts["train"] + facts["val"] == 128 and facts["val"] == pytest.approx(64, abs=8)


def test_a_network_of_ones_own_is_trained_where_it_is():
    model = WithDropout()
    before = model.layers[1].weight.clone()
    result = quick_search(model=model, epochs=1)
    assert result.policy.provenance["model"] == "WithDropout"
    assert not torch.equal(model.layers[1].weight, before)


def test_a_dataset_of_pillow_images_grey_and_rgb():
    images, labels = some_digits(96)
    items = [
        (Image.fromarray(image[0].numpy()).convert("RGB" if i % 2 else "L"), int(label))
        for i, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    result = dada.search(items, epochs=1, batch_size=16, device="cpu", image_size=10, lookahead=0)
    facts = result.policy.provenance["data"]
    assert facts["channels"] == 3 and facts["image_size"] == [10, 10]


def test_excluded_operations_are_not_in_the_policy():
    policy = quick_search(exclude=("Invert", "Solarize"), epochs=1).policy
    names = {step.op for subpolicy in policy.subpolicies for step in subpolicy.ops}
    # Of fifteen; Color and Equalize cannot change grey images of 8x8 pixels.
    assert len(names) == 11 and not names & {"Invert", "Solarize", "Color", "Equalize"}


@pytest.mark.parametrize(
    "size", [(8, 8), (16, 16), (24, 24), (28, 28), (32, 32), (64, 64), (96, 64), (224, 224)]
)
@pytest.mark.parametrize("grey", [False, True])
def test_only_what_cannot_change_images_is_left_out(size, grey):
    """Whatever the size: no colour image does without Color."""
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 3, *size), generator=noise, dtype=torch.uint8)
    images = images[:, :1].repeat(1, 3, 1, 1) if grey else images
    part = TensorPart(images, torch.arange(4) % 2)
    split = Split(train=part, classes=("a", "b"), name="x")
    left_out = without_idle_operations(search_config("dada"), split, lambda line: None).exclude
    few_pixels = size[0] * size[1] < 256  # of which Pillow's Equalize makes the same image
    wanted = {*(["Color"] if grey else []), *(["Equalize"] if few_pixels else [])}
    assert set(left_out) == wanted


def test_operations_that_cannot_change_the_data_are_left_out_with_a_word():
    pixels = torch.randint(0, 256, (40, 1, 20, 20), generator=torch.Generator().manual_seed(0))
    grey, labels = pixels.to(torch.uint8), torch.arange(40) % 2
    settings = {"epochs": 1, "lookahead": 0, "device": "cpu", "model": "small"}
    coloured = grey.repeat(1, 3, 1, 1)
    coloured[-1, 0, 0, 0] ^= 255  # one pixel of one image is enough
    for images, lost in (
        (grey, {"Color"}),
        (grey.repeat(1, 3, 1, 1), {"Color"}),  # a colour image that has none
        (coloured, set()),
    ):
        said: list[str] = []
        result = dada.search((images, labels), (images, labels), on_note=said.append, **settings)
        done = {step.op for sub in result.policy.subpolicies for step in sub.ops}
        assert {op.name for op in dada.ops.PAPER} - done == lost
        words = [f"{name} cannot change grey images of 20x20: left out" for name in lost]
        assert [line for line in said if "cannot change" in line] == [
            f"{line} of the search" for line in words
        ]


def test_the_base_of_known_data_is_the_papers(tmp_path):
    """Crop, flip and cutout as published; a user's own images are left as they are."""
    seen = {}

    def on_start(split: Any, config: dada.SearchConfig, model: str) -> None:
        seen[split.name] = config.base
        raise StopError

    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(40) % 2)
    split = load(str(tmp_path / "mine.npz"))
    for name in ("mine", "cifar10"):
        with pytest.raises(StopError):
            dada.search(replace(split, name=name), device="cpu", on_start=on_start)
    assert (seen["mine"].crop, seen["mine"].flip, seen["mine"].cutout) == (0, False, 0)
    assert (seen["cifar10"].crop, seen["cifar10"].flip, seen["cifar10"].cutout) == (4, True, 16)


# --- the command --------------------------------------------------------------------------------


def write_mistakes(folder: Path) -> None:
    """Data that cannot be searched on, and networks that do not fit."""
    images, labels = (tensor.numpy() for tensor in some_digits(64))
    np.savez(folder / "good.npz", images=images, labels=labels)
    np.savez(folder / "gap.npz", images=images, labels=labels * 2)
    np.savez(folder / "same.npz", images=images, labels=labels * 0)
    for name, count in (("cats", 1), ("dogs", 4)):
        (folder / "single" / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(images[i, 0]).save(folder / "single" / name / f"{i}.png")
    (folder / "lonely" / "cats").mkdir(parents=True)
    for i in range(4):
        Image.fromarray(images[i, 0]).save(folder / "lonely" / "cats" / f"{i}.png")
    (folder / "empty").mkdir()
    (folder / "networks.py").write_text(
        "from torch import nn\n"
        "def wrong(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes + 1))\n"
        "def number(num_classes):\n"
        "    return num_classes\n"
    )
    (folder / "taken").mkdir()
    (folder / "taken" / "notes.txt").write_text("mine")


MISTAKES = [
    ("single", "single: class 'cats' has one training image, but validation needs another"),
    ("lonely", "lonely: only one class (cats); two or more are needed"),
    ("same.npz", "same.npz: all training labels are 0; two classes needed"),
    ("gap.npz", "gap.npz: labels must be 0..C-1 with none left out, but training labels run"),
    ("empty", "empty: "),
    ("nowhere", "data 'nowhere': no such file or folder"),
    ("good.npz --model networks:wrong", "model 'networks:wrong': its output must have shape"),
    ("good.npz --model networks:number", "model 'networks:number': it must return a torch.nn.Mod"),
    ("good.npz --model nope", "model 'nope': no such model; known are small,"),
    ("good.npz --preset best", "--preset should be one of dada, paper, got 'best'"),
    (
        "good.npz --estimator nes",
        "--estimator should be one of gumbel, gumbel-sampled, relax, reinforce, rloo",
    ),
    ("good.npz --preset paper --estimator rloo", "estimator 'rloo' compares the views"),
    ("good.npz --magnitudes pathwise", "magnitudes 'pathwise' need update 'adam'"),
    ("good.npz --device abacus", "device 'abacus' is not known; use auto, cpu or cuda"),
    ("good.npz --exclude Invert,Blur", "unknown op 'Blur'; the ops of space 'paper' are ShearX,"),
    ("good.npz --epochs 0", "--epochs should be positive, got 0"),
    (
        f"good.npz --seed {10**25}",
        "--seed should be smaller than 2^62, got 1000000000000000000000000",
    ),
    ("good.npz --out taken", "taken exists; pass --resume to continue it or choose another --out"),
    ("good.npz --out taken --resume", "taken is not empty and holds no run"),
    ("good.npz --val nowhere", "data 'nowhere': no such file or folder"),
]


def check_mistake(code: int, err: str, folder: Path, says: str) -> None:
    assert code == 2, err
    assert err.startswith(f"dada: {says}") and len(err.splitlines()) == 1, err
    assert not (folder / "runs").exists(), "training never began, so nothing is left behind"
    assert [file.name for file in (folder / "taken").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, arguments, says):
    write_mistakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dada", "search", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    check_mistake(ended.value.code, capsys.readouterr().err, tmp_path, says)


def as_a_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "dada", "search", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line_in_a_process_of_its_own(tmp_path, arguments, says):
    write_mistakes(tmp_path)
    done = as_a_process(tmp_path, *arguments.split())
    check_mistake(done.returncode, done.stderr, tmp_path, says)
    assert done.stdout == ""


def test_a_loss_that_is_not_a_number_keeps_the_last_good_policy(tmp_path):
    """Weights of 1e38 overflow float32 soon, though not in the first epoch."""
    write_mistakes(tmp_path)
    arguments = ["good.npz", "--lr", "1e38", "--epochs", "4", "--batch-size", "32"]
    done = as_a_process(tmp_path, *arguments, "--device", "cpu", "--out", "run")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert "became nan in epoch" in done.stderr and "lower --lr (now 1e+38)" in done.stderr
    policy = dada.Policy.load(tmp_path / "run" / UNFINISHED_POLICY)
    assert policy.provenance["epochs"] == len(read_log(tmp_path / "run")) >= 1


@pytest.mark.usefixtures("quick_lookahead")
def test_the_command_prints_what_it_found_and_where(tmp_path, monkeypatch, capsys):
    write_mistakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ["good.npz", "--epochs", "2", "--batch-size", "16", "--device", "cpu"]
    arguments += ["--exclude", "Invert, Solarize"]
    monkeypatch.setattr(sys, "argv", ["dada", "search", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert not ended.value.code and err == ""
    run = Path("runs") / "search-good.npz"
    assert "32 train, 32 val; 10 classes; 8x8 grey" in out
    assert "epoch 2/2  loss" in out and str(run / "policy.json") in out
    assert f"dada show {run}" in out
    assert "Invert" not in {
        step.op for subpolicy in dada.Policy.load(run).subpolicies for step in subpolicy.ops
    }
    names = {"policy.json", "log.jsonl", "config.toml", "run.json", "finished.json"}
    assert names <= {file.name for file in run.iterdir()}


# --- verification -------------------------------------------------------------------------------


def verified_search(**changes):
    images, labels = some_digits(120)
    settings = {"model": "small", "epochs": 2, "batch_size": 16, "device": "cpu", "seed": 3}
    settings |= {"lookahead": 0, "verify_budget": 45}
    return dada.search((images, labels), **settings | changes)


@pytest.mark.slow
def test_a_search_with_a_budget_is_verified(tmp_path):
    """The policy file says what was seen, and what the search itself found is kept beside it."""
    seen = []
    result = verified_search(out=tmp_path / "run", on_training=lambda *told: seen.append(told))
    facts = result.policy.provenance["verification"]
    assert facts["against"] == "uniform" and facts["seeds"] >= 4
    assert facts["trainings"] == len(seen) == seen[-1][-1]
    low, high = facts["interval"]
    assert low <= facts["difference"] <= high
    assert (facts["chosen"] == "uniform") == (low <= 0)
    assert result.policy.provenance["settings"]["epochs"] == 2, "the search's own provenance stays"
    searched = dada.Policy.load(tmp_path / "run" / "searched.json")
    assert searched.provenance["verification"] is None
    again = verified_search(out=tmp_path / "again")
    assert again.policy.to_json() == result.policy.to_json()


def test_a_budget_that_allows_no_training_says_so(tmp_path):
    result = verified_search(verify_budget=0.01, out=tmp_path / "run")
    facts = result.policy.provenance["verification"]
    assert facts["verdict"].startswith("not verified") and facts["interval"] is None
    assert result.policy.subpolicies == dada.Policy.load(tmp_path / "run/searched.json").subpolicies


def test_the_default_preset_is_verified_on_a_card_and_the_papers_search_never(monkeypatch):
    """As a card would have it: there it has a budget."""
    assert (VERIFY["cpu"].seconds, VERIFY["cuda"].seconds) == (0.0, 44.0)
    monkeypatch.setitem(VERIFY, "cpu", VerifyConfig(seconds=0.01))
    facts = verified_search(verify_budget=None).policy.provenance["verification"]
    assert facts["budget"] == 0.01
    for changes in ({"preset": "paper"}, {"verify": False}, {"verify_budget": 0}):
        policy = verified_search(**{"verify_budget": None} | changes).policy
        assert policy.provenance["verification"] is None


def test_a_budget_is_not_negative():
    for budget in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="`verify_budget` should be"):
            dada.search(verify_budget=budget)


def test_halves_that_a_user_gave_are_kept_in_verification(monkeypatch):
    """Those that chance made are made anew for every fresh pair: it is given all images."""
    given = []

    def verify_searched(job: SearchJob, *_: object) -> None:
        given.append(job.undivided)
        raise StopIteration

    monkeypatch.setattr("dada.policy_search.verify_searched", verify_searched)
    for val_data in (None, some_digits(40)):
        with pytest.raises(StopIteration):
            verified_search(val_data=val_data, epochs=1)
    by_chance, by_a_user = given
    assert len(by_chance.train) == 120 and by_chance.val is None and by_a_user is None


def test_images_that_cannot_be_parted_anew_are_verified_as_they_are(monkeypatch):
    """Groups may fall so that a class is on one side; a finished search is not lost for that."""
    judged_on = set()

    def run_trials(setting, trials, at_once):
        for trial in trials:
            judged_on.add(setting.split_for(trial).fingerprint)
            yield trial, {"accuracy": 0.5, "seconds": 0.0}

    def refused(*_: object) -> None:
        raise ValueError("in one group")

    monkeypatch.setattr("dada.policy_search.verify.trainings.run_trials", run_trials)
    own = verified_search(epochs=1).policy.provenance["verification"]
    assert len(judged_on) == own["seeds"] + (own["trainings"] > 2 * own["seeds"])
    judged_on.clear()
    monkeypatch.setattr("dada.policy_search.verify.split_off_validation", refused)
    facts = verified_search(epochs=1).policy.provenance["verification"]
    assert facts["trainings"] == own["trainings"] and len(judged_on) == 1
