"""Training: each setting against its formula, stations, repeating, resuming, several at once.

Shapes: B images of a batch, C classes (channels, in BCHW), H height, W width, T steps.
"""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn

import dada
from dada.config import BASES, Base, TrainConfig
from dada.data import FilePart, Split, load, resized_crops
from dada.engine import ALONE, generator_on
from dada.policy import Policy
from dada.policy.baselines import base_for, none, uniform
from dada.runlog import RunLog, read_log, read_weights
from dada.terminal.commands import main
from dada.training import loop
from dada.training import many as training
from dada.training.base import (
    PRINCIPAL_COLOURS,
    PRINCIPAL_DEVIATIONS,
    change_lighting,
    jitter_colours,
    zoom,
)
from dada.training.epochs import learning_rates_T
from dada.training.state import TrainState
from quick import StopError, stop_after

CPU = torch.device("cpu")
SOURCE = Path(__file__).parents[1] / "src"


def some_digits(count: int = 160) -> tuple[Tensor, Tensor]:
    """The first of the embedded digits, 8x8 grey, all ten classes."""
    return load("digits").train.batch(torch.arange(count))


def digit_split(count: int = 32, judged_on: int = 20) -> Split:
    images, labels = some_digits(count + judged_on)
    return load((images[:count], labels[:count]), val_data=(images[count:], labels[count:]))


def quick_train(policy: Any = "uniform", **changes: Any) -> dada.Trained:
    settings = {"epochs": 4, "batch_size": 32, "device": "cpu", "seed": 3}
    return dada.train(some_digits(), policy, **settings | changes)


class Plain(nn.Module):
    """A network without BatchNorm, with dropout where asked for, the same every time."""

    def __init__(self, classes: int = 10, dropout: float = 0.0, channels: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.convolution = nn.Conv2d(channels, 6, 3, stride=2, padding=1)
            self.head = nn.Linear(6, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        hidden = torch.relu(self.convolution(images_BCHW)).mean((2, 3))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits


class WithBatchNorm(Plain):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.convolution(images_BCHW))).mean((2, 3))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits


def train_here(
    split: Split, model: nn.Module, policy: Policy, config: TrainConfig, **options: Any
) -> training.TrainResult:
    job = training.Job(split=split, model=model, policy=policy, config=config, **options)
    return training.run_job(job)


@pytest.fixture
def checkpoint_every_epoch(monkeypatch):
    """A run writes one as often as costs little; these tests want all."""
    monkeypatch.setattr(RunLog, "wants_checkpoint", True)


# --- one step, by hand --------------------------------------------------------------------------


def by_hand(split: Split, model: nn.Module, config: TrainConfig) -> tuple[list[float], nn.Module]:
    """Whole-batch steps from the formulas: the losses, and the network that is judged.

    loss = (1 - e) nll + e mean over the classes; g clipped to norm `clip`, then g += decay w;
    v = momentum v + g; w -= rate (g + momentum v) (Nesterov); average = d average + (1 - d) w.
    """
    images, labels = split.train.batch(torch.arange(len(split.train)))
    mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in split.mean_std())
    inputs = (images / 255 - mean) / std
    average = copy.deepcopy(model)
    speeds: dict[str, Tensor] = {}
    losses = []
    for rate in learning_rates_T(config, config.epochs, 1).tolist():
        log_prob = model(inputs).log_softmax(1)
        nll = -log_prob[torch.arange(len(labels)), labels].mean()
        loss = (1 - config.label_smoothing) * nll - config.label_smoothing * log_prob.mean()
        losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        shrink = min(1.0, config.clip / norm) if config.clip else 1.0
        with torch.no_grad():
            for (name, weight), gradient in zip(model.named_parameters(), gradients, strict=True):
                g = gradient * shrink + config.weight_decay * weight
                speeds[name] = g if name not in speeds else config.momentum * speeds[name] + g
                weight -= rate * (g + config.momentum * speeds[name])
            for mine, newest in zip(average.parameters(), model.parameters(), strict=True):
                mine.copy_(config.ema * mine + (1 - config.ema) * newest)
    return losses, average if config.ema else model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"label_smoothing": 0.3},
        {"clip": 0.05},
        {"clip": 0.0, "lr": 1.0},
        {"weight_decay": 0.2},
        {"momentum": 0.0},
        {"ema": 0.6},
        {"warmup_factor": 9.0, "warmup_epochs": 1},
    ],
    ids=lambda changes: ",".join(changes) or "defaults",
)
def test_a_training_is_what_the_formulas_say(changes):
    config = TrainConfig(epochs=5, batch_size=32, **changes)
    split = digit_split()
    model = Plain()
    losses, judged = by_hand(split, copy.deepcopy(model), config)
    result = train_here(split, model, none(), config, seed=0, device=CPU)
    assert [entry["loss"] for entry in result.history] == pytest.approx(losses, rel=1e-5)
    for mine, wanted in zip(result.model.parameters(), judged.parameters(), strict=True):
        assert torch.allclose(mine, wanted, atol=2e-6, rtol=1e-5)
    start = Plain()
    assert not torch.allclose(result.model.head.weight, start.head.weight, atol=1e-4)
    # What is judged is that network, on images that were not trained on.
    images, labels = split.val.batch(torch.arange(20))
    mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in split.mean_std())
    with torch.no_grad():
        logits = judged((images / 255 - mean) / std)
    assert result.scores.loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)))
    assert result.scores.accuracy == float((logits.argmax(1) == labels).double().mean())


def test_averaged_weights_are_judged_with_the_newest_statistics():
    config = TrainConfig(epochs=6, batch_size=16, ema=0.9, lr=0.2)
    model = WithBatchNorm()
    result = train_here(digit_split(), model, none(), config, seed=0, device=CPU)
    assert result.model is not model
    assert not torch.allclose(result.model.head.weight, model.head.weight, atol=1e-3)
    for name, buffer in model.named_buffers():
        assert torch.equal(result.model.get_buffer(name), buffer), name
    assert int(model.norm.num_batches_tracked) == 12, "judging is not training"
    without = train_here(
        digit_split(), same := WithBatchNorm(), none(), replace(config, ema=0.0), seed=0, device=CPU
    )
    assert without.model is same
    assert torch.equal(same.head.weight, model.head.weight), "averaging changes no step"
    assert without.scores.loss != result.scores.loss


def test_every_image_is_seen_once_in_an_epoch_and_the_rest_is_left_out(monkeypatch):
    """50 images in batches of 16: 48 of them, others left out in the next epoch."""
    seen: list[list[int]] = []
    real = loop.train_step

    def remember(state: Any, images: Tensor, *rest: Any, **options: Any) -> Tensor:
        seen.append(images[:, 0, 0, 0].tolist())
        return real(state, images, *rest, **options)

    monkeypatch.setattr(loop, "train_step", remember)
    images = torch.arange(50, dtype=torch.uint8).view(-1, 1, 1, 1).expand(50, 1, 8, 8)
    labels = torch.arange(50) % 2
    split = load((images, labels), val_data=(images, labels))
    config = TrainConfig(epochs=2, batch_size=16)
    train_here(split, Plain(2), none(), config, seed=0, device=CPU)
    first, second = (sorted(seen[i] + seen[i + 1] + seen[i + 2]) for i in (0, 3))
    assert len(set(first)) == len(set(second)) == 48
    assert first != second and seen[0] != seen[3]


def test_the_hooks_of_a_network_of_ones_own_are_run():
    model, calls = Plain(), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    train_here(
        digit_split(), model, none(), TrainConfig(epochs=3, batch_size=32), seed=0, device=CPU
    )
    assert len(calls) >= 3 + 1


def test_bf16_on_a_cpu_is_near_fp32():
    exact, rough = (quick_train(precision=precision, epochs=2) for precision in ("fp32", "bf16"))
    losses = [[entry["loss"] for entry in result.history] for result in (exact, rough)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05) and losses[0] != losses[1]


@pytest.mark.slow
def test_a_compiled_network_learns_the_same():
    plain, compiled = (quick_train(compile=compile, epochs=2) for compile in (False, True))
    assert [entry["loss"] for entry in plain.history] == pytest.approx(
        [entry["loss"] for entry in compiled.history], rel=1e-3
    )
    assert plain.model.state_dict().keys() == compiled.model.state_dict().keys()


# --- the stations -------------------------------------------------------------------------------


def test_crop_and_flip_then_policy_then_normalise_then_cutout():
    """By hand, image by image, from the same random numbers.

    Invert makes the black border of a crop white, unless it came first; only after normalising is
    the covered square 0.
    """
    split = digit_split(24)
    policy = Policy.from_rows([[("Invert", 1.0, 0.5)]], "paper")
    config = TrainConfig(batch_size=24, base=Base(crop=2, flip=True, cutout=3))
    state = TrainState(Plain(), split, policy, config, seed=11, device=CPU, ranks=ALONE)
    images, _ = split.train.batch(torch.arange(24))
    found, _ = state.augmented(images, [])

    noise = generator_on(CPU, 12)
    place_B3 = torch.rand(24, 3, generator=noise).tolist()
    torch.rand(24, 1 + 5 * 1, generator=noise, dtype=torch.float64)  # which of one sub-policy
    center_B2 = torch.rand(24, 2, generator=noise).tolist()
    (mean,), (std,) = split.mean_std()
    wanted = np.zeros((24, 8, 8))
    for i, image in enumerate(images[:, 0].numpy()):
        left, top = (int(number * 5) for number in place_B3[i][:2])
        # The crop is mirrored, not the padded image before it.
        cut = np.pad(image, 2)[top : top + 8, left : left + 8]
        cut = cut[:, ::-1] if place_B3[i][2] < 0.5 else cut
        view = ((255 - cut) / 255 - mean) / std
        x, y = (int(number * 8) - 1 for number in center_B2[i])
        view[max(0, y) : max(0, y + 3), max(0, x) : max(0, x + 3)] = 0
        wanted[i] = view
    assert np.abs(found[:, 0].numpy() - wanted).max() < 1e-5
    assert state.noise.get_state().equal(noise.get_state()), "no more numbers are drawn than these"


def test_none_has_no_cutout_and_cutout_has():
    own = BASES["cifar10"]
    assert base_for("none", own, (32, 32)) == replace(own, cutout=0)
    assert base_for("cutout", own, (32, 32)) == base_for("uniform", own, (32, 32)) == own
    assert base_for("cutout", Base(), (20, 12)) == Base(cutout=6)
    assert base_for("uniform", Base(), (20, 12)) == Base()


@pytest.mark.parametrize(
    ("policy", "on_mine", "on_cifar"), [("none", 0, 0), ("cutout", 16, 16), ("uniform", 0, 16)]
)
def test_a_training_has_the_square_its_policy_asks_for(policy, on_mine, on_cifar):
    seen = {}

    def on_start(split: Split, config: TrainConfig, model: str) -> None:
        seen[split.name] = config.base
        raise StopError

    noise = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 32, 32), generator=noise, dtype=torch.uint8)
    split = load((images, torch.arange(40) % 2))
    for name in ("mine", "cifar10"):
        for given in (policy, Policy.load(policy)):
            with pytest.raises(StopError):
                dada.train(replace(split, name=name), given, device="cpu", on_start=on_start)
            assert seen[name].cutout == {"mine": on_mine, "cifar10": on_cifar}[name]
    assert (seen["cifar10"].crop, seen["cifar10"].flip) == (4, True)
    assert (seen["mine"].crop, seen["mine"].flip) == (0, False)


# --- ImageNet's base: crops of any size and shape, colours, light -------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Two classes of small JPEGs: ramps along x or y, so that a crop shows where it was cut."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(24):
        ramp = np.linspace(0, 255, 48 + i).astype(np.uint8)
        plane = np.tile(ramp, (40, 1)) if i % 2 else np.tile(ramp, (40, 1)).T
        pixels = np.stack([plane, 255 - plane, np.full_like(plane, 8 * i)], 2)
        file = folder / ("across" if i % 2 else "down") / f"{i:02d}.jpg"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(file, quality=95)
    return folder


def test_a_zoom_shows_a_part_of_the_image_in_its_proportions():
    """A ramp along x and one along y say where each edge of the part was."""
    ramp = torch.linspace(0, 255, 64).round()
    image = torch.stack([ramp.expand(64, 64), ramp.expand(64, 64).T, torch.full((64, 64), 9.0)])
    images = image.to(torch.uint8).repeat(200, 1, 1, 1)
    seen = zoom(images, 0.35, torch.Generator().manual_seed(0))
    assert seen.dtype == torch.uint8 and seen.shape == images.shape
    assert (seen[:, 2] == 9).all(), "what is flat stays flat"
    # A part of width w spans w of the ramp, less a pixel.
    width = (seen[:, 0, 32, -1].float() - seen[:, 0, 32, 0]) / 255 * 63 / 64 + 1 / 64
    height = (seen[:, 1, -1, 32].float() - seen[:, 1, 0, 32]) / 255 * 63 / 64 + 1 / 64
    area = width * height
    # Less than 0.35 only where a side was made to fit.
    assert float(area.min()) > 0.3 and float(area.max()) > 0.9
    assert 0.6 < float(area.mean()) < 0.72
    assert ((width / height).log().abs() < 0.35).all()
    again = zoom(images, 0.35, torch.Generator().manual_seed(0))
    assert torch.equal(seen, again)


def test_bases_have_names_and_single_changes():
    """By name, as a value, and with parts of it changed: the same settings in the end."""
    for given, expected in (
        ({"base": "photo"}, Base(scale=0.35, flip=True)),
        ({"base": "photo", "scale": 0.5, "flip": False}, Base(scale=0.5)),
        ({"base": "cifar", "crop": 2}, Base(crop=2, flip=True)),
        ({"flip": True}, Base(flip=True)),
        ({"base": "turn", "crop": 2}, Base(crop=2, flip=True, turn=True)),
        ({"base": "none"}, Base()),
    ):
        seen = list[TrainConfig]()
        quick_train(epochs=1, on_start=lambda *started, seen=seen: seen.append(started[1]), **given)
        assert seen[0].base == expected, given
    with pytest.raises(ValueError, match=r"one of photo, .*cifar, none"):
        quick_train(base="imagenet")
    with pytest.raises(ValueError, match="both cut"):
        quick_train(base="photo", crop=3)
    with pytest.raises(ValueError, match="`scale` should lie in"):
        quick_train(scale=0)


def test_adamw_trains_and_brings_its_own_rate(tmp_path):
    seen = []
    trained = quick_train(
        optimizer="adamw",
        epochs=8,
        ema=0.9,
        on_start=lambda split, config, model: seen.append(config),
    )
    assert (seen[0].lr, seen[0].weight_decay) == (5e-4, 0.05)
    assert trained.history[-1]["loss"] < 0.8 * trained.history[0]["loss"]
    with pytest.raises(ValueError, match="`optimizer` should be one of sgd, adamw"):
        quick_train(optimizer="lion")


def test_resized_crops_are_cut_from_the_files(photos):
    """The grey of a ramp at the left and right edge says which part of the picture it is."""
    part = load(photos, image_size=16, in_memory=False).train
    assert isinstance(part, FilePart)
    across = (part.labels_N == 0).nonzero().squeeze(1)
    index = [across[:6], across[6:12]]
    batches = list(resized_crops(part, index, torch.Generator().manual_seed(0)))
    assert all(images.shape == (6, 3, 16, 16) for images, _ in batches)
    assert all(labels.tolist() == [0] * 6 for _, labels in batches)
    images = torch.cat([images for images, _ in batches]).float()
    widths = (images[:, 0, :, -1].mean(1) - images[:, 0, :, 0].mean(1)) / 255
    # 8 to 100% of the area, 3:4 to 4:3: from a sixth of the side to all of it.
    assert 0.15 < float(widths.min()) < 0.7 < float(widths.max()) < 1.02
    assert len({round(float(width), 2) for width in widths}) > 8, "every image has its own part"
    again = list(resized_crops(part, index, torch.Generator().manual_seed(0)))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(again, batches, strict=True))
    whole = part.batch(across[:6])[0]
    assert not torch.equal(whole, batches[0][0])


IMAGENET = Base(flip=True, resized_crop=True, jitter=0.4, lighting=0.1)


def train_photos(photos: Path, **changes: Any) -> dada.Trained:
    settings = {"epochs": 3, "batch_size": 8, "device": "cpu", "image_size": 16, "base": IMAGENET}
    return dada.train(photos, "uniform", "small", **settings | changes)


def test_imagenets_base_repeats_and_resumes(photos, tmp_path, checkpoint_every_epoch):
    """Crops are drawn by a thread that reads ahead: its generator has to stand still in between."""
    train_photos(photos, out=tmp_path / "whole")
    with pytest.raises(StopError):
        train_photos(photos, out=tmp_path / "torn", on_epoch=stop_after(1))
    train_photos(photos, out=tmp_path / "torn", resume=True)
    assert weights_of(tmp_path / "torn") == weights_of(tmp_path / "whole")
    train_photos(photos, out=tmp_path / "fixed", base=replace(IMAGENET, resized_crop=False))
    assert weights_of(tmp_path / "fixed") != weights_of(tmp_path / "whole")


def test_crops_of_images_in_memory_are_refused():
    with pytest.raises(ValueError, match=r"cut from image files, .* use a folder of images"):
        quick_train(base=Base(resized_crop=True))


def test_jitter_is_pillows_in_the_order_that_was_drawn(images_BCHW, device):
    found = jitter_colours(images_BCHW, 0.4, torch.Generator(device).manual_seed(4)).cpu()
    uniform_B6 = torch.rand(6, 6, generator=torch.Generator(device).manual_seed(4), device=device)
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    orders = set()
    for i, numbers in enumerate(uniform_B6.cpu()):
        order = numbers[:3].argsort().tolist()
        orders.add(tuple(order))
        image = Image.fromarray(images_BCHW[i].permute(1, 2, 0).cpu().numpy())
        for op, number in zip(order, numbers[3:], strict=True):
            factor = 1 + 0.4 * (2 * number - 1)  # in float32, as the kernel has it
            image = enhancers[op](image).enhance(float(factor))
        wanted = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        assert torch.equal(found[i], wanted)
        assert not torch.equal(found[i], images_BCHW[i].cpu())
    assert len(orders) > 1


def test_lighting_shifts_as_the_principal_colours_say():
    """Mean 0, covariance E diag(d)^2 E^T times the strength squared, and one colour per image."""
    count, strength = 20_000, 0.5
    grey = torch.full((count, 3, 1, 2), 128, dtype=torch.uint8)
    noise = torch.Generator().manual_seed(0)
    changed = change_lighting(grey, strength, noise).double() - 128
    assert torch.equal(changed[..., 0], changed[..., 1])
    shift_B3 = changed[:, :, 0, 0]
    component_33 = torch.tensor(PRINCIPAL_COLOURS).double()
    deviation_3 = torch.tensor(PRINCIPAL_DEVIATIONS).double() * 255 * strength
    wanted_33 = component_33 @ torch.diag(deviation_3**2) @ component_33.T
    found_33 = torch.cov(shift_B3.T)
    # A variance from n numbers is known to sqrt(2/n) = 1%; rounding to whole greys adds 1/12.
    assert torch.allclose(found_33, wanted_33, rtol=0.05, atol=0.5)
    error_3 = (wanted_33.diagonal() / count).sqrt()
    assert (shift_B3.mean(0).abs() < 4 * error_3).all()
    assert float(deviation_3[0]) > 25, "large enough that nothing of this is about rounding"
    assert torch.equal(change_lighting(grey[:, :1], strength, noise), grey[:, :1]), "RGB only"


# --- the same seed, the same bytes --------------------------------------------------------------


def weights_of(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def results_of(run: Path) -> tuple[bytes, bytes]:
    return weights_of(run), (run / "scores.json").read_bytes()


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        torch.manual_seed(len(name))
        before = torch.get_rng_state()
        quick_train(seed=seed, out=tmp_path / name)
        assert torch.equal(before, torch.get_rng_state())
    assert results_of(tmp_path / "one") == results_of(tmp_path / "two")
    assert weights_of(tmp_path / "one") != weights_of(tmp_path / "other")


def test_what_is_written_is_what_was_returned(tmp_path):
    trained = quick_train(out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "scores.json").read_text()) == asdict(trained.scores)
    read = read_weights(tmp_path / "run" / "model.safetensors")
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(read[name], tensor)
    assert Policy.load(tmp_path / "run") == Policy.load("uniform")
    assert [line["loss"] for line in read_log(tmp_path / "run")] == [
        entry["loss"] for entry in trained.history
    ]
    assert trained.scores.images == 32 and len(trained.classes) == 10
    assert trained.images_per_second > 0 and trained.seconds > 0


# --- a run that was interrupted -----------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}, {"model": "dropout"}], ids=str)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    tmp_path, checkpoint_every_epoch, settings
):
    def run(**options: Any) -> dada.Trained:
        own = dict(settings)
        if own.get("model") == "dropout":
            own["model"] = Plain(dropout=0.5)
        return quick_train(**own, **options)

    run(out=tmp_path / "whole")
    torn, epochs_done = tmp_path / "torn", []
    for stop in (1, 3):
        with pytest.raises(StopError):
            run(out=torn, resume=True, on_epoch=stop_after(stop))
        assert len(read_log(torn)) == stop and not (torn / "finished.json").exists()
    torch.manual_seed(99)  # where torch's own generator stands outside is of no consequence
    resumed = run(out=torn, resume=True, on_epoch=lambda m, _: epochs_done.append(m["epoch"]))
    assert epochs_done == [4], "epochs that were done are not repeated"
    assert results_of(torn) == results_of(tmp_path / "whole")
    assert [entry["epoch"] for entry in resumed.history] == [1, 2, 3, 4]
    for mine, other in zip(read_log(torn), read_log(tmp_path / "whole"), strict=True):
        assert {**mine, "seconds": 0} == {**other, "seconds": 0}
    assert resumed.seconds >= 0.99 * sum(entry["seconds"] for entry in resumed.history)


def test_a_run_that_only_lacks_its_judgement_is_judged(tmp_path, monkeypatch):
    """Killed between the last epoch and the scores."""
    quick_train(out=tmp_path / "whole")

    def killed(*_: Any, **__: Any) -> Any:
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(loop.Slot, "evaluate", killed)
        with pytest.raises(StopError):
            quick_train(out=tmp_path / "torn")
    again: list[int] = []
    quick_train(out=tmp_path / "torn", resume=True, on_epoch=lambda *_: again.append(1))
    assert results_of(tmp_path / "torn") == results_of(tmp_path / "whole") and again == []


def count_checkpoints(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    written: list[int] = []
    real = RunLog.checkpoint

    def count(self: RunLog, state: Any, **how: Any) -> None:
        written.append(state["epoch"])
        real(self, state, **how)

    monkeypatch.setattr(RunLog, "checkpoint", count)
    return written


@pytest.mark.parametrize(
    ("wanted_at", "written_at"),
    [([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), ([2, 4], [2, 4, 5]), ([], [5])],
)
def test_checkpoints_are_written_when_the_run_wants_one_and_at_the_end(
    tmp_path, monkeypatch, wanted_at, written_at
):
    """How often that is, `RunLog` decides for searches and trainings alike."""
    written = count_checkpoints(monkeypatch)
    wants = iter([epoch in wanted_at for epoch in range(1, 6)])
    monkeypatch.setattr(RunLog, "wants_checkpoint", property(lambda self: next(wants)))
    train_here(
        digit_split(),
        Plain(),
        none(),
        TrainConfig(epochs=5, batch_size=32),
        seed=0,
        device=CPU,
        run=RunLog(tmp_path / "run"),
    )
    assert written == written_at


DRIVER = """
import sys
from dada.runlog import RunLog
RunLog.wants_checkpoint = sys.argv.pop(1) == "often"
from dada.terminal.commands import main
main()
"""


@pytest.mark.parametrize("written", ["often", pytest.param("never", marks=pytest.mark.slow)])
def test_a_run_killed_at_any_instant_can_be_resumed(tmp_path, monkeypatch, capsys, written):
    """A real kill, as soon as the log shows two epochs: with a checkpoint, or before the first."""
    images, labels = some_digits()
    np.savez(tmp_path / "data.npz", images=images.numpy(), labels=labels.numpy())
    command = ["train", "data.npz", "--policy", "uniform", "--epochs", "30", "--batch-size", "16"]
    command += ["--device", "cpu", "--seed", "3"]
    torn = tmp_path / "torn"
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, written, *command, "--out", "torn"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    ) as process:
        log, deadline = torn / "log.jsonl", time.monotonic() + 90
        while not log.exists() or log.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline, "it wrote no log"
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert 2 <= len(read_log(torn)) < 30
    assert (torn / "checkpoint.pt").exists() == (written == "often")
    monkeypatch.chdir(tmp_path)
    for out in ("torn", "whole"):
        monkeypatch.setattr(sys, "argv", ["dada", *command, "--out", out, "--resume"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    assert results_of(torn) == results_of(tmp_path / "whole")
    assert [line["epoch"] for line in read_log(torn)] == list(range(1, 31))
    assert len(json.loads((torn / "run.json").read_text())["sessions"]) == 2


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run, calls = tmp_path / "run", []
    first = quick_train(out=run)
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.iterdir()}
    again = quick_train(out=run, resume=True, on_epoch=lambda *_: calls.append(1))
    after = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.iterdir()}
    assert before == after and calls == []
    assert again.scores == first.scores and again.out == run and again.classes == first.classes
    assert [e["loss"] for e in again.history] == [e["loss"] for e in first.history]
    for mine, other in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert again.seconds == pytest.approx(first.seconds, abs=0.01)
    assert again.images_per_second == pytest.approx(first.images_per_second, abs=1)
    with pytest.raises(ValueError, match="run exists; pass `resume=True` to continue it or choose"):
        quick_train(out=run)


OTHER_SETTINGS = [
    ({"lr": 0.01}, r"train.lr = 0.05, this run has 0.01"),
    ({"seed": 4}, r"(seed|fingerprint) = "),
    ({"policy": "none"}, r"policy = "),
    ({"epochs": 5}, r"train.epochs = 4, this run has 5"),
    ({"model": "wrn10_1"}, r"model = 'small', this run has 'wrn10_1'"),
    ({"ema": 0.5}, r"train.ema = 0.0, this run has 0.5"),
    ({"base": Base(crop=1)}, r"train.base.crop = 0, this run has 1"),
]


def test_a_run_is_resumed_with_its_own_settings_only(tmp_path):
    with pytest.raises(StopError):
        quick_train(out=tmp_path / "run", on_epoch=stop_after(1))
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    for changes, says in OTHER_SETTINGS:
        with pytest.raises(ValueError, match=f"config.toml was written with {says}"):
            quick_train(**changes, out=tmp_path / "run", resume=True)
        assert (tmp_path / "run" / "log.jsonl").read_bytes() == log, changes


# --- several at once ----------------------------------------------------------------------------


def lanes() -> list[Any]:
    """Three trainings that differ in all they may: network, dropout, length, policy and seed."""
    split = digit_split(48)
    short, long = TrainConfig(epochs=2, batch_size=16), TrainConfig(epochs=5, batch_size=8, ema=0.5)
    made = [
        (Plain(dropout=0.5), uniform(), long, 1),
        (Plain(dropout=0.5), uniform(), short, 2),
        (WithBatchNorm(), none(), long, 1),
        (Plain(dropout=0.2), none(), short, 1),
    ]
    return [
        training.Job(split=split, model=model, policy=policy, config=config, seed=seed, device=CPU)
        for model, policy, config, seed in made
    ]


@pytest.mark.parametrize("at_once", [2, 4])
def test_trainings_that_take_turns_end_as_each_alone(at_once):
    alone = {}
    for i, job in enumerate(lanes()):
        torch.manual_seed(i)
        [(_, alone[i])] = training.train_many([job])
    jobs = lanes()
    torch.manual_seed(7)
    outside = torch.get_rng_state()
    order = []
    for job, result in training.train_many(jobs, at_once):
        assert torch.equal(outside, torch.get_rng_state()), "between turns all is as it was"
        order.append(i := jobs.index(job))
        assert result.scores == alone[i].scores
        for name, tensor in result.model.state_dict().items():
            assert torch.equal(tensor, alone[i].model.state_dict()[name]), (i, name)
    assert torch.equal(outside, torch.get_rng_state())
    assert sorted(order) == [0, 1, 2, 3] and order[0] == 1, "they come in the order they end"


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_training_in_the_place_of_another_ends_as_one_alone(at_once, monkeypatch):
    """The same network and settings; another seed, policy and start."""
    places = []

    class Counted(loop.Slot):
        def __init__(self, job):
            places.append(job)
            super().__init__(job)

    monkeypatch.setattr(training, "Slot", Counted)
    split, config = digit_split(48), TrainConfig(epochs=3, batch_size=16, ema=0.5)

    def alike() -> list[Any]:
        made = []
        names = ("uniform", "dada-cifar10", "uniform", "trivialaugment", "none")
        for seed, policy in enumerate(map(Policy.load, names)):
            model = WithBatchNorm(dropout=0.5)
            with torch.no_grad():
                model.head.bias.fill_(seed)  # each begins elsewhere
            job = {"split": split, "model": model, "policy": policy, "config": config}
            made.append(training.Job(**job, seed=seed, device=CPU))
        return made

    alone = [next(training.train_many([job]))[1] for job in alike()]
    assert len(places) == 5
    jobs = alike()
    results = [(jobs.index(job), r) for job, r in training.train_many(jobs, at_once)]
    assert len(places) == 5 + at_once + 2, "another space, and no policy at all, need their own"
    for i, result in results:
        assert result.scores == alone[i].scores
        assert [e["loss"] for e in result.history] == [e["loss"] for e in alone[i].history]
        for name, tensor in result.model.state_dict().items():
            assert torch.equal(tensor, alone[i].model.state_dict()[name]), (i, name)


def test_dropout_is_drawn_from_the_seed():
    """Or the tests of taking turns would prove nothing."""
    losses = [
        quick_train(model=Plain(dropout=0.5), policy="none", epochs=1, seed=seed).history[0]["loss"]
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


# --- the command --------------------------------------------------------------------------------


def write_mistakes(folder: Path) -> None:
    images, labels = (tensor.numpy() for tensor in some_digits(64))
    np.savez(folder / "good.npz", images=images, labels=labels)
    for name, counts in (("lonely", {"cats": 4}), ("single", {"cats": 1, "dogs": 4})):
        for label, count in counts.items():
            (folder / name / label).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(images[i, 0]).save(folder / name / label / f"{i}.png")
    (folder / "taken").mkdir()
    (folder / "taken" / "notes.txt").write_text("mine")
    (folder / "torn.json").write_text('{"format": "dada-policy", "version": 1')


MISTAKES = [
    ("good.npz --policy best", "no policy 'best': neither a file, nor a run directory, nor one of"),
    ("good.npz --policy torn.json", "torn.json: not JSON"),
    ("good.npz --policy randaugment:9,1", "'randaugment:9,1': n should be 1, 2 or 3"),
    ("good.npz --model nope", "model 'nope': no such model; known are small,"),
    ("good.npz --epochs 0", "--epochs should be positive, got 0"),
    ("good.npz --lr 0", "--lr should be positive, got 0.0"),
    ("good.npz --batch-size 0", "--batch-size should be positive, got 0"),
    ("good.npz --precision fp8", "--precision should be one of auto, bf16, tf32, fp32, got 'fp8'"),
    ("good.npz --ema 1", "--ema should lie in 0..1, got 1.0"),
    ("good.npz --device abacus", "device 'abacus' is not known; use auto, cpu or cuda"),
    ("good.npz --recipe best", "no recipe 'best' to train with; there are cifar10_wrn40_2,"),
    ("good.npz --recipe reduced_cifar10_wrn40_2", "no recipe 'reduced_cifar10_wrn40_2' to train"),
    ("lonely", "lonely: only one class (cats); two or more are needed"),
    ("single", "single: class 'cats' has one training image, but validation needs another"),
    ("nowhere", "data 'nowhere': no such file or folder"),
    ("good.npz --out taken", "taken exists; pass --resume to continue it or choose another --out"),
    ("good.npz --out taken --resume", "taken is not empty and holds no run"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, arguments, says):
    write_mistakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dada", "train", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2, out + err
    assert err.startswith(f"dada: {says}") and len(err.splitlines()) == 1, err
    assert not (tmp_path / "runs").exists(), "training never began, so nothing is left behind"
    assert [file.name for file in (tmp_path / "taken").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("value", ["banana", "-3", "1.5", ""])
def test_a_batch_size_is_a_number_or_auto(monkeypatch, capsys, value):
    monkeypatch.setattr(sys, "argv", ["dada", "train", "digits", "--batch-size", value])
    with pytest.raises(SystemExit) as ended:
        main()
    err = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2 and "is neither a number nor auto" in err


def test_the_command_says_how_good_it_is_and_where_it_was_written(tmp_path, monkeypatch, capsys):
    write_mistakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ["good.npz", "--policy", "uniform", "--epochs", "2", "--batch-size", "16"]
    monkeypatch.setattr(sys, "argv", ["dada", "train", *arguments, "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert not ended.value.code and err == ""
    run = Path("runs") / "train-good.npz"
    scores = json.loads((run / "scores.json").read_text())
    assert "51 train, 13 val; 10 classes; 8x8 grey" in out
    assert "train   small; batches of 16" in out and "epoch 2/2  loss" in out
    assert "on 13 images it had not seen" in out and f"{scores['accuracy']:.2%}" in out
    assert f"{scores['balanced_accuracy']:.2%}" in out and f"{scores['top5']:.2%}" in out
    names = {"policy.json", "log.jsonl", "config.toml", "run.json", "finished.json"}
    names |= {"model.safetensors", "model.json", "scores.json"}
    names |= {"checkpoint.pt", "checkpoint.previous.pt"}
    assert {file.name for file in run.iterdir()} == names
    for name in ("model.safetensors", "scores.json", "log.jsonl"):
        assert str(run / name) in out
    assert sum(map(sum, scores["confusion_CC"])) == scores["images"] == 13


@pytest.mark.parametrize(
    ("epochs", "says"),
    [
        (4, "the training loss became nan in epoch"),
        # One step and no more: its weights enter no training loss.
        (1, "the loss of the trained network became nan in epoch 1"),
    ],
)
def test_a_loss_that_is_not_a_number_is_one_line(tmp_path, monkeypatch, capsys, epochs, says):
    write_mistakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ["good.npz", "--lr", "1e38", "--epochs", str(epochs), "--batch-size", "64"]
    arguments += ["--device", "cpu", "--out", "run"]
    monkeypatch.setattr(sys, "argv", ["dada", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code == 2 and len(err.splitlines()) == 1
    assert err.startswith(f"dada: {says}") and "lower --lr (now 1e+38)" in err
    assert not (tmp_path / "run" / "finished.json").exists()
    assert not (tmp_path / "run" / "scores.json").exists(), "no file with NaN in it"
