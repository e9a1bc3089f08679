"""dada.data: what images become, and how a split is divided.

Shapes: N images, B of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dada import data
from dada.data.images import Preprocessing, file_info, open_file, to_eight_bits, white_level
from dada.data.parts import THREADS
from dada.data.raw import RawArrays, RawSplit


def save(path: Path, array: Any, mode: str | None = None, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(array))
    (image if mode is None else image.convert(mode)).save(path, **options)


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(height * width).integers(0, 256, shape, dtype=np.uint8)


def two_classes(root: Path, **options: Any) -> Path:
    """One plain image in each of two classes, for tests that add a special one."""
    save(root / "a" / "plain.png", noise(8, 8), **options)
    save(root / "b" / "plain.png", 255 - noise(8, 8), **options)
    return root


def first(split: data.Split, position: int = 0) -> np.ndarray:
    return split.train.batch(torch.tensor([position]))[0][0].numpy()


# ---------------------------------------------------------------- conversions


def test_grey_stays_grey(tmp_path: Path) -> None:
    two_classes(tmp_path, mode="L")
    save(tmp_path / "a" / "bits.png", noise(8, 8, 1) > 127)
    split = data.load(tmp_path)
    assert split.channels == 1 and split.notes == ()
    assert set(np.unique(first(split))) == {0, 255}


def test_grey_among_colour_becomes_rgb_with_a_note(tmp_path: Path) -> None:
    save(two_classes(tmp_path) / "a" / "grey.png", noise(8, 8, 1))
    split = data.load(tmp_path)
    assert split.channels == 3
    assert "1 of 3 images were grey, made RGB like the others" in split.notes
    assert (first(split) == noise(8, 8, 1)).all()


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[..., 0], rgba[:, :4, 3], rgba[:, 4:, 3] = 200, 255, 51  # opaque, and one fifth
    save(two_classes(tmp_path) / "a" / "clear.png", rgba)
    split = data.load(tmp_path)
    assert "1 of 3 images were transparent, laid on white" in split.notes
    assert first(split)[:, 0, 0].tolist() == [200, 0, 0]
    assert first(split)[:, 0, 7].tolist() == [244, 204, 204]  # 255 + (x - 255) / 5


def test_palette_cmyk_and_transparent_palette(tmp_path: Path) -> None:
    two_classes(tmp_path)
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(tmp_path / "a" / "1_palette.gif")
    palette.save(tmp_path / "a" / "2_clear.png", transparency=1)
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a" / "3_print.jpg", quality=100)
    split = data.load(tmp_path)
    assert first(split, 0)[:, 3, 3].tolist() == [10, 20, 30]
    assert first(split, 1)[:, 3, 3].tolist() == [255, 255, 255]
    assert np.abs(first(split, 2)[:, 3, 3].astype(int) - [255, 0, 0]).max() <= 3
    assert {note.split(" were ")[1] for note in split.notes if " were " in note} == {
        "palette, made RGB",
        "transparent, laid on white",
        "CMYK, made RGB",
    }


def test_grey_palette_counts_as_grey(tmp_path: Path) -> None:
    two_classes(tmp_path, mode="L")
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 77, 77, 77])
    palette.save(tmp_path / "a" / "1.png")
    split = data.load(tmp_path)
    assert split.channels == 1 and first(split)[0, 0, 0] == 77


@pytest.mark.parametrize(("peak", "white"), [(65535, 65535), (4000, 4095), (1023, 1023)])
def test_16_bit_is_scaled_not_clipped(tmp_path: Path, peak: int, white: int) -> None:
    deep = np.linspace(0, peak, 64).astype(np.uint16).reshape(8, 8)
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", deep)
        save(tmp_path / name / "2.tif", deep)
    split = data.load(tmp_path)
    assert split.channels == 1
    expected = np.rint(deep * (255 / white))
    for position in range(4):
        assert np.abs(first(split, position)[0] - expected).max() <= 0.5
    assert f"deep images were scaled from 0..{white} (the largest value is {peak})" in split.notes
    arrays = data.load((np.stack([deep, deep]), [0, 1]))
    assert (first(arrays) == first(split)).all()


def test_white_level_is_the_top_of_a_usual_depth() -> None:
    assert [white_level(peak) for peak in (1, 255, 256, 4096, 16384, 70000)] == [
        255,
        255,
        1023,
        16383,
        65535,
        65535,
    ]


def test_deep_images_out_of_range_are_refused(tmp_path: Path) -> None:
    save(two_classes(tmp_path) / "a" / "1.tif", np.full((8, 8), 3.5, np.float32))
    with pytest.raises(ValueError, match=r"1\.tif: .*floating-point pixels must lie in 0..1"):
        data.load(tmp_path)
    with pytest.raises(ValueError, match=r"0\.\.65535, but these span -4\.\.-4"):
        to_eight_bits(Image.fromarray(np.full((2, 2), -4, np.int32)))


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_a_tiff_on_its_side_is_turned_upright(mode: str, tmp_path: Path) -> None:
    # Pillow scrambles grey ones where it opens the file itself and maps it into memory.
    stored = Image.fromarray(noise(8, 12, 1)).convert(mode)
    exif = Image.Exif()
    for orientation, turn in ((6, Image.Transpose.ROTATE_270), (8, Image.Transpose.ROTATE_90)):
        exif[0x0112] = orientation
        stored.save(tmp_path / "x.tif", exif=exif)
        upright = open_file(str(tmp_path / "x.tif"))
        assert file_info(str(tmp_path / "x.tif")).size == (upright.height, upright.width)
        assert np.array_equal(np.asarray(upright), np.asarray(stored.transpose(turn)))


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_exif_orientation_is_honoured(ending: str, tmp_path: Path) -> None:
    array = np.zeros((8, 16, 3), np.uint8)
    array[:, :8] = 255  # bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn clockwise to see me upright"
    for name in ("a", "b"):
        save(tmp_path / name / f"1.{ending}", array, exif=exif)
    split = data.load(tmp_path)
    assert split.image_size == (16, 8)
    top, bottom = first(split)[:, :6].mean(), first(split)[:, 10:].mean()
    assert top > 250 and bottom < 5


def test_mixed_sizes_take_the_median_shorter_side(tmp_path: Path) -> None:
    for k, (height, width) in enumerate([(20, 40), (30, 30), (60, 50)]):
        save(tmp_path / "ab"[k % 2] / f"{k}.png", noise(height, width))
    split = data.load(tmp_path)
    assert split.image_size == (30, 30)
    assert "widths 30 to 50, heights 20 to 60" in split.notes[0]
    assert "30 pixels on its shorter side" in split.notes[0]
    assert data.load(tmp_path, image_size=16).image_size == (16, 16)
    assert data.load(tmp_path, image_size=(10, 24)).image_size == (10, 24)
    for bad in (0, (3, 0), (1, 2, 3), "32"):
        with pytest.raises(ValueError, match="`image_size` must"):
            data.load(tmp_path, image_size=bad)  # type: ignore[arg-type]


def test_large_files_are_capped_and_arrays_are_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", noise(300, 600))
    split = data.load(tmp_path)
    assert split.image_size == (224, 448) and "shrunk to 448x224" in split.notes[0]
    save(tmp_path / "b" / "2.png", noise(400, 500))
    assert data.load(tmp_path).image_size == (224, 224)
    assert data.load((np.zeros((2, 300, 300), np.uint8), [0, 1])).image_size == (300, 300)


def test_crop_is_central_and_keeps_proportions() -> None:
    array = np.zeros((40, 80), np.uint8)
    array[:, 20:60] = 200  # the central square
    preprocessing = Preprocessing(size=(20, 20), channels=1)
    cropped = preprocessing.pixels(Image.fromarray(array)).astype(int)
    # Bicubic windows reach over the crop's edge, as when resizing first and cropping then.
    assert np.abs(cropped[..., 1:-1] - 200).max() <= 2 and np.abs(cropped - 200).max() <= 15
    assert (cropped == cropped[..., ::-1]).all()
    same = noise(20, 20)
    assert (
        Preprocessing(size=(20, 20), channels=3).pixels(Image.fromarray(same))
        == same.transpose(2, 0, 1)
    ).all()
    margin = Preprocessing(size=(7, 7), channels=1, margin=0.875).pixels(
        Image.fromarray(same[..., 0])
    )
    assert margin.shape == (1, 7, 7)


def test_jpeg_draft_changes_little(tmp_path: Path) -> None:
    """Large photographs are decoded at reduced size, which must not show."""
    smooth = Image.fromarray(noise(6, 8)).resize((1200, 900), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "photo.jpg", quality=95)
    preprocessing = Preprocessing(size=(64, 64), channels=3)
    full = preprocessing.pixels(open_file(str(tmp_path / "photo.jpg"))).astype(int)
    small = open_file(str(tmp_path / "photo.jpg"), draft=preprocessing.draft_size())
    assert small.width < 600
    assert np.abs(preprocessing.pixels(small) - full).mean() < 1.0


# ---------------------------------------------------------------- parts


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for k in range(12):
        save(tmp_path / "abc"[k % 3] / f"{k}.png", noise(10 + k, 12))
    return tmp_path


def test_lazy_and_loaded_files_are_the_same(files: Path) -> None:
    lazy, held = data.load(files, in_memory=False), data.load(files, in_memory=True)
    assert isinstance(lazy.train, data.FilePart) and isinstance(held.train, data.TensorPart)
    index_B = torch.tensor([7, 0, 7, 3])
    for a, b in zip(lazy.train.batch(index_B), held.train.batch(index_B), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(lazy.train.load().images_NCHW, held.train.images_NCHW)
    taken = lazy.train.take(index_B)
    assert torch.equal(taken.batch(torch.arange(4))[0], held.train.batch(index_B)[0])
    ahead = list(data.batches(lazy.train, torch.arange(12).split(5)))
    assert [len(labels) for _, labels in ahead] == [5, 5, 2]
    assert torch.equal(torch.cat([images for images, _ in ahead]), held.train.images_NCHW)
    np.testing.assert_allclose(lazy.mean_std(), held.mean_std(), atol=1e-6)


def test_a_small_batch_is_decoded_by_all_threads(files: Path, monkeypatch: Any) -> None:
    part = data.load(files, in_memory=False).train
    together = threading.Barrier(THREADS, timeout=20)

    def waiting(path: str, **options: Any) -> Image.Image:
        together.wait()  # for as many images as there are threads
        return open_file(path, **options)

    monkeypatch.setattr("dada.data.parts.open_file", waiting)
    assert len(part.batch(torch.arange(THREADS) % 12)[0]) == THREADS


def test_resized_crops_come_from_the_original(files: Path) -> None:
    part = data.load(files, in_memory=False, image_size=8).train
    assert isinstance(part, data.FilePart)
    index_B = torch.arange(12)
    images, labels = part.resized_crops(index_B, torch.Generator().manual_seed(0))
    again, _ = part.resized_crops(index_B, torch.Generator().manual_seed(0))
    other, _ = part.resized_crops(index_B, torch.Generator().manual_seed(1))
    assert images.shape == (12, 3, 8, 8) and torch.equal(labels, part.labels_N)
    assert torch.equal(images, again) and not torch.equal(images, other)
    whole, _ = part.resized_crops(
        index_B[:1], torch.Generator().manual_seed(0), scale=(1, 1), ratio=(1.2, 1.2)
    )  # the first file is 12 x 10: the one crop of that shape is the image
    with Image.open(part.paths[0]) as image:
        expected = np.asarray(image.resize((8, 8), Image.Resampling.BICUBIC))
    assert (whole[0].permute(1, 2, 0).numpy() == expected).all()


def test_mean_std_are_exact() -> None:
    images = torch.randint(
        0, 256, (50, 3, 6, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    mean, std = data.load((images, [0, 1] * 25)).mean_std()
    scaled = images.double() / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), atol=1e-7)
    np.testing.assert_allclose(std, scaled.std((0, 2, 3), correction=0), atol=1e-7)
    flat = data.load((torch.full((2, 1, 4, 4), 9, dtype=torch.uint8), [0, 1]))
    assert flat.mean_std()[1] == (pytest.approx(1 / 255),)


def test_fingerprint_changes_with_anything_that_matters(files: Path) -> None:
    held = data.load(files)
    assert held.fingerprint == data.load(files).fingerprint and len(held.fingerprint) == 64
    images_NCHW = held.train.batch(torch.arange(12))[0]
    other_pixel = images_NCHW.clone()
    other_pixel[0, 0, 0, 0] ^= 1
    labels = held.train.labels_N.tolist()
    prints = {
        data.load((images_NCHW, labels)).fingerprint,
        data.load((other_pixel, labels)).fingerprint,
        data.load((images_NCHW, labels[::-1])).fingerprint,
    }
    assert len(prints) == 3
    lazy = data.load(files, in_memory=False).fingerprint
    moved = files.rename(files.parent / "elsewhere")
    assert data.load(moved, in_memory=False).fingerprint == lazy
    next((moved / "a").iterdir()).rename(moved / "a" / "renamed.png")
    assert data.load(moved, in_memory=False).fingerprint != lazy


# ---------------------------------------------------------------- dividing


def numbered(counts: list[int]) -> data.Split:
    """Image i holds the number i, so that images can be followed."""
    total = sum(counts)
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    images = torch.arange(total, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return data.load((images.contiguous(), labels))


def ids(part: data.Part | None) -> list[int]:
    assert part is not None
    return part.batch(torch.arange(len(part)))[0][:, 0, 0, 0].tolist()


@pytest.mark.parametrize("fraction", [0.5, 0.2, 0.01, 0.99])
@pytest.mark.parametrize("counts", [[20, 20], [2, 50, 7], [3, 3, 3, 3, 3]])
def test_validation_is_stratified_and_complete(fraction: float, counts: list[int]) -> None:
    split = numbered(counts)
    parted = data.split_off_validation(split, fraction, seed=1)
    assert parted.val is not None
    assert sorted(ids(parted.train) + ids(parted.val)) == list(range(sum(counts)))
    in_val = torch.bincount(parted.val.labels_N, minlength=len(counts))
    for taken, count in zip(in_val.tolist(), counts, strict=True):
        assert 1 <= taken <= count - 1
        assert abs(taken - fraction * count) <= 1 or taken in (1, count - 1)
    inside = len(counts) <= round(fraction * sum(counts)) <= sum(counts) - len(counts)
    if inside:
        assert len(parted.val) == round(fraction * sum(counts))
    assert ids(data.split_off_validation(split, fraction, seed=1).val) == ids(parted.val)


def test_other_seeds_divide_otherwise() -> None:
    split = numbered([20, 20])
    assert len({tuple(ids(data.split_off_validation(split, seed=s).val)) for s in range(5)}) == 5


def test_what_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="class '1' has one training image"):
        data.split_off_validation(numbered([5, 1]))
    with pytest.raises(ValueError, match="between 0 and 1, but got 1"):
        data.split_off_validation(numbered([5, 5]), 1)
    with pytest.raises(ValueError, match="there is a validation part already"):
        data.split_off_validation(data.split_off_validation(numbered([5, 5])))


def grouped(labels: list[int], groups: list[int]) -> data.Split:
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None]
    part = data.TensorPart(images, torch.tensor(labels), torch.tensor(groups))
    return data.Split(train=part, classes=tuple("abcdef"[: max(labels) + 1]), name="patients")


@pytest.mark.parametrize("seed", range(6))
def test_groups_stay_whole(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 15, (120,), generator=generator).tolist()
    labels = torch.randint(0, 3, (120,), generator=generator).tolist()
    parted = data.split_off_validation(grouped(labels, groups), 0.3, seed)
    assert parted.val is not None
    assert parted.train.groups_N is not None and parted.val.groups_N is not None
    assert not set(parted.train.groups_N.tolist()) & set(parted.val.groups_N.tolist())
    assert set(parted.val.labels_N.tolist()) == set(parted.train.labels_N.tolist()) == {0, 1, 2}
    assert abs(len(parted.val) - 36) <= 8  # one group is 8 images on average


def test_groups_that_leave_one_way_only() -> None:
    # Class c is in the two small groups alone; each side must get one of them.
    labels, groups = [0] * 8 + [1] * 8 + [2, 2], [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4, 5]
    for seed in range(5):
        parted = data.split_off_validation(grouped(labels, groups), 0.5, seed)
        assert parted.val is not None and set(parted.val.labels_N.tolist()) == {0, 1, 2}
    with pytest.raises(ValueError, match="class 'b' are in one group"):
        data.split_off_validation(grouped([0, 0, 1, 1], [0, 1, 2, 2]))


def test_reduce_is_stratified() -> None:
    split = numbered([60, 30, 10])
    small = data.reduce(split, 20, seed=3)
    assert torch.bincount(small.train.labels_N).tolist() == [12, 6, 2]
    assert ids(small.train) == sorted(set(ids(small.train)))
    assert ids(data.reduce(split, 20, seed=3).train) == ids(small.train)
    assert ids(data.reduce(split, 20, seed=4).train) != ids(small.train)
    assert torch.bincount(data.reduce(split, 3).train.labels_N).tolist() == [1, 1, 1]
    for count, says in ((0, "cannot take 0"), (101, "cannot take 101 of 100"), (2, "cover 3 clas")):
        with pytest.raises(ValueError, match=says):
            data.reduce(split, count)


def test_reduce_to_some_classes() -> None:
    whole = numbered([10, 10, 10, 10])
    split = data.Split(train=whole.train, test=whole.train, classes=tuple("abcd"), name="letters")
    named = data.reduce(split, 10, classes=["d", "b"])
    assert named.classes == ("b", "d") and named.test is not None
    assert sorted(ids(named.test)) == [*range(10, 20), *range(30, 40)]
    assert named.test.labels_N.tolist() == [0] * 10 + [1] * 10
    drawn = {data.reduce(split, 4, seed=seed, classes=2).classes for seed in range(20)}
    assert len(drawn) > 3 and all(len(classes) == 2 for classes in drawn)
    for classes, says in ((5, "cannot keep 5 of 4"), (["z", "a"], "no class 'z'"), (["a"], "two")):
        with pytest.raises(ValueError, match=says):
            data.reduce(split, 4, classes=classes)


def test_fingerprint_of_lazy_data_is_that_of_earlier_versions(tmp_path: Path) -> None:
    """A run directory holds it, so a run could not be resumed by a version with another."""
    for name, level in (("a/1.ppm", 10), ("b/2.ppm", 200)):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (5, 4), (level, 0, 0)).save(tmp_path / name)
    lazy = data.load(tmp_path, in_memory=False).fingerprint
    assert lazy == "c98197d022e2a321964670157f8c60e043272f75332f9ad1cda443bbac1e215b"


# ---------------------------------------------------------------- as they are printed


def test_reprs_of_data_say_what_it_is_and_hold_no_tensor(tmp_path: Path) -> None:
    split = data.load("digits")
    assert repr(split) == (
        "<Split digits: 1,297 train, 500 test; 10 classes; 8x8 grey; 0, 1, 2, 3, ... (10 in all); "
        "in memory (cpu)>"
    )
    assert repr(split.train) == "<TensorPart of 1,297 images, 8x8 grey, in memory (cpu)>"
    for i in range(6):
        file = tmp_path / "ab"[i % 2] / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (12, 8), (i, 0, 0)).save(file)
    train = data.load(tmp_path, in_memory=False).train
    assert repr(train) == f"<FilePart of 6 images, 12x8 RGB, files in {tmp_path}>"
    train = data.load(Plain(), in_memory=False).train
    assert repr(train) == "<DatasetPart of 4 images, 8x8 grey, read from Plain>"
    array = np.zeros((2, 1, 4, 4), np.uint8)
    raw = RawArrays(images_NCHW=array, labels_N=torch.tensor([0, 1]))
    assert "{'train': <RawArrays of 2 images>}" in repr(RawSplit(parts={"train": raw}, name="x"))


class Plain:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(1, 8, 8, dtype=torch.uint8), i % 2
