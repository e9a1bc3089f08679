"""Exported files, run in the real libraries: every operation against Pillow, and whole policies.

A library that is not installed is skipped; how near each came is in docs/export.md.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image

from dada import ops
from dada.exchange.exports import TARGETS, export, export_file
from dada.exchange.exports.kernels import KERNELS
from dada.exchange.exports.physical_policy import (
    in_physical_units,
    known_name,
    shares_of_bits,
    spread,
)
from dada.exchange.exports.ultralytics import decided_at_once
from dada.ops import PAPER, WIDE, Op
from dada.ops.pillow import CALLS
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.policy.space import SPACES, SearchSpace

ROOT = Path(__file__).parents[1]
NEEDS = {"dali": "nvidia.dali", "mmpretrain": "mmpretrain"}
EXACT = ("torchvision", "timm", "kornia")


def _parity() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "export_parity", ROOT / "benchmarks" / "studies" / "export_parity.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parity = _parity()


def need(target: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library itself, while it is imported
        pytest.importorskip(NEEDS.get(target, target), exc_type=ImportError)


def runner(target: str, text: str) -> Any:
    need(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parity.RUNNERS[target](text)


def mixed() -> Policy:
    """Weights, certain and impossible steps, three operations, none, and a step of no strength."""
    return Policy(
        (
            SubPolicy(0.5, (PolicyOp("Invert", 0.3), PolicyOp("Solarize", 1.0, 0.3))),
            SubPolicy(0.3, (PolicyOp("Brightness", 0.6, 0.5), PolicyOp("Invert", 0.0))),
            SubPolicy(0.2, ()),
            SubPolicy(0.0, (PolicyOp("Posterize", 1.0, 1.0),) * 3),
        ),
        "strength",
        "weighted",
        {"name": "mixed"},
    )


def picture(side: int = 16) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (side, side, 3), dtype=np.uint8)


# --- every operation against Pillow -------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_is_as_near_to_pillow_as_documented(target):
    need(target)
    documented = json.loads(parity.RESULTS.read_text())["targets"][target]["rows"]
    images = parity.pictures()["square"][::2]
    for op, values in parity.values_of().items():
        if documented[op]["square"] == "refused":
            with pytest.raises(ValueError, match=f"{op} cannot be exported to {target}"):
                TARGETS[target](parity.single(op, values[0]))
            continue
        some = values[::3] + values[-1:] if target in EXACT else values[1::4]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worst = parity._worst(target, op, some, images)
        limit = documented[op]["square"]
        if target in EXACT:
            assert limit["max"] == 0, op
        if op == "Cutout" and limit["max"]:  # its place is random, so only how much it differs
            assert worst["pixels"] <= 2 * limit["pixels"], (op, worst)
        else:
            assert all(worst[kind] <= limit[kind] for kind in ("max", "mean", "pixels")), (
                op,
                worst,
            )


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_torchvision_and_timm_do_pil_images_byte_for_byte(op, mode):
    image = Image.fromarray(picture(23)).convert(mode).resize((23, 17))
    # Cutout's centre is read off the changed pixels, which misleads where an edge has its colour.
    torch.manual_seed(0)
    random.seed(0)
    for target in ("torchvision", "timm"):
        need(target)
        for value in parity.values_of()[op][1::4]:
            text = TARGETS[target](parity.single(op, value))
            module = parity.load_module(text, f"exported_{target}")
            got = np.asarray(module.DadaPolicy()(image)).reshape(17, 23, -1)
            plain = np.asarray(image).reshape(17, 23, -1)
            y, x = np.nonzero((got != plain).any(-1)) if op == "Cutout" else ((), ())
            half = value * 23 / 2 + 0.25
            center = (x.min() + half, y.min() + half) if len(x) else (half, half)
            assert (got == np.asarray(CALLS[op](image, value, center)).reshape(17, 23, -1)).all()


def test_grey_and_float_tensors_are_exact_too():
    image = torch.from_numpy(picture(20)).permute(2, 0, 1)
    for op in ("Rotate", "Equalize", "Sharpness", "Color"):
        value = parity.values_of()[op][-1]
        text = TARGETS["torchvision"](parity.single(op, value))
        transform = parity.load_module(text, "exported_torchvision").DadaPolicy()
        for pixels in (image, image[:1]):
            array = pixels.permute(1, 2, 0).numpy()
            pil = Image.fromarray(array[..., 0] if len(pixels) == 1 else array)
            wanted = np.asarray(CALLS[op](pil, value, (0, 0))).reshape(20, 20, -1)
            assert (transform(pixels).permute(1, 2, 0).numpy() == wanted).all()
            levels = transform(pixels.float() / 255) * 255
            assert (levels.round().permute(1, 2, 0).numpy() == wanted).all()


# --- whole policies -----------------------------------------------------------------------------


def outcomes(policy: Policy, image: np.ndarray) -> dict[bytes, float]:
    """Every picture the policy can make of this one, by Pillow, and how likely it is."""
    physical = in_physical_units(policy, "this test")
    likely: dict[bytes, float] = {}
    for weight, steps in zip(physical.weights, physical.subpolicies, strict=True):
        branches = [(weight, image)]
        for step in steps:
            after = []
            for share, before in branches:
                after.append((share * (1 - step.probability), before))
                for value, end in step.ranges:
                    assert value == end
                    done = np.asarray(CALLS[step.op](Image.fromarray(before), value, (0, 0)))
                    after.append((share * step.probability / len(step.ranges), done))
            branches = after
        for share, done in branches:
            likely[done.tobytes()] = likely.get(done.tobytes(), 0.0) + share
    return {pixels: share for pixels, share in likely.items() if share > 0}


@pytest.mark.parametrize("target", TARGETS)
def test_sub_policies_and_operations_are_done_as_often_as_they_should(target):
    count = 1500
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # MMCV draws from it
    run = runner(target, export(mixed(), target))
    image = picture(8)
    expected = outcomes(mixed(), image)
    assert len(expected) >= 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = Counter(done.tobytes() for done in run([image] * count))
    assert set(seen) <= set(expected)
    for pixels, share in expected.items():
        deviation = math.sqrt(count * share * (1 - share))
        assert abs(seen[pixels] - count * share) < 4.5 * deviation, (target, share)


@pytest.mark.parametrize("target", TARGETS)
def test_the_empty_policy_and_empty_sub_policies_change_nothing(target):
    image = picture(8)
    for policy in (Policy(()), Policy.from_rows([[]]), Policy.from_rows([[("Invert", 0.0, 0.5)]])):
        run = runner(target, export(policy, target))
        assert all((done == image).all() for done in run([image] * 20))


@pytest.mark.parametrize("target", TARGETS)
def test_a_range_is_drawn_uniformly_in_both_directions(target):
    """Brightness of strength 0.4..0.8 on a grey image shows its value: 1 +- 0.36..0.72."""
    policy = Policy.from_rows([[("Brightness", 1.0, (0.4, 0.8))]], "strength")
    run = runner(target, export(policy, target))
    image = np.full((4, 4, 3), 100, dtype=np.uint8)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        levels = np.array([done[0, 0, 0] for done in run([image] * 600)], dtype=float)
    far = np.abs(levels - 100)
    assert 34 <= far.min() <= 40 and 68 <= far.max() <= 73
    assert abs(far.mean() - 54) < 2.5
    assert 0.4 < (levels > 100).mean() < 0.6


@pytest.mark.parametrize("name", ["dada-cifar10", "uniform", "trivialaugment", "randaugment:2,0.5"])
@pytest.mark.parametrize("target", TARGETS)
def test_shipped_policies_run(target, name):
    policy = Policy.load(name)
    if (target, name) == ("mmpretrain", "trivialaugment"):
        with pytest.raises(ValueError, match="TranslateXPixels cannot be exported to mmpretrain"):
            export(policy, target)
        return
    run = runner(target, export(policy, target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = run([picture(16)] * 20)
    assert all(one.shape == (16, 16, 3) and one.dtype == np.uint8 for one in done)
    assert len({one.tobytes() for one in done}) > 5


# --- what moves along ---------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in CALLS if op.startswith(("Shear", "Trans", "Rotate"))])
def test_masks_and_key_points_follow_the_pixels(op):
    from torchvision import tv_tensors

    value = 6.0 if op.endswith("Pixels") else parity.values_of()[op][3]
    image = torch.zeros(1, 21, 25, dtype=torch.uint8)
    image[0, 9:12, 11:14] = 200
    text = TARGETS["torchvision"](parity.single(op, value))
    transform = parity.load_module(text, "exported_torchvision").DadaPolicy()
    sample = (
        tv_tensors.Image(image),
        tv_tensors.Mask(image.clone()),
        tv_tensors.KeyPoints(torch.tensor([[12.5, 10.5]]), canvas_size=(21, 25)),
        tv_tensors.BoundingBoxes(
            torch.tensor([[11.0, 9.0, 14.0, 12.0]]), format="XYXY", canvas_size=(21, 25)
        ),
    )
    moved, mask, points, boxes = (one.as_subclass(torch.Tensor) for one in transform(*sample))
    assert torch.equal(moved, mask)
    places = moved[0].nonzero().float()
    assert len(places), "choose a value that keeps the square in view"
    center = places.mean(0).flip(0) + 0.5
    if len(places) == 9:  # all of the square is still in view
        assert (points[0] - center).abs().max() <= 1
    corners = torch.cat([places.amin(0).flip(0), places.amax(0).flip(0) + 1])
    assert (boxes[0] - corners).abs().max() <= 2

    need("kornia")
    import kornia.augmentation as K

    text = TARGETS["kornia"](parity.single(op, value))
    augment = parity.load_module(text, "exported_kornia").DadaPolicy()
    both = K.AugmentationSequential(augment, data_keys=["input", "mask", "keypoints"])
    batch = image[None].float() / 255
    done, mask, points = both(batch, batch.clone(), torch.tensor([[[12.0, 10.0]]]))
    assert torch.equal((done * 255).round().byte()[0], moved)
    assert torch.equal(done, mask)
    if len(places) == 9:
        assert (points[0, 0] + 0.5 - center).abs().max() <= 1


def test_torchvision_draws_for_every_image_of_a_batch_and_leaves_labels():
    policy = Policy.from_rows([[("Invert", 0.5, 0.5)]])
    transform = parity.load_module(export(policy, "torchvision"), "exported_torchvision")
    batch = torch.full((64, 3, 4, 4), 10, dtype=torch.uint8)
    labels = torch.arange(64)
    torch.manual_seed(0)
    done, same = transform.DadaPolicy()(batch, labels)
    levels = done[:, 0, 0, 0]
    assert set(levels.tolist()) == {10, 245} and torch.equal(labels, same)
    assert all((one == one.flatten()[0]).all() for one in done)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        transform.DadaPolicy()(torch.full((3, 4, 4), 2.0))
    with pytest.raises(ValueError, match="convert"):
        transform.DadaPolicy()(Image.new("RGBA", (4, 4)))


# --- the file -----------------------------------------------------------------------------------


def test_python_files_run_without_this_package(tmp_path):
    """In another process, where importing dada fails."""
    names = []
    for target in EXACT:
        need(target)
        path = export_file(mixed(), target, tmp_path / f"my_{target}.py")
        names.append(path.stem)
        text = path.read_text()
        modules = {
            name
            for node in ast.walk(ast.parse(text))
            for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [])
            + ([str(node.module)] if isinstance(node, ast.ImportFrom) else [])
        }
        assert not any(name.split(".")[0] == "dada" for name in modules)
    program = (
        "import sys; sys.modules['dada'] = None\n"
        f"for name in {names}: print(__import__(name).DadaPolicy())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("DadaPolicy") == len(names)


NASTY = 'x"\'\n"""\nimport os; os._exit(7)  # \\ \r\u2028 \x00 é {0} %s'


@pytest.mark.parametrize("target", TARGETS)
def test_a_name_cannot_break_or_enter_the_file(target):
    policy = Policy(mixed().subpolicies, "strength", "weighted", {"name": NASTY, NASTY: NASTY})
    text, plain = export(policy, target), export(mixed(), target)
    assert text.isascii()
    if target == "albumentations":
        assert json.loads(text)["transform"] == json.loads(plain)["transform"]
        return
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(plain))
    lines = list(zip(text.splitlines(), plain.splitlines(), strict=True))
    assert [i for i, (one, other) in enumerate(lines) if one != other] == [2]  # the title


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_policy_gives_the_same_bytes_and_no_path(target):
    text = Policy.load("dada-cifar10").export(target)
    assert text == Policy.load("dada-cifar10").export(target)
    assert str(ROOT) not in text and "/home" not in text
    assert text.endswith("\n")


@pytest.mark.parametrize("target", TARGETS)
def test_an_operation_of_the_users_own_is_refused(target, monkeypatch):
    mine = Op(name="Mine", kernel=ops.BY_NAME["Invert"].kernel)
    monkeypatch.setitem(SPACES, "with mine", SearchSpace("with mine", (*PAPER, mine), True))
    with pytest.raises(ValueError, match=f"op 'Mine' .* cannot be exported to {target}"):
        export(Policy.from_rows([[("Mine", 1.0, 0.5)]], "with mine"), target)


def test_a_range_of_the_users_own_is_exported(monkeypatch):
    rotate = Op(
        **{**ops.BY_NAME["Rotate"].__dict__, "low": -90.0, "high": 90.0}  # the same operation
    )
    monkeypatch.setitem(SPACES, "turned", SearchSpace("turned", (rotate,), True, 1))
    physical = in_physical_units(Policy.from_rows([[("Rotate", 1.0, 1.0)]], "turned"), "timm")
    assert physical.subpolicies[0][0].ranges == ((90.0, 90.0), (-90.0, -90.0))


def test_mistakes_with_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert export_file(mixed(), "albumentations") == Path("policy_albumentations.json")
    with pytest.raises(ValueError, match=r"choose another `out` or pass `force=True`"):
        export_file(mixed(), "albumentations")
    export_file(mixed(), "albumentations", force=True)
    with pytest.raises(ValueError, match=r"should be named \.py"):
        export_file(mixed(), "timm", "policy.json")
    with pytest.raises(ValueError, match="no export to 'keras'; the targets are torchvision"):
        export_file(mixed(), "keras")
    assert [path.name for path in tmp_path.iterdir()] == ["policy_albumentations.json"]


# --- in physical units --------------------------------------------------------------------------


def test_physical_units_are_those_of_the_space():
    rows = [[("Color", 0.5, 0.5), ("Rotate", 1.0, (0.0, 1.0)), ("Cutout", 1.0, 0.0)]]
    (steps,) = in_physical_units(Policy.from_rows(rows, "strength"), "timm").subpolicies
    assert [step.op for step in steps] == ["Color", "Rotate"]  # Cutout of strength 0 is nothing
    assert [start for start, _ in steps[0].ranges] == pytest.approx([1.45, 0.55])
    assert steps[1].ranges == ((0.0, 30.0), (0.0, -30.0))
    (steps,) = in_physical_units(Policy.from_rows(rows, "paper"), "timm").subpolicies
    assert [step.op for step in steps] == ["Color", "Rotate", "Cutout"]
    assert steps[0].ranges[0] == pytest.approx((1.0, 1.0)) and steps[0].does_nothing
    assert steps[1].ranges == ((-30.0, 30.0),)
    assert steps[2].ranges == ((0.0, 0.0),) and not steps[2].does_nothing


def test_the_kernels_of_the_files_are_those_of_the_table():
    assert set(KERNELS) == set(CALLS)
    for row in (*PAPER, *WIDE):
        name = known_name(row)
        assert name is not None and KERNELS[name] == row.kernel


def test_pieces_of_a_range():
    assert spread(1.0, 1.0, 5) == [1.0]
    assert spread(0.0, 1.0, 2) == [0.25, 0.75]
    assert shares_of_bits(5.9, 5.9) == {5: 1.0}
    assert shares_of_bits(4.0, 8.0) == {4: 0.25, 5: 0.25, 6: 0.25, 7: 0.25}
    assert shares_of_bits(6.5, 5.5) == pytest.approx({5: 0.5, 6: 0.5})


def test_weights_of_mmpretrain_sum_to_exactly_one():
    from dada.exchange.exports.mmpretrain import dyadic

    for weights in ((0.1,) * 10, (1 / 3,) * 3, (0.7, 0.0, 0.3), tuple([1 / 493] * 493)):
        shares = dyadic(weights)
        assert sum(shares) == 1 and math.fsum(shares) == 1
        assert max(abs(a - b) for a, b in zip(shares, weights, strict=True)) < 1e-6


def test_the_parity_tables_are_the_measured_ones():
    """Else run python benchmarks/studies/export_parity.py."""
    _, rest = parity.DOCS.read_text().split(parity.START)
    assert rest.split(parity.END)[0] == parity.tables()


def test_the_front_page_of_exchange_loads_no_other_library():
    code = f"""
import sys
import dada.exchange as exchange
assert all(callable(getattr(exchange, name)) for name in exchange.__all__)
print([name for name in {(*TARGETS, "nvidia.dali")!r} if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0 and done.stdout == "[]\n", done


def test_dali_has_a_function_for_every_operation(monkeypatch):
    """Where DALI itself is not installed: its modules are stood in for."""
    for module in ("nvidia", "nvidia.dali"):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    written: dict[str, object] = {}
    exec(export(Policy.load("dada-cifar10"), "dali"), written)
    assert set(written["OPERATIONS"]) == set(CALLS)


def test_boxes_go_with_the_pixels_through_albumentations() -> None:
    """As docs/export.md tells users of detectors to put it together."""
    A = pytest.importorskip("albumentations")
    rows = [
        [("Rotate", 1.0, (0.0, 1.0)), ("TranslateX", 0.5, (0.3, 0.7))],
        [("ShearY", 1.0, (0.0, 1.0)), ("Brightness", 1.0, 0.7)],
    ]
    text = Policy.from_rows(rows, "paper", name="moves").export("albumentations")
    chosen = A.from_dict(json.loads(text))
    params = A.BboxParams(format="pascal_voc", label_fields=["labels"], min_visibility=0.25)
    detect = A.Compose([*chosen.transforms, A.Affine(p=0.0)], bbox_params=params, seed=0)
    image = np.zeros((64, 64, 3), np.uint8)
    image[20:40, 24:44] = 200
    for _ in range(60):
        done = detect(image=image, bboxes=[[24, 20, 44, 40]], labels=[1])
        y, x = np.nonzero(done["image"][..., 0] > 100)
        around = [x.min(), y.min(), x.max() + 1, y.max() + 1]
        assert np.abs(np.array(done["bboxes"][0]) - around).max() <= 1


def moving() -> Policy:
    rows = [
        [("Rotate", 1.0, (0.0, 1.0)), ("TranslateX", 0.5, (0.3, 0.7))],
        [("ShearY", 1.0, (0.0, 1.0)), ("Brightness", 1.0, 0.7)],
    ]
    return Policy.from_rows(rows, "paper", name="moves")


def test_files_for_trainers_hold_albumentations_transforms() -> None:
    """Without the trainers themselves: the same tree as the export to Albumentations."""
    A = pytest.importorskip("albumentations")
    for policy in (moving(), mixed(), Policy.load("none")):
        (plain,) = json.loads(export(policy, "albumentations"))["transform"]["transforms"]
        module = parity.load_module(export(policy, "ultralytics"), "exported_ultralytics")
        chosen, last = module.augmentations
        assert A.to_dict(chosen) == A.to_dict(A.from_dict(module.POLICY))
        assert isinstance(last, A.Affine) and last.p == 0
        config = parity.load_module(export(policy, "rfdetr"), "exported_rfdetr").aug_config
        assert config == ({} if not policy.subpolicies else named(plain))


def test_whether_steps_fire_is_part_of_ultralytics_choice() -> None:
    """It gives all transforms one seed: had each a draw of its own, all would fire, or none."""
    A = pytest.importorskip("albumentations")
    physical = in_physical_units(mixed(), "ultralytics")
    decided = decided_at_once(physical)
    shares = {
        tuple(step.op for step in steps): weight
        for weight, steps in zip(decided.weights, decided.subpolicies, strict=True)
    }
    assert shares == {
        ("Invert", "Solarize"): pytest.approx(0.5 * 0.3),
        ("Solarize",): pytest.approx(0.5 * 0.7),
        ("Brightness",): pytest.approx(0.3 * 0.6),
        (): pytest.approx(0.3 * 0.4 + 0.2),
    }
    half = Policy.from_rows([[("Invert", 0.5)], [("Solarize", 0.5, 0.0)]], "paper")
    module = parity.load_module(export(half, "ultralytics"), "exported_ultralytics")
    compose = A.Compose(module.augmentations)
    image, changed = picture(), []
    for seed in range(8):
        compose.set_random_seed(seed)
        done = [compose(image=image)["image"] for _ in range(25)]
        changed += [not np.array_equal(one, image) for one in done]
    assert 0.4 < np.mean(changed) < 0.6


def named(node: dict[str, Any]) -> dict[str, Any]:
    rest = {name: given for name, given in node.items() if name != "__class_fullname__"}
    if "transforms" in rest:
        rest["transforms"] = [named(each) for each in rest["transforms"]]
    return {node["__class_fullname__"]: rest}


def scene_and_error() -> tuple[np.ndarray, Callable[[np.ndarray, Any], float]]:
    """A bright square, and by how many pixels a box misses it."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[20:40, 24:44] = 200

    def error(done: np.ndarray, box: Any) -> float:
        y, x = np.nonzero(done[..., 0] > 60)
        around = [x.min(), y.min(), x.max() + 1, y.max() + 1]
        return float(np.abs(np.asarray(box) - around).max())

    return image, error


def test_boxes_go_with_the_pixels_through_ultralytics() -> None:
    need("ultralytics")
    from ultralytics.data.augment import Albumentations
    from ultralytics.utils.instance import Instances

    image, error = scene_and_error()
    module = parity.load_module(export(moving(), "ultralytics"), "exported_ultralytics")
    transform = Albumentations(transforms=module.augmentations)
    for _ in range(60):
        boxes = np.array([[34, 30, 20, 20]], np.float32) / 64
        told = Instances(boxes, np.zeros((0, 1000, 2), np.float32), normalized=True)
        done = transform({"img": image.copy(), "cls": np.array([[1]]), "instances": told})
        done["instances"].convert_bbox("xyxy")
        done["instances"].denormalize(64, 64)
        assert error(done["img"], done["instances"].bboxes[0]) <= 1


def test_boxes_go_with_the_pixels_through_rfdetr() -> None:
    need("rfdetr")
    from rfdetr.datasets.transforms import AlbumentationsWrapper

    image, error = scene_and_error()
    module = parity.load_module(export(moving(), "rfdetr"), "exported_rfdetr")
    (step,) = AlbumentationsWrapper.from_config(module.aug_config, strict=True)
    for _ in range(60):
        target = {"boxes": torch.tensor([[24.0, 20, 44, 40]]), "labels": torch.tensor([1])}
        done, target = step(Image.fromarray(image), target)
        assert error(np.asarray(done), target["boxes"][0].numpy()) <= 1
