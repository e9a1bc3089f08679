"""dada.data: Python datasets, torchvision's, Hugging Face's, validation data, and real files.

Shapes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from dada import data
from dada.data import raw
from dada.data.pydatasets import hugging_face_parts

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 6, 5, 3), dtype=np.uint8)


class Listed(Dataset[Any]):
    """A map-style dataset as users write them."""

    def __init__(self, make: Any, labels: Any = None) -> None:
        self.make, self.labels = make, list(labels) if labels is not None else [0, 1] * 4
        self.reads = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> Any:
        self.reads += 1
        return self.make(PIXELS[position % 8]), self.labels[position]


FORMS = {
    "pillow": Image.fromarray,
    "array HWC": lambda p: p,
    "tensor CHW": lambda p: torch.from_numpy(p).permute(2, 0, 1),
    "tensor in 0..1": lambda p: torch.from_numpy(p).permute(2, 0, 1) / 255,
    "bfloat16 is coarse": lambda p: (torch.from_numpy(p).permute(2, 0, 1) / 255).bfloat16(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("in_memory", [True, False])
def test_map_style_datasets(form: str, in_memory: bool) -> None:
    split = data.load(Listed(FORMS[form]), in_memory=in_memory)
    found, labels_N = split.train.batch(torch.arange(8))
    near = 1 if form.startswith("bfloat16") else 0
    difference = found.int() - torch.from_numpy(PIXELS).permute(0, 3, 1, 2).int()
    assert difference.abs().max() <= near
    assert labels_N.tolist() == [0, 1] * 4 and split.name == "Listed" and split.notes == ()
    assert isinstance(split.train, data.TensorPart if in_memory else data.DatasetPart)
    taken = split.train.take(torch.tensor([5]))
    assert torch.equal(taken.batch(torch.tensor([0]))[0][0], found[5])
    assert len(split.fingerprint) == 64


def test_grey_forms_and_label_forms() -> None:
    for make in (lambda p: p[..., 0], lambda p: torch.from_numpy(p[..., 0]), lambda p: p[..., :1]):
        assert data.load(Listed(make)).channels == 1
    for labels in (torch.tensor([0, 1] * 4), np.array([0, 1] * 4)):
        assert data.load(Listed(Image.fromarray, labels)).train.labels_N.tolist() == [0, 1] * 4


def test_a_list_and_a_tensor_dataset() -> None:
    items = [(Image.fromarray(pixels), k % 2) for k, pixels in enumerate(PIXELS)]
    images_NCHW = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).contiguous()
    tensors = TensorDataset(images_NCHW, torch.tensor([0, 1] * 4))
    assert data.load(items).fingerprint == data.load(tensors).fingerprint
    assert len(data.load(items[:2]).train) == 2  # two items are not a pair of arrays


def test_class_names_of_a_dataset_are_kept() -> None:
    dataset = Listed(Image.fromarray)
    dataset.classes = ["ant", "bee", "cow"]  # type: ignore[attr-defined]
    split = data.load(dataset)
    assert split.classes == ("ant", "bee", "cow")
    assert "1 of 3 classes have no training images" in split.notes


def test_a_random_transform_is_noticed() -> None:
    generator = torch.Generator().manual_seed(0)
    split = data.load(Listed(lambda p: np.roll(p, int(torch.randint(5, (), generator=generator)))))
    assert any("another image each time" in note for note in split.notes)


class NoLength:
    def __getitem__(self, position: int) -> Any:
        return PIXELS[0], 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Listed(lambda p: p.astype(float)), "Listed[0]: floating-point pixels must lie in 0..1"),
        (Listed(lambda p: p[..., :2]), "Listed[0]: an image must have shape (H,W,C) or (H,W)"),
        (Listed(lambda p: torch.from_numpy(p)), "Listed[0]: an image must have shape (C,H,W)"),
        (Listed(lambda p: p.tolist()), "but got list"),
        (Listed(Image.fromarray, ["a", "b"]), "Listed[0]: a label must be a whole number"),
        (Listed(Image.fromarray, [0.0, 1.0]), "a label must be a whole number"),
        (Listed(Image.fromarray, [0, 2]), "run 0..2 without 1"),
        (Listed(Image.fromarray, []), "the dataset is empty"),
        ([(PIXELS[0], 0, 1), (PIXELS[1], 1, 1)], "must be (image, label), but got 3 values"),
        ([{"image": PIXELS[0]}], "must be (image, label), but got dict"),
        (NoLength(), "must have a length"),
        (PIXELS, "pass the pair (images, labels)"),
        (42, "cannot read data from int"),
    ],
)
def test_bad_datasets(source: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        data.load(source)


def test_a_large_dataset_with_listed_labels_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dada.data.pydatasets.INSPECT_ALL", 20)
    monkeypatch.setattr(raw, "INSPECT_ALL", 20)
    monkeypatch.setattr(raw, "INSPECT_SAMPLE", 10)
    dataset = Listed(Image.fromarray, [0, 1] * 50)
    split = data.load(dataset, in_memory=False)
    assert dataset.reads <= 13 and len(split.train) == 100
    dataset.targets = [1, 0] * 50  # type: ignore[attr-defined]
    assert data.load(dataset, in_memory=False).train.labels_N.tolist() == [0, 1] * 50


# ---------------------------------------------------------------- names and validation data


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("mnist:/data", "unknown prefix 'mnist'; known are cifar10, cifar100"),
        ("cifar10", "did you mean cifar10:ROOT?"),
        ("cifar10:", "nothing follows the colon"),
        ("svhn:/nowhere/at/all", "no such folder /nowhere/at/all"),
        ("torchvision:Nothing", "torchvision.datasets has no dataset of this name"),
        ("torchvision:ImageFolder:/nowhere", "its files are not under '/nowhere'"),
    ],
)
def test_bad_names(source: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        data.load(source)


def test_validation_data_of_another_kind_follows_the_training_data(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        Image.fromarray(PIXELS[0]).save(tmp_path / name / "1.png")
    train = (torch.zeros(4, 1, 9, 9, dtype=torch.uint8), [0, 1, 0, 1])
    split = data.load(tmp_path, val_data=train)
    assert split.val is not None and split.val.image_size == split.train.image_size
    assert split.val.channels == split.train.channels == 3

    def named(classes: list[str]) -> Listed:
        dataset = Listed(Image.fromarray, [0, 1, 1])
        dataset.classes = classes  # type: ignore[attr-defined]
        return dataset

    swapped = data.load(tmp_path, val_data=named(["b", "a"]))
    assert swapped.val is not None and swapped.val.labels_N.tolist() == [1, 0, 0]
    for val, says in (
        (named(["a", "c"]), "validation class 'c' is not among the training classes (a, b)"),
        ((train[0], [0, 1, 0, 2]), "validation data has the label 2"),
        ("digits", "validation data must be one set of images"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            data.load(tmp_path, val_data=val)


def test_a_split_passes_through() -> None:
    split = data.load()
    assert data.load(split) is split
    with pytest.raises(ValueError, match="takes no `val_data`"):
        data.load(split, image_size=4)
    with pytest.raises(ValueError, match="`in_memory` must be"):
        data.load(in_memory="yes")  # type: ignore[arg-type]


# ---------------------------------------------------------------- torchvision, Hugging Face


def test_torchvision_reads_without_downloading(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"datasets\.MNIST\('.*', train=True, download=True\)"):
        data.load(f"torchvision:MNIST:{tmp_path}")
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "eurosat" / "2750"  # a class of torchvision that has no parts
    for name in ("Forest", "River"):
        (folder / name).mkdir(parents=True)
        Image.fromarray(PIXELS[0]).save(folder / name / "1.jpg")
    split = data.load(f"torchvision:EuroSAT:{tmp_path}")
    assert split.classes == ("Forest", "River") and len(split.train) == 2 and split.test is None


def test_hugging_face_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        data.load("hf:mnist")


class Table(list[Any]):
    """The little of a Hugging Face table that is used."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]) -> None:
        super().__init__(rows)
        self.features = features

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def test_hugging_face_columns() -> None:
    feature = {kind: type(kind, (), {}) for kind in ("Image", "ClassLabel", "Value")}
    coarse, fine = feature["ClassLabel"](), feature["ClassLabel"]()
    coarse.names, fine.names = ["animal"], ["ant", "bee"]
    features = {"id": feature["Value"](), "coarse": coarse, "fine": fine, "img": feature["Image"]()}
    rows = [
        {"id": k, "coarse": 0, "fine": k % 2, "img": Image.fromarray(PIXELS[k])} for k in range(6)
    ]
    tables = {"train": Table(rows, features), "validation": Table(rows[:2], features)}
    split = raw.build_split(
        hugging_face_parts(tables, "me/insects", 0),
        val=None,
        image_size=None,
        seed=0,
        in_memory="auto",
    )
    assert split.classes == ("ant", "bee") and split.name == "insects"
    assert split.val is not None and len(split.val) == 2
    with pytest.raises(ValueError, match="no column of images among id"):
        hugging_face_parts(Table([{"id": 1}], {"id": feature["Value"]()}), "x", 0)
    with pytest.raises(ValueError, match="no train split among exam"):
        hugging_face_parts({"exam": tables["train"]}, "x", 0)


def test_hugging_face_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = pytest.importorskip("datasets")
    features = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=["ant", "bee"])})
    rows = {"image": [Image.fromarray(p) for p in PIXELS], "label": [0, 1] * 4}
    table = hf.Dataset.from_dict(rows, features=features)
    hf.DatasetDict({"train": table, "test": table}).save_to_disk(tmp_path / "saved")
    split = data.load(f"hf:{tmp_path / 'saved'}")
    assert split.classes == ("ant", "bee") and split.test is not None
    assert torch.equal(
        split.train.batch(torch.arange(8))[0], torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    )
    with pytest.raises(ValueError, match=r"not in the local cache .*load_dataset\('no/such'\)"):
        data.load("hf:no/such")


# ---------------------------------------------------------------- real data, where it is

SHARED = os.environ.get("DADA_SHARED_DATA")


@pytest.mark.skipif(SHARED is None, reason="DADA_SHARED_DATA names no folder of real data")
def test_real_photographs(tmp_path: Path) -> None:
    assert SHARED is not None
    with zipfile.ZipFile(Path(SHARED) / "hymenoptera.zip") as archive:
        archive.extractall(tmp_path)
    split = data.load(tmp_path)
    assert len(split.train) == 243 and split.test is not None and len(split.test) == 153
    assert split.num_classes == 2 and split.channels == 3
    assert len(split.notes) == 1 and "images differ in size" in split.notes[0]
    parted = data.split_off_validation(split, 0.2)
    assert parted.val is not None and len(parted.val) == 49
