"""Tasks: scores against cases computed by hand, losses, and trainings through the one loop.

Shapes: B images, C classes, M boxes, H height, W width.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dada
from dada import models, tasks
from dada.config import (
    LOOKAHEAD,
    LOOKAHEAD_OF_PLACES,
    NAMED_BASES,
    SearchConfig,
    ShortTraining,
    TrainConfig,
)
from dada.data import load, split_off_validation
from dada.engine import ALONE, Precision
from dada.models.pyramid import Features
from dada.ops import PAPER
from dada.policy_search.lookahead import plan_for
from dada.policy_search.lookahead.runs import BranchedRuns
from dada.policy_search.lookahead.stand_in import StandIn
from dada.tasks import DetectionScores, MultilabelScores, SegmentationScores
from dada.tasks.coco import Objects, average_precision
from dada.tasks.detection import as_torchvision
from dada.tasks.segmentation import IGNORED
from dada.training.loop import Job
from dada.training.many import run_job
from dada.training.scores import check_network, evaluate
from quick import search_job
from scenes import Boxes, Masks, Scenes, write_coco, write_masks, write_objects

CPU = torch.device("cpu")


def passes():  # type: ignore[no-untyped-def]
    return Precision.of("fp32", CPU).passes()


def scored(task: str, outputs: object, targets: list[Tensor], num_classes: int):  # type: ignore[no-untyped-def]
    """The scores of a network that always gives these outputs."""

    class Fixed(nn.Module):
        padded = True

        def forward(self, images: Tensor) -> object:
            return outputs

        def losses(self, images: Tensor, boxes: Tensor) -> Tensor:
            return torch.full((len(images),), 2.0)

    meter = tasks.named(task).meter(num_classes, CPU)
    meter.add(Fixed(), torch.zeros(len(targets[0]), 3, 4, 4), targets, passes)
    return meter.scores(meter.sums())


# --- scores, by hand ----------------------------------------------------------------------------


def test_mean_iou_by_hand() -> None:
    """Two classes on eight pixels, one of them of no class; a third class is nowhere."""
    true = torch.tensor([[[0, 0, 1, 1], [0, 0, 1, IGNORED]]], dtype=torch.uint8)
    found = torch.tensor([[[0, 1, 1, 1], [0, 0, 0, 1]]])
    logits = torch.nn.functional.one_hot(found, 3).permute(0, 3, 1, 2) * 20.0
    scores = scored("segmentation", logits, [true], 3)
    assert isinstance(scores, SegmentationScores)
    # Class 0: three pixels agree, of five that one of the two says. Class 1: two of four.
    assert scores.class_iou_C == [3 / 5, 2 / 4, None]
    assert scores.mean_iou == pytest.approx((3 / 5 + 2 / 4) / 2)
    assert scores.pixel_accuracy == pytest.approx(5 / 7)
    assert scores.loss == pytest.approx(2 * 20 / 7, rel=1e-4)  # two pixels are wrong by 20
    assert scores.images == 1


def test_average_precision_by_hand() -> None:
    """One class, two objects, three guesses in order of their scores: right, wrong, right.

    Precision is 1 up to a recall of 1/2, then 2/3: of COCO's 101 recalls 51 get the first.
    """
    true = Objects([[0, 0, 10, 10], [20, 20, 10, 10]], [1, 1])
    found = Objects([[0, 0, 10, 10], [40, 40, 5, 5], [20, 20, 10, 10]], [1, 1, 1], [0.9, 0.8, 0.7])
    got = average_precision([true], [found], 1)
    assert got.ap50 == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)
    assert got.ap == pytest.approx(got.ap50) and got.ap75 == pytest.approx(got.ap50)


def test_a_box_that_overlaps_by_six_tenths_counts_at_a_half_only() -> None:
    true = Objects([[0, 0, 10, 10]], [1])
    found = Objects([[0, 0, 10, 6.2]], [1], [0.5])
    got = average_precision([true], [found], 2)
    assert (got.ap50, got.ap75) == (pytest.approx(1), 0.0)
    assert got.ap == pytest.approx(0.3)  # right at 0.5, 0.55 and 0.6 of ten overlaps
    assert got.class_ap50_C == [pytest.approx(1), None]


def test_masks_are_scored_by_their_pixels() -> None:
    """The same box, half of the pixels."""
    whole = torch.zeros(1, 8, 8, dtype=torch.uint8)
    whole[0, :4, :4] = 1
    half = torch.zeros(1, 1, 8, 8)
    half[0, 0, :4, :2] = 0.9
    box = torch.tensor([[0.0, 0, 4, 4]])
    true = Objects.of({"boxes": box, "labels": torch.tensor([1]), "masks": whole})
    guess = {"boxes": box, "labels": torch.tensor([1]), "scores": torch.tensor([0.8])}
    found = Objects.of({**guess, "masks": half})
    assert average_precision([true], [found], 1).ap == pytest.approx(1)
    by_masks = average_precision([true], [found], 1, masks=True)
    assert by_masks.ap50 == pytest.approx(1) and by_masks.ap == pytest.approx(0.1)


def test_nothing_found_and_nothing_there() -> None:
    none = Objects([], [], [])
    assert average_precision([Objects([], [])], [none], 2).ap50 == 0.0
    assert average_precision([Objects([[0, 0, 5, 5]], [1])], [none], 1).ap50 == 0.0


def test_detection_meter_counts_from_one_there_and_from_zero_here() -> None:
    boxes_BM5 = torch.tensor([[[0.0, 0, 4, 4, 1], [0, 0, 0, 0, -1]]])
    found = [
        {
            "boxes": torch.tensor([[0.0, 0, 4, 4]]),
            "labels": torch.tensor([2]),
            "scores": torch.tensor([0.9]),
        }
    ]
    scores = scored("detection", found, [boxes_BM5], 2)
    assert isinstance(scores, DetectionScores)
    assert scores.class_ap50_C == [None, pytest.approx(1.0)] and scores.mask_ap is None
    assert scores.loss == 2.0
    (target,) = as_torchvision([boxes_BM5])
    assert target["labels"].tolist() == [2] and target["boxes"].shape == (1, 4)


def test_mean_average_precision_of_several_labels_by_hand() -> None:
    """Class 0 is ranked right, wrong, right: (1 + 2/3) / 2. No image has class 2."""
    labels = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 0, 0]], dtype=torch.uint8)
    logits = torch.tensor([[3.0, 1, -1], [2, 2, -1], [1, -1, -1]])
    scores = scored("multilabel", logits, [labels], 3)
    assert isinstance(scores, MultilabelScores)
    assert scores.class_average_precision_C == [pytest.approx((1 + 2 / 3) / 2), 1.0, None]
    assert scores.mean_average_precision == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    assert scores.exact == pytest.approx(2 / 3)
    by_hand = [
        math.log1p(math.exp(-logit if label else logit))
        for logit, label in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True)
    ]
    assert scores.loss == pytest.approx(sum(by_hand) / 9, rel=1e-5)


# --- networks and the loop ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Masks, Boxes], ids=["segmentation", "detection"])
def test_a_small_network_learns_on_a_cpu(kind: type[Scenes]) -> None:
    trained = dada.train(kind(40, 0, side=32), "none", device="cpu", epochs=40, seed=1)
    found = getattr(trained.scores, tasks.named(trained.task).decides)
    assert found > (0.75 if kind is Masks else 0.5), trained.scores


@pytest.mark.parametrize(
    "model",
    ["retinanet:small", pytest.param("fasterrcnn:small", marks=pytest.mark.slow), "maskrcnn:small"],
)
def test_torchvisions_detectors_train_on_our_backbones(model: str) -> None:
    data = Scenes if model.startswith("mask") else Boxes
    few = data(4, 0, side=32)
    trained = dada.train(few, "uniform", model, device="cpu", epochs=1, batch_size=2)
    assert math.isfinite(trained.scores.loss)
    assert (trained.scores.mask_ap is not None) == (data is Scenes)


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("resnet50", [256, 512, 1024, 2048]),  # its blocks begin with narrow layers at the old size
        ("torchvision:resnet18", [64, 128, 256, 512]),
        ("torchvision:mobilenet_v3_small", [16, 24, 48, 576]),  # and those with wide ones
        ("small", [16, 32, 48, 96]),
    ],
)
def test_a_backbone_gives_the_ends_of_its_stages(name: str, widths: list[int]) -> None:
    features = Features(dada.models.build(name, 2, 3, (64, 64), seed=0), 3, (64, 64))
    assert features.widths == widths
    with torch.no_grad():
        assert [each.shape[1] for each in features.eval()(torch.zeros(1, 3, 64, 64))] == widths


def test_deeplab_trains_on_our_backbones() -> None:
    trained = dada.train(
        Masks(6, 0), "uniform", "deeplabv3:small", device="cpu", epochs=1, batch_size=2
    )
    assert 0 <= trained.scores.mean_iou <= 1


def test_weights_of_a_classifier_become_a_backbone(tmp_path: Path) -> None:
    """The paper's table 5 in two commands."""
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8)
    classifier = tmp_path / "classifier"
    dada.train(
        (images, torch.arange(20) % 2), model="small", device="cpu", epochs=1, out=classifier
    )
    notes: list[str] = []
    trained = dada.train(
        Boxes(4, 0, side=32),
        "none",
        "fasterrcnn",
        backbone=classifier,
        freeze="backbone",
        device="cpu",
        epochs=1,
        batch_size=2,
        on_note=notes.append,
    )
    from safetensors.torch import load_file

    mine, theirs = (
        trained.model.backbone_net.state_dict(),
        load_file(classifier / "model.safetensors"),
    )
    assert torch.equal(mine["features.0.weight"], theirs["features.0.weight"])
    assert any("backbone" in note for note in notes)
    with pytest.raises(ValueError, match="`backbone`: model 'detector' has none"):
        dada.train(Boxes(6, 0), "none", "detector", backbone=classifier, device="cpu")


def test_a_network_of_ones_own_is_checked_against_the_task() -> None:
    task = tasks.named("segmentation")
    with pytest.raises(ValueError, match=r"\(B, num_classes, H, W\) = \(2, 3, 8, 8\)"):
        check_network(task, nn.Conv2d(3, 4, 1), torch.zeros(2, 3, 8, 8), 3)
    with pytest.raises(ValueError, match="as torchvision's detectors"):
        check_network(tasks.named("detection"), nn.Conv2d(3, 4, 1), torch.zeros(2, 3, 8, 8), 3)


def test_an_average_of_weights_and_several_labels_train() -> None:
    noise = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (60, 3), generator=noise)
    grain = torch.randint(0, 60, (60, 3, 8, 8), generator=noise)  # or copies would stay together
    images = (labels.view(60, 3, 1, 1) * 150 + grain).to(torch.uint8)
    trained = dada.train(
        (images, labels), "none", task="multilabel", device="cpu", epochs=40, ema=0.9, lr=0.05
    )
    assert trained.task == "multilabel" and trained.scores.mean_average_precision > 0.9


def test_a_search_for_several_labels_takes_the_papers_step_too() -> None:
    noise = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (64, 2), generator=noise)
    images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=noise)
    for settings in ({"lookahead": 0}, {"preset": "paper", "views": 2}):
        found = dada.search(
            (images, labels), task="multilabel", device="cpu", epochs=2, batch_size=16, **settings
        )
        assert len(found.history) == 2 and 0 <= found.history[-1]["val_accuracy"] <= 1
        assert found.policy.provenance["task"] == "multilabel"


def test_data_with_masks_of_objects_is_searched() -> None:
    from test_planted_tasks import QUICK

    few = {"Rotate", "Brightness"}
    shut = tuple(op.name for op in PAPER if op.name not in few)
    quick = replace(QUICK, training=ShortTraining(steps=4, least_epochs=1))
    found = dada.search(Scenes(12, 0, side=24), device="cpu", lookahead=quick, exclude=shut)
    assert set(found.policy.provenance["lookahead"]["score"]) == few


def test_many_images_are_searched_with_as_many_as_there_is_time_for() -> None:
    """On a CPU 300 scenes would take longer than looking ahead has: fewer do, and large ones shrunk
    are trained as their task is, not as classes are."""
    few = {"Rotate", "Brightness"}
    shut = tuple(op.name for op in PAPER if op.name not in few)
    for side, seconds, stands_in in ((48, 16.0, False), (96, 10.0, True)):
        settings = replace(LOOKAHEAD["cpu"], seconds=seconds, most_policy_runs=0)
        found = dada.search(
            Masks(300, 0, side=side), device="cpu", lookahead=settings, exclude=shut
        )
        seen = found.policy.provenance["lookahead"]
        assert seen["runs"] == 2 and ("stand_in" in seen) is stands_in
    small = Masks(12, 0, side=32)
    with pytest.raises(ValueError, match=r"0\.1 seconds are too few for that; raise `lookahead`"):
        dada.search(small, device="cpu", lookahead=0.1)
    split = split_off_validation(load(small), 0.5, 0)
    base = dada.config.Base()
    stand_in = StandIn.of(split, base, LOOKAHEAD["cpu"], CPU, seed=0)
    assert stand_in.training.optimizer == "adamw" and stand_in.training.batch_size == 16


def test_a_stand_in_for_scenes_has_one_round_where_there_is_no_time_for_two() -> None:
    split = split_off_validation(load(Boxes(40, 0, side=64)), 0.5, 0)
    network = models.build("detector", split.num_classes, 3, split.image_size, seed=0)
    rounds = []
    for seconds in (15.0, 20.0, 28.0):
        job = search_job(split, network, SearchConfig(), device=CPU)
        job = replace(job, lookahead=replace(LOOKAHEAD_OF_PLACES["cpu"], seconds=seconds))
        try:
            plan = plan_for(job)
        except ValueError as error:
            rounds.append(str(error).partition(" seconds ")[2])
        else:
            assert plan is not None and "stand_in" in plan.facts
            rounds.append((plan.first, plan.second))
    assert rounds == ["are too few for that; raise `lookahead`", (2, 0), (2, 2)]


def test_a_stand_in_for_scenes_asks_how_much_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whether any is: the scenes that judge are dark, so no policy at all is not taken."""
    from test_planted_tasks import darkened

    # What is done to every image was made smaller with it, and stays so in the second round.
    monkeypatch.setattr(BranchedRuns, "with_base", None)
    few = {"Brightness", "Sharpness", "Posterize", "Color", "Cutout", "Invert"}
    # Room for the first round of images of 24 pixels, not of 64, and for the second.
    short = ShortTraining(steps=80, least_epochs=8, largest_batch=16, smallest_batch=8)
    settings = replace(LOOKAHEAD_OF_PLACES["cpu"], seconds=9.0, first_round=0.4, training=short)
    found = dada.search(
        *darkened(Masks, 24, side=64, most=2),
        device="cpu",
        lookahead=replace(settings, stand_in_side=6),
        exclude=tuple(op.name for op in PAPER if op.name not in few),
        base=dada.config.Base(crop=8),
    )
    seen = found.policy.provenance["lookahead"]
    assert seen["stand_in"]["image_size"] == [24, 24] and seen["policy_runs"] == 2
    assert next(iter(seen["policy_loss"])) == "none" and len(seen["policy_loss"]) == 7
    assert seen["policy_loss"][seen["shape"]] < 0.9 * seen["policy_loss"]["none"]


def test_a_search_that_nothing_would_decide_is_refused() -> None:
    for settings in ({"lookahead": 0}, {"preset": "paper"}):
        with pytest.raises(ValueError, match="searched by looking ahead alone"):
            dada.search(Masks(12, 0), device="cpu", **settings)


def test_evaluation_changes_nothing_in_a_detector() -> None:
    split = load(Boxes(2, 0, side=32))
    torch.manual_seed(3)
    network = dada.models.build("fasterrcnn:small", 2, 3, split.image_size, seed=0)
    before = {name: each.clone() for name, each in network.state_dict().items()}
    network.train()
    task = tasks.named("detection")
    state = torch.random.get_rng_state()
    first, second = (
        evaluate(
            network, nn.Identity(), as_floats(split), 2, Precision.of("fp32", CPU), ALONE, task
        )
        for _ in range(2)
    )
    assert first == second and network.training
    assert torch.equal(state, torch.random.get_rng_state())
    for name, each in network.state_dict().items():
        assert torch.equal(each, before[name]), name


def as_floats(split: dada.data.Split):  # type: ignore[no-untyped-def]
    """The training part with floats for images, for a network that is asked directly."""

    class Floats:
        image_size = split.image_size
        targets = split.train.targets

        def __len__(self) -> int:
            return len(split.train)

        def batch(self, index: Tensor) -> tuple[Tensor, ...]:
            images, *rest = split.train.batch(index)
            return images.float() / 255, *rest

    return Floats()


# --- run directories ----------------------------------------------------------------------------


def killed_and_resumed(
    folder: Path, line: list[str], begun: str, lines: int, compared: tuple[str, ...]
) -> None:
    """Once whole; once killed as soon as a file of the run has so many lines, and resumed."""
    line = [sys.executable, "-m", "dada", *line, "--device", "cpu"]
    said = {"cwd": folder, "capture_output": True, "text": True}
    whole = subprocess.run([*line, "--out", "whole"], **said)  # type: ignore[call-overload]
    assert whole.returncode == 0, whole.stderr
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed = subprocess.Popen([*line, "--out", "killed"], cwd=folder, **silent)
    seen, ends = folder / "killed" / begun, time.monotonic() + 120
    while time.monotonic() < ends and not (
        seen.exists() and len(seen.read_text().splitlines()) >= lines
    ):
        time.sleep(0.02)
    assert killed.poll() is None, "it ended before it was killed"
    killed.kill()
    killed.wait()
    assert not (folder / "killed" / compared[0]).exists()
    again = subprocess.run([*line, "--out", "killed", "--resume"], **said)  # type: ignore[call-overload]
    assert again.returncode == 0, again.stderr
    for name in compared:
        one, other = ((folder / run / name).read_bytes() for run in ("whole", "killed"))
        assert one == other, name


@pytest.mark.parametrize(
    "write",
    [write_masks, pytest.param(write_objects, marks=pytest.mark.slow)],
    ids=["masks", "objects"],
)
def test_a_training_killed_and_resumed_gives_the_same_bytes(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path / "data", Scenes(24, 0))
    line = ["train", "data", "--policy", "uniform", "--epochs", "12", "--batch-size", "8"]
    line += ["--flip", "--crop", "3"]
    killed_and_resumed(tmp_path, line, "log.jsonl", 3, ("model.safetensors", "scores.json"))


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_masks, write_objects], ids=["masks", "objects"])
def test_a_search_killed_and_resumed_gives_the_same_bytes(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Killed after the first run with arms: that one is not made again."""
    write(tmp_path / "data", Scenes(24, 0))
    few = {"Rotate", "Brightness", "Cutout"}
    line = ["search", "data", "--lookahead", "30", "--exclude"]
    line.append(",".join(op.name for op in PAPER if op.name not in few))
    killed_and_resumed(tmp_path, line, "lookahead.json", 2, ("policy.json", "lookahead.json"))


def test_a_finished_run_is_read_back(tmp_path: Path) -> None:
    for kind, name in ((Masks, "m"), (Boxes, "b"), (Scenes, "o")):
        asked = {"device": "cpu", "epochs": 1, "batch_size": 4, "out": tmp_path / name}
        first = dada.train(kind(10, 0), "none", **asked)
        second = dada.train(kind(10, 0), "none", **asked, resume=True)
        assert first.scores == second.scores and first.task == second.task
        (tmp_path / name / "scores.json").write_text('{"loss": 1}')
        with pytest.raises(ValueError, match=r"scores.json is damaged"):
            dada.train(kind(10, 0), "none", **asked, resume=True)


def test_policies_are_compared_by_the_tasks_score(tmp_path: Path) -> None:
    found = dada.compare(
        Masks(16, 0), ["uniform", "none"], seeds=2, device="cpu", epochs=2, out=tmp_path / "run"
    )
    assert (found.metric, found.task) == ("mean_iou", "segmentation")
    assert len(found.differences) == 1 and found.differences[0].interval is not None
    again = dada.Comparison.load(tmp_path / "run")
    assert again.task == "segmentation" and again["none"].mean == pytest.approx(
        found["none"].mean, abs=1e-3
    )
    kept = json.loads(next((tmp_path / "run" / "trainings").glob("*none*seed1*")).read_text())
    assert found["none"].scores[1] == pytest.approx(100 * kept["mean_iou"])
    with pytest.raises(ValueError, match="`metric` of segmentation should be one of mean_iou"):
        dada.compare(Masks(16, 0), ["uniform", "none"], metric="accuracy", device="cpu")


def test_data_for_one_task_is_refused_for_another(tmp_path: Path) -> None:
    write_coco(tmp_path / "boxes", Scenes(4, 0))
    with pytest.raises(ValueError, match="boxes only; segmentation needs masks"):
        load(tmp_path / "boxes", task="segmentation")
    with pytest.raises(ValueError, match="`task` should be one of classification"):
        dada.train(Masks(4, 0), task="segmentatoin")
    with pytest.raises(ValueError, match="data for classification, not for detection"):
        load("digits", task="detection")


def test_dividing_leaves_every_class_on_both_sides() -> None:
    split = split_off_validation(load(Boxes(40, 0)), 0.5, 0)
    assert split.val is not None and len(split.train) == len(split.val) == 20
    for part in (split.train, split.val):
        classes = part.targets[0][..., 4]
        assert set(np.unique(classes.numpy())) >= {0.0, 1.0}


def test_a_strangers_backbone_is_as_much_code_as_a_strangers_network() -> None:
    assert dada.models.is_factory("fasterrcnn:their_module:factory")
    assert dada.models.is_factory("their_module:factory")
    assert not dada.models.is_factory("fasterrcnn:timm:resnet18")
    assert not dada.models.is_factory("deeplabv3:small")


def test_crops_that_would_leave_boxes_behind_are_refused(tmp_path: Path) -> None:
    write_coco(tmp_path / "data", Scenes(6, 0))
    base = dada.config.Base(resized_crop=True)
    with pytest.raises(ValueError, match="without boxes and masks"):
        dada.train(tmp_path / "data", "none", base=base, device="cpu", epochs=1)


# --- on a card ----------------------------------------------------------------------------------

ON_A_CARD = {  # data and network of each task
    "multilabel": (None, "small"),
    "segmentation": (Masks, "unet"),
    "deeplab": (Masks, "deeplabv3:small"),
    "detection": (Boxes, "detector"),
    "objects": (Scenes, "detector"),
}


def made(name: str, count: int = 48) -> object:
    kind = ON_A_CARD[name][0]
    if kind is not None:
        return kind(count, 0, side=32)
    noise = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (count, 3), generator=noise)
    images = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=noise)
    return images, labels


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_CARD)
def test_a_recorded_step_of_a_task_is_the_step(name: str) -> None:
    """In exact products, and with one draw of a policy for every image."""
    data, model = made(name), ON_A_CARD[name][1]
    recorded, eager = (losses(data, task_of(name), model, graph=graph) for graph in (True, False))
    assert recorded == pytest.approx(eager, rel=0.02)
    assert recorded[:1] == pytest.approx(eager[:1], rel=1e-3)


def losses(
    data: object, task: str, model: str, *, graph: bool, records: bool = True
) -> list[float]:
    """Of eight epochs of three steps."""
    split = split_off_validation(load(data, task=task), 0.5, 0)
    shape = split.num_classes, split.channels, split.image_size
    network = dada.models.build(model, *shape, seed=0)
    assert tasks.named(split.task).records(network) is records
    config = TrainConfig(
        epochs=8,
        batch_size=8,
        optimizer="adamw",
        lr=1e-3,
        warmup_factor=1.0,
        precision="fp32",
        base=NAMED_BASES["turn-mild"],
    )
    job = Job(
        split=split,
        model=network,
        policy=dada.Policy.load("uniform"),
        config=config,
        seed=0,
        device=torch.device("cuda"),
        graph=graph,
    )
    return [entry["loss"] for entry in run_job(job).history]


@pytest.mark.gpu
def test_images_of_a_network_that_cannot_be_recorded_are_recorded() -> None:
    """The second epoch has the first replay; torchvision's sums differ from run to run."""
    data, model = Boxes(48, 0, side=64), "fasterrcnn:small"
    recorded, eager = (
        losses(data, "detection", model, graph=graph, records=False) for graph in (True, False)
    )
    assert recorded[:2] == pytest.approx(eager[:2], rel=1e-2)


def task_of(name: str) -> str:
    return {"deeplab": "segmentation", "objects": "detection"}.get(name, name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["multilabel", "segmentation", "detection"])
def test_a_search_and_a_training_of_a_task_on_a_card(name: str) -> None:
    from test_planted_tasks import QUICK

    data = made(name)
    found = dada.search(data, task=task_of(name), device="cuda", lookahead=QUICK, verify=False)
    assert found.policy.provenance["task"] == task_of(name)
    trained = dada.train(data, found.policy, task=task_of(name), device="cuda", epochs=2)
    assert math.isfinite(trained.scores.loss) and trained.scores.images > 0


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["retinanet:small", "fasterrcnn:small", "maskrcnn:small"])
def test_torchvisions_detectors_learn_on_a_card(model: str) -> None:
    data = (Scenes if model.startswith("mask") else Boxes)(24, 0, side=64)
    trained = dada.train(data, "uniform", model, device="cuda", epochs=12, batch_size=4, lr=1e-3)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"], trained.history
    assert (trained.scores.mask_ap is not None) == model.startswith("mask")
