"""Two processes under `torchrun` do what one does with the same batch.

On a CPU, over gloo. Each start takes seconds, so the quick tests share one: `shared_runs.py` is
written beside the data, run by two processes, and run here by one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import dada
from dada.runlog import read_log

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"

NETWORKS = '''
import torch
from torch import nn


class Plain(nn.Module):
    """Two convolutions and no BatchNorm: an image's loss depends on no other image."""

    def __init__(self, num_classes):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16, num_classes)

    def forward(self, images):
        hidden = torch.relu(self.second(torch.relu(self.first(images))))
        return self.head(hidden.mean((2, 3)))


def plain(num_classes):
    return Plain(num_classes)


def without_batchnorm(network):
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.BatchNorm2d):
                setattr(parent, name, nn.Identity())
    return network
'''

SHARED_RUNS = """
import os
from dataclasses import replace

import torch

import dada
from dada.config import LOOKAHEAD, VERIFY, Base, ShortTraining
from dada.data import load
from dada.engine import joined
from dada import models
from scenes import Masks, Scenes
from torchrun_networks import Plain, without_batchnorm

RANK = int(os.environ.get("RANK", "0"))


def digits(count=160):
    return load("digits").train.batch(torch.arange(count))


def weights(trained):
    return {
        "weights": {name: t.clone() for name, t in trained.model.state_dict().items()},
        "losses": [entry["loss"] for entry in trained.history],
        "accuracy": trained.scores.accuracy,
        "images": trained.scores.images,
    }


def train(model, **changes):
    settings = {"epochs": 4, "batch_size": 32, "lr": 0.02, "device": "cpu", "seed": 1}
    return dada.train(digits(), "uniform", model, **settings | changes)


def search(preset, **changes):
    settings = {"epochs": 4, "batch_size": 32, "lr": 0.02, "device": "cpu", "seed": 1}
    settings["lookahead"] = 0
    found = dada.search(digits(), None, "torchrun_networks:plain", preset, **settings | changes)
    steps = [step for subpolicy in found.policy.subpolicies for step in subpolicy.ops]
    return {
        "ops": [[step.op for step in s.ops] for s in found.policy.subpolicies],
        "numbers": [s.weight for s in found.policy.subpolicies]
        + [step.probability for step in steps]
        + [sum(step.magnitude_range) for step in steps],
        "shares": found.policy.op_probabilities(),
        "losses": [entry["loss"] for entry in found.history],
        "ahead": (found.policy.provenance.get("lookahead") or {}).get("score"),
    }


def refused():
    try:
        train("torchrun_networks:plain", batch_size=1)
    except ValueError as error:
        return str(error)
    return "not refused"


def ahead():
    few = ShortTraining(steps=8, least_epochs=2, most_images=500, steps_per_epoch=1)
    settings = replace(LOOKAHEAD["cpu"], seconds=2.0, training=few)
    return search("dada", lookahead=settings, epochs=1)


def verified():
    few = ShortTraining(steps=4, least_epochs=2, most_images=100, steps_per_epoch=1)
    settings = replace(VERIFY["cpu"], seconds=1.0, training=few)
    found = dada.search(
        digits(), None, "torchrun_networks:plain", "dada",
        epochs=1, batch_size=32, device="cpu", seed=1, lookahead=0, verify=settings,
    )
    said = found.policy.provenance["verification"]
    return {name: each for name, each in said.items() if "seconds" not in name}


def place(kind, model):
    # Plain descent: where a gradient is nearly 0, AdamW makes a whole step of its last bit.
    settings = {"epochs": 3, "batch_size": 8, "optimizer": "sgd", "lr": 0.02, "device": "cpu"}
    network = without_batchnorm(models.build(model, 3 if kind is Masks else 2, 3, (24, 24), seed=0))
    trained = dada.train(kind(20, 0, side=24), "uniform", network, base=BASE, seed=1, **settings)
    scores = trained.scores
    return {
        "weights": {name: t.clone() for name, t in trained.model.state_dict().items()},
        "losses": [entry["loss"] for entry in trained.history],
        "score": (scores.loss, scores.mean_iou if kind is Masks else scores.ap50),
    }


def ahead_of_masks():
    few = ShortTraining(steps=4, least_epochs=2, most_images=100, steps_per_epoch=1)
    settings = replace(LOOKAHEAD["cpu"], seconds=9.0, training=few, most_runs=2)
    found = dada.search(Masks(16, 0, side=24), device="cpu", seed=1, lookahead=settings)
    return found.policy.provenance["lookahead"]["score"]


def unequal_start():
    torch.manual_seed(RANK)  # a script that forgot to seed: every process has its own weights
    return weights(train(Plain(10), epochs=1))


class Peculiar(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def spread():
    # Seven independent pieces of work over both; then, twice, seven of which the fifth fails.
    with joined(torch.device("cpu")) as ranks:
        done = []

        def squares(share):
            done.append(list(share))
            return [number**2 for number in share]

        together = list(ranks.spread(range(7), squares, at_once=2))

        def fails(share, error):
            if 4 in share:
                raise error
            return share

        said = []
        for error in (ValueError("the fifth is broken"), Peculiar("not", "sent")):
            ended = []
            try:
                for number, _ in ranks.spread(range(7), lambda share: fails(share, error)):
                    ended.append(number)
            except Exception as problem:
                said.append((str(problem), ended))
    return {"together": together, "done": done, "said": said}


BASE = Base(crop=1, flip=True, cutout=3)
RUNS = {
    "plain": lambda: weights(train("torchrun_networks:plain", base=BASE)),
    # Clipped to one length a gradient has no size left that could be wrong.
    "clipped": lambda: weights(train("torchrun_networks:plain", epochs=2, clip=0.1, ema=0.5)),
    "batchnorm": lambda: weights(train("small")),
    "dada": lambda: search("dada", measure_from=0.0),
    "paper": lambda: search("paper"),
    "ahead": ahead,
    "verified": verified,
    "segmentation": lambda: place(Masks, "unet"),
    "detection": lambda: place(Scenes, "detector"),
    "ahead of masks": ahead_of_masks,
    "views": lambda: search("paper", estimator="gumbel", views=2, epochs=1, draws="batch"),
    "refused": refused,
    "spread": spread,
    "unequal": unequal_start,
    "written": lambda: weights(train("torchrun_networks:plain", out="run")),
    "again": lambda: weights(train("torchrun_networks:plain", out="run", resume=True)),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {name: make() for name, make in RUNS.items()}
    results["joined"] = torch.distributed.is_initialized()
    torch.save(results, f"results-{RANK}.pt")
"""


def torchrun(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*launch, "--nproc-per-node", "2", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS), str(folder)]),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def write_scripts(folder: Path) -> Path:
    (folder / "torchrun_networks.py").write_text(NETWORKS)
    (folder / "shared_runs.py").write_text(SHARED_RUNS)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Path]:
    """What the first of two processes has, what the second has, what one alone has; the folder."""
    folder = write_scripts(tmp_path_factory.mktemp("torchrun"))
    with torchrun(folder, "shared_runs.py") as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(folder))
            patch.chdir(tmp_path_factory.mktemp("alone"))
            runs = importlib.import_module("shared_runs").RUNS
            training = ("plain", "clipped", "batchnorm")
            places = "segmentation", "detection", "ahead of masks"
            compared = (*training, *places, "dada", "paper", "ahead", "verified", "views", "spread")
            alone = {name: runs[name]() for name in compared}
        _, err = process.communicate(timeout=120)
    for name in ("shared_runs", "torchrun_networks"):
        sys.modules.pop(name, None)
    assert process.returncode == 0, err
    two = [torch.load(folder / f"results-{rank}.pt", weights_only=False) for rank in (0, 1)]
    return two[0], two[1], alone, folder


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of any weight."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("name", ["plain", "clipped"])
def test_two_processes_train_to_the_weights_of_one(shared, name):
    """Measured: 3e-8 to 1e-7, the last bits of weights up to 0.5."""
    first, second, alone = (results[name] for results in shared[:3])
    assert furthest(first["weights"], second["weights"]) == 0
    apart = furthest(first["weights"], alone["weights"])
    print(f"{name}, without BatchNorm: {apart:.1e}")
    assert apart < 2e-6
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert first["losses"] == second["losses"]
    assert first["accuracy"] == second["accuracy"] == alone["accuracy"]
    assert first["images"] == alone["images"] == 32, "each image is judged once"


@pytest.mark.parametrize("name", ["segmentation", "detection"])
def test_two_processes_train_another_task_to_the_weights_of_one(shared, name):
    """Masks, and boxes with masks of objects: they move with crop, flip and policy."""
    first, second, alone = (results[name] for results in shared[:3])
    assert furthest(first["weights"], second["weights"]) == 0
    apart = furthest(first["weights"], alone["weights"])
    print(f"{name}, without BatchNorm: {apart:.1e}")
    assert apart < 1e-5
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert first["losses"] == second["losses"] and first["score"] == second["score"]
    assert first["score"] == pytest.approx(alone["score"], abs=0.01)


def test_looking_ahead_of_another_task_is_that_of_one_process(shared):
    first, second, alone = (results["ahead of masks"] for results in shared[:3])
    assert first == second == alone


def test_with_batchnorm_they_are_near(shared):
    """Each process normalises by its own half of the batch, as everywhere without SyncBatchNorm."""
    first, second, alone, _ = shared
    assert furthest(first["batchnorm"]["weights"], second["batchnorm"]["weights"]) == 0
    apart = furthest(first["batchnorm"]["weights"], alone["batchnorm"]["weights"])
    gap = max(
        abs(one - two)
        for one, two in zip(first["batchnorm"]["losses"], alone["batchnorm"]["losses"], strict=True)
    )
    print(f"with BatchNorm: weights {apart:.1e}, loss {gap:.1e}")
    assert 1e-4 < apart < 0.5 and gap < 0.2


@pytest.mark.parametrize("name", ["dada", "paper", "views"])
def test_two_processes_find_the_policy_of_one(shared, name):
    first, second, alone, _ = shared
    assert first[name] == second[name]
    assert first[name]["ops"] == alone[name]["ops"]
    pairs = zip(first[name]["numbers"], alone[name]["numbers"], strict=True)
    apart = max(abs(one - two) for one, two in pairs)
    print(f"{name}: {apart:.1e}")
    assert apart < 1e-3
    assert first[name]["losses"] == pytest.approx(alone[name]["losses"], rel=1e-4)
    spread = max(alone[name]["shares"].values()) - min(alone[name]["shares"].values())
    assert spread > 1e-3, "a policy that did not move would prove nothing"


def test_a_batch_that_cannot_be_shared_is_refused_by_both(shared):
    says = "a batch of 1 cannot be shared by 2 processes; raise `batch_size` or start fewer"
    assert shared[0]["refused"] == shared[1]["refused"] == says


def test_independent_work_is_spread_and_both_have_all_of_it(shared):
    first, second, alone = (results["spread"] for results in shared[:3])
    assert first["together"] == second["together"] == alone["together"]
    assert first["together"] == [(number, number**2) for number in range(7)]
    assert first["done"] == [[0, 2], [4, 6]] and second["done"] == [[1, 3], [5]]
    assert alone["done"] == [[0, 1], [2, 3], [4, 5], [6]]


def test_looking_ahead_is_that_of_one_process(shared):
    """Whole trainings are dealt out, so nothing is averaged; the scores differ only where what the
    first phase measured is added, by float error."""
    first, second, alone = (results["ahead"] for results in shared[:3])
    assert first == second and first["ops"] == alone["ops"]
    assert first["ahead"] == pytest.approx(alone["ahead"], abs=1e-3)
    assert len(first["ahead"].items() & alone["ahead"].items()) > len(alone["ahead"]) / 2
    assert max(alone["ahead"].values()) - min(alone["ahead"].values()) > 0.1


def test_a_verification_is_that_of_one_process(shared):
    """These too. What was found differs by float error, which no score in whole images sees."""
    first, second, alone = (results["verified"] for results in shared[:3])
    assert first == second == alone
    assert first["trainings"] >= 8


def test_what_fails_in_one_is_raised_in_both_after_what_had_ended(shared):
    first, second, alone = (results["spread"]["said"] for results in shared[:3])
    before = [0, 1, 2, 3]
    assert alone == [("the fifth is broken", before), ("not sent", before)] == first
    assert second == [("the fifth is broken", before), ("Peculiar: not sent", before)]


def test_a_network_that_begins_differently_begins_as_the_firsts(shared):
    assert furthest(shared[0]["unequal"]["weights"], shared[1]["unequal"]["weights"]) == 0


def test_one_of_them_writes_and_all_return_the_same(shared):
    first, second, _, folder = shared
    run = folder / "run"
    assert first["joined"] and second["joined"], "what is left cannot be joined again"
    assert len(json.loads((run / "run.json").read_text())["sessions"]) == 1
    assert [line["epoch"] for line in read_log(run)] == [1, 2, 3, 4]
    assert not list(run.glob(".*.tmp"))
    on_disk = load_file(run / "model.safetensors")
    for name in ("written", "again"):
        for results in (first, second):
            assert furthest(results[name]["weights"], on_disk) == 0
            assert results[name]["accuracy"] == first["written"]["accuracy"]


# --- the command --------------------------------------------------------------------------------


COMMAND = [
    "-m",
    "dada",
    "train",
    "digits",
    "--policy",
    "uniform",
    "--model",
    "torchrun_networks:plain",
]
COMMAND += ["--epochs", "2", "--device", "cpu", "--seed", "1"]


@pytest.mark.slow
def test_the_command_under_torchrun_speaks_once(tmp_path):
    write_scripts(tmp_path)
    with torchrun(tmp_path, *COMMAND, "--out", "run") as process:
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out.count("on 500 images it had not seen") == 1 and out.count("epoch 2/2") == 1
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["images"] == 500 and len(read_log(tmp_path / "run")) == 2


@pytest.mark.slow
def test_a_mistake_under_torchrun_is_its_line_and_no_traceback_of_ours(tmp_path):
    write_scripts(tmp_path)
    with torchrun(tmp_path, *COMMAND, "--batch-size", "1", "--out", "run") as process:
        _, err = process.communicate(timeout=180)
    assert process.returncode != 0
    assert "dada: a batch of 1 cannot be shared by 2 processes; raise --batch-size or start" in err
    assert 'dada/train.py"' not in err, "the traceback is torchrun's own"


OFTEN = """
import os, pathlib
pathlib.Path("process-" + os.environ["RANK"]).write_text(str(os.getpid()))
from dada.runlog import RunLog
RunLog.wants_checkpoint = True
from dada.terminal.commands import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_what_two_began_one_can_end(tmp_path, monkeypatch, victim):
    """A process killed after a few epochs takes the other along; one alone ends the training."""
    write_scripts(tmp_path)
    (tmp_path / "often.py").write_text(OFTEN)
    settings = ["train", "digits", "--policy", "uniform", "--model", "torchrun_networks:plain"]
    settings += ["--epochs", "40", "--device", "cpu", "--seed", "1", "--lr", "0.02"]
    log = tmp_path / "torn" / "log.jsonl"
    with torchrun(tmp_path, "often.py", *settings, "--out", "torn") as process:
        deadline = time.monotonic() + 120
        while not log.exists() or log.read_bytes().count(b"\n") < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(int((tmp_path / f"process-{victim}").read_text()), signal.SIGKILL)
        process.communicate(timeout=120)
    assert process.returncode != 0
    assert 3 <= len(read_log(tmp_path / "torn")) < 40
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {"epochs": 40, "device": "cpu", "seed": 1, "lr": 0.02}
    for out in ("torn", "whole"):
        dada.train("digits", "uniform", "torchrun_networks:plain", out=out, resume=True, **options)
    sys.modules.pop("torchrun_networks", None)
    torn, whole = (load_file(tmp_path / out / "model.safetensors") for out in ("torn", "whole"))
    print(f"begun by two, ended by one: {furthest(torn, whole):.1e}")
    # 400 steps make 5e-4 of a last bit, as they do of weights that begin a last bit apart.
    assert furthest(torn, whole) < 5e-3
    assert [line["epoch"] for line in read_log(tmp_path / "torn")] == list(range(1, 41))
