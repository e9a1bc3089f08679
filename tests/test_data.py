"""dada.data: what may be passed, and what is said when it may not.

Conversions, parts and splits are in test_data_parts.py, Python datasets in
test_data_datasets.py.
Shapes: N images, B of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dada import data

RED, GREEN, BLUE = (200, 0, 0), (0, 200, 0), (0, 0, 200)


def write(path: Path, colour: Any = RED, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def folder(root: Path, per_class: int = 3, names: tuple[str, ...] = ("a", "b")) -> Path:
    for number, name in enumerate(names):
        for k in range(per_class):
            write(root / name / f"{k}.png", (RED, GREEN, BLUE)[number % 3])
    return root


def error_of(call: Callable[[], Any]) -> str:
    """The one line a user would see."""
    with pytest.raises(ValueError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- digits and arrays


def test_digits_is_the_default_and_fixed() -> None:
    split = data.load()
    assert split.summary() == "digits: 1,297 train, 500 test; 10 classes; 8x8 grey"
    assert split.fingerprint == data.load("digits", seed=5).fingerprint
    assert split.notes == ()
    images = split.train.batch(torch.arange(1297))[0]
    assert images.dtype == torch.uint8 and images.max() == 255 and images.min() == 0
    assert split.test is not None
    shares = torch.bincount(split.test.labels_N) / torch.bincount(split.train.labels_N)
    assert shares.min() > 0.37 and shares.max() < 0.40  # 500 / 1297 = 0.386


IMAGES_NHWC = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)
LABELS = [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    "images",
    [
        IMAGES_NHWC,
        np.ascontiguousarray(IMAGES_NHWC.transpose(0, 3, 1, 2)),
        torch.from_numpy(IMAGES_NHWC.transpose(0, 3, 1, 2).copy()),
        IMAGES_NHWC.astype(np.int64),
        IMAGES_NHWC / 255,
        torch.from_numpy(IMAGES_NHWC).permute(0, 3, 1, 2).float() / 255,
    ],
    ids=["NHWC", "NCHW", "tensor", "int64", "float64", "float32"],
)
def test_pairs_of_any_usual_layout_and_type(images: Any) -> None:
    for labels in (LABELS, np.array(LABELS)[:, None], torch.tensor(LABELS, dtype=torch.int32)):
        split = data.load((images, labels))
        found, labels_N = split.train.batch(torch.arange(6))
        assert torch.equal(found, torch.from_numpy(IMAGES_NHWC.transpose(0, 3, 1, 2).copy()))
        assert labels_N.tolist() == LABELS and split.classes == ("0", "1")


def test_ambiguous_layout_follows_the_type() -> None:
    cube = np.arange(4 * 3 * 5 * 3, dtype=np.uint8).reshape(4, 3, 5, 3)
    assert data.load((cube, [0, 1, 0, 1])).image_size == (3, 5)
    assert data.load((torch.from_numpy(cube), [0, 1, 0, 1])).image_size == (5, 3)


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (IMAGES_NHWC, [0, 1], "differ in length: 6 images, 2 labels"),
        (IMAGES_NHWC, [0, 2, 0, 2, 0, 2], "run 0..2 without 1; renumber them"),
        (IMAGES_NHWC, [1, 2, 1, 2, 1, 2], "run 1..2 without 0"),
        (IMAGES_NHWC, [0] * 6, "all training labels are 0"),
        (IMAGES_NHWC, [-1, 0, 0, 0, 1, 1], "run -1..1 without 0"),
        (IMAGES_NHWC, np.eye(6), "one whole number per image, but got shape (6, 6)"),
        (IMAGES_NHWC, [0.0, 1, 0, 1, 0, 1], "whole numbers 0..C-1, but got float64"),
        (IMAGES_NHWC, list("ababab"), "whole numbers 0..C-1, but got <U1"),
        (IMAGES_NHWC[..., :2], LABELS, "with 1 or 3 channels, but got (6, 4, 5, 2)"),
        (IMAGES_NHWC[0, 0], LABELS, "but got (5, 3)"),
        (IMAGES_NHWC[:0], [], "are empty"),
        (IMAGES_NHWC.astype(float), LABELS, "must lie in 0..1, but these span 0..255"),
        (IMAGES_NHWC / 255 - 0.5, LABELS, "before any normalisation"),
        (np.where(IMAGES_NHWC == 7, np.nan, 0.5), LABELS, "NaN or infinity"),
        (IMAGES_NHWC.astype(np.int32) * 2, LABELS, "int32 pixels must lie in 0..255"),
        (IMAGES_NHWC.astype(np.complex64), LABELS, "but got complex64"),
    ],
)
def test_bad_pairs(images: Any, labels: Any, says: str) -> None:
    assert says in error_of(lambda: data.load((images, labels)))


def test_npz_by_any_usual_key(tmp_path: Path) -> None:
    chosen = {
        "plain": {"images": IMAGES_NHWC, "labels": LABELS},
        "keras": {
            "x_train": IMAGES_NHWC,
            "y_train": LABELS,
            "x_test": IMAGES_NHWC[:2],
            "y_test": LABELS[:2],
        },
        "medical": {
            "train_images": IMAGES_NHWC,
            "train_labels": np.array(LABELS)[:, None],
            "val_images": IMAGES_NHWC[:2],
            "val_labels": np.array(LABELS[:2])[:, None],
        },
        "named": {"X": IMAGES_NHWC, "y": LABELS, "classes": np.array(["cat", "dog"])},
    }
    for name, arrays in chosen.items():
        np.savez(tmp_path / name, **arrays)
    loaded = {name: data.load(tmp_path / f"{name}.npz") for name in chosen}
    assert {name: tuple(split.parts) for name, split in loaded.items()} == {
        "plain": ("train",),
        "keras": ("train", "test"),
        "medical": ("train", "val"),
        "named": ("train",),
    }
    assert loaded["named"].classes == ("cat", "dog") and loaded["plain"].name == "plain"
    for split in loaded.values():
        assert split.train.labels_N.tolist() == LABELS


def test_bad_npz(tmp_path: Path) -> None:
    def of(**arrays: Any) -> str:
        np.savez(tmp_path / "bad.npz", **arrays)
        return error_of(lambda: data.load(tmp_path / "bad.npz"))

    assert "no array of train labels" in of(images=IMAGES_NHWC)
    assert "found weights" in of(weights=IMAGES_NHWC)
    assert "both 'x' and 'images' look like train images" in of(x=IMAGES_NHWC, images=IMAGES_NHWC)
    assert "bad.npz: images and labels differ in length" in of(images=IMAGES_NHWC, labels=[0, 1])
    assert "test part has the label 7" in of(
        x_train=IMAGES_NHWC, y_train=LABELS, x_test=IMAGES_NHWC[:1], y_test=[7]
    )
    harmful = np.array([print], dtype=object)
    assert "it holds Python objects" in of(images=harmful, labels=harmful)
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    assert "cannot be read as an .npz" in error_of(lambda: data.load(tmp_path / "bad.npz"))


# ---------------------------------------------------------------- folders and lists


def test_folder_of_classes(tmp_path: Path) -> None:
    folder(tmp_path / "set", names=("b", "a"))
    write(tmp_path / "set" / "a" / "deeper" / "z.JPG", BLUE)
    (tmp_path / "set" / "a" / "notes.txt").write_text("not an image")
    write(tmp_path / "set" / ".cache" / "x.png")
    split = data.load(str(tmp_path / "set"))
    assert split.classes == ("a", "b") and split.name == "set"
    assert split.train.labels_N.tolist() == [0, 0, 0, 0, 1, 1, 1]
    images, _ = split.train.batch(torch.tensor([0, 6]))
    assert images[:, :, 0, 0].tolist() == [list(GREEN), list(RED)]


@pytest.mark.parametrize("val_name", ["val", "valid", "validation", "Val"])
def test_folder_of_parts(tmp_path: Path, val_name: str) -> None:
    folder(tmp_path / "train")
    folder(tmp_path / val_name, per_class=2, names=("b",))
    folder(tmp_path / "test", per_class=1)
    split = data.load(tmp_path)
    assert {name: len(part) for name, part in split.parts.items()} == {
        "train": 6,
        "val": 2,
        "test": 2,
    }
    assert split.val is not None and split.val.labels_N.tolist() == [1, 1]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    folder(tmp_path, names=("car", "train"))
    assert data.load(tmp_path).classes == ("car", "train")


def test_bad_folders(tmp_path: Path) -> None:
    def of(name: str) -> str:
        return error_of(lambda: data.load(tmp_path / name))

    (tmp_path / "empty").mkdir()
    assert "no class folders here" in of("empty")
    write(tmp_path / "flat" / "1.png")
    assert "images lie directly in this folder" in of("flat")
    (folder(tmp_path / "hollow") / "c").mkdir()
    assert f"{tmp_path / 'hollow' / 'c'}: a class folder without images" in of("hollow")
    (tmp_path / "bare" / "a").mkdir(parents=True)
    assert "no image files in its 1 folders" in of("bare")
    folder(tmp_path / "one", names=("only",))
    assert "only one class (only)" in of("one")
    folder(tmp_path / "odd" / "train")
    folder(tmp_path / "odd" / "test", names=("a", "zebra"))
    assert "class 'zebra' is not among the training classes (a, b)" in of("odd")
    assert "no such file or folder" in of("absent")
    (tmp_path / "list.txt").write_text("")
    assert "must be an .npz archive or a .csv list" in of("list.txt")


@pytest.mark.parametrize("content", [b"", b"GIF89a not really", b"\xff\xd8\xff\xe0 cut"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_corrupt_image_is_named(tmp_path: Path, content: bytes, in_memory: bool) -> None:
    bad = folder(tmp_path) / "b" / "broken.jpg"
    bad.write_bytes(content)
    message = error_of(lambda: data.load(tmp_path, in_memory=in_memory))
    assert str(bad) in message and "repair or remove it" in message


def test_a_truncated_image_is_named_when_decoded(tmp_path: Path) -> None:
    bad = folder(tmp_path) / "b" / "cut.jpg"
    Image.effect_noise((64, 64), 50).convert("RGB").save(bad)
    bad.write_bytes(bad.read_bytes()[:-500])  # the header is whole
    assert str(bad) in error_of(lambda: data.load(tmp_path))
    split = data.load(tmp_path, in_memory=False)
    assert str(bad) in error_of(lambda: split.train.batch(torch.arange(len(split.train))))


def test_csv_with_parts_and_groups(tmp_path: Path) -> None:
    folder(tmp_path / "images")
    (tmp_path / "list.csv").write_text(
        "\ufeffPath, label, split, group, remark\n"
        "images/a/0.png,wolf,train,p1,\nimages/a/1.png,wolf,,p2,x\nimages/b/0.png,bear,train,p1,\n"
        'images/b/1.png,bear,valid,p3,"a, b"\nimages/b/2.png,bear,test,p1,\n'
    )
    split = data.load(tmp_path / "list.csv")
    assert split.classes == ("bear", "wolf")
    assert split.train.labels_N.tolist() == [1, 1, 0]
    assert split.train.groups_N is not None
    assert split.train.groups_N.tolist() == [0, 1, 0]
    assert split.val is not None and split.test is not None
    assert any("both train and test" in note for note in split.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("images/a/0.png,a\nimages/b/0.png,b\n", "the first line must name the columns"),
        ("", "but it is 'empty'"),
        ("path,label\nimages/a/0.png,a\nimages/zz.png,b\n", "line 3: no such image file"),
        ("path,label\nimages/a/0.png,\n", "line 2: the label is missing"),
        ("path,label\n,a\n", "line 2: the path is missing"),
        ("path,label,split\nimages/a/0.png,a,exam\n", "split must be train, val or test"),
        ("path,label,split\nimages/a/0.png,a,test\n", "no row belongs to the training part"),
        ("path,label\nimages/a/0.png,a\n", "only one class (a)"),
        (
            "path,label,split\nimages/a/0.png,a,\nimages/b/0.png,b,\nimages/b/1.png,c,val\n",
            "the val label 'c' is not among the training labels",
        ),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, says: str) -> None:
    folder(tmp_path / "images")
    (tmp_path / "list.csv").write_text(text)
    message = error_of(lambda: data.load(tmp_path / "list.csv"))
    assert says in message and "list.csv" in message


# ---------------------------------------------------------------- published archives


def write_cifar(root: Path, kind: str, protocol: int = 2) -> np.ndarray:
    """A small set in the authors' format: pickled dictionaries with rows of 3072 bytes."""
    values = np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)
    if kind == "cifar10":
        home, key, names_key, names_file = (
            root / "cifar-10-batches-py",
            b"labels",
            b"label_names",
            "batches.meta",
        )
        files = {f"data_batch_{k}": slice(2 * k - 2, 2 * k) for k in range(1, 6)}
        files["test_batch"] = slice(10, 12)
    else:
        home, key, names_key, names_file = (
            root / "cifar-100-python",
            b"fine_labels",
            b"fine_label_names",
            "meta",
        )
        files = {"train": slice(0, 10), "test": slice(10, 12)}
    home.mkdir(parents=True)
    for name, rows in files.items():
        content = {b"data": values[rows], key: [i % 2 for i in range(12)][rows], b"extra": b"x"}
        (home / name).write_bytes(pickle.dumps(content, protocol))
    (home / names_file).write_bytes(pickle.dumps({names_key: [b"cat", b"dog"]}, protocol))
    return values


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_cifar(tmp_path: Path, kind: str) -> None:
    values = write_cifar(tmp_path, kind)
    split = data.load(f"{kind}:{tmp_path}")
    assert split.summary() == f"{kind}: 10 train, 2 test; 2 classes; 32x32 RGB"
    assert split.classes == ("cat", "dog") and split.test is not None
    expected = torch.from_numpy(values.reshape(12, 3, 32, 32))
    assert torch.equal(split.train.batch(torch.arange(10))[0], expected[:10])
    assert torch.equal(split.test.batch(torch.arange(2))[0], expected[10:])
    inside = next(tmp_path.iterdir())
    assert data.load(f"{kind}:{inside}").fingerprint == split.fingerprint


class Harm:
    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


def test_cifar_runs_no_code_and_names_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, "cifar10")
    monkeypatch.chdir(tmp_path)
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    batch.write_bytes(pickle.dumps({b"data": Harm(), b"labels": []}))
    message = error_of(lambda: data.load(f"cifar10:{tmp_path}"))
    assert "data_batch_3" in message and "system" in message
    assert not (tmp_path / "harmed").exists()
    batch.write_bytes(pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [0, 1]}))
    assert "an array that is not of bytes" in error_of(lambda: data.load(f"cifar10:{tmp_path}"))
    batch.write_bytes(b"\x80garbage")
    assert "data_batch_3: cannot be read" in error_of(lambda: data.load(f"cifar10:{tmp_path}"))
    batch.unlink()
    assert "the CIFAR folder is incomplete" in error_of(lambda: data.load(f"cifar10:{tmp_path}"))
    assert "no folder cifar-100-python" in error_of(lambda: data.load(f"cifar100:{tmp_path}"))
    (tmp_path / "cifar-100-python.tar.gz").touch()
    assert "unpack it with tar" in error_of(lambda: data.load(f"cifar100:{tmp_path}"))


def test_svhn(tmp_path: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    digits = np.array([[1 + i % 10] for i in range(20)], dtype=np.uint8)  # 10 stands for zero
    for part, rows in (("train", slice(0, 20)), ("test", slice(0, 10)), ("extra", slice(5, 20))):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": images[..., rows], "y": digits[rows]})
    split = data.load(f"svhn:{tmp_path}")
    assert split.summary() == "svhn: 20 train, 10 test; 10 classes; 32x32 RGB"
    assert split.train.labels_N.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2
    found = split.train.batch(torch.tensor([3]))[0][0]
    assert torch.equal(found, torch.from_numpy(images[..., 3]).permute(2, 0, 1))
    assert len(data.load(f"svhn-extra:{tmp_path}").train) == 35
    (tmp_path / "extra_32x32.mat").unlink()
    assert "extra_32x32.mat; download it" in error_of(lambda: data.load(f"svhn-extra:{tmp_path}"))
    (tmp_path / "test_32x32.mat").write_bytes(b"nothing")
    assert "test_32x32.mat: cannot be read" in error_of(lambda: data.load(f"svhn:{tmp_path}"))


def test_imagenet(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            write(tmp_path / part / wnid / f"{part}_1.JPEG", size=(300, 260))
    split = data.load(f"imagenet:{tmp_path}", in_memory=False)
    assert split.val is None and split.test is not None and len(split.test) == 2
    assert split.image_size == (224, 224) and isinstance(split.train, data.FilePart)
    assert split.train.preprocessing.margin == 224 / 256
    assert any("val/ is used as the test part" in note for note in split.notes)
    for folder_ in (tmp_path / "val").iterdir():
        for file in folder_.iterdir():
            file.rename(tmp_path / "val" / f"{folder_.name}{file.name}")
        folder_.rmdir()
    assert "has no class folders" in error_of(lambda: data.load(f"imagenet:{tmp_path}"))
    assert "no folder" in error_of(lambda: data.load(f"imagenet:{tmp_path / 'train'}"))
