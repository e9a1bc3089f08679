"""The loop of search and training: learning rates, length, what a checkpoint holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import dada
from dada.config import SearchConfig, TrainConfig, search_config
from dada.data import load
from dada.engine import ALONE
from dada.policy import Policy
from dada.policy_search.state import SearchState
from dada.runlog import RunLog
from dada.training.epochs import (
    Length,
    Record,
    Turns,
    exhaust,
    learning_rates_T,
    run_epochs,
    run_together,
)
from dada.training.state import RunState, TrainState

CPU = torch.device("cpu")


# --- the learning rate --------------------------------------------------------------------------


def test_the_rate_climbs_and_then_falls_along_a_cosine():
    config = TrainConfig(lr=0.1, warmup_epochs=2, warmup_factor=4.0)
    rates = learning_rates_T(config, epochs=10, steps_per_epoch=5).tolist()
    assert len(rates) == 50
    for step in range(10):
        assert rates[step] == pytest.approx(0.1 + 0.3 * step / 10)
    for step in range(10, 50):
        assert rates[step] == pytest.approx(0.2 * (1 + math.cos(math.pi * (step - 10) / 40)))
    assert max(rates) == pytest.approx(0.4) and 0 < rates[-1] < 0.001


def test_without_warm_up_it_begins_at_the_top():
    config = TrainConfig(lr=0.1, warmup_epochs=0, warmup_factor=1.0)
    rates = learning_rates_T(config, epochs=4, steps_per_epoch=1).tolist()
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * t / 4)) for t in range(4)])


def test_warming_up_takes_no_more_than_half_of_a_short_training():
    config = TrainConfig(lr=0.1, warmup_epochs=50, warmup_factor=3.0)
    rates = learning_rates_T(config, epochs=8, steps_per_epoch=1)
    assert int(rates.argmax()) == 4 and float(rates.max()) == pytest.approx(0.3)


@pytest.mark.parametrize("steps_per_epoch", [1, 7, 313, 2502])
def test_steps_divide_the_rate_by_ten_at_epochs_90_180_and_240(steps_per_epoch):
    config = dada.recipes.named("imagenet_resnet50").train
    rates = learning_rates_T(config, 270, steps_per_epoch).view(270, -1)
    for epoch, rate in ((3, 0.2), (89, 0.2), (90, 0.02), (179, 0.02), (180, 0.002), (239, 0.002)):
        assert rates[epoch].tolist() == pytest.approx([rate] * steps_per_epoch), f"epoch {epoch}"
    for epoch in (240, 269):
        assert rates[epoch].tolist() == pytest.approx([0.0002] * steps_per_epoch)


# --- how long a run is --------------------------------------------------------------------------


def test_the_length_of_a_run_counts_whole_batches():
    length = Length.of(TrainConfig(epochs=3, batch_size=16), 50, ALONE)
    assert (length.batch, length.steps_per_epoch, length.epochs, length.steps) == (16, 3, 3, 9)
    few = Length.of(SearchConfig(batch_size=128), 40, ALONE)
    assert (few.batch, few.steps_per_epoch, few.epochs) == (40, 1, 320)
    config = TrainConfig(lr=0.1)
    rates_ES = length.rates_ES(config)
    assert torch.equal(rates_ES.flatten(), learning_rates_T(config, 3, 3))
    assert rates_ES.shape == (3, 3)


# --- the loop, and what it keeps ----------------------------------------------------------------


def states() -> dict[str, RunState]:
    images, labels = load("digits").train.batch(torch.arange(40))
    split = load((images, labels), val_data=(images, labels))

    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    uniform = Policy.load("uniform")
    return {
        "search": SearchState(network(), split, search_config(), 0, CPU),
        "train": TrainState(network(), split, uniform, TrainConfig(ema=0.5), 0, CPU, ALONE),
    }


@pytest.mark.parametrize(
    ("kind", "optimizers"),
    [("search", {"weight_optimizer", "policy_optimizer"}), ("train", {"optimizer"})],
)
def test_a_checkpoint_keeps_its_names(kind, optimizers):
    """Those of version 1, which runs of earlier releases are resumed from."""
    state = states()[kind]
    saved = state.checkpoint(1, [])
    shared = {"epoch", "history", "modules", "generators", "global_generators"}
    assert saved.keys() == shared | optimizers
    for drawn in (state.order, state.noise):
        torch.rand(3, generator=drawn)
    assert not torch.equal(state.noise.get_state(), saved["generators"][1])
    state.restore(saved)
    positions = [state.order.get_state(), state.noise.get_state()]
    assert all(map(torch.equal, positions, saved["generators"]))


def test_epochs_end_with_what_was_measured():
    told: list[tuple[int, int]] = []

    def epoch(number: int, rates_S: torch.Tensor) -> Turns[dict[str, Any]]:
        yield
        return {"loss": float(rates_S[0]), "more": number}

    def on_epoch(metrics: dict[str, Any], epochs: int) -> None:
        told.append((metrics["epoch"], epochs))

    rates_ES = torch.tensor([[0.5, 0.25], [0.125, 0.0]])
    turns = run_epochs(states()["train"], rates_ES, epoch, run=None, on_epoch=on_epoch)
    ran = exhaust(turns)
    assert told == [(1, 2), (2, 2)] and ran.seconds_before == 0
    assert [list(entry) for entry in ran.history] == [["epoch", "loss", "more", "seconds"]] * 2
    assert [entry["loss"] for entry in ran.history] == [0.5, 0.125]


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"loss": math.nan}, "the training loss became nan in epoch 1; lower `lr`"),
        ({"loss": 1.0, "entropy": math.inf}, "the policy's entropy became inf in epoch 1"),
    ],
)
def test_a_number_that_is_none_ends_the_run(measured, says):
    def epoch(number: int, rates_S: torch.Tensor) -> Turns[dict[str, Any]]:
        yield
        return measured

    turns = run_epochs(states()["train"], torch.zeros(2, 1), epoch, run=None, on_epoch=None)
    with pytest.raises(ValueError, match=says):
        exhaust(turns)


def test_runs_that_go_together_write_checkpoints_after_the_same_epochs(tmp_path):
    """When all of them want one; who is told of an epoch may rely on that."""

    class Wanting(RunLog):
        wants: list[bool]

        @property
        def wants_checkpoint(self) -> bool:
            return self.wants.pop(0)

    runs = [Wanting(tmp_path / name) for name in "ab"]
    runs[0].wants, runs[1].wants = [True, True, False, False], [False, True]
    held: list[tuple[str, int, list[int]]] = []

    def told_by(run: RunLog) -> Any:
        def told(metrics: dict[str, Any], epochs: int) -> None:
            saved = [(each.restore() or {"epoch": 0})["epoch"] for each in runs]
            held.append((run.path.name, metrics["epoch"], saved))

        return told

    def epoch(number: int, rates_S: torch.Tensor) -> Turns[list[dict[str, Any]]]:
        yield
        return [{"loss": float(number)}, {"loss": 10.0 + number}]

    records = [Record(states()["train"], run, told_by(run)) for run in runs]
    exhaust(run_together(records, torch.zeros(4, 1), epoch))
    saved_after = {1: 0, 2: 2, 3: 2, 4: 4}
    assert held == [(name, n, [at, at]) for n, at in saved_after.items() for name in "ab"]
    again = [Record(states()["train"], run, None) for run in runs]
    assert [entry["loss"] for entry in again[1].history] == [10.0, 11.0, 12.0, 13.0]
