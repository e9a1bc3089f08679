"""A stack of networks computes what its networks compute alone.

The kernels run on a card, and on CPU tensors through Triton's interpreter, which has float32
products only. Letters: G networks, B images.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dada import models
from dada.engine import kernels as engine_kernels
from dada.engine import kernels_for, plain_kernels, wants_whole_networks, whole_networks
from dada.engine.kernels import STACKS, STEPS_WORTH_WHOLE_NETWORKS
from dada.models.batchnorm import _triton_is_installed
from dada.models.stacked import StackedWideResNet, logits_of_one
from dada.models.stacked_plan import card_suits, suits
from dada.models.wideresnet import WideResNet

TESTS = Path(__file__).parent
CLASSES = 3

CHILD = f"""
import json, sys
sys.path.insert(0, {str(TESTS)!r})
import torch
torch.set_num_threads(1)
import test_stacked
print(json.dumps(getattr(test_stacked, sys.argv[1])()))
"""


def networks_of(model: str, count: int) -> list[WideResNet]:
    """Networks none of whose numbers is still the same in all of them."""
    made = []
    for seed in range(count):
        network = models.build(model, CLASSES, seed=seed)
        assert isinstance(network, WideResNet)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in network.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.weight.uniform_(0.5, 1.5, generator=generator)
                    layer.bias.uniform_(-0.5, 0.5, generator=generator)
                    layer.running_mean.normal_(generator=generator)
        made.append(network)
    return made


def error(got: Tensor, right: Tensor) -> float:
    right = right.double()
    return ((got.double() - right).norm() / right.norm()).item()


def errors(
    model: str, groups: int, batch: int, side: int, dtype: torch.dtype, device: str
) -> dict[str, float]:
    """The largest relative error of logits, gradients and running statistics, against float64."""
    networks = networks_of(model, groups)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(groups, batch, 3, side, side, generator=generator).to(device)
    labels = torch.randint(CLASSES, (groups, batch), generator=generator).to(device)
    stack = StackedWideResNet(networks, side).to(device)
    logits = stack(images, dtype)
    loss = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum") / batch
    loss.backward()
    found = {"logits": 0.0, "gradients": 0.0, "running": 0.0}
    ends = [copy.deepcopy(network) for network in networks]
    for g, end in enumerate(ends):
        stack.unstack_to(end, g)
    for g, (network, end) in enumerate(zip(networks, ends, strict=True)):
        exact = network.to(device).double()
        right = exact(images[g].double())
        cross_entropy(right, labels[g]).backward()
        assert stack.weights_GN.grad is not None
        gradients = stack.plan.rows_of(g, stack.weights_GN.grad)
        wrong = {
            "logits": [error(logits[g], right)],
            "gradients": [
                error(gradients[name], weight.grad)
                for name, weight in exact.named_parameters()
                if weight.grad is not None
            ],
            "running": [
                error(end.get_buffer(name).to(device), buffer)
                for name, buffer in exact.named_buffers()
                if "running" in name
            ],
        }
        found = {name: max(found[name], *each) for name, each in wrong.items()}
    return found


def errors_of_one(model: str, batch: int, side: int, dtype: torch.dtype, device: str) -> Any:
    """The same of a network that is a stack of one, whose weights stay its own."""
    (network,) = networks_of(model, 1)
    exact = copy.deepcopy(network).to(device).double()
    network.to(device).to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, side, side, generator=generator).to(device)
    labels = torch.randint(CLASSES, (batch,), generator=generator).to(device)
    logits = logits_of_one(network, images, dtype)
    cross_entropy(logits.float(), labels).backward()
    right = exact(images.double())
    cross_entropy(right, labels).backward()
    theirs = dict(exact.named_parameters())
    return {
        "logits": error(logits, right),
        "gradients": max(
            error(w.grad, theirs[name].grad) for name, w in network.named_parameters()
        ),
        "running": max(
            error(buffer, exact.get_buffer(name)) for name, buffer in network.named_buffers()
        ),
    }


def interpreted() -> dict[str, dict[str, float]]:
    """In a process with TRITON_INTERPRET=1. Three images of 8 x 8: the last tile is not full."""
    return {
        "two": errors("wrn10_1", 2, 3, 8, torch.float32, "cpu"),
        "one": errors_of_one("wrn10_2", 2, 8, torch.float32, "cpu"),
    }


def ends_apart_and_stacked() -> list[dict[str, float]]:
    """In the same process: the losses of ends of one training, one after another and as a stack."""
    from dada import Policy
    from dada.config import TrainConfig
    from dada.data import Split, TensorPart
    from dada.policy_search.lookahead import runs
    from dada.training import stacks

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (16, 3, 16, 16), generator=generator, dtype=torch.uint8)
    part = TensorPart(pixels, torch.arange(16) % CLASSES)
    split = Split(train=part, val=part, classes=("a", "b", "c"), name="random")
    config = TrainConfig(epochs=2, batch_size=8, lr=0.1, clip=0.5, label_smoothing=0.1)
    arms = {name: Policy.load(name) for name in ("none", "dada-cifar10", "randaugment")}
    cpu = torch.device("cpu")
    stacks.Stack.dtype = torch.float32
    found = []
    for at_once in (1, 2):
        runs.stack_size = lambda *asked, at_once=at_once: at_once
        job = runs.Job(
            split=split,
            model=models.build("wrn10_1", CLASSES, seed=0),
            policy=arms["dada-cifar10"],
            config=config,
            seed=0,
            device=cpu,
        )
        run = runs.BranchedRun(job=job, arms=arms, repeated=0.5)
        ((_, scores),) = runs.run_branches([run])
        found.append({name: each.loss for name, each in scores.items()})
    return found


def few_jobs(device: str = "cpu", *, images: int = 16, side: int = 16, **config: Any) -> list[Any]:
    """Trainings of one kind; the second has images of its own."""
    from dada import Policy
    from dada.config import TrainConfig
    from dada.data import Split, TensorPart
    from dada.training import many

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, side, side), generator=generator, dtype=torch.uint8)
    shared, own = (
        Split(train=part, val=part, classes=("a", "b", "c"), name="random")
        for part in (
            TensorPart(mine, torch.arange(images) % CLASSES) for mine in (pixels, 255 - pixels // 2)
        )
    )
    asked = {"epochs": 2, "batch_size": 8, "lr": 0.1, "clip": 0.5, "label_smoothing": 0.1} | config
    return [
        many.Job(
            split=split,
            model=models.build("wrn10_1", CLASSES, seed=seed),
            policy=Policy.load(name),
            config=TrainConfig(**asked),
            seed=seed,
            device=torch.device(device),
        )
        for seed, (name, split) in enumerate(
            (("none", shared), ("dada-cifar10", own), ("randaugment", shared))
        )
    ]


class StoppedError(Exception):
    pass


def run_in(folder: Path, jobs: list[Any], *, stop_after: int | None = None) -> dict[str, Any]:
    """What trainings with run directories come to: losses and logs by seed, who was in a stack."""
    from dada.runlog import RunLog, read_log
    from dada.training import many

    def told(entry: dict[str, Any], epochs: int) -> None:
        stopped.add(len(stopped))
        if entry["epoch"] == stop_after and len(stopped) == stop_after * len(jobs):
            raise StoppedError

    def counted(slot: Any, more: Any, steps: int) -> Any:
        stacks.append([slot.job.seed, *(job.seed for job in more)])
        return usual(slot, more, steps)

    usual, stacks, stopped = many.stacked_trainings, list[list[int]](), set[int]()
    many.stacked_trainings = counted
    found: dict[str, Any] = {"losses": {}, "stacks": stacks}
    jobs = [
        replace(job, run=RunLog(folder / str(job.seed), resume=True), on_epoch=told) for job in jobs
    ]
    try:
        for job, result in many.train_many(jobs, 2):
            losses = [result.scores.loss, *(entry["loss"] for entry in result.history)]
            found["losses"][str(job.seed)] = losses
    except StoppedError:
        pass
    finally:
        many.stacked_trainings = usual
        for job in jobs:
            job.run.close()
    found["logs"] = {
        str(job.seed): [[line["epoch"], line["loss"]] for line in read_log(job.run.path)]
        for job in jobs
    }
    return found


def stopped_and_continued() -> dict[str, dict[str, Any]]:
    """In the same process: a stack that ran through, and one that was stopped after one epoch."""
    import shutil
    from tempfile import TemporaryDirectory

    from dada.training import many, stacks

    stacks.Stack.dtype = torch.float32
    found = {}
    with TemporaryDirectory() as name:
        folder = Path(name)

        def run(where: str, size: int, **how: Any) -> dict[str, Any]:
            many.stack_size = lambda *asked: size
            small = few_jobs(images=2, side=8, batch_size=2)  # the interpreter is slow
            return run_in(folder / where, small[:2], **how)

        found["through"] = run("through", 2)
        found["stopped"] = run("again", 2, stop_after=1)
        shutil.copytree(folder / "again", folder / "alone")
        found["again"] = run("again", 2)
        found["alone"] = run("alone", 1)
        found["apart"] = run("apart", 1)
    return found


def in_an_interpreter(name: str) -> Any:
    """What a function of this file returns in a process with TRITON_INTERPRET=1."""
    if not _triton_is_installed():
        pytest.skip("triton is not installed")
    path = os.pathsep.join([str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", CHILD, name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if "only 0-dimensional arrays can be converted to Python scalars" in done.stderr:
        # Triton 3.6 with numpy 2.5: a loop over range() fails whatever its body.
        pytest.skip("the interpreter of this Triton does not work with this numpy")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_stack_is_its_networks() -> None:
    for case, found in in_an_interpreter("interpreted").items():
        for name, wrong in found.items():
            assert wrong < 5e-6, (case, name, wrong)


def test_ends_of_a_training_are_the_same_in_a_stack() -> None:
    apart, stacked = in_an_interpreter("ends_apart_and_stacked")
    assert len({round(loss, 5) for loss in apart.values()}) == len(apart)  # policies matter
    for name, loss in apart.items():
        assert stacked[name] == pytest.approx(loss, rel=2e-6), name


def test_a_stack_is_stopped_and_continued() -> None:
    """As the same stack to the same bits; and as each by itself, from the middle or the start."""
    found = in_an_interpreter("stopped_and_continued")
    through, stopped = found["through"], found["stopped"]
    assert through["stacks"] == stopped["stacks"] == [[0, 1]] and not stopped["losses"]
    assert stopped["logs"] == {seed: log[:1] for seed, log in through["logs"].items()}
    assert len({str(losses) for losses in through["losses"].values()}) == 2
    assert found["again"] == through
    for alone in (found["alone"], found["apart"]):
        assert alone["stacks"] == []
        for seed, losses in through["losses"].items():
            assert alone["losses"][seed] == pytest.approx(losses, rel=5e-6), seed
            assert [number for number, _ in alone["logs"][seed]] == [1, 2]


def test_only_those_that_are_equally_far_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is a stack here trains one by one: who is in it is asked, without kernels."""
    from dada.training import many
    from dada.training.loop import Slot, training_of

    def one_by_one(slot: Any, more: Any, steps: int) -> Any:
        ended = []
        for job in (slot.job, *more):
            own = slot if job is slot.job else Slot(job)
            ended.append((job, (yield from training_of(job, own, steps))))
        return ended

    monkeypatch.setattr(many, "stacked_trainings", one_by_one)
    monkeypatch.setattr(many, "stack_size", lambda slot, networks, steps: networks)
    jobs = few_jobs(images=8, side=8, batch_size=4)
    through = run_in(tmp_path / "through", jobs)
    assert through["stacks"] == [[0, 1, 2]]
    run_in(tmp_path / "uneven", few_jobs(images=8, side=8, batch_size=4)[:1], stop_after=1)
    uneven = run_in(tmp_path / "uneven", few_jobs(images=8, side=8, batch_size=4))
    assert uneven == through | {"stacks": [[1, 2]]}


def test_whole_networks_are_used_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = STEPS_WORTH_WHOLE_NETWORKS
    for asked, steps, wanted in (("", enough - 1, False), ("", enough, True), ("0", enough, False)):
        monkeypatch.setenv(STACKS, asked)
        with kernels_for(steps):
            assert wants_whole_networks() == wanted, (asked, steps)
            with plain_kernels():
                assert not wants_whole_networks()
    assert not wants_whole_networks()


def test_nothing_is_stacked_on_a_cpu() -> None:
    """Whatever is asked for: there a network computes what it computed before, bit for bit."""
    network, images = networks_of("wrn10_1", 1)[0], torch.randn(2, 3, 16, 16)
    other = copy.deepcopy(network)
    with whole_networks():
        assert torch.equal(network(images), other(images))
    assert suits(network, (16, 16)) and not card_suits(torch.device("cpu"))


@pytest.mark.parametrize(("model", "size"), [("wrn10_10", (32, 32)), ("wrn10_1", (32, 16))])
def test_what_has_no_kernels(model: str, size: tuple[int, int]) -> None:
    assert suits(networks_of("wrn10_1", 1)[0], (32, 32))
    assert not suits(networks_of(model, 1)[0], size)


def test_stacking_and_back_changes_nothing() -> None:
    networks = networks_of("wrn10_1", 2)
    stack = StackedWideResNet(networks, 8)
    others = networks_of("wrn10_1", 4)[2:]
    for g, (network, other) in enumerate(zip(networks, others, strict=True)):
        stack.unstack_to(other, g)
        held, written = network.state_dict(), other.state_dict()
        assert all(torch.equal(held[name], written[name]) for name in held)


@pytest.mark.gpu
def test_cuda_is_right() -> None:
    """bfloat16 loses much on the way back, with torch's layers too: those set the limit."""
    (network,) = networks_of("wrn16_2", 1)
    images, labels = torch.randn(32, 3, 32, 32, device="cuda"), torch.arange(32).cuda() % CLASSES
    exact = copy.deepcopy(network).cuda().double()
    cross_entropy(exact(images.double()), labels).backward()
    right = dict(exact.named_parameters())
    wrong = {}
    for whole in (False, True):
        copied = copy.deepcopy(network).cuda().to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16), whole_networks() if whole else nullcontext():
            assert (wants_whole_networks() and copied._has_kernels_for(images)) == whole
            logits = copied(images.contiguous(memory_format=torch.channels_last))
        cross_entropy(logits.float(), labels).backward()
        wrong[whole] = [
            (weight.grad - right[name].grad).norm() / right[name].grad.norm()
            for name, weight in copied.named_parameters()
        ]
    assert sum(wrong[True]) < 1.2 * sum(wrong[False])


@pytest.mark.gpu
def test_cuda_repeats_itself() -> None:
    """Sums are taken in a fixed order; a race would show only at times."""
    images = torch.randn(2, 32, 3, 32, 32, device="cuda")

    def once() -> list[Tensor]:
        stack = StackedWideResNet(networks_of("wrn16_2", 2), 32).cuda()
        stack(images).float().square().sum().backward()
        assert stack.weights_GN.grad is not None
        return [stack.weights_GN.grad, stack.running_GR]

    first = once()
    for _ in range(10):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))


@pytest.mark.gpu
def test_cuda_continues_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps, generators that graphs advance, streams: the same bits after a stop."""
    monkeypatch.setattr(engine_kernels, "STEPS_WORTH_WHOLE_NETWORKS", 0)
    jobs = {"images": 64, "epochs": 4, "clip": 5.0}
    through = run_in(tmp_path / "through", few_jobs("cuda", **jobs))
    stopped = run_in(tmp_path / "again", few_jobs("cuda", **jobs), stop_after=2)
    again = run_in(tmp_path / "again", few_jobs("cuda", **jobs))
    assert through["stacks"] == stopped["stacks"] == [[0, 1, 2]] and not stopped["losses"]
    assert again == through
