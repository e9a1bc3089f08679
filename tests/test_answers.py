"""What commands say: `--json`, `--quiet`, `dada list`, names that are nearly right, completion."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import typer
from PIL import Image

import dada
from dada import names, recipes
from dada.ops import PAPER
from dada.policy.space import SPACES, SearchSpace
from dada.terminal import completion
from dada.terminal.commands import app
from dada.terminal.listing import entries


@pytest.fixture
def command(command, tmp_path):
    """In a folder with a few pictures."""
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(8):
            shade = 40 * i if label == "cat" else 255 - 9 * i
            Image.new("RGB", (8, 8), (shade % 256, 90, 7)).save(f"photos/{label}/{i}.png")
    return command


QUICK = ("--epochs", "1", "--device", "cpu", "--model", "small")
COMPUTING = {
    "search": ("photos", *QUICK, "--lookahead", "0", "--out", "found"),
    "train": ("photos", *QUICK, "--out", "trained"),
    "compare": ("photos", *QUICK, "--policies", "uniform,none", "--seeds", "1", "--at-once", "1"),
    "show": ("dada-cifar10", "--image", "sheet.png"),
    "apply": ("dada-cifar10", "photos", "augmented"),
    "export": ("dada-cifar10", "--to", "torchvision"),
    "import": ("imagenet", "--from", "torchvision"),
    "report": ("found",),
    "list": ("policies",),
    "doctor": (),
}


def arguments(name: str, command) -> list[str]:
    if name == "report":
        assert command("search", *COMPUTING["search"], "--quiet")[0] == 0
    return [name, *COMPUTING[name]]


def test_every_command_is_tried_here():
    assert set(COMPUTING) <= set(typer.main.get_command(app).commands)
    for name, known in typer.main.get_command(app).commands.items():
        if name == "explore":  # serves a page until Ctrl-C, and has nothing to say at an end
            continue
        assert {"--quiet", "--json"} <= {flag for p in known.params for flag in p.opts}, name


@pytest.mark.parametrize("name", COMPUTING)
def test_one_object_and_nothing_else(command, name):
    code, out, _ = command(*arguments(name, command), "--json")
    assert code == 0 and len(out.splitlines()) == 1
    answer = json.loads(out)
    assert answer.pop("command") == name and answer


@pytest.mark.parametrize("name", COMPUTING)
def test_nothing_but_errors(command, name):
    assert command(*arguments(name, command), "--quiet") == (0, "", "")


def test_both_together(command):
    code, out, err = command("show", "none", "--quiet", "--json")
    assert code == 0 and err == "" and json.loads(out)["subpolicies"] == []


@pytest.mark.parametrize("how", ["--quiet", "--json"])
def test_an_error_is_said_all_the_same(command, how):
    code, out, err = command("show", "nope", how)
    assert code == 2 and out == "" and err.startswith("dada: no policy 'nope'")


def test_what_a_search_answers(command):
    _, out, err = command("search", *COMPUTING["search"], "--json")
    answer = json.loads(out)
    assert answer["out"] == "found" and answer["policy"]["format"] == "dada-policy"
    assert {"signal", "verification", "lookahead", "seconds"} <= set(answer)
    assert "photos: 8 train, 8 val" in err, "what people read goes to standard error"


def test_what_a_comparison_answers(command):
    answer = json.loads(command("compare", *COMPUTING["compare"], "--json")[1])
    assert answer["format"] == "dada-comparison" and answer["out"] == "runs/compare-photos"
    assert {row["name"] for row in answer["policies"]} == {"uniform", "none"}


# --- dada list ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", names.LISTS)
def test_a_list(command, kind):
    code, out, _ = command("list", kind)
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    listed = json.loads(command("list", kind, "--json")[1])[kind]
    assert [entry["name"] for entry in listed] == [entry.name for entry in entries(kind)]
    assert all(entry["what"] and entry["name"] in out for entry in listed)


def test_lists_are_whole():
    assert [entry.name for entry in entries("policies")] == dada.policy.names()
    assert [entry.name for entry in entries("ops")] == [op.name for op in PAPER]
    assert [entry.name for entry in entries("spaces")] == list(SPACES)
    assert [entry.name for entry in entries("recipes")] == list(recipes.RECIPES)


@pytest.mark.parametrize("name", [n for n in names.MODELS if ":" not in n])
def test_a_model_that_is_listed_is_known(name):
    assert any(re.fullmatch(pattern, name) for pattern in dada.models.BUILDERS)


# --- names that are nearly right ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("show dada-cifar01", "dada-cifar10"),
        ("show Uniform", "uniform"),
        ("show autoaugment:cifar", "autoaugment:cifar10"),
        ("train --model smal", "small"),
        ("train --model timm:resnet5o", "resnet50"),
        ("train --model torchvision:resnet1", "resnet18"),
        ("train --recipe cifar10_wrn402", "cifar10_wrn40_2"),
        ("train cifar:data", "cifar10"),
        ("search --preset papr", "paper"),
        ("search --estimator rlo", "rloo"),
        ("search --space strenght", "strength"),
        ("search --exclude rotat", "Rotate"),
        ("search --track tensorbord", "tensorboard"),
        ("export none --to torchvison", "torchvision"),
        ("import x --from tim", "timm"),
        ("list model", "models"),
        ("serch", "'search'"),
        ("search --epoch 3", "--epochs"),
    ],
)
def test_the_nearest_name(command, line, meant):
    code, out, err = command(*line.split())
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert "did you mean" in err and meant in err.partition("did you mean")[2], err


def test_nothing_is_suggested_for_something_else():
    assert names.did_you_mean("zebra", names.MODELS) == ""
    assert names.did_you_mean("x" * 10_000_000, names.MODELS) == ""


def test_an_operation_is_left_out_in_any_case(command, tmp_path):
    assert SearchSpace.named("paper", exclude=["rotate", "INVERT"]) == SearchSpace.named(
        "paper", exclude=["Rotate", "Invert"]
    )
    line = COMPUTING["search"]
    assert command("search", *line, "--exclude", "rotate,sHearx", "--quiet")[0] == 0
    assert 'exclude = ["Rotate", "ShearX"' in (tmp_path / "found/config.toml").read_text()


# --- completion ---------------------------------------------------------------------------------


def test_policies_are_completed(command, tmp_path):
    Path("mine.json").touch()
    Path("runs/first").mkdir(parents=True)
    assert completion.policies("dada-c") == ["dada-cifar10", "dada-cifar100"]
    assert completion.policies("uniform,tri") == ["uniform,trivialaugment"]
    assert completion.policies("m") == ["mine.json"]
    assert completion.policies("runs/f") == [os.path.join("runs", "first")]


def test_models_targets_and_lists_are_completed():
    assert completion.models("w") == ["wrn40_2", "wrn28_10"]
    assert completion.models("ti") == ["timm:"]
    assert completion.export_targets("t") == ["torchvision", "timm"]
    assert completion.import_sources("a") == ["albumentations"]
    assert completion.lists("p") == ["policies"]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("export", "to"),
        ("export", "policy"),
        ("compare", "policies"),
        ("train", "policy"),
        ("search", "model"),
        ("import", "source"),
        ("list", "kind"),
    ],
)
def test_values_are_completed_for(command, option):
    group = typer.main.get_command(app)
    parameter = next(p for p in group.commands[command].params if p.name == option)
    context = typer.Context(group.commands[command])
    assert parameter.shell_complete(context, "")
