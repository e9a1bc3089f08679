"""The command as a person meets it: exit codes, one line for a mistake, help with examples."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Hashable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

import dada
from dada.config import LOOKAHEAD, LOOKAHEAD_FINE_TUNING, VERIFY, VERIFY_FINE_TUNING
from dada.policy import Policy
from dada.terminal.commands import app
from dada.terminal.errors import in_flags, in_words
from dada.terminal.options import RunOptions

SOURCE = Path(__file__).parents[1] / "src"
PUBLISHED = [
    *("dada-cifar10", "dada-cifar100", "dada-svhn", "dada-imagenet"),
    *("fastaa-cifar10", "fastaa-svhn", "fastaa-imagenet"),
]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def as_a_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "dada", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


# --- in a process of its own --------------------------------------------------------------------


def test_the_version(tmp_path):
    done = as_a_process("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dada {dada.__version__}\n", "")


def test_errors_of_the_system_name_the_file_and_no_number():
    assert in_words(PermissionError(13, "Permission denied", "a\n.json")) == (
        "a\\n.json: Permission denied"
    )
    assert in_words(OSError("gone")) == "gone"


def test_of_a_large_image_nothing_is_said_of_attacks(tmp_path):
    # Pillow warns from 89 million pixels; a header is enough to be warned of.
    (tmp_path / "map.pgm").write_bytes(b"P5 9500 9500 255\n")
    done = as_a_process("apply", "none", "map.pgm", "done", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("dada: map.pgm: no image could be read")


def test_who_works_among_the_images_can_search_twice(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(4):
            Image.new("RGB", (8, 8), (k, 0, 0)).save(tmp_path / "photos" / name / f"{k}.png")
    (tmp_path / "link").symlink_to("photos")
    monkeypatch.chdir(tmp_path / "photos")
    for place, more in ((".", []), (".", ["--out", "runs/again"]), ("../link", [])):
        quick = ["--epochs", "1", "--lookahead", "0", "--device", "cpu", "--quiet"]
        app(["search", place, *quick, *more], standalone_mode=False)
    made = sorted(path.name for path in Path("runs").iterdir())
    assert made == ["again", "search-link", "search-photos"]


def test_a_link_that_leads_to_itself_is_no_data_and_no_place_to_write(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    for arguments, says in (
        (("search", "loop"), "data 'loop': no such file or folder"),
        (("apply", "none", "a.png", "loop"), "loop: exists and is not an empty folder"),
    ):
        done = as_a_process(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith(f"dada: {says}"), done.stderr


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path):
    done = as_a_process("show", "no-such-policy", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("dada: no policy 'no-such-policy': neither a file, nor a run dir")
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path):
    done = as_a_process("show", "no-such-policy", "--debug", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback (most recent call last)" in done.stderr
    assert "ValueError: no policy 'no-such-policy'" in done.stderr


def test_debug_may_come_first(command):
    with pytest.raises(ValueError, match="no policy 'nope'"):
        command("--debug", "show", "nope")


# --- help ---------------------------------------------------------------------------------------


def command_names() -> list[str]:
    return [info.name or info.callback.__name__ for info in app.registered_commands]


def test_the_commands_are_listed(command):
    code, out, _ = command("--help")
    assert code == 0
    assert {"show", "apply"} <= set(command_names())
    for name in command_names():
        assert re.search(rf"\b{name}\b", ESCAPE.sub("", out)), name


@pytest.mark.parametrize("name", command_names())
def test_the_help_of_every_command_has_an_example(command, name):
    for flag in ("--help", "-h"):
        code, out, err = command(name, flag)
        assert code == 0 and err == ""
        assert re.search(rf"Example: dada {name}\b", ESCAPE.sub("", out))


def test_search_comes_first(command):
    assert command_names()[:3] == ["search", "train", "compare"]


def parameters(name: str) -> dict[str, typer.core.TyperOption]:
    return {p.name: p for p in typer.main.get_command(app).commands[name].params}


def test_search_train_and_compare_share_their_options():
    shared = [field.name for field in fields(RunOptions)]
    assert len(shared) == 26
    first, *others = (parameters(name) for name in ("search", "train", "compare"))
    for name in shared:
        for other in others:
            for what in ("opts", "secondary_opts", "help", "default"):
                assert getattr(first[name], what) == getattr(other[name], what)


def test_the_help_of_search_says_the_seconds_that_are_spent():
    known = parameters("search")
    for name, settings, pretrained in (
        ("lookahead", LOOKAHEAD, LOOKAHEAD_FINE_TUNING),
        ("verify_budget", VERIFY, VERIFY_FINE_TUNING),
    ):
        usual, tuned = (
            f"{each['cpu'].seconds:g}, GPU {each['cuda'].seconds:g}"
            for each in (settings, pretrained)
        )
        assert f"default {usual} (pretrained {tuned})" in known[name].help


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("search", {"train_data": "cifar10:data", "seed": 4}),
        ("train", {"data": "cifar10:data", "policy": "none", "seed": 4}),
        ("compare", {"data": "cifar10:data", "seeds": range(4, 7)}),
    ],
)
def test_what_is_typed_is_what_is_asked_for(command, monkeypatch, name, given):
    asked = {}

    def called(*positional, **named):
        names = inspect.signature(real).parameters
        asked.update(zip(names, positional, strict=False), **named)
        raise ValueError("seen enough")

    real = getattr(dada, name)
    monkeypatch.setattr(dada, name, called)
    line = "--model small --recipe r --image-size 9 --epochs 2 --batch-size auto --lr 0.5"
    line += " --precision fp32 --seed 4 --device cpu --no-graph --resume"
    assert command(name, "cifar10:data", *line.split())[0] == 2
    shared = {
        **{"model": "small", "recipe": "r", "image_size": 9, "epochs": 2, "batch_size": "auto"},
        **{"lr": 0.5, "precision": "fp32", "device": "cpu", "graph": False, "resume": True},
        "out": Path("runs") / f"{name}-cifar10-data",
    }
    assert (
        shared.items() | given.items()
        <= {key: value for key, value in asked.items() if isinstance(value, Hashable)}.items()
    )
    assert callable(asked["on_start"])
    assert callable(asked["on_trial" if name == "compare" else "on_epoch"])
    assert ("seed" in asked) == (name != "compare")
    assert asked.get("policies") in (None, ["uniform", "trivialaugment", "cutout", "none"])


def test_operations_to_leave_out_are_a_list(command, monkeypatch):
    asked = []

    def called(*_, exclude, **__):
        asked.append(exclude)
        raise ValueError("seen enough")

    monkeypatch.setattr(dada, "search", called)
    for words in ((), ("--exclude", "Invert, Solarize"), ("--exclude", "")):
        command("search", *words)
    assert asked == [None, ("Invert", "Solarize"), None]


@pytest.mark.parametrize("size", ["0.5", "-1", "many", "Auto"])
def test_a_batch_size_is_a_number_or_auto(command, size):
    code, _, err = command("train", "--batch-size", size)
    assert code == 2 and "is neither a number nor auto" in ESCAPE.sub("", err)


@pytest.mark.parametrize(("typed", "size"), [("96", 96), ("144x192", (144, 192))])
def test_an_image_size_is_a_side_or_height_and_width(command, monkeypatch, typed, size):
    asked = {}
    monkeypatch.setattr(dada, "train", lambda *_, **given: asked.update(given) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command("train", "--debug", "--image-size", typed)
    assert asked["image_size"] == size
    for wrong in ("x", "9x", "9,9", "9x9x9", "-1"):
        code, _, err = command("train", "--image-size", wrong)
        assert code == 2 and "is neither a number nor HEIGHTxWIDTH" in ESCAPE.sub("", err)


def test_no_command_shows_the_help(command):
    code, out, err = command()
    assert "Usage" in out + err and code in (0, 2)


def test_an_unknown_command_or_option(command):
    for arguments in (("shwo", "x"), ("show", "dada-cifar10", "--imgae", "x.png"), ("show",)):
        code, out, err = command(*arguments)
        assert code == 2 and out == ""
        assert err.startswith("dada: ") and len(err.splitlines()) == 1, err


# --- show ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_show_prints_every_published_policy(command, name):
    code, out, err = command("show", name)
    assert code == 0 and err == ""
    assert not ESCAPE.search(out), "colours where a program reads"
    assert out.startswith(f"{name}: {len(Policy.load(name).subpolicies)} sub-policies, one drawn")
    assert "how often each operation is done to an image" in out
    assert max(map(len, out.splitlines())) <= 80


def test_show_draws_a_new_sheet(command, tmp_path):
    code, out, err = command("show", "dada-cifar10", "--image", "sheet.png")
    assert code == 0 and err == "" and out.endswith("wrote sheet.png\n")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[1] == 4 + 10 * 100


def test_show_draws_on_a_picture(command, tmp_path):
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "photos" / "cat.png")
    code, out, _ = command("show", "dada-cifar10", "--image", "photos/cat.png")
    assert code == 0 and out.endswith("wrote cat-augmented.png\n")
    assert (tmp_path / "cat-augmented.png").is_file()


def test_show_draws_data(command, tmp_path):
    code, out, _ = command("show", "none", "--data", "digits")
    assert code == 0 and out.endswith("wrote policy.png\n")
    code, _, err = command("show", "none", "--data", "digits")
    assert code == 2 and err == "dada: policy.png: exists already; choose another name\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "nope"), "dada: no policy 'nope'"),
        (("show", "broken.json"), "dada: broken.json: not JSON"),
        (("show", "."), "dada: .: no policy.json in this directory"),
        (
            ("show", "none", "--image", "broken.json"),
            "dada: broken.json: cannot be read as an image",
        ),
        (("show", "none", "--image", "new.jpg"), "dada: new.jpg: no such picture"),
        (("show", "none", "--data", "nowhere"), "dada: data 'nowhere': no such file or folder"),
        (("apply", "nope", "in", "out"), "dada: no policy 'nope'"),
        (("apply", "none", "nowhere", "out"), "dada: nowhere: no such file or folder"),
        (("apply", "none", "in", "in"), "dada: in: lies in the input"),
        (("apply", "none", "in", "in/out"), "dada: in/out: lies in the input"),
        (("apply", "none", "in", "full"), "dada: full: exists and is not an empty folder"),
        (
            ("apply", "none", "in", "out", "--copies", "0"),
            "dada: --copies should be at least 1, got",
        ),
        (
            ("search", "digits", "--for-images", "0"),
            "dada: --for-images should be positive, got 0",
        ),
        (("apply", "none", "bare", "out"), "dada: bare: no image could be read"),
    ],
)
def test_mistakes(command, tmp_path, arguments, says):
    (tmp_path / "broken.json").write_text("{")
    for name in ("in", "full", "bare"):
        (tmp_path / name).mkdir()
    for name in ("in", "full"):
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a.png")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith(says) and len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


# --- parameters and flags -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("`batch_size` should be positive", "--batch-size should be positive"),
        ("pass `resume=True` or another `out`", "pass --resume or another --out"),
        ("`graph=False` helps", "--no-graph helps"),
        ("give `verify_budget=90` or more", "give --verify-budget 90 or more"),
        ("`batch_size='auto'` is for one process", "--batch-size auto is for one process"),
        ("`val_data` differs", "--val differs"),
        ("`data` is read", "DATA is read"),
        ("`policy_lr` and `small` stay", "`policy_lr` and `small` stay"),
        ("resume=True and out stay", "resume=True and out stay"),
    ],
)
def test_a_parameter_becomes_a_flag(message, says):
    assert in_flags(message, app, ["search", "digits"]) == says


def test_a_flag_is_one_of_the_command_that_was_typed():
    assert in_flags("`data`", app, ["search", "x"]) == "DATA"
    assert in_flags("`data`", app, ["--debug", "show"]) == "--data"
    assert in_flags("name the `out` of a search", app, ["report"]) == "name the --out of a search"


def test_an_old_flag_works_and_says_so(command, tmp_path):
    words = ("import", "rand-m9-n2-mstd0.5-inc1", "--from", "timm")
    names = "SolarizeAdd,PosterizeIncreasing"
    code, _, err = command(*words, "--drop", names, "--out", "old.json")
    first, *rest = err.splitlines()
    assert first == "dada: --drop is now --exclude; the old name goes in the next release"
    new = command(*words, "--exclude", names, "--out", "new.json")
    assert code == new[0] == 0 and new[2].splitlines() == rest
    assert (tmp_path / "old.json").read_text() == (tmp_path / "new.json").read_text()
    assert "--drop" not in command("import", "--help")[1]


# --- apply --------------------------------------------------------------------------------------


def test_apply_writes_copies_and_says_what_it_did(command, tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "in" / "a.png")
    Image.new("RGBA", (8, 8), (1, 2, 3, 255)).save(tmp_path / "in" / "sub" / "b.png")
    (tmp_path / "in" / "notes.txt").write_text("no")
    code, out, err = command("apply", "dada-cifar10", "in", "out", "--copies", "3")
    assert code == 0
    assert out == "wrote 6 files from 2 images to out, skipped 1\n"
    assert err.splitlines() == [
        "converted sub/b.png: transparent, laid on white",
        "skipped notes.txt: not an image",
    ]
    written = {
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.png")
    }
    assert written == {f"{stem}_{i}.png" for stem in ("a", "sub/b") for i in range(3)}


def test_apply_takes_a_policy_file_and_a_seed(command, tmp_path):
    (tmp_path / "in").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "in" / "a.png")
    Policy.from_rows([[("Rotate", 1.0, (0.6, 1.0))]]).save(tmp_path / "policy.json")
    for out, seed in (("one", 1), ("two", 1), ("three", 2)):
        assert command("apply", "policy.json", "in", out, "--seed", seed)[0] == 0
    one, two, three = (
        (tmp_path / name / "a_0.png").read_bytes() for name in ("one", "two", "three")
    )
    assert one == two and one != three
