"""Augmented copies of a folder: what is written, what is skipped, and that nothing is harmed."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from dada.exchange import folder
from dada.exchange.folder import apply_to_folder
from dada.policy import Policy

INVERT = Policy.from_rows([[("Invert", 1.0, 0.0)]])
GREY = np.tile(np.linspace(0, 255, 24).astype(np.uint8), (16, 1))
RGB = np.stack([GREY, 255 - GREY, GREY // 2], axis=-1)


def save(array: np.ndarray, path: Path, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)
    return path


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Two good images in nested folders."""
    save(RGB, tmp_path / "in" / "a.png")
    save(GREY, tmp_path / "in" / "deep" / "down" / "b.png")
    return tmp_path / "in"


def test_every_image_is_augmented_in_its_own_place(photos, tmp_path):
    before = contents(photos)
    outcome = apply_to_folder(INVERT, photos, tmp_path / "out", copies=2)
    assert (outcome.images, outcome.written) == (2, 4)
    assert outcome.skipped == outcome.converted == []
    assert sorted(contents(tmp_path / "out")) == [
        *("a_0.png", "a_1.png", "deep/down/b_0.png", "deep/down/b_1.png"),
    ]
    for copy in (0, 1):
        assert np.array_equal(pixels(tmp_path / "out" / f"a_{copy}.png"), 255 - RGB)
        assert np.array_equal(pixels(tmp_path / f"out/deep/down/b_{copy}.png"), 255 - GREY)
    assert contents(photos) == before


def test_copies_differ_and_a_seed_repeats(photos, tmp_path):
    policy = Policy.from_rows([[("Rotate", 1.0, (0.1, 1.0))]], "strength")
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        apply_to_folder(policy, photos, tmp_path / name, copies=3, seed=seed)
    one, two, three = (contents(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two and one != three
    assert len({one[f"a_{copy}.png"] for copy in range(3)}) == 3


def test_one_image(photos, tmp_path):
    outcome = apply_to_folder(INVERT, photos / "a.png", tmp_path / "out")
    assert outcome.written == 1 and list(contents(tmp_path / "out")) == ["a_0.png"]


@pytest.mark.parametrize("ending", [".jpg", ".JPEG", ".bmp", ".webp", ".tif", ".ppm"])
def test_other_formats_keep_theirs(ending, tmp_path):
    save(RGB, tmp_path / "in" / f"a{ending}")
    apply_to_folder(INVERT, tmp_path / "in", tmp_path / "out")
    written = pixels(tmp_path / "out" / f"a_0{ending}").astype(int)
    source = pixels(tmp_path / "in" / f"a{ending}").astype(int)
    loss = 12 if ending.lower() in (".jpg", ".jpeg") else 0
    assert np.abs(written - (255 - source)).max() <= loss


CONVERTED = {
    "rgba.png": (lambda p: save(RGB, p, "RGBA"), "transparent, laid on white", 255 - RGB),
    "palette.png": (lambda p: save(RGB, p, "P"), "palette, made RGB", None),
    "deep.png": (
        lambda p: save(GREY.astype(np.uint16) * 257, p),
        "16-bit grey, scaled to 8 bits",
        255 - GREY,
    ),
    "cmyk.tif": (lambda p: save(RGB, p, "CMYK"), "CMYK, made RGB", None),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_not_grey_or_rgb_is_converted_and_said(name, tmp_path):
    write, words, expected = CONVERTED[name]
    before = write(tmp_path / "in" / name).read_bytes()
    outcome = apply_to_folder(INVERT, tmp_path / "in", tmp_path / "out")
    assert outcome.converted == [f"{name}: {words}"]
    stem, ending = name.split(".")
    written = tmp_path / "out" / f"{stem}_0.{ending}"
    if expected is not None:
        assert np.array_equal(pixels(written), expected)
    with Image.open(written) as image:
        assert image.mode in ("L", "RGB")
    assert (tmp_path / "in" / name).read_bytes() == before


def test_images_of_12_bits_share_one_white(tmp_path):
    """A dark image must not be stretched to the white of a bright one's."""
    save(GREY.astype(np.uint16) * 16, tmp_path / "in" / "bright.png")
    save(GREY.astype(np.uint16) * 4, tmp_path / "in" / "dark.png")
    apply_to_folder(Policy(()), tmp_path / "in", tmp_path / "out")
    bright, dark = (pixels(tmp_path / "out" / f"{name}_0.png") for name in ("bright", "dark"))
    assert bright.max() == 254 and dark.max() == 64


def test_a_photo_taken_sideways_is_turned_upright(tmp_path):
    (tmp_path / "in").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RGB).save(tmp_path / "in" / "a.png", exif=exif)
    apply_to_folder(Policy(()), tmp_path / "in", tmp_path / "out")
    upright = Image.fromarray(RGB).transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(pixels(tmp_path / "out" / "a_0.png"), np.array(upright))


def test_a_small_palette_and_bits(tmp_path):
    """One bit per pixel is grey without a word; a grey palette is made grey."""
    save(GREY, tmp_path / "in" / "bits.png", "1")
    Image.fromarray(GREY).quantize(8).save(tmp_path / "in" / "few.png")
    outcome = apply_to_folder(INVERT, tmp_path / "in", tmp_path / "out")
    assert outcome.converted == ["few.png: palette, made grey"]
    assert set(np.unique(pixels(tmp_path / "out" / "bits_0.png"))) == {0, 255}


def test_what_cannot_be_read_is_skipped_and_named(photos, tmp_path):
    good = (photos / "a.png").read_bytes()
    (photos / "corrupt.png").write_bytes(good[:70])
    (photos / "empty.png").write_bytes(b"")
    (photos / "notes.txt").write_text("not a picture")
    (photos / "deep" / "lies.jpg").write_text("not a picture either")
    (photos / "nameless").write_bytes(good)
    before = contents(photos)
    outcome = apply_to_folder(INVERT, photos, tmp_path / "out")
    assert (outcome.images, outcome.written) == (2, 2)
    named = dict(line.split(": ", 1) for line in outcome.skipped)
    assert set(named) == {"corrupt.png", "empty.png", "notes.txt", "deep/lies.jpg", "nameless"}
    assert named["notes.txt"] == named["empty.png"] == "not an image"
    assert named["nameless"] == "an image, but a file without an ending; save it as .png first"
    assert sorted(contents(tmp_path / "out")) == ["a_0.png", "deep/down/b_0.png"]
    assert contents(photos) == before


@pytest.mark.parametrize(
    ("source", "target", "copies", "says"),
    [
        ("in", "out", 0, "`copies` should be at least 1, got 0"),
        ("in", "out", -3, "`copies` should be at least 1, got -3"),
        ("nowhere", "out", 1, "nowhere: no such file or folder"),
        ("in", "in", 1, "in: lies in the input; choose another output folder"),
        ("in", "in/deep/new", 1, "in/deep/new: lies in the input"),
        ("in", "in/../in", 1, "lies in the input"),
        ("in/a.png", "in", 1, "in: lies in the input"),
        ("in", "full", 1, "full: exists and is not an empty folder; choose another"),
        ("in", "file", 1, "file: exists and is not an empty folder"),
        ("texts", "out", 1, "texts: no image could be read (notes.txt: not an image)"),
        ("bare", "out", 1, "bare: no image could be read (the folder is empty)"),
    ],
)
def test_a_mistake_is_one_clear_line(photos, tmp_path, source, target, copies, says):
    save(GREY, tmp_path / "full" / "kept.png")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "notes.txt").write_text("no")
    (tmp_path / "bare").mkdir()
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        apply_to_folder(INVERT, tmp_path / source, tmp_path / target, copies=copies)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_link_to_the_input_is_the_input(photos, tmp_path):
    (tmp_path / "link").symlink_to(photos)
    with pytest.raises(ValueError, match="lies in the input"):
        apply_to_folder(INVERT, photos, tmp_path / "link")


def test_an_empty_output_folder_is_welcome(photos, tmp_path):
    (tmp_path / "out").mkdir()
    assert apply_to_folder(INVERT, photos, tmp_path / "out").written == 2


def test_an_interrupted_write_leaves_whole_files_only(photos, tmp_path, monkeypatch):
    real_save = Image.Image.save
    calls = []

    def failing(self, path, *args, **options):
        calls.append(path)
        if len(calls) == 2:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return real_save(self, path, *args, **options)

    monkeypatch.setattr(Image.Image, "save", failing)
    with pytest.raises(OSError, match="No space left"):
        apply_to_folder(INVERT, photos, tmp_path / "out")
    assert list(contents(tmp_path / "out")) == ["a_0.png"]
    assert np.array_equal(pixels(tmp_path / "out" / "a_0.png"), 255 - RGB)


def test_grey_stays_grey(photos, tmp_path):
    apply_to_folder(INVERT, photos, tmp_path / "out")
    with Image.open(tmp_path / "out/deep/down/b_0.png") as image:
        assert image.mode == "L"
        assert image.tobytes() == ImageOps.invert(Image.fromarray(GREY)).tobytes()


def test_every_ending_it_accepts_can_be_written(tmp_path):
    """Otherwise a folder would fail half-way."""
    known = Image.registered_extensions()
    for ending in folder.IMAGE_EXTENSIONS:
        if known.get(ending) in Image.OPEN:
            assert known[ending] in Image.SAVE, ending
            save(RGB, tmp_path / ending[1:] / f"a{ending}")
            assert apply_to_folder(INVERT, tmp_path / ending[1:], tmp_path / "out" / ending[1:])


def test_names_too_long_are_cut_and_stay_apart(tmp_path):
    long = "\u00e9" * 125  # of two bytes each
    for ending in ("a", "b"):
        save(RGB, tmp_path / "in" / f"{long}{ending}.png")
    save(RGB, tmp_path / "in" / "x.png")
    result = apply_to_folder(INVERT, tmp_path / "in", tmp_path / "out", copies=2)
    assert result.written == 6 and not result.skipped
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(set(names)) == 6 and max(len(name.encode()) for name in names) <= 255
    assert sum(name.startswith(long[:100]) for name in names) == 4


def test_what_cannot_be_written_is_skipped_and_a_full_disk_is_named(photos, tmp_path, monkeypatch):
    whole = Image.Image.save

    def failing(code, name):
        def save(image, path, **options):
            if failing.turn.pop(0):
                raise OSError(code, name)
            whole(image, path, **options)

        return save

    failing.turn = [True, False]
    monkeypatch.setattr(Image.Image, "save", failing(errno.EINVAL, "no"))
    result = apply_to_folder(INVERT, photos, tmp_path / "one")
    assert result.written == 1 and [line.endswith(": no") for line in result.skipped] == [True]
    failing.turn = [False, True]
    monkeypatch.setattr(Image.Image, "save", failing(errno.ENOSPC, "No space left"))
    with pytest.raises(OSError, match=r"cannot be written \(No space left\); make room, then try"):
        apply_to_folder(INVERT, photos, tmp_path / "two")
    assert len(contents(tmp_path / "two")) == 1
    failing.turn = [True]
    monkeypatch.setattr(Image.Image, "save", failing(errno.EACCES, "Permission denied"))
    with pytest.raises(OSError, match=r"\(Permission denied\); choose another place"):
        apply_to_folder(INVERT, photos, tmp_path / "three")
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"out: nothing could be written \(.*; choose another pl"):
        apply_to_folder(INVERT, photos, tmp_path / "file" / "out")


def test_pipes_and_loops_are_skipped(photos, tmp_path):
    os.mkfifo(photos / "pipe.png")
    (photos / "loop").symlink_to(".")
    result = apply_to_folder(INVERT, photos, tmp_path / "out")
    assert result.images == 2
    assert sorted(result.skipped) == [
        "loop: a link that leads back",
        "pipe.png: neither a file nor a folder",
    ]


def test_no_other_format_of_pillow_is_opened(photos, tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "x.eps")
    (tmp_path / "x.eps").rename(photos / "x.jpg")
    result = apply_to_folder(INVERT, photos, tmp_path / "out")
    assert result.skipped == ["x.jpg: not an image"]
