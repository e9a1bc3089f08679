"""Text of strangers on its way to a terminal, a shell line, a comment, a file of code."""

from __future__ import annotations

import ast
import io
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

import dada
from dada.exchange.exports import TARGETS, export, export_file
from dada.exchange.folder import apply_to_folder
from dada.exchange.imports import import_policy
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.report import write_report
from dada.report.repeat import search_command
from dada.runlog import read_weights, to_toml
from dada.safe_text import (
    LONGEST_MESSAGE,
    comment_text,
    one_line_errors,
    printable,
    quoted,
    shell_word,
)
from dada.terminal.console import SafeConsole
from fire.exports import same_shape

# Line ends of every kind, escapes, marks of direction, encodings, quotes, ends of comments.
NASTY = st.text(
    st.sampled_from(
        "\n\r\x0b\x0c\x1b\x85\u2028\u2029\u202e\x00\x07\x7f\ud800'\"\\#:=;`$(){}[]<>&| "
    )
    | st.characters(),
    max_size=60,
) | st.sampled_from(
    [
        "coding:unicode_escape\\u000aimport os; os._exit(7)",
        "-*- coding: utf-7 -*- +AAo-import os; os._exit(7)",
        "vim: set fileencoding=raw_unicode_escape :\\u000araise SystemExit(7)",
        "x\nimport os; os._exit(7)",
        "x\x0cimport os; os._exit(7)",
        "$(touch pwned)",
        "`touch pwned`; touch pwned",
        "a' ; touch pwned '",
        "--out=pwned",
    ]
)
CODE = [target for target in TARGETS if target != "albumentations"]


def policy(name: str = "plain", **provenance: object) -> Policy:
    steps = (PolicyOp("Rotate", 0.5, 0.25), PolicyOp("Invert", 0.5))
    return Policy((SubPolicy(1.0, steps),), "paper", "weighted", {"name": name, **provenance})


def shape_of(tree: ast.AST) -> str:
    """A syntax tree without its constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree)


@pytest.mark.parametrize("target", CODE)
@settings(max_examples=20, deadline=None)  # the fuzzer of exports makes 10,000
@given(name=NASTY, key=NASTY, magnitude=st.floats(0, 1), probability=st.floats(0, 1))
def test_an_exported_file_differs_in_constants_only(target, name, key, magnitude, probability):
    steps = (PolicyOp("Rotate", probability, magnitude), PolicyOp("Invert", 0.5))
    hostile = Policy((SubPolicy(1.0, steps),), "paper", "weighted", {"name": name, key: key})
    # As Python reads a file: bytes, with whatever encoding its first lines name.
    read = ast.parse(export(hostile, target).encode())
    plain = Policy((SubPolicy(1.0, steps),), "paper", "weighted", {"name": "plain"})
    assert same_shape(read, ast.parse(export(plain, target)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["coding:unicode_escape", "coding=utf-7", "x\ncoding: rot13"])
def test_nothing_of_a_policy_stands_in_the_first_two_lines(target, name):
    first, second, *_ = export(policy(name), target).splitlines()
    assert [first, second] == export(policy(), target).splitlines()[:2]


def test_an_encoding_in_a_name_runs_nothing(tmp_path):
    """The attack itself, as a file that is imported."""
    name = "coding:unicode_escape\\u000aimport os; os._exit(7)#"
    for target in ("mmpretrain", "torchvision", "timm"):
        file = tmp_path / f"policy_{target}.py"
        file.write_text(export(policy(name), target), encoding="utf-8")
        done = imported(file)
        assert done.returncode == 0, (target, done.stderr)


def test_the_attack_would_have_worked(tmp_path):
    """So that the test above can fail: the same name where it used to stand."""
    file = tmp_path / "old.py"
    file.write_text('# policy "coding:unicode_escape\\u000aimport os; os._exit(7)#"\n')
    assert imported(file).returncode == 7


def imported(file: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", f"import {file.stem}"]
    return subprocess.run(command, cwd=file.parent, capture_output=True, timeout=120)


@settings(max_examples=200, deadline=None)
@given(text=NASTY)
def test_text_for_people_is_one_bounded_line(text):
    for shown in (printable(text), quoted(text), quoted([text]), quoted({text: text})):
        assert shown.isprintable() and len(shown) <= 120
    assert printable("plain words, é, 猫") == "plain words, é, 猫"
    assert comment_text(text).isascii() and not set(comment_text(text)) & set("\n\r:=\\\"'#")


def test_a_huge_name_is_never_converted_whole():
    assert printable("\x1b" * 10**7) == ("\\x1b" * 30)[:117] + "..."


@settings(max_examples=200, deadline=None)
@given(text=NASTY)
def test_a_word_of_a_command_stays_one_word(text):
    assert len(shlex.split(shell_word(text))) == 1
    assert not shlex.split(shell_word(text))[0].startswith("-")


@settings(max_examples=100, deadline=None)
@given(text=NASTY.filter(lambda text: text.isprintable()), names=st.tuples(NASTY, NASTY))
@example(text=";", names=("", ""))
def test_repeat_it_has_no_word_or_code_of_a_stranger(text, names):
    """Every value of a config.toml, as a shell line and as Python."""
    search = {"preset": text, "estimator": text, "exclude": [text], "x=1)\nimport os #": 1}
    asked = {"command": "search", "seed": text, "device": text, "source": text, "recipe": text}
    own = {**asked, "model": text, "search": {**search, names[0]: names[1]}}
    small = {**asked, "model": "small", "search": {"preset": "paper", "estimator": text}}
    read = [tomllib.loads(to_toml(config)) for config in (small, own) if _writable(config)]
    for config in read:
        command = search_command(config, Path("run"))
        assert command is not None
        if command.startswith("import"):
            assert shape_of(ast.parse(command)).count("Call(") <= 2  # dada.search(...), Base(...)
        else:
            words = shlex.split(command)
            assert words[:2] == ["dada", "search"]
            assert ";" not in words or text == ";"  # which is a word then, as any other
            assert text in words or f"./{text}" in words or not text


def _writable(config: dict) -> bool:
    try:
        to_toml(config).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_a_terminal_gets_no_escapes_of_others():
    for terminal in (True, False):
        console = SafeConsole(file=io.StringIO(), force_terminal=terminal, width=60)
        table = Table("col\x1b]0;title\x07umn")
        table.add_row("row\x1b[2J")
        console.print(table)
        console.print(Text("tit\x1b[31mle"), "pl\rain\x9b5n", markup=False)
        shown = console.file.getvalue()
        for attack in ("\x1b]0", "\x1b[2J", "\x1b[31m", "\r", "\x9b", "\x07"):
            assert attack not in shown, repr(shown)
        assert "plain"[:2] in shown and "col" in shown


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dada", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_the_command_prints_no_escape_and_no_flood(tmp_path):
    content = json.loads(policy().to_json())
    (tmp_path / "field.json").write_text(json.dumps({**content, "x\x1b[31m" + "y" * 10**6: 1}))
    done = run("show", "field.json", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("dada: field.json: x\\x1b[31my")
    assert len(done.stderr) <= 501 and done.stderr.count("\n") == 1
    policy("a\x1b]0;gone\x07").save(tmp_path / "name.json")
    done = run("show", "name.json", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "\x1b]0" not in done.stdout


# --- every function that a user calls -----------------------------------------------------------

FOREIGN = "x\x1b]0;title\x07\n\u202e" + 600 * "y"


def _calls(folder: Path) -> dict[str, Callable[[], object]]:
    plain = Policy.load("dada-cifar10")
    return {
        "search": lambda: dada.search(FOREIGN, out=folder / "s"),
        "search, model": lambda: dada.search("digits", model=FOREIGN, device="cpu"),
        "train": lambda: dada.train("digits", FOREIGN, out=folder / "t"),
        "verify": lambda: dada.verify(folder / FOREIGN[:90]),
        "compare": lambda: dada.compare("digits", [FOREIGN, "none"], out=folder / "c"),
        "data.load": lambda: dada.data.load(f"cifar10:{FOREIGN}"),
        "data.load, prefix": lambda: dada.data.load(f"{FOREIGN}:{FOREIGN}"),
        "data.load, torchvision": lambda: dada.data.load(f"torchvision:{FOREIGN}:."),
        "Policy.load": lambda: Policy.load(folder / FOREIGN[:90]),
        "Policy.from_json": lambda: Policy.from_json(json.dumps({FOREIGN: FOREIGN})),
        "Policy.export": lambda: plain.export(FOREIGN),
        "import_policy": lambda: import_policy(FOREIGN, "torchvision"),
        "import_policy, source": lambda: import_policy("x", FOREIGN),
        "export_file": lambda: export_file(plain, "timm", folder / f"{FOREIGN[:90]}.txt"),
        "apply_to_folder": lambda: apply_to_folder(plain, folder / FOREIGN[:90], folder / "a"),
        "write_report": lambda: write_report(folder / FOREIGN[:90]),
        "Comparison.load": lambda: dada.Comparison.load(folder / FOREIGN[:90]),
        "models.build": lambda: dada.models.build(FOREIGN, 2),
        "models.build, torchvision": lambda: dada.models.build(f"torchvision:{FOREIGN}", 2),
        "read_weights": lambda: read_weights(folder / FOREIGN[:90]),
    }


@pytest.mark.parametrize("name", _calls(Path("x")))
def test_whatever_is_wrong_is_one_printable_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError)) as error:
        _calls(tmp_path)[name]()
    assert str(error.value).isprintable() and len(str(error.value)) <= LONGEST_MESSAGE


def test_an_error_of_several_words_is_left_alone():
    @one_line_errors
    def raises(error: Exception) -> None:
        raise error

    with pytest.raises(UnicodeDecodeError):
        raises(UnicodeDecodeError("utf-8", b"a", 0, 1, "a\nb"))
    with pytest.raises(TypeError) as error:
        raises(TypeError("a\nb"))
    assert error.value.args == ("a\\nb",)
