"""What a person is shown of a policy: lines, a table, a sheet of pictures."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from dada.data import images
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.report import contact_sheet as sheets
from dada.terminal import policy_table

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
INVERT = Policy.from_rows([[("Invert", 1.0, 0.0)]], name="inverter")


def pixels_of(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


def shown(policy: Policy, *, terminal: bool) -> str:
    file = io.StringIO()
    policy_table.print_policy(policy, Console(file=file, force_terminal=terminal, width=110))
    return file.getvalue()


@pytest.mark.parametrize("name", ["dada-cifar10", "fastaa-svhn", "trivialaugment", "none"])
def test_a_pipe_gets_what_a_person_sees_without_colours(name):
    policy = Policy.load(name)
    text = shown(policy, terminal=False)
    assert not ESCAPE.search(text)
    assert text == ESCAPE.sub("", shown(policy, terminal=True))


def test_a_name_in_brackets_is_not_taken_for_a_colour():
    policy = Policy.from_rows([[("Rotate", 1.0, (0.5, 1.0))]], name="[red]mine[/red]")
    assert shown(policy, terminal=False).startswith("[red]mine[/red]: 1 sub-policy, one drawn")


def test_a_person_sees_a_table():
    text = shown(Policy.load("dada-cifar10"), terminal=True)
    assert ESCAPE.search(text)
    plain = ESCAPE.sub("", text)
    assert "dada-cifar10" in plain
    row = next(line for line in plain.splitlines() if "TranslateX by ±7.2% of the width" in line)
    assert "4.0%" in row and "0.52" in row and "━" in row
    assert "how often each operation is done" in plain


def test_a_long_table_is_cut_and_says_so():
    plain = ESCAPE.sub("", shown(Policy.load("fastaa-cifar10"), terminal=True))
    assert f"... and {493 - policy_table.MOST_ROWS} more sub-policies" in plain


def test_the_likeliest_come_first():
    policy = Policy(
        (SubPolicy(0.1, (PolicyOp("Invert", 1.0),)), SubPolicy(0.9, (PolicyOp("Equalize", 1.0),))),
        sampling="weighted",
    )
    plain = ESCAPE.sub("", shown(policy, terminal=True))
    assert plain.index("Equalize") < plain.index("Invert")


def test_no_policy_says_so():
    assert "no augmentation" in shown(Policy(()), terminal=True)


@pytest.mark.parametrize(("share", "full"), [(0.0, 0), (0.5, 6), (1.0, 12), (0.04, 0), (0.96, 12)])
def test_a_bar(share, full):
    assert policy_table.bar(share) == "━" * full + "·" * (12 - full)


# --- the sheet ----------------------------------------------------------------------------------


def test_a_sheet_shows_the_original_and_then_draws():
    image = Image.new("RGB", (48, 48), (10, 20, 30))
    sheet = sheets.contact_sheet(INVERT, [image], columns=3, cell=96)
    pixels = np.array(sheet)
    assert (pixels == (10, 20, 30)).all(-1).sum() == 96 * 96
    assert (pixels == (245, 235, 225)).all(-1).sum() == 3 * 96 * 96
    first = np.argwhere((pixels == (10, 20, 30)).all(-1))[:, 1]
    drawn = np.argwhere((pixels == (245, 235, 225)).all(-1))[:, 1]
    assert first.max() < drawn.min()


def test_a_sheet_repeats_and_its_rows_are_its_sub_policies():
    images = [Image.fromarray(np.arange(32 * 40, dtype=np.uint8).reshape(32, 40))]
    policy = Policy.load("dada-cifar10")
    sheet = sheets.contact_sheet(policy, images)
    assert sheets.contact_sheet(policy, images).tobytes() == sheet.tobytes()
    assert sheets.contact_sheet(policy, images, seed=1).tobytes() != sheet.tobytes()
    assert sheet.height == 4 + 10 * 100
    assert sheets.contact_sheet(policy, images, rows=3).height == 4 + 3 * 100


def test_a_sheet_of_no_augmentation():
    image = Image.new("RGB", (30, 20), (10, 20, 30))
    pixels = np.array(sheets.contact_sheet(Policy(()), [image], columns=2, cell=30))
    assert (pixels == (10, 20, 30)).all(-1).sum() == 3 * 30 * 20


def test_the_bars_of_the_operations_share_a_scale_that_is_full():
    policy = Policy(
        (SubPolicy(0.8, (PolicyOp("Equalize", 0.1),)), SubPolicy(0.2, (PolicyOp("Invert", 0.2),))),
        sampling="weighted",
    )
    lines = ESCAPE.sub("", shown(policy, terminal=True)).splitlines()
    rates = {line.split()[0]: line for line in lines if "%" in line and "·" not in line[:14]}
    assert rates["Equalize"].count("━") == 30 and "8.0%" in rates["Equalize"]
    assert rates["Invert"].count("━") == 15 and "4.0%" in rates["Invert"]
    assert rates["Rotate"].count("━") == 0


def test_a_label_is_wrapped_and_loses_no_word():
    font = sheets.ImageFont.load_default(14)
    words = "Cutout a square of up to 20.0% of the width, 50% of the time"
    lines = sheets._wrapped(words, 200, font)
    assert " ".join(lines) == words and len(lines) > 1
    assert all(font.getlength(line) <= 200 for line in lines)
    assert sheets._wrapped("unbreakable" * 9, 50, font) == ["unbreakable" * 9]


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (("Rotate", 1.0, (0.5, 1.0)), "Rotate by up to ±30.0 degrees"),
        (("Rotate", 1.0, 0.75), "Rotate by ±15.0 degrees"),
        (("Cutout", 1.0, (0.0, 1.0)), "Cutout a square of up to 20.0% of the width"),
        (("Color", 1.0, (0.0, 1.0)), "Color times 0.10 to 1.90"),
        (("Posterize", 1.0, (0.0, 1.0)), "Posterize to 4 to 8 bits"),
    ],
)
def test_a_range_from_nothing_is_said_as_up_to(step, says):
    policy = Policy.from_rows([[step]])
    assert sheets.in_words(policy, policy.subpolicies[0].ops[0]) == says


@pytest.mark.parametrize("size", [(1, 1), (500, 3), (3, 500), (96, 96)])
def test_any_shape_fits_a_cell(size):
    sheet = sheets.contact_sheet(INVERT, [Image.new("L", size, 7)], columns=1)
    assert sheet.size == (330 + 2 * 100 + 12, 104)


def test_tensors_as_pictures():
    grey = torch.arange(24, dtype=torch.uint8).view(1, 1, 4, 6)
    assert [image.mode for image in sheets.as_pil(grey)] == ["L"]
    colour = sheets.as_pil(torch.arange(72, dtype=torch.uint8).view(1, 3, 4, 6))[0]
    assert colour.mode == "RGB" and colour.size == (6, 4) and colour.getpixel((1, 0)) == (1, 25, 49)


# --- into a file --------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_picture_shows_the_digits(here):
    target = sheets.write_sheet(INVERT, here / "new" / "sheet.png", None)
    assert target == here / "new" / "sheet.png"
    assert pixels_of(target).shape == (104, 330 + 9 * 100 + 12, 3)


def test_a_new_picture_shows_the_data(here):
    for i, label in enumerate(("cat", "dog")):
        (here / "data" / label).mkdir(parents=True)
        for j in range(6):
            Image.new("RGB", (20, 20), (90 * i + 40, 7, 9)).save(here / f"data/{label}/{j}.png")
    policy = Policy.from_rows([[("Invert", 0.0, 0.0)]] * 10)
    pixels = pixels_of(sheets.write_sheet(policy, here / "s.png", "data"))
    assert (pixels == (40, 7, 9)).all(-1).any() and (pixels == (130, 7, 9)).all(-1).any()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "I;16"])
def test_an_existing_picture_is_shown_itself(here, mode):
    if mode == "I;16":
        Image.fromarray(np.full((20, 20), 65535, dtype=np.uint16)).save(here / "cat.png")
    else:
        Image.new("RGB", (20, 20), (255, 255, 255)).convert(mode).save(here / "cat.png")
    before = (here / "cat.png").read_bytes()
    target = sheets.write_sheet(INVERT, here / "cat.png", None)
    assert target.name == "cat-augmented.png"
    assert (pixels_of(here / target) == 0).all(-1).sum() >= 8 * 96 * 96
    assert (here / "cat.png").read_bytes() == before


def test_nothing_is_written_over(here):
    Image.new("RGB", (20, 20)).save(here / "cat.png")
    sheets.write_sheet(INVERT, here / "cat.png", None)
    with pytest.raises(ValueError, match=r"cat-augmented.png: exists already; move it away first"):
        sheets.write_sheet(INVERT, here / "cat.png", None)
    with pytest.raises(ValueError, match=r"cat.png: exists already; choose another name"):
        sheets.write_sheet(INVERT, here / "cat.png", "digits")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("new.jpg", "new.jpg: no such picture; a new one should be named .png"),
        ("notes.txt", "notes.txt: cannot be read as an image"),
        ("folder", "folder: cannot be read as an image"),
    ],
)
def test_a_picture_that_is_none(here, name, says):
    (here / "notes.txt").write_text("no")
    (here / "folder").mkdir()
    with pytest.raises(ValueError, match=re.escape(says)):
        sheets.write_sheet(INVERT, here / name, None)
    assert sorted(path.name for path in here.iterdir()) == ["folder", "notes.txt"]


def test_of_a_large_picture_no_more_is_made_than_is_shown(here, monkeypatch):
    Image.new("RGB", (5000, 40), "red").save("wide.png")
    seen = []

    def sheet(policy, pictures):
        seen.extend(picture.image.size for picture in pictures)
        return Image.new("RGB", (4, 4))

    monkeypatch.setattr(sheets, "contact_sheet", sheet)
    sheets.write_sheet(Policy.load("dada-cifar10"), Path("wide.png"), None)
    assert seen == [(2048, 16)]


def test_of_a_folder_only_what_is_shown_is_decoded(here, monkeypatch):
    for k in range(30):
        path = here / "data" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (k, 0, 0)).save(path)
    opened = []
    whole = images.open_file
    monkeypatch.setattr(
        "dada.data.parts.open_file", lambda path, **how: opened.append(path) or whole(path, **how)
    )
    assert len(sheets.pictures_for(str(here / "data"), 4)) == 4
    assert len(opened) == 4
