"""The page about a run: true, whole in one file, and not to be broken by anybody's names."""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from rich.console import Console

import dada
from dada import recipes
from dada.config import NAMED_BASES, PRESETS, SEARCH_FINE_TUNING, Base, SearchConfig, search_config
from dada.data import Split, load
from dada.policy import Policy, PolicyOp, SubPolicy
from dada.policy.space import SPACES
from dada.report import samples as samples_module
from dada.report import save_samples, write_report
from dada.report.markup import Html, fill, join
from dada.report.plots import line_chart, points, short, ticks
from dada.report.repeat import compare_commands, loader_code, loop_code, search_command
from dada.report.run_directory import read_run_directory
from dada.report.signal import signal_sentence
from dada.runlog import RunLog, to_toml
from dada.safe_json import number
from dada.terminal.commands import app, main
from dada.terminal.results import print_result

NASTY = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "a & b", "$title ${x}"]
VERIFIED = {
    "verdict": "better than uniform",
    "against": "uniform",
    "difference": 1.25,
    "interval": [0.5, 2.0],
    "seeds": 5,
    "seconds": 33.0,
    "candidates": [],
}
POLICY = Policy(
    (
        SubPolicy(0.7, (PolicyOp("Rotate", 0.6, (0.5, 1.0)), PolicyOp("Color", 0.4, 0.9))),
        SubPolicy(0.3, (PolicyOp("Invert", 0.2, 0.5), PolicyOp("Cutout", 1.0, 0.5))),
    ),
    sampling="weighted",
)


class Page(HTMLParser):
    """What a browser would see: tags with attributes, and the text of all and of every element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.ids: dict[str, list[str]] = {}
        self._section: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._section = self.ids.setdefault(dict(attrs)["id"], [])

    def handle_data(self, data):
        self.text.append(data)
        if self._section is not None:
            self._section.append(data)

    def count(self, tag: str, css: str | None = None) -> int:
        return sum(t == tag and (css is None or a.get("class") == css) for t, a in self.tags)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def section(self, name: str) -> str:
        return " ".join(" ".join(self.ids[name]).split())

    def pictures(self) -> list[Image.Image]:
        sources = [a["src"] for tag, a in self.tags if tag == "img"]
        return [Image.open(io.BytesIO(base64.b64decode(s.split(",", 1)[1]))) for s in sources]


def split_of(images: torch.Tensor, classes: list[str], name: str = "photos") -> Split:
    labels = torch.arange(len(images)) % len(classes)
    return replace(load((images, labels)), classes=tuple(classes), name=name)


def pictures_of(count: int, channels: int = 3, side: int = 12) -> torch.Tensor:
    noise = torch.Generator().manual_seed(0)
    shape = (count, channels, side, side)
    return torch.randint(0, 256, shape, generator=noise, dtype=torch.uint8)


def make_run(
    path: Path,
    *,
    policy: Policy = POLICY,
    classes: list[str] | None = None,
    verification: object = None,
    epochs: int = 3,
    images: torch.Tensor | None = None,
    config: SearchConfig | None = None,
    name: str = "photos",
) -> Path:
    """A finished run as a search leaves it, without the search."""
    run = RunLog(path)
    facts = {"data": name, "fingerprint": "ab12", "model": "small", "seed": 3}
    settings = asdict(config or SearchConfig())
    run.config({"command": "search", **facts, "device": "cpu", "search": settings})
    for epoch in range(1, epochs + 1):
        rate = {"Rotate": 0.1 * epoch, "Color": 0.28, "Invert": 0.06, "Cutout": 0.3}
        numbers = {"loss": 2 / epoch, "val_accuracy": 0.2 * epoch, "entropy": 6 - 0.1 * epoch}
        run.log(epoch=epoch, change=0.1, op_rate=rate, seconds=1.5, **numbers)
    about = {"name": name, "train": 90, "val": 90, "classes": 3, "image_size": [12, 12]}
    provenance = {"name": f"dada policy for {name}", "data": about, "verification": verification}
    run.save_text("policy.json", replace(policy, provenance=provenance).to_json())
    if classes is not None:
        save_samples(split_of(pictures_of(60) if images is None else images, classes), path)
    run.finish({"seconds": 4.5})
    return path


def compared(path: Path, ours: str, labels: list[str], **changes: object) -> None:
    rows = [
        {"name": name, "mean": mean, "interval": [mean - 1, mean + 1], "scores": [mean - 0.5, mean]}
        | {"class_error": [100 - mean + i for i in range(len(labels))]}
        for name, mean in ((ours, 91.0), ("uniform", 90.0), ("none", 85.0))
    ]
    gap = {"policy": ours, "against": "uniform", "mean": 1.0, "interval": [-0.2, 2.2], "seeds": 2}
    content = {
        "format": "dada-comparison",
        "version": 1,
        "data": "photos",
        "model": "small",
        "metric": "accuracy",
        "policies": rows,
        "differences": [gap],
        "verdict": "no difference seen",
        "classes": labels,
        "seconds": 200.0,
    }
    path.mkdir(exist_ok=True)
    (path / "comparison.json").write_text(json.dumps(content | changes))


def page_of(path: Path) -> Page:
    return Page(write_report(path).read_text(encoding="utf-8"))


# --- the whole page -----------------------------------------------------------------------------


def test_a_run_becomes_a_page(tmp_path):
    page = page_of(make_run(tmp_path / "run", classes=["cat", "dog", "owl"]))
    assert list(page.ids) == ["seen", "operations", "subpolicies", "curves", "use", "repeat"]
    assert page.count("article", "card") == 2
    assert "A policy for photos" in page.words
    assert "90 train images · 90 val images · 3 classes · 12 × 12 RGB" in page.words
    cards = page.section("subpolicies")
    assert "70.0% of images" in cards and "Rotate by up to ±30.0 degrees" in cards
    assert "Color times 1.72" in cards and "60%" in cards and "40%" in cards
    assert "4.5 s" in page.words


def test_the_page_stands_alone_and_runs_nothing(tmp_path):
    run = make_run(tmp_path / "run", classes=["cat", "dog"], verification=VERIFIED)
    compared(run, "run", ["cat", "dog"])
    page = page_of(run)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "audio", "video"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/"))
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "url(" not in text and "@import" not in text
    policy = [a["content"] for _, a in page.tags if "http-equiv" in a]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = make_run(tmp_path / "run", classes=["cat", "dog"])
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    log = run / "log.jsonl"
    log.write_text(log.read_text().replace('"entropy": 5.7', '"entropy": 5.1'))
    assert write_report(run).read_bytes() != first


def test_names_are_text_and_never_markup(tmp_path):
    run = make_run(tmp_path / "a 'b' \"c\" <i>", classes=NASTY, name=NASTY[0])
    compared(run, NASTY[1], NASTY, verdict=NASTY[0], model=NASTY[1], data=NASTY[3])
    harmless = make_run(tmp_path / "run", classes=list("abcd"), name="e")
    compared(harmless, "ours", list("abcd"))
    page, plain = page_of(run), page_of(harmless)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [list(a) for _, a in page.tags] == [list(a) for _, a in plain.tags]
    assert f"A policy for {NASTY[0]}" in page.words
    assert all(name in page.section("classes") for name in NASTY)
    assert {a["alt"] for t, a in page.tags if t == "img"} >= {f"{n}, before" for n in NASTY}


def test_a_page_needs_no_more_than_a_policy(tmp_path):
    Policy.load("dada-cifar10").save(tmp_path / "policy.json")
    page = page_of(tmp_path)
    assert list(page.ids) == ["operations", "subpolicies", "use"]
    assert page.count("article", "card") == 25
    assert "kept no pictures" in page.section("subpolicies") and page.count("img") == 0
    assert all(len(text) > 100 for text in map(page.section, page.ids))


@pytest.mark.parametrize("name", ["none", "trivialaugment", "fastaa-svhn", "randaugment:2,0.5"])
def test_any_policy_has_a_page(tmp_path, name):
    Policy.load(name).save(tmp_path / "policy.json")
    page = page_of(tmp_path)
    assert "dada report" in page.words
    assert page.count("article", "card") <= 25
    assert ("leaves images alone" in page.words) == (name == "none")


@pytest.mark.parametrize("version", ["this", "the one before"])
def test_an_unfinished_search_has_a_page_that_says_so(tmp_path, version):
    run = make_run(tmp_path / "my run", epochs=1)
    (run / "finished.json").unlink()
    if version == "this":
        (run / "policy.json").rename(run / "unfinished-policy.json")
    else:
        (run / "checkpoint.pt").touch()
    page = page_of(run)
    assert "1.5 s" in page.words and "An unfinished policy for photos" in page.words
    top = page.words.split("This search has not finished.")[1]
    command = re.search(r"(dada search .*? --resume)", top)
    assert command is not None
    given = parsed(command[1])
    assert given["out"] == run and given["resume"] and given["seed"] == 3
    assert "Not yet compared" not in page.words
    assert list(page.ids) == ["operations", "subpolicies", "curves", "repeat"]


def test_a_finished_search_and_a_training_are_not_unfinished(tmp_path):
    finished = make_run(tmp_path / "finished")
    (finished / "checkpoint.pt").touch()
    (finished / "unfinished-policy.json").write_text("of an earlier session")
    training = make_run(tmp_path / "training")
    (training / "finished.json").unlink()
    (training / "checkpoint.pt").touch()
    config = (training / "config.toml").read_text()
    (training / "config.toml").write_text(config.replace('"search"', '"train"'))
    for run in (finished, training):
        assert "not finished" not in page_of(run).words


def test_a_killed_search_is_resumed_by_the_command_on_its_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def killed(line: dict[str, object], epochs: int) -> None:
        raise KeyboardInterrupt

    asked = {"epochs": 2, "batch_size": 64, "lookahead": 0.0, "seed": 4, "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        dada.search("digits", model="small", out="first run", on_epoch=killed, **asked)
    page = page_of(Path("first run"))
    command = re.search(r"dada search digits .*? --resume", page.words)
    assert "has not finished" in page.words and command is not None
    monkeypatch.setattr(sys, "argv", shlex.split(command[0]))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    dada.search("digits", model="small", out="whole", **asked)
    assert Path("first run/policy.json").read_bytes() == Path("whole/policy.json").read_bytes()
    assert "has not finished" not in page_of(Path("first run")).words


def test_mistakes_are_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"nowhere: no such run directory; name the `out`"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"empty: holds neither policy.json nor comparison.json"):
        write_report(tmp_path / "empty")
    run = make_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"empty.comparison.json: no such file; name the `out`"):
        write_report(run, tmp_path / "empty")
    (run / "comparison.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match=r'comparison.json: "format" should be "dada-comparison"'):
        write_report(run)
    (run / "comparison.json").write_text("{")
    with pytest.raises(ValueError, match=r"comparison.json is damaged: not JSON"):
        write_report(run)
    (run / "comparison.json").unlink()
    (run / "samples.npz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"samples.npz cannot be read as sample images"):
        write_report(run)
    assert not (run / "report.html").exists()


# --- the verdict --------------------------------------------------------------------------------


def test_what_was_not_compared_says_so_and_how(tmp_path):
    page = page_of(make_run(tmp_path / "run"))
    assert "Not yet compared." in page.words
    command = re.search(r"dada compare (.*?) dada report (\S+ --comparison \S+)", page.words)
    assert command is not None
    given = (
        typer.main.get_command(app)
        .commands["compare"]
        .make_context("compare", shlex.split(command[1]))
    )
    assert given.params["policies"] == f"{tmp_path / 'run'},uniform,none"
    assert given.params["data"] == "PATH/TO/photos"
    again = (
        typer.main.get_command(app)
        .commands["report"]
        .make_context("report", shlex.split(command[2]))
    )
    assert again.params["comparison"] == given.params["out"]


@pytest.mark.parametrize(
    ("interval", "tone"),
    [([0.5, 2.0], "good"), ([-2.0, -0.5], "bad"), ([-0.5, 2.0], "open"), (None, "open")],
)
def test_a_verification_is_the_verdict(tmp_path, interval, tone):
    run = make_run(tmp_path / "run", verification=VERIFIED | {"interval": interval})
    page = page_of(run)
    assert page.count("div", f"verdict {tone}") == 1
    assert "better than uniform" in page.words and "Not yet compared" not in page.words
    assert "+1.2 points of accuracy against uniform" in page.words
    assert "5 seeds" in page.words and "compared in 33 s" in page.words
    assert ("95% interval" in page.words) == (interval is not None)


JUNK = (None, "words", [], {}, "inf", -1, True, [1], ["a", "b"], [2, 1], 1e300)


@pytest.mark.parametrize("key", list(VERIFIED))
def test_a_strange_verification_breaks_nothing(tmp_path, key):
    run = make_run(tmp_path / "run")
    for junk in JUNK:
        provenance = {"verification": VERIFIED | {key: junk}, "data": junk, "name": junk}
        replace(POLICY, provenance=provenance).save(run / "policy.json")
        assert page_of(run).count("section") >= 4, junk
    replace(POLICY, provenance={"verification": {key: 1}}).save(run / "policy.json")
    assert page_of(run).count("section") >= 4


def test_what_was_found_is_said_in_words(tmp_path):
    # The mean of the fourteen operations that are allowed is 7.1%.
    run = make_run(tmp_path / "run")
    how_sure = {"signal": {"word": "clear", "agreement": 0.8, "chance": 1e-4, "distance": 0.31}}
    replace(POLICY, provenance=POLICY.provenance | how_sure).save(run / "policy.json")
    words = page_of(run).words
    assert "Favoured: Rotate (42%), Cutout (30%), Color (28%)." in words
    assert "Avoided: " in words and "Invert" not in words.split("Avoided: ")[1].split(".")[0]
    assert "Signal: clear" in words
    assert "In the policy that was found 31% of what is done to images is not as in" in words
    level = page_of(make_run(tmp_path / "flat", policy=Policy.load("init"))).words
    assert "No operation is done far more often" in level


def test_of_a_pretrained_network_it_is_said_what_such_signals_were_worth():
    how_sure = {"signal": {"word": "clear", "agreement": 0.8, "chance": 1e-4, "distance": 0.31}}
    tuned = replace(POLICY, provenance=how_sure | {"lookahead": {"features": True}})
    assert str(signal_sentence(tuned)).endswith("no better than no policy, on average: compare.")
    for others in ({"lookahead": {"runs": 4}}, {"verification": VERIFIED}):
        other = replace(tuned, provenance=tuned.provenance | others)
        assert str(signal_sentence(other)).endswith("is not as in uniform.")
    nothing = replace(Policy.load("none"), provenance=tuned.provenance)
    assert "no better than" not in str(signal_sentence(nothing))


def test_without_a_signal_the_usual_policy_is_named_as_such(tmp_path):
    usual = Policy.load("trivialaugment")
    how_sure = {"signal": {"word": "none", "agreement": 0.14, "chance": 0.096, "learned": True}}
    named = {**how_sure, "name": "trivialaugment, as no signal was seen"}
    run = make_run(tmp_path / "run", policy=usual)
    replace(usual, provenance=named).save(run / "policy.json")
    words = page_of(run).words
    assert "What is returned is trivialaugment, which needs no search, and not a finding." in words
    assert "The search saw no signal, so this is a policy that needs none." in words
    assert "The search found this policy" not in words and "Favoured" not in words
    verified = replace(usual, provenance={**named, "name": "none"})  # it returned another
    assert "What is returned is a policy that needs no search" in str(signal_sentence(verified))


@pytest.mark.parametrize("how", [{"lookahead": 0}, {"preset": "paper"}])
def test_what_nobody_asked_how_sure_it_is_is_not_called_favoured(tmp_path, how):
    found = dada.search("digits", epochs=2, device="cpu", out=tmp_path / "run", **how)
    words = page_of(tmp_path / "run").words
    assert "Signal: not asked for" in words and "Favoured" not in words and "Avoided" not in words
    console = Console(file=io.StringIO(), width=200)
    print_result(found, console)
    assert "Signal: not asked for" in console.file.getvalue()


def test_of_searches_that_looked_ahead_and_did_not_say_how_sure_they_are_nothing_is_said():
    found = Policy.load("found-cifar10-dada")
    assert found.provenance["lookahead"] and "signal" not in found.provenance
    assert signal_sentence(found) is None
    alone = replace(found, provenance={**found.provenance, "lookahead": None})
    assert "not asked for" in str(signal_sentence(alone))


def test_favoured_means_more_often_than_others(tmp_path):
    """However often operations fire: all of these do twice as often as where a search starts."""
    pairs = itertools.combinations([op.name for op in SPACES["wide"].ops], 2)
    alike = Policy.from_rows([[(name, 1.0, (0.0, 1.0)) for name in pair] for pair in pairs], "wide")
    words = page_of(make_run(tmp_path / "run", policy=alike)).words
    assert "Favoured" not in words and "Avoided" not in words
    assert "The tick marks their mean: 15.4%." in words


# --- pictures -----------------------------------------------------------------------------------


def test_pictures_show_before_and_after(tmp_path):
    invert = Policy.from_rows([[("Invert", 0.01, 0.5)]])
    images = pictures_of(8, side=9)
    page = page_of(make_run(tmp_path / "run", policy=invert, classes=["a", "b"], images=images))
    pairs = [np.array(picture) for picture in page.pictures()]
    on_the_card = pairs[-8:]
    kept = samples_module.read_samples(tmp_path / "run")
    for i in range(4):
        before, after = on_the_card[2 * i : 2 * i + 2]
        assert (before == np.array(kept[i].image)).all()
        assert (after == 255 - before).all()  # carried out, though its probability is small
    wall = pairs[:-8]
    assert len(wall) == 16 and all((wall[i] == wall[i + 1]).all() for i in range(0, 16, 2))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (300, 60), (40, 700), (1, 1)])
def test_pictures_of_any_shape(tmp_path, channels, height, width):
    images = torch.randint(0, 256, (6, channels, height, width), dtype=torch.uint8)
    run = make_run(tmp_path / "run", classes=["a", "b"], images=images)
    kept = samples_module.read_samples(run)
    assert len(kept) == 6 and max(kept[0].image.size) == min(256, max(height, width))
    for picture in page_of(run).pictures():
        assert max(picture.size) <= 128
        assert picture.format == ("PNG" if max(height, width) <= 64 else "JPEG")


@pytest.mark.parametrize(("classes", "images", "kept"), [(2, 200, 32), (100, 400, 32), (3, 7, 7)])
def test_samples_are_spread_over_the_classes(tmp_path, classes, images, kept):
    names = [f"class {i}" for i in range(classes)]
    save_samples(split_of(pictures_of(images, side=4), names), tmp_path)
    found = samples_module.read_samples(tmp_path)
    counts = [[sample.label for sample in found].count(name) for name in names]
    assert len(found) == kept
    assert max(counts) - min(counts) <= 1
    assert len({sample.image.tobytes() for sample in found}) == kept
    if classes == 100:  # from the first to near the last
        assert counts[0] == 1 and sum(counts[90:]) >= 2


def test_a_rare_class_is_kept_and_others_fill_the_rest(tmp_path):
    labels = torch.tensor([0] * 50 + [1])
    split = replace(load((pictures_of(51, side=4), labels)), classes=("many", "one"))
    save_samples(split, tmp_path)
    labels_kept = [sample.label for sample in samples_module.read_samples(tmp_path)]
    assert labels_kept[:2] == ["many", "one"] and labels_kept.count("one") == 1


def test_samples_hold_no_pickle_and_are_written_whole(tmp_path, monkeypatch):
    target = save_samples(split_of(pictures_of(9), ["a", "b"]), tmp_path)
    before = target.read_bytes()
    with np.load(target, allow_pickle=False) as content:
        assert set(content) == {"images", "labels", "classes"}

    def fails(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(samples_module.os, "replace", fails)
    with pytest.raises(OSError, match="disk"):
        save_samples(split_of(pictures_of(4), ["a", "b"]), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["samples.npz"]
    assert target.read_bytes() == before


def test_a_hundred_classes_of_large_noise_stay_under_8_megabytes(tmp_path):
    names = [f"a class with a rather long name, number {i}" for i in range(100)]
    images = pictures_of(100, side=256)  # noise is the worst that a JPEG can meet
    policy = Policy.load("uniform")
    run = make_run(tmp_path / "run", policy=policy, classes=names, images=images, epochs=100)
    compared(run, "run", names)
    page = page_of(run)
    assert page.count("article", "card") == 24 and page.count("img") == 2 * (16 + 24 * 4)
    assert (run / "report.html").stat().st_size < 8e6


# --- comparison ---------------------------------------------------------------------------------


def test_a_comparison_in_the_run(tmp_path):
    run = make_run(tmp_path / "run", classes=["cat", "dog"])
    compared(run, str(run), ["cat", "dog"])
    page = page_of(run)
    assert page.count("div", "verdict open") == 1
    assert "+1.0 points of accuracy against uniform" in page.words and "3 min" in page.words
    assert "No difference seen" in page.words
    text = page.section("comparison")
    assert text.index("run") < text.index("uniform") < text.index("none")
    assert page.section("classes").count("+1.0") == 2


def test_a_comparison_beside_the_run(tmp_path):
    run = make_run(tmp_path / "run", classes=["cat", "dog"])
    compared(tmp_path / "beside", "run", ["cat", "dog"])
    page = Page(write_report(run, tmp_path / "beside").read_text())
    assert {"comparison", "classes"} <= set(page.ids)
    alone = page_of(tmp_path / "beside")
    assert list(alone.ids) == ["comparison", "classes"]
    assert "A comparison for photos" in alone.words


def test_many_classes_fold(tmp_path):
    names = [f"c{i}" for i in range(60)]
    compared(tmp_path / "run", "ours", names)
    page = page_of(tmp_path / "run")
    assert page.count("details") == 1 and "The 36 classes between" in page.words
    assert page.count("span", "class") == 60


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": None},
        {"policies": [{"name": "run"}, 3, None]},
        {"policies": [{"name": "run", "mean": 1.0}]},
        {"policies": [{"name": "run", "mean": "nan"}]},
        {"differences": "none", "classes": 7, "seconds": None, "verdict": None},
        {"differences": [{"mean": 1}, {"policy": "run", "mean": None}], "model": None},
        {"classes": ["only one"], "metric": None, "data": None},
    ],
)
def test_a_strange_comparison_breaks_nothing(tmp_path, changes):
    run = make_run(tmp_path / "run")
    compared(run, "run", ["cat", "dog"], **changes)
    page = page_of(run)
    assert "dada report" in page.words
    assert all(len(page.section(name)) > 40 for name in page.ids), "an empty heading"


# --- what is there to copy ----------------------------------------------------------------------


def parsed(command: str) -> dict[str, object]:
    program, name, *arguments = shlex.split(command)
    assert program == "dada"
    return typer.main.get_command(app).commands[name].make_context(name, arguments).params


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("dada", {}),
        ("paper", {}),
        ("paper", {"estimator": "gumbel", "epochs": 7}),
        ("dada", {"exclude": ("Invert", "Solarize"), "lr": 0.025, "batch_size": 16, "views": 2}),
        ("dada", {"fixed_validation": True, "draws": "batch", "hypergradient": "forward"}),
        ("paper", {"magnitudes": "pathwise"}),
        ("dada", {"for_epochs": 200, "for_images": 50_000}),
    ],
)
def test_the_command_asks_for_the_same_settings(preset, changes):
    config = search_config(preset, **changes)
    facts = {"command": "search", "data": "digits", "model": "wrn40_2", "seed": 5, "device": "cpu"}
    settings = tomllib.loads(to_toml({**facts, "search": asdict(config)}))
    command = search_command(settings, "runs/my photos")
    assert command is not None
    given = parsed(command)
    assert given["out"] == Path("runs/my photos") and given["seed"] == 5
    assert (given["data"], given["model"], given["preset"]) == ("digits", "wrn40_2", preset)
    names = ["estimator", "draws", "views", "magnitudes", "hypergradient", "epochs"]
    names += ["batch_size", "lr", "for_epochs", "for_images"]
    asked = {name: given[name] for name in names}
    asked["fixed_validation"] = given["fixed_validation"] or None
    asked["exclude"] = tuple(filter(None, str(given["exclude"]).split(","))) or None
    assert search_config(preset, **asked) == config


def test_settings_without_an_option_are_said_in_python(monkeypatch):
    config = search_config("dada", space="strength", base=Base(crop=2, flip=True))
    facts = {"command": "search", "data": "digits", "model": "small", "seed": 5, "device": "cpu"}
    code = search_command({**facts, "search": asdict(config)}, "run")
    assert code is not None and code.startswith("import dada")
    asked: dict[str, object] = {}
    monkeypatch.setattr(dada, "search", lambda data, **given: asked.update(given, data=data))
    exec(code, {})
    assert asked.pop("base") == Base(crop=2, flip=True)
    assert asked == {
        "data": "digits",
        "model": "small",
        "preset": "dada",
        "space": "strength",
        "seed": 5,
        "device": "cpu",
        "out": "run",
    }
    code = search_command({**facts, "search": asdict(config)}, "run", resume=True)
    assert code is not None
    exec(code, {})
    assert asked["out"] == "run" and asked["resume"] is True


def test_a_network_or_data_of_ones_own_is_named_as_such():
    config = {
        "command": "search",
        "data": "birds",
        "model": "MyNet",
        "search": asdict(SearchConfig()),
    }
    code = search_command(config, "run")
    assert code is not None and "your_data,  # birds" in code and "your_network,  # a MyNet" in code
    compile(code, "code", "exec")
    command = search_command({**config, "model": "small", "source": "my birds"}, "run")
    assert command is not None and parsed(command)["data"] == "my birds"
    assert search_command({"command": "compare"}, "run") is None


def test_the_code_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = read_run_directory(make_run(Path("run")))
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (40, 40), (i, 9, 9)).save(tmp_path / "train" / label / f"{i}.png")
    seen: dict[str, object] = {}
    exec(loader_code(run), seen)
    image, label = seen["train"][0]
    assert image.shape == (3, 224, 224) and image.dtype == torch.float32 and label == 0
    batch = (pictures_of(4), torch.zeros(4, dtype=torch.int64))
    own = {
        "loader": [batch],
        "criterion": torch.nn.functional.cross_entropy,
        "model": lambda images: images.mean((2, 3)),
        "normalise": lambda images: images.float() / 255,
    }
    exec(loop_code(run), own)
    assert own["loss"].ndim == 0 and not torch.equal(own["images"], batch[0])


def test_the_page_of_a_real_search_repeats_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def command(line: str) -> None:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, capsys.readouterr().err

    settings = "--epochs 2 --batch-size 64 --exclude Invert --seed 4 --lookahead 0"
    command(f"dada search digits {settings} --out first")
    save_samples(load("digits"), "first")
    command("dada report first")
    assert capsys.readouterr().out.endswith("wrote first/report.html\n")
    page = Page(Path("first/report.html").read_text(encoding="utf-8"))
    again = re.search(r"dada search digits .*?--out first-again", page.section("repeat"))
    assert again is not None and page.count("article", "card") == 24
    command(again[0])
    assert Path("first-again/policy.json").read_bytes() == Path("first/policy.json").read_bytes()


# --- the parts it is drawn with -----------------------------------------------------------------


def test_what_is_not_marked_as_html_is_escaped():
    assert fill("<b>$x</b>", x='<i a="b">\'') == "<b>&lt;i a=&quot;b&quot;&gt;&#x27;</b>"
    assert fill("$x", x=Html("<i>")) == "<i>"
    assert join(["<", Html("<br>"), 3]) == "&lt;<br>3"
    assert fill("$x", x="bad \udcff name").encode() == b"bad ? name"


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0.013, 0.017), (-3.2, 8.9), (1, 20), (1e-9, 3e-9), (5.6, 6.04), (2, 2)],
)
def test_ticks_are_few_and_inside(low, high):
    found = ticks(low, high)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-9 * abs(low) <= tick <= high * (1 + 1e-9) for tick in found)


def test_a_curve_stays_in_its_frame():
    for curve in ([(1.0, 5.0)], [(1.0, 2.0), (2.0, 2.0)], [(i, (-7.0) ** i) for i in range(1, 9)]):
        places = re.findall(r"([\d.-]+),([\d.-]+)", line_chart(curve, label="x"))
        assert all(0 <= float(x) <= 260 and 0 <= float(y) <= 150 for x, y in places)
        assert len(places) in (0, len(curve))


def test_numbers_in_words():
    assert [points(x) for x in (1.25, -0.04, -3.0)] == ["+1.2", "0.0", "−3.0"]
    assert [short(x) for x in (0.25, 5.0, 1234.5)] == ["0.25", "5", "1234"]


# --- in a real browser --------------------------------------------------------------------------

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.skipif(BROWSER is None, reason="needs chromium or chrome")
def test_a_browser_reads_it_without_complaint(tmp_path):
    run = make_run(tmp_path / "run", classes=[*NASTY, "cat"], name=NASTY[0])
    compared(run, NASTY[1], [*NASTY, "cat"])
    target = write_report(run)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *options, "--dump-dom", target.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    seen = Page(done.stdout)
    assert seen.count("script") == 0 and seen.count("article", "card") == 2
    title = done.stdout.split("<title>")[1].split("</title>")[0]
    assert title == "A policy for &lt;script&gt;alert(1)&lt;/script&gt;"
    assert [tag for tag, _ in seen.tags] == [tag for tag, _ in page_of(run).tags]


def test_the_command_repeats_what_else_was_asked():
    asked = {"command": "search", "data": "cifar10:root", "source": "cifar10:root", "seed": 4}
    asked |= {"model": "wrn40_2", "recipe": "reduced_cifar10_wrn40_2", "verify_budget": 30.0}
    recipe = asdict(recipes.named("reduced_cifar10_wrn40_2").search)
    words = search_command(asked | {"search": recipe}, "runs/x").split()
    assert words[words.index("--recipe") + 1] == "reduced_cifar10_wrn40_2"
    assert words[words.index("--verify-budget") + 1] == "30.0"
    assert "--lr" not in words, "the recipe has it"
    sides = asked | {"image_size": [8, 12], "val_source": "other", "search": recipe}
    for line in (search_command(sides, "runs/x"), *compare_commands(sides, "runs/x")[:1]):
        assert "--image-size 8x12" in line
    call = search_command(sides | {"model": "MyNet"}, "runs/x")
    assert "image_size=[8, 12]" in call and "val_data='other'" in call


def test_the_command_of_a_search_for_a_recipe_repeats_its_settings():
    """And its policy is compared in that training."""
    asked = {"command": "search", "data": "birds", "source": "birds", "model": "small"}
    asked |= {"recipe": "cifar10_wrn40_2"}
    config = search_config("dada", base=recipes.named("cifar10_wrn40_2").base, lookahead=0.0)
    found = asked | {"search": asdict(replace(config, exclude=("Invert",)))}
    words = search_command(found, "runs/x")
    assert "--exclude Invert --lookahead 0.0" in words and "--recipe cifar10_wrn40_2" in words
    assert "--base" not in words and words.startswith("dada search birds")
    assert "--recipe cifar10_wrn40_2" in compare_commands(found, "runs/x")[0]
    other = asked | {"recipe": "reduced_cifar10_wrn40_2"}  # compare takes none of these
    other |= {"search": asdict(recipes.named("reduced_cifar10_wrn40_2").search)}
    assert "--recipe" not in compare_commands(other, "runs/x")[0]


def test_the_command_repeats_weights_and_base():
    fine_tuning = replace(
        PRESETS["dada"], **SEARCH_FINE_TUNING, batch_size=16, base=NAMED_BASES["photo"]
    )
    asked = {"command": "search", "data": "photos", "source": "photos", "model": "timm:resnet18"}
    for source, words in (
        ("nets/my net.safetensors", "--weights 'nets/my net.safetensors'"),
        ("https://example.org/model.safetensors", "--pretrained"),
    ):
        facts = asked | {"weights": {"source": source, "mean": [0.5]}}
        command = search_command(facts | {"search": asdict(fine_tuning)}, "runs/x")
        assert words in command and "--base photo --batch-size 16" in command.replace(
            "--batch-size 16 --base photo", "--base photo --batch-size 16"
        )
        assert "--lr" not in command, "the usual one of fine-tuning"
        assert "--freeze" not in command
        facts["weights"]["freeze"] = "backbone"
        assert "--freeze backbone" in search_command(facts | {"search": asdict(fine_tuning)}, "x")
    own = replace(fine_tuning, base=Base(scale=0.5))
    call = search_command(asked | {"search": asdict(own)}, "runs/x")
    assert "Base(" in call and "scale=0.5" in call and "from dada.config import Base" in call


def test_samples_of_strangers_are_bounded(tmp_path):
    """A few kilobytes that unpack to 200 MB, and arrays of other shapes."""
    run = make_run(tmp_path / "run")
    labels, classes = np.zeros(1, np.int64), np.array(["a"])
    bad = {
        "unpacks to": np.zeros((1, 3, 8192, 8192), np.uint8),
        "images of shape": np.zeros((1, 8, 8), np.uint8),
        "no item": None,
    }
    for says, images in bad.items():
        arrays = {} if images is None else {"images": images}
        np.savez_compressed(run / "samples.npz", labels=labels, classes=classes, **arrays)
        with pytest.raises(ValueError, match=rf"samples\.npz cannot be read .*{says}"):
            write_report(run)


def test_a_config_with_numbers_beyond_floats(tmp_path):
    run = make_run(tmp_path / "run")
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text + f"\nhuge = {10**400}\n")
    assert write_report(run).is_file()
    assert number(10**400) is None
    (run / "config.toml").write_text("a = " + "[" * 5000)
    with pytest.raises(ValueError, match=r"config\.toml is not readable as TOML"):
        write_report(run)


# --- a policy without a run ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [("dada-svhn", "dada-svhn.html"), ("randaugment:2,0.5", "randaugment-2-0.5.html")],
)
def test_a_policy_by_name_has_a_page(source, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_report(source) == Path(target)
    page = (tmp_path / target).read_text(encoding="utf-8")
    assert page.count("<img") > 30 and "Not yet compared" in page and "from one policy" in page
    assert "script-src" not in page and "<script" not in page
    write_report(source)  # as its own command with --comparison does
    (tmp_path / target).write_text("mine")
    with pytest.raises(ValueError, match="exists already, and is no report"):
        write_report(source)
    assert (tmp_path / target).read_text() == "mine"


def test_a_policy_file_has_a_page_that_its_names_cannot_break(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile = "<script>alert(1)</script>"
    policy = Policy.from_rows([[("Rotate", 0.5, 0.8)]], name=hostile, data={"name": hostile})
    target = write_report(policy.save(tmp_path / "my policy.json"))
    assert target == Path("my-policy.html")
    assert "<script" not in target.read_text(encoding="utf-8")
