"""The scripts of examples/integrations run, learn, and augment every training image, no other."""

from __future__ import annotations

import importlib.util
import runpy
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.modules.module import register_module_forward_pre_hook

import dada
from dada.policy.transform import PolicyTransform

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "integrations").glob("*.py"))
NEEDS = {
    "lightning_trainer": ("lightning",),
    "fastai_learner": ("fastai",),
    "huggingface_trainer": ("transformers", "accelerate"),
    "timm_loader": ("timm",),
}
CHANCE = 0.1  # ten digits


def need(*packages: str) -> None:
    """Skip where one is missing; what they warn of while they are imported is their own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in packages:
            pytest.importorskip(package)


def script(name: str) -> ModuleType:
    (path,) = [file for file in SCRIPTS if file.stem == name]
    spec = importlib.util.spec_from_file_location(f"integration_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def augmented() -> Iterator[list[int]]:
    """How many images each call of a policy in this process was given."""
    counts: list[int] = []

    def count(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, PolicyTransform) and module.policy.subpolicies:
            image = inputs[0]
            batch = isinstance(image, torch.Tensor) and image.ndim == 4
            counts.append(len(image) if batch else 1)

    handle = register_module_forward_pre_hook(count)
    yield counts
    handle.remove()


def accuracy_of(name: str, *options: str) -> float:
    with warnings.catch_warnings():
        if name in NEEDS:  # a library's own: deprecated calls, no GPU, few workers
            warnings.simplefilter("ignore")
        return script(name).main(["--quick", *options])


def test_every_script_is_tested_and_short() -> None:
    names = {file.stem for file in SCRIPTS}
    assert names == {"plain_pytorch", "dataloader_cpu", "gpu_batch", *NEEDS}
    for file in SCRIPTS:
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 100 and f"python examples/integrations/{file.name}" in "\n".join(lines)


@pytest.mark.parametrize("name", ["plain_pytorch", "gpu_batch"])
def test_batches(name: str, augmented: list[int]) -> None:
    assert accuracy_of(name) > 5 * CHANCE
    assert set(augmented) <= {64, 1297 % 64}
    assert 4 * 1280 <= sum(augmented) <= 4 * 1297


def test_images_in_a_loader(augmented: list[int]) -> None:
    assert accuracy_of("dataloader_cpu", "--workers", "0") > 5 * CHANCE
    assert augmented == [1] * (5 * 1297)  # and none of the test images


@pytest.mark.parametrize("way", [[], ["--callback"]], ids=["module", "callback"])
def test_lightning(way: list[str], augmented: list[int]) -> None:
    need("lightning")
    assert accuracy_of("lightning_trainer", *way) > 5 * CHANCE
    assert sum(augmented) == 4 * 1297


def test_fastai(augmented: list[int]) -> None:
    need("fastai")
    assert accuracy_of("fastai_learner") > 5 * CHANCE
    assert augmented == [1] * (6 * 640)  # the loader leaves out no batch that is full


def test_hugging_face(augmented: list[int]) -> None:
    need("transformers", "accelerate")
    assert accuracy_of("huggingface_trainer") > 3 * CHANCE
    assert sum(augmented) == 8 * 1297


COUNTING = """

_call = DadaPolicy.__call__


def counting(self, image):
    with open({path!r}, "ab") as file:
        file.write(b".")
    return _call(self, image)


DadaPolicy.__call__ = counting
"""


def test_timm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    need("timm")
    exported, calls = tmp_path / "exported.py", tmp_path / "calls"
    text = dada.Policy.load("dada-cifar10").export("timm")
    exported.write_text(text + COUNTING.format(path=str(calls)), encoding="utf-8")
    assert accuracy_of("timm_loader", "--policy-file", str(exported)) > 2 * CHANCE
    assert "DadaPolicy(25 sub-policies)" in capsys.readouterr().out
    assert calls.stat().st_size == 3 * 640


def test_a_policy_that_destroys_the_images_is_noticed(tmp_path: Path) -> None:
    """A script that ignored --policy would still learn."""
    nothing_left = [("Brightness", 1.0, 0.0), ("Posterize", 1.0, 0.0), ("Solarize", 1.0, 0.0)]
    dada.Policy.from_rows([nothing_left]).save(tmp_path / "policy.json")
    assert accuracy_of("plain_pytorch", "--policy", str(tmp_path / "policy.json")) < 5 * CHANCE


def page_block(start: str) -> str:
    page = (ROOT / "docs" / "timm.md").read_text(encoding="utf-8")
    (block,) = [b for b in page.split("```python\n")[1:] if b.startswith(start)]
    return block.split("```")[0]


def test_the_wrapper_around_timms_training_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that makes its loaders as timm's train.py does, in place of it."""
    need("timm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        import_module("timm.data"), "create_loader", import_module("timm.data.loader").create_loader
    )
    (tmp_path / "photos" / "train" / "cat").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 40, 40, 3), dtype=np.uint8)
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / "photos" / "train" / "cat" / f"{i}.png")
    (tmp_path / "timm_policy.py").write_text(dada.Policy.load("dada-cifar10").export("timm"))
    (tmp_path / "train.py").write_text(
        "from timm.data import create_dataset, create_loader\n"
        "made = {}\n"
        "if __name__ == '__main__':\n"
        "    for training in (True, False):\n"
        "        made[training] = create_loader(\n"
        "            create_dataset('', root='photos/train'), (3, 32, 32), batch_size=4,\n"
        "            is_training=training, num_workers=0, persistent_workers=False,\n"
        "            use_prefetcher=False)\n"
        "        assert next(iter(made[training]))[0].shape == (4, 3, 32, 32)\n"
        "    steps = {k: [type(t).__name__ for t in v.dataset.transform.transforms]\n"
        "             for k, v in made.items()}\n"
        "    assert steps[True].index('DadaPolicy') == 2, steps\n"
        "    assert 'DadaPolicy' not in steps[False], steps\n"
        "    open('was-run', 'w').close()\n"
    )
    (tmp_path / "train_with_policy.py").write_text(page_block("# train_with_policy.py"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(tmp_path / "train_with_policy.py"), run_name="__main__")
    sys.modules.pop("timm_policy", None)
    assert (tmp_path / "was-run").is_file()
