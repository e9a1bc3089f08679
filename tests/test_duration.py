"""How long a search will take is said before it begins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import dada
from dada import models
from dada.api.progress import SearchProgress
from dada.api.tellers import Teller
from dada.config import LOOKAHEAD, SearchConfig
from dada.data import Split, load, reduce, split_off_validation
from dada.policy_search import SearchJob
from dada.policy_search.duration import SHARED, expected_seconds
from dada.policy_search.lookahead import plan_for
from quick import QUICK_LOOKAHEAD, QUICK_VERIFY, StopError, search_job

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def split() -> Split:
    return split_off_validation(reduce(load("digits"), 96, 0), 0.5, 0)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return models.build("small", 10, 1, (8, 8), seed=0)


def job_of(split: Split, network: nn.Module, **changes: Any) -> SearchJob:
    return replace(search_job(split, network, SearchConfig(), device=CPU), **changes)


def seconds_of(job: SearchJob) -> dict[str, float]:
    return expected_seconds(job, plan_for(job) if job.lookahead.seconds else None)


def test_every_phase_has_its_seconds_and_keeps_to_its_budget(split, network):
    job = job_of(split, network)
    found = seconds_of(job)
    assert list(found) == ["measuring", "looking ahead", "verifying"]
    assert 0 < found["looking ahead"] < 1.5 * job.lookahead.seconds
    assert 0.5 * job.verify.seconds < found["verifying"] <= job.verify.seconds
    longer = replace(job, config=replace(job.config, epochs=1000))
    assert seconds_of(longer)["measuring"] > 1.3 * found["measuring"]


def test_a_phase_that_is_left_out_is_not_named(split, network):
    job = job_of(split, network)
    no_time = replace(job.verify, seconds=1e-3)  # no training fits
    assert list(seconds_of(replace(job, verify=no_time))) == ["measuring", "looking ahead"]
    without = replace(job, lookahead=replace(QUICK_LOOKAHEAD, seconds=0.0))
    assert list(seconds_of(without)) == ["measuring", "verifying"]
    assert list(seconds_of(replace(job, by_steps=False))) == ["looking ahead", "verifying"]


def test_small_trainings_share_a_card_and_large_ones_do_not(split, network):
    on_a_card = {"device": torch.device("cuda"), "lookahead": LOOKAHEAD["cuda"]}
    job = job_of(split, network, **on_a_card)
    plan = plan_for(job)
    assert seconds_of(job)["looking ahead"] == pytest.approx(SHARED * plan.seconds_left)
    large = replace(job, split=load_large())
    plan = plan_for(large)
    assert seconds_of(large)["looking ahead"] == pytest.approx(plan.seconds_left)


def load_large() -> Split:
    images_NCHW = torch.randint(0, 256, (120, 1, 96, 96), dtype=torch.uint8)
    whole = load((images_NCHW, torch.arange(120) % 10))
    return split_off_validation(whole, 0.5, 0)


class Heard(Teller):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_it_is_said_in_a_line(split):
    heard = Heard()
    progress = SearchProgress(heard)
    progress.plan({"measuring": 11.2, "looking ahead": 80.0})
    assert heard.lines == [
        "time    about 91 s (counted, not measured): measuring 11 s, looking ahead 80 s"
    ]
    progress.plan({"looking ahead": 300.0})
    assert heard.lines[-1] == "time    about 5 min (counted, not measured)"
    told = len(heard.lines)
    progress.plan({})  # nothing is left of it
    assert len(heard.lines) == told


def test_a_search_tells_it_before_anything_else():
    told: list[str] = []
    dada.search(
        "digits",
        epochs=1,
        device="cpu",
        lookahead=QUICK_LOOKAHEAD,
        on_plan=lambda seconds: told.extend(seconds),
        on_epoch=lambda *_: told.append("an epoch"),
    )
    assert told[:3] == ["measuring", "looking ahead", "an epoch"]


def test_a_resumed_search_tells_what_is_left(tmp_path):
    """Epochs, runs and trainings on disk do not count, wherever it was stopped."""

    def told(stop: str) -> dict[str, float]:
        counted: dict[str, float] = {}

        def stop_at(name: str) -> Any:
            def ended(*_: Any) -> None:
                if name == stop:
                    raise StopError

            return ended

        with suppress(StopError):
            dada.search(
                "digits",
                model="small",
                epochs=2,
                device="cpu",
                lookahead=QUICK_LOOKAHEAD,
                verify=QUICK_VERIFY,
                out=tmp_path,
                resume=True,
                on_plan=counted.update,
                on_epoch=stop_at("epoch"),
                on_lookahead=stop_at("run"),
                on_training=stop_at("training"),
            )
        return counted

    whole, after_an_epoch, after_a_run = told("epoch"), told("run"), told("training")
    assert list(whole) == ["measuring", "looking ahead", "verifying"]
    assert 0.5 < after_an_epoch["measuring"] / whole["measuring"] < 0.8  # and the start
    assert after_an_epoch["looking ahead"] == whole["looking ahead"]
    assert list(after_a_run) == ["looking ahead", "verifying"]
    assert 0 < after_a_run["looking ahead"] < whole["looking ahead"]
    after_a_training = told("nowhere")
    assert after_a_training.get("looking ahead", 0) < after_a_run["looking ahead"]
    assert 0 < after_a_training["verifying"] < whole["verifying"]
