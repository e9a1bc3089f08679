"""Data of strangers: links, pipes, bombs, copies, damage. Nothing hangs, nothing is silently wrong.

Mirrors data/walk.py, npz.py, copies.py and bad_files.py.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from dada import data
from dada.data import copies, npz
from dada.data.archives import _ArraysOnly
from dada.data.images import file_info, open_file
from dada.runlog import RunLog


def write(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def folder(root: Path, per_class: int = 6) -> Path:
    for c, name in enumerate(("cat", "dog")):
        for k in range(per_class):
            write(root / name / f"{k}.png", 100 * c + k)
    return root


def notes(source: Any, **options: Any) -> str:
    return "\n".join(data.load(source, **options).notes)


# ---------------------------------------------------------------- links


def test_a_link_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    plain = data.load(folder(tmp_path / "plain")).fingerprint
    looped = folder(tmp_path / "looped")
    (looped / "cat" / "loop").symlink_to("..")
    (looped / "dog" / "deep").mkdir()
    (looped / "dog" / "deep" / "up").symlink_to(tmp_path)
    (looped / "all").symlink_to(".")
    split = data.load(looped)
    assert split.fingerprint == plain
    assert "3 links were not followed" in split.notes[0] and "all, ..." in split.notes[0]


def test_a_folder_elsewhere_may_be_linked_but_not_twice(tmp_path: Path) -> None:
    root = folder(tmp_path / "root")
    write(tmp_path / "elsewhere" / "x.png", 9)
    (root / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    assert len(data.load(root).train) == 13
    (root / "cat" / "again").symlink_to(tmp_path / "elsewhere")
    split = data.load(root)
    assert len(split.train) == 13 and "1 link was not followed" in split.notes[0]
    (root / "dog" / "others").symlink_to("../cat")
    with pytest.raises(ValueError, match=r"the same folder as .* would be in two classes"):
        data.load(root)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_link_to_an_image_is_a_copy_of_it(tmp_path: Path, in_memory: bool) -> None:
    root = folder(tmp_path)
    (root / "cat" / "link.png").symlink_to("../dog/0.png")
    said = notes(root, in_memory=in_memory)
    assert "the same image is in two classes, 1 time (" in said
    assert "cat/link.png" in said and "dog/0.png" in said


# ---------------------------------------------------------------- what is no image


def test_pipes_devices_sockets_and_dangling_links_are_not_opened(tmp_path: Path) -> None:
    root = folder(tmp_path / "root")
    os.mkfifo(root / "cat" / "pipe.png")
    (root / "cat" / "zero.jpg").symlink_to("/dev/zero")
    (root / "dog" / "gone.png").symlink_to("nowhere.png")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "dog" / "s.png"))
        split = data.load(root)
    assert len(split.train) == 12
    assert "4 names were not opened" in split.notes[0] and "cat/pipe.png" in split.notes[0]
    for path in (root / "cat" / "pipe.png", Path("/dev/zero"), root):
        for read in (open_file, file_info):
            with pytest.raises(ValueError, match="not a file, but"):
                read(str(path))
    with pytest.raises(ValueError, match="no such image file"):
        (tmp_path / "list.csv").write_text("path,label\nroot/cat/pipe.png,a\n")
        data.load(tmp_path / "list.csv")


def test_no_other_format_of_pillow_is_opened(tmp_path: Path, monkeypatch: Any) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", never)
    root = folder(tmp_path)
    Image.new("RGB", (8, 8)).save(root / "cat" / "x.eps")
    (root / "cat" / "x.eps").rename(root / "cat" / "x.jpg")
    with pytest.raises(ValueError, match=r"x\.jpg: cannot be read as an image \(cannot identify"):
        data.load(root)


def test_a_file_that_may_not_be_read_is_named_once(tmp_path: Path, monkeypatch: Any) -> None:
    def refused(file: str) -> None:
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr("dada.data.images.opened", refused)
    with pytest.raises(
        ValueError, match=r"x\.png: cannot be read as an image \(Permission denied\);"
    ):
        file_info(str(tmp_path / "x.png"))


def test_run_directories_among_the_classes_are_passed_over(tmp_path: Path) -> None:
    root = folder(tmp_path)  # somebody who works in it: `dada search .` writes to runs/
    before = data.load(root).fingerprint
    for run in (root / "runs" / "search-photos", root / "cat" / "run"):
        RunLog(run).config({})
        write(run / "policy.png", 3)
    for name in ("run.json", "config.toml"):
        (root / "dog" / name).write_text("{}")  # of another program: the class stays
    split = data.load(root)
    assert split.classes == ("cat", "dog") and split.fingerprint == before
    assert split.notes[1:] == ("2 run directories were passed over: cat/run, ...",)
    write(root / "runs" / "x.png", 4)
    assert "runs" in data.load(root).classes
    RunLog(tmp_path / "flat" / "runs" / "search-flat").config({})
    with pytest.raises(ValueError, match="no class folders here"):
        data.load(tmp_path / "flat")
    write(tmp_path / "flat" / "x.png", 5)
    with pytest.raises(ValueError, match="images lie directly in this folder"):
        data.load(tmp_path / "flat")


def test_files_that_are_passed_over_are_counted_and_named_once(tmp_path: Path) -> None:
    root = folder(tmp_path)
    for k in range(3):
        (root / "cat" / f"IMG_{k}.HEIC").write_bytes(b"x")
    (root / "dog" / "notes").write_bytes(b"x")
    (root / ".DS_Store").write_bytes(b"x")
    write(root / "lost.png", 5)
    (note,) = data.load(root).notes
    assert note.startswith("5 files were passed over") and "3 .heic" in note and "1 .png" in note
    assert "cat/IMG_0.HEIC, ..." in note
    for file in (root / "cat").glob("*.png"):
        file.unlink()
    with pytest.raises(ValueError, match=r"cat: a class folder without images.*\.heic"):
        data.load(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "cat" / "secret").mkdir(mode=0)
    with pytest.raises(ValueError, match=r"secret: cannot be read \(Permission denied\)"):
        data.load(root)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    root = folder(tmp_path)
    os.rename(root / "cat" / "0.png", os.fsencode(root / "cat") + b"/\xff.png")
    assert len(data.load(root, in_memory=False).fingerprint) == 64
    os.rename(root / "cat", os.fsencode(root) + b"/\xff")
    with pytest.raises(ValueError, match="a class whose name is not UTF-8; rename it"):
        data.load(root)


# ---------------------------------------------------------------- damaged images


@pytest.mark.parametrize("in_memory", [True, False])
def test_all_bad_images_are_named_at_once_and_may_be_skipped(
    tmp_path: Path, in_memory: bool
) -> None:
    root = folder(tmp_path)
    for k in range(3):
        (root / "cat" / f"{k}.png").write_bytes(b"no image")
    (root / "dog" / "0.png").write_bytes((root / "dog" / "0.png").read_bytes()[:-60])  # cut off
    found = 4 if in_memory else 3  # those not held are decoded in their turn
    with pytest.raises(ValueError, match=f"{found} of 12 images cannot be read: .*0.png.*1.png"):
        data.load(root, in_memory=in_memory)
    split = data.load(root, in_memory=in_memory, skip_bad=True)
    assert split.train.labels_N.tolist() == [0] * 3 + [1] * 5
    assert "4 of 12 images could not be read and were left out" in "\n".join(split.notes)
    expected = [open_file(str(root / n)) for n in ("cat/3.png", "dog/1.png")]
    shown_BCHW = split.train.batch(torch.tensor([0, 3]))[0].numpy()
    for image, shown_CHW in zip(expected, shown_BCHW, strict=True):
        assert (np.asarray(image).transpose(2, 0, 1) == shown_CHW).all()
    for k in range(3, 6):
        (root / "cat" / f"{k}.png").write_bytes(b"")
    with pytest.raises(ValueError, match="of 1 classes no train image can be read"):
        data.load(root, in_memory=in_memory, skip_bad=True)


def test_a_bad_image_of_a_csv_keeps_groups_in_step(tmp_path: Path) -> None:
    for k in range(6):
        write(tmp_path / f"{k}.png", k)
    (tmp_path / "1.png").write_bytes(b"")
    rows = [f"{k}.png,{'ab'[k % 2]},g{k // 2}" for k in range(6)]
    (tmp_path / "list.csv").write_text("path,label,group\n" + "\n".join(rows))
    split = data.load(tmp_path / "list.csv", skip_bad=True)
    assert split.train.labels_N.tolist() == [0, 0, 1, 0, 1]
    assert split.train.groups_N is not None
    assert split.train.groups_N.tolist() == [0, 1, 1, 2, 2]


# ---------------------------------------------------------------- archives


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array: Any, **options: Any) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(array), **options)
    return content.getvalue()


def header(shape: str, dtype: str = "|u1") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


GOOD = npy(np.zeros((4, 6, 6), np.uint8)), npy(np.array([0, 1, 0, 1]))


def damaged(path: Path) -> Path:
    whole = bytearray(zipped(path, {"images.npy": GOOD[0], "labels.npy": GOOD[1]}).read_bytes())
    whole[60:75] = bytes(15)
    path.write_bytes(whole)
    return path


def encrypted(path: Path) -> Path:
    whole = bytearray(zipped(path, {"images.npy": GOOD[0], "labels.npy": GOOD[1]}).read_bytes())
    whole[whole.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(whole)
    return path


BAD_ARCHIVES = {
    "an npy": (lambda p: (p.write_bytes(GOOD[0]), p)[1], "it is an .npy, one array alone"),
    "text": (lambda p: (p.write_bytes(b"images"), p)[1], "not a zip file"),
    "empty": (lambda p: (p.write_bytes(b""), p)[1], "not a zip file"),
    "encrypted": (encrypted, "images.npy is encrypted"),
    "damaged": (damaged, "cannot be read as an .npz archive"),
    "objects": (
        lambda p: zipped(p, {"images.npy": npy(np.array([None]), allow_pickle=True)}),
        "it holds Python objects",
    ),
    "promises": (
        lambda p: zipped(p, {"images.npy": header("(9, 9, 9)"), "labels.npy": GOOD[1]}),
        "images.npy ends too early",
    ),
    "a negative side": (lambda p: zipped(p, {"images.npy": header("(-4, 6, 6)")}), "a shape of"),
    "no array": (lambda p: zipped(p, {"images.npy": b"x"}), "cannot be read as an .npz archive"),
    "names": (
        lambda p: zipped(
            p, {"images.npy": GOOD[0], "labels.npy": GOOD[1], "classes.npy": npy(np.array("ab"))}
        ),
        "classes should be a list of names",
    ),
}


@pytest.mark.parametrize("kind", BAD_ARCHIVES)
def test_a_bad_archive_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    make, says = BAD_ARCHIVES[kind]
    with pytest.raises(ValueError) as caught:
        data.load(make(tmp_path / "x.npz"))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'x.npz'}: ") and says in message
    assert "\n" not in message and len(message) < 500


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "bomb.npz"
    zipped(path, {"images.npy": header("(4, 512, 512, 3)") + bytes(4 * 512 * 512 * 3)})
    monkeypatch.setenv(npz.LIMIT_VARIABLE, "0.001")
    monkeypatch.setattr(npz.npy, "read_array", lambda *_, **__: pytest.fail("it was unpacked"))
    with pytest.raises(ValueError, match=r"unpacks to 0\.0 GiB, more than .*set DADA_UNPACK_GIB"):
        data.load(path)
    monkeypatch.setenv(npz.LIMIT_VARIABLE, "much")
    with pytest.raises(ValueError, match="DADA_UNPACK_GIB should be a number of GiB, got 'much'"):
        data.load(path)


def test_what_nobody_asks_for_is_not_unpacked(tmp_path: Path, monkeypatch: Any) -> None:
    extra = npy(np.zeros(2**20, np.uint8))
    path = zipped(tmp_path / "x.npz", dict(zip(("images.npy", "labels.npy"), GOOD, strict=True)))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embeddings.npy", extra)
    monkeypatch.setenv(npz.LIMIT_VARIABLE, "0.0005")
    assert len(data.load(path).train) == 4


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.uint16])
@pytest.mark.parametrize("shape", [(50, 7, 6), (50, 7, 6, 3), (50, 3, 7, 6)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_that_come_in_pieces_are_whole(
    tmp_path: Path, monkeypatch: Any, shape: Any, dtype: Any, order: Any
) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape)
    images = np.array(values / 255 if dtype == np.float32 else values, dtype, order=order)
    np.savez_compressed(tmp_path / "x.npz", images=images, labels=np.arange(50) % 2)
    whole = data.load((images, np.arange(50) % 2))
    monkeypatch.setattr(npz, "CHUNK", 1000)
    split = data.load(tmp_path / "x.npz")
    assert torch.equal(split.train.load().images_NCHW, whole.train.load().images_NCHW)


def test_a_pickle_of_cifar_allocates_nothing_that_is_not_in_it() -> None:
    huge = b"cnumpy\nndarray\n(L100000000000L\ntR."
    with pytest.raises(TypeError):
        _ArraysOnly(io.BytesIO(huge), encoding="bytes").load()
    put_far_away = b"\x80\x02}r\xff\xff\xff\x7f."  # into the two thousand millionth place
    assert _ArraysOnly(io.BytesIO(put_far_away), encoding="bytes").load() == {}
    slow = b"c_codecs\nencode\n(Vx\nVidna\ntR."
    with pytest.raises(pickle.UnpicklingError, match="codec 'idna'"):
        _ArraysOnly(io.BytesIO(slow), encoding="bytes").load()


# ---------------------------------------------------------------- copies


def pair(positions: list[int], classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Images that are the same where the numbers are; labels go by the number."""
    pixels = np.random.default_rng(1).integers(0, 256, (max(positions) + 1, 5, 5), np.uint8)
    return pixels[positions], np.array(positions) % classes


@pytest.mark.parametrize("seed", range(5))
def test_copies_stay_on_one_side(seed: int) -> None:
    positions = [*range(20), *range(10), *range(10)]
    split = data.load(pair(positions))
    assert "20 of 40 training images are exact copies" in split.notes[0]
    divided = data.split_off_validation(split, 0.5, seed)
    sides = [
        {part.load().images_NCHW[i].numpy().tobytes() for i in range(len(part))}
        for part in (divided.train, divided.val)
    ]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == 20
    assert len(divided.train) + len(divided.val) == 40
    for part in (divided.train, divided.val):
        assert set(part.labels_N.tolist()) == {0, 1}


def test_a_split_without_copies_is_the_one_it_was() -> None:
    """The places are of the version before copies were looked for."""
    images, labels = pair(list(range(60)), 3)
    divided = data.split_off_validation(data.load((images, labels)), 0.3, seed=4)
    places = [
        i for i, image in enumerate(images)
        if any((image == kept).all() for kept in divided.val.load().images_NCHW[:, 0].numpy())
    ]  # fmt: skip
    assert places == [4, 5, 6, 8, 13, 15, 17, 20, 22, 26, 30, 37, 42, 43, 45, 48, 55, 59]


def test_a_class_of_one_image_many_times_is_divided_all_the_same() -> None:
    split = data.load(pair([0, 0, 0, 0, 1, 3, 5, 7]))
    divided = data.split_off_validation(split, 0.5, 0)
    for part in (divided.train, divided.val):
        assert set(part.labels_N.tolist()) == {0, 1}


def test_groups_with_copies_of_each_other_stay_together(tmp_path: Path) -> None:
    for k in range(8):
        write(tmp_path / f"{k}.png", k)
    write(tmp_path / "8.png", 0)  # as 0.png
    groups = (0, 0, 1, 1, 2, 2, 3, 3, 3)
    rows = [f"{k}.png,{'ab'[k % 2]},g{groups[k]}" for k in range(9)]
    (tmp_path / "list.csv").write_text("path,label,group\n" + "\n".join(rows))
    divided = data.split_off_validation(data.load(tmp_path / "list.csv"), 0.5, 0)
    for part in (divided.train, divided.val):
        assert part.groups_N is not None
        assert {0, 3} <= set(part.groups_N.tolist()) or not {0, 3} & set(part.groups_N.tolist())


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_the_user_divided_is_counted(tmp_path: Path, in_memory: bool) -> None:
    folder(tmp_path / "train")
    write(tmp_path / "test" / "cat" / "0.png", 2)
    write(tmp_path / "test" / "cat" / "1.png", 77)
    write(tmp_path / "test" / "dog" / "0.png", 100)
    said = notes(tmp_path, in_memory=in_memory)
    assert "2 of 3 test images are also trained on, so results on test are too good" in said
    assert "test: test/cat/0.png" in said


def test_equal_checksums_are_looked_at_pixel_by_pixel(monkeypatch: Any) -> None:
    monkeypatch.setattr(copies, "_checksums", lambda images: np.zeros(len(images), np.int64))
    assert data.load(pair(list(range(10)))).notes == ()
    assert "1 of 11 training images" in data.load(pair([*range(10), 3])).notes[0]
