"""Our optimisers give torch's numbers, and loading them does not load torch's compiler."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dada.training.optimisers import SGD, Adam, AdamW


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def slope(model: nn.Module, seed: int) -> None:
    images = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
    device = next(model.parameters()).device
    model(images.to(device)).square().sum().backward()


def same(mine: nn.Module, theirs: nn.Module, tolerance: float) -> None:
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 5e-4), (0.0, 0.0)])
def test_sgd_is_torchs_bit_for_bit_on_a_cpu(momentum, decay):
    mine, theirs = network(), network()
    ours = SGD(mine.parameters(), momentum=momentum, weight_decay=decay)
    reference = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=decay, nesterov=momentum > 0
    )
    for seed, lr in enumerate((0.1, 0.05, 0.2)):
        ours.zero_grad()
        reference.zero_grad()
        slope(mine, seed)
        slope(theirs, seed)
        ours.step(torch.tensor(lr))
        reference.param_groups[0]["lr"] = float(torch.tensor(lr))
        reference.step()
        same(mine, theirs, 0.0)


@pytest.mark.gpu
def test_sgd_is_torchs_on_a_card():
    mine, theirs = network().cuda(), network().cuda()
    ours = SGD(mine.parameters(), momentum=0.9, weight_decay=5e-4)
    reference = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    for seed in range(3):
        ours.zero_grad()
        reference.zero_grad()
        slope(mine, seed)
        slope(theirs, seed)
        ours.step(torch.tensor(0.1, device="cuda"))
        reference.step()
        same(mine, theirs, 1e-6)


def test_adam_is_torchs():
    mine, theirs = network(), network()
    ours = Adam(mine.parameters(), lr=5e-3, betas=(0.5, 0.999))
    reference = torch.optim.Adam(theirs.parameters(), lr=5e-3, betas=(0.5, 0.999))
    for seed in range(20):
        for model in (mine, theirs):
            model.zero_grad()
            slope(model, seed)
        ours.step()
        reference.step()
        same(mine, theirs, 1e-6)


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_adamw_is_torchs_with_decay_on_matrices_only(where):
    mine, theirs = network().to(where), network().to(where)
    ours = AdamW(mine.parameters(), weight_decay=0.1)
    matrices = [weight for weight in theirs.parameters() if weight.dim() > 1]
    others = [weight for weight in theirs.parameters() if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01)
    for seed, lr in enumerate((0.01, 0.02, 0.005, 0.01)):
        ours.zero_grad()
        reference.zero_grad()
        slope(mine, seed)
        slope(theirs, seed)
        ours.step(torch.tensor(lr, device=where))
        for group in reference.param_groups:
            group["lr"] = lr
        reference.step()
        same(mine, theirs, 1e-6)
    ours.reset()
    assert all(float(each.abs().sum()) == 0 for each in (*ours.mean, *ours.square, *ours.steps))


def test_what_has_no_gradient_stays():
    model = network()
    before = copy.deepcopy(model)
    SGD(model.parameters(), momentum=0.9, weight_decay=0.1).step(torch.tensor(0.1))
    Adam(model.parameters(), lr=0.1, betas=(0.5, 0.999)).step()
    AdamW(model.parameters(), weight_decay=0.1).step(torch.tensor(0.1))
    same(model, before, 0.0)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_restored_optimiser_goes_on_as_if_never_stopped(kind):
    def make(model: nn.Module):
        if kind == "sgd":
            return SGD(model.parameters(), momentum=0.9, weight_decay=1e-3)
        if kind == "adamw":
            return AdamW(model.parameters(), weight_decay=0.05)
        return Adam(model.parameters(), lr=0.01, betas=(0.5, 0.999))

    def step(model: nn.Module, optimiser, seed: int) -> None:
        model.zero_grad()
        slope(model, seed)
        optimiser.step(*([] if kind == "adam" else [torch.tensor(0.1)]))

    model = network()
    optimiser = make(model)
    step(model, optimiser, 0)
    twin = copy.deepcopy(model)
    resumed = make(twin)
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for seed in (1, 2):
        step(model, optimiser, seed)
        step(twin, resumed, seed)
    same(model, twin, 0.0)


def test_a_search_does_not_load_the_compiler():
    source = str(Path(__file__).parents[1] / "src")
    script = (
        "import sys, torch, dada\n"
        "images = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8)\n"
        "settings = dict(model='small', epochs=1, batch_size=8, lookahead=1e-3)\n"
        "dada.search((images, torch.arange(40) % 2), **settings)\n"
        "dada.train((images, torch.arange(40) % 2), 'uniform', 'small', epochs=1, batch_size=8)\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "[]", done.stderr
