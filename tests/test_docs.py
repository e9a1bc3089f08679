"""The documentation is true: every block runs as written, every option and every link exists.

A page is run from top to bottom in an empty folder: `bash` and `console` blocks of commands, and
`python` blocks that share their names. The folder `photos/`, which pages call the reader's own, is
there. A comment on the line above a block says what is different about it:

    <!-- not run: needs a GPU -->      looked at, but not run; the reason begins with "needs"
    <!-- slow -->                      run by `make test-all` only
    <!-- needs: timm -->               run where that package is installed

`dada compare` and more than 10 `--epochs` count as slow. Makefile targets are checked to exist and
not run, and scripts, too: other tests run them. Lines of torchrun and lines with a large `--model`
are for a GPU and are not run; their options are checked, and so are those of commands in blocks
without a language.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image

from dada import api, data, safe_json, safe_text
from dada.api import verifying
from dada.api.preparation import PRETRAINED
from dada.config import (
    FINE_TUNING,
    FINE_TUNING_ADAMW,
    LOOKAHEAD,
    LOOKAHEAD_FINE_TUNING,
    PRESETS,
    SEARCH_FINE_TUNING,
    VERIFY,
    VERIFY_FINE_TUNING,
    SearchConfig,
    TrainConfig,
)
from dada.data import annotations, coco, copies, npz, one_size, voc, yolo
from dada.data.split import IN_MEMORY_LIMIT
from dada.engine import watch
from dada.explorer import server, session
from dada.ops import batch
from dada.policy import space
from dada.policy_search.lookahead.signal import WEAK_CHANCE_OF_TWO
from dada.policy_search.lookahead.stand_in import LARGER_FOR_PLACES
from dada.report import gallery, samples
from dada.report.verdict import OFTEN
from dada.terminal.commands import app, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (not run|slow|needs)(?:: (.*))? -->$")
RUN, LOOKED_AT = ("bash", "console", "python"), ("", "text", "json", "toml", "yaml")
# Options of other programs that the pages speak of.
OTHERS = {"--nproc-per-node", "--strict", "--aa", "--color-jitter", "--quick", "--workers"}
OTHERS |= {"--install-completion", "--debug", "--version", "--help", "--policy-file", "--vflip"}
OTHERS |= {"--threads"}  # of benchmarks/speed/ops.py


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, what is in it, where, and the comment above it."""

    page: str
    line: int
    language: str
    code: str
    directive: str = ""
    detail: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """The command lines in it, as words."""
        text = self.code.replace("\\\n", " ")
        lines = [line.removeprefix("$ ") for line in text.splitlines() if self._is_command(line)]
        words = [shlex.split(line, comments=True) for line in lines]
        return [line for line in words if line]

    def _is_command(self, line: str) -> bool:
        if self.language == "console":
            return line.startswith("$ ")
        if self.language == "bash":
            return True
        return self.language in LOOKED_AT and line.startswith(("dada ", "$ dada ", "torchrun "))

    @property
    def slow(self) -> bool:
        commands = self.commands if self.language in ("bash", "console") else []
        return self.directive == "slow" or any(map(takes_long, commands))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def takes_long(words: list[str]) -> bool:
    """A comparison starts processes, each of which loads torch anew; many epochs take long."""
    epochs = words[words.index("--epochs") + 1] if "--epochs" in words else "1"
    return words[:2] == ["dada", "compare"] or int(epochs) > 10


def blocks_in(text: str, page: str) -> list[Block]:
    blocks = []
    for match in FENCE.finditer(text):
        above = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        touching = not text[: match.start()].endswith("\n\n")
        said = COMMENT.match(above) if touching else None
        blocks.append(
            Block(
                page=page,
                line=text[: match.start()].count("\n") + 1,
                language=match.group(1),
                code=match.group(2),
                directive=said.group(1) if said else "",
                detail=(said.group(2) or "") if said else "",
            )
        )
    return blocks


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks_of(page: Path) -> list[Block]:
    return blocks_in(read(page), page.relative_to(ROOT).as_posix())


EVERY_BLOCK = [block for page in PAGES for block in blocks_of(page)]


def page_ids(pages: list[Path]) -> list[str]:
    return [page.name for page in pages]


# --- running a page -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with `photos/` in it; what a page changes in the process is put back."""
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(24):
            picture = Image.linear_gradient("L").rotate(90 * label).resize((16, 16))
            picture = picture.point(lambda level, i=i: (level + 5 * i) % 256).convert("RGB")
            picture.save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    tables: tuple[dict[str, Any], ...] = (space.SPACES, data.READERS)
    kept = [(table, dict(table)) for table in tables]
    modules = set(sys.modules)
    yield tmp_path
    for table, before in kept:
        table.clear()
        table.update(before)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def dada_here(arguments: list[str]) -> None:
    """`dada ARGUMENTS` in this process, which has torch loaded already."""
    kept, sys.argv = sys.argv, ["dada", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, f"dada {shlex.join(arguments)} ended with {ended.code}"
    finally:
        sys.argv = kept


def dada_as_a_process(arguments: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "dada", *arguments], check=True, env=environment)


def run_command(words: list[str], dada: Callable[[list[str]], None]) -> None:
    while words and "=" in words[0]:  # NAME=value before a command
        words = words[1:]
    program, *arguments = words
    if program == "dada" and "--model" in arguments and "small" not in arguments:
        assert unknown_options(words) == []
    elif program == "dada":
        dada(arguments)
    elif program == "make":
        targets = set(re.findall(r"^([\w-]+):", read(ROOT / "Makefile"), re.MULTILINE))
        assert {word for word in arguments if "=" not in word} <= targets
    elif program == "pip":
        assert arguments[0] == "install"
        for package in arguments[1:]:
            check_installable(package)
    elif program == "source":
        assert arguments == [".venv/bin/activate"]
    elif program == "torchrun":
        assert "dada" in arguments and unknown_options(words) == []
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), f"{arguments[0]}: no such script"
    else:
        pytest.fail(f"no rule for the command {shlex.join(words)!r}")


def check_installable(package: str) -> None:
    """`.`, this package with extras that it has, or a package known by another name."""
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    name, _, extras = package.removesuffix("]").partition("[")
    if name in (".", project["name"]):
        wanted = {extra for extra in extras.split(",") if extra}
        assert wanted <= set(project["optional-dependencies"]), f"{package}: no such extra"
    else:
        assert re.fullmatch(r"[a-z][a-z0-9-]*", name), f"{package}: not the name of a package"


def importable(package: str) -> bool:
    """Whether it is installed; what it warns of while it is imported is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find_spec(package) is not None and bool(import_module(package))


def run_block(block: Block, names: dict[str, Any], dada: Callable[[list[str]], None]) -> None:
    if block.directive == "not run" or block.language in LOOKED_AT:
        return
    if block.directive == "needs" and not all(map(importable, block.detail.split(", "))):
        return
    try:
        if block.language == "python":
            exec(compile(block.code, str(block), "exec"), names)
        else:
            for words in block.commands:
                run_command(words, dada)
    except (Exception, pytest.fail.Exception) as error:
        raise AssertionError(f"{block}: {type(error).__name__}: {error}") from error


@pytest.mark.usefixtures("quick_lookahead")
@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_a_page_runs_as_written(page: Path, folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not block.slow:
            run_block(block, names, dada_here)


SLOW_PAGES = [page for page in PAGES if any(block.slow for block in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW_PAGES, ids=page_ids(SLOW_PAGES))
def test_a_page_with_slow_blocks_runs_whole(page: Path, folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        run_block(block, names, dada_as_a_process)


# --- what the blocks are ------------------------------------------------------------------------


def test_there_are_pages_and_blocks_of_every_kind() -> None:
    assert {"README.md", "CONTRIBUTING.md", "tutorial.md", "search.md"} <= {p.name for p in PAGES}
    assert {"bash", "python"} <= {block.language for block in EVERY_BLOCK}


def test_every_block_has_a_known_language() -> None:
    assert [str(b) for b in EVERY_BLOCK if b.language not in (*RUN, *LOOKED_AT)] == []


def test_python_and_commands_are_not_hidden_in_blocks_that_are_not_run() -> None:
    hidden = re.compile(r"^(from [\w.]+ )?import \w|^(\$ )?dada ", re.MULTILINE)
    found = [b for b in EVERY_BLOCK if b.language in LOOKED_AT and hidden.search(b.code)]
    assert [str(b) for b in found if b.language] == []
    assert len(found) <= 2, "few, or the pages are not tested"


def test_a_block_that_is_not_run_says_what_it_would_need() -> None:
    reasons = {str(b): b.detail for b in EVERY_BLOCK if b.directive == "not run"}
    assert {where: why for where, why in reasons.items() if not why.startswith("needs ")} == {}
    assert len(reasons) <= 12, "few, or the pages are not tested"


# --- options and commands -----------------------------------------------------------------------


def options_of_commands() -> dict[str, set[str]]:
    """The options of every command of dada, by its name."""
    group = typer.main.get_command(app)
    return {
        name: {
            text
            for parameter in command.params
            for text in (*parameter.opts, *parameter.secondary_opts)
        }
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }


OPTIONS = options_of_commands()
OPTION = re.compile(r"--[a-z][a-z-]*")


def unknown_options(words: list[str]) -> list[str]:
    """Options in a line that runs dada, alone or by torchrun, that the command does not have."""
    if "dada" not in words:
        return []
    command, *arguments = words[words.index("dada") + 1 :]
    if command in ("--install-completion", "--version", "--help"):
        return []
    assert command in OPTIONS, f"dada {command}: no such command"
    given = {word.partition("=")[0] for word in arguments if OPTION.match(word)}
    return sorted(given - OPTIONS[command] - {"--help", "--debug"})


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_every_option_in_a_command_exists(page: Path) -> None:
    commands = [words for block in blocks_of(page) for words in block.commands]
    for code in re.findall(r"(?<!`)`(dada [^`]+)`", FENCE.sub("", read(page))):
        commands.append(shlex.split(code.replace("...", "")))
    wrong = [(words, unknown_options(words)) for words in commands]
    assert [entry for entry in wrong if entry[1]] == []


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_every_option_in_the_text_exists(page: Path) -> None:
    code = re.findall(r"(?<!`)`([^`]+)`", FENCE.sub("", read(page)))
    named = {option for text in code for option in OPTION.findall(text)}
    assert named - set().union(*OPTIONS.values()) - OTHERS == set()


@pytest.mark.parametrize("command", sorted(OPTIONS))
def test_the_help_of_a_command_ends_well_and_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # so that no example is broken over two lines
    dada_here([command, "--help"])
    example = re.search(r"Example: (dada .*?)\s*$", capsys.readouterr().out, re.MULTILINE)
    assert example is not None
    words = shlex.split(example.group(1))
    assert words[1] == command and unknown_options(words) == []


# --- links --------------------------------------------------------------------------------------

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in titles]
    return {title.replace(" ", "-") for title in plain}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", read(page))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.is_file() or (anchor and anchor not in anchors(read(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_no_link_is_broken(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_every_file_that_is_named_exists(page: Path) -> None:
    """`benchmarks/speed/ops.py`, `src/dada/api.py`, `benchmarks/results/ops-cpu.json`."""
    pattern = r"`(?:python )?((?:benchmarks|examples|src|tests|docs)/[\w./-]*\.\w+)`"
    named = set(re.findall(pattern, read(page)))
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_what_pages_place_in_a_file_is_there() -> None:
    """`train_many` of `src/dada/training/many.py`."""
    placed = re.compile(r"((?:`\w+`(?:, | and )?)+) (?:in|of) `(src/[\w/]+\.py)`")
    found = [pair for page in PAGES for pair in placed.findall(" ".join(read(page).split()))]
    named = [(name, file) for names, file in found for name in re.findall(r"`(\w+)`", names)]
    assert len(named) > 20
    missing = [
        (name, file)
        for name, file in named
        if not re.search(rf"^(?:def |class )?{name}\b", read(ROOT / file), re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_every_module_that_is_named_exists(page: Path) -> None:
    """`dada.data.load`, `dada.terminal.tracking.tracker`."""
    named = set(re.findall(r"`(dada(?:\.\w+)+)`", read(page)))
    assert [name for name in sorted(named) if not resolves(name)] == []


def test_every_name_from_the_paper_to_the_code_exists() -> None:
    rows = re.findall(r"\| ([^|]*) \|$", read(ROOT / "docs" / "paper-to-code.md"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)[`\[]", row)]
    assert len(named) > 20
    assert [name for name in named if not resolves(f"dada.{name}")] == []


def resolves(name: str) -> bool:
    """Whether a dotted name leads to a module or to something in one."""
    words = name.split(".")
    for end in range(len(words), 0, -1):
        try:
            found: Any = import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        for word in words[end:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


# --- facts that the code has, too ---------------------------------------------------------------


TIMES = {2: "twice", 4: "four times"}


def sentences_about_settings() -> dict[str, list[str]]:
    """What pages say of defaults and limits, as the code has them."""
    search, scratch, tuned = SearchConfig(), TrainConfig(), TrainConfig(**FINE_TUNING)
    cpu, cuda = LOOKAHEAD["cpu"], LOOKAHEAD["cuda"]
    tuned_cpu, tuned_cuda = LOOKAHEAD_FINE_TUNING["cpu"], LOOKAHEAD_FINE_TUNING["cuda"]
    verified, verified_tuned = VERIFY["cuda"], VERIFY_FINE_TUNING["cuda"]
    long, short, tuning = verified.training, VERIFY["cpu"].training, verified_tuned.training
    steps, fewer = search.least_steps, int(search.least_steps * cuda.steps_before)
    first_phase = SEARCH_FINE_TUNING["least_steps"]
    large, small = (-(-batch.WORTH_SHARING // (3 * side * side)) for side in (224, 32))
    gib, mib = 2**30, 2**20
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    python, torch_version = project["requires-python"], project["dependencies"][0]
    needed = f"Python{python} or newer, {torch_version} or newer".replace(">=", " ")
    return {
        "docs/search.md": [
            f"{steps} steps ({fewer} steps on a GPU, and where a",
            f"{search.least_epochs} epochs and {steps} steps at least, {fewer} steps on a GPU or",
            f"| {PRESETS['paper'].epochs} epochs |",
            f"up to {TIMES[cpu.most_policy_runs]} ({TIMES[cuda.most_policy_runs]} on a GPU)",
            f"The default is {cuda.seconds:g} on a GPU and {cpu.seconds:g} on a CPU",
            f"{cuda.seconds:g} on a GPU, {cpu.seconds:g} on a CPU "
            f"(pretrained: {tuned_cuda.seconds:g} and {tuned_cpu.seconds:g})",
            f"{verified.seconds:g} on a GPU (pretrained: {verified_tuned.seconds:g}), "
            f"{VERIFY['cpu'].seconds:g} on a CPU",
            f"{cuda.training.most_images:,} images ({cpu.training.most_images} on a CPU)",
            f"{cpu.stand_in_images:,} images of each half with as many pixels as "
            f"{cpu.stand_in_side}x{cpu.stand_in_side}",
            f"on a card {cuda.stand_in_images:,}, {cuda.stand_in_side}x{cuda.stand_in_side}",
            f"or {cuda.training.most_images_of_a_class} of a class where",
            f"With a budget of yours there are {steps} steps",
            f"the sides are {TIMES[LARGER_FOR_PLACES]} as long",
            f"as above, {search.batch_size}, {search.lr:g}",
            f"may look twice, less than {WEAK_CHANCE_OF_TWO} at either look",
        ],
        "docs/estimators.md": [f"{search.magnitude_bins} bins"],
        "docs/verify.md": [
            f"it is {verified.seconds:g} on a GPU, and a training has {long.steps} steps there "
            f"in place of {short.steps}",
            f"With a pretrained network it is {verified_tuned.seconds:g}:",
            f"`dada verify` adds {verifying.BUDGET:g} unless",
            f"about {short.steps} steps ({long.steps} after a search on a GPU), and "
            f"{short.least_epochs} epochs or more; of a pretrained network {tuning.steps} steps "
            f"and {tuning.least_epochs} epochs or more",
            f"{short.most_images:,} training images ({short.most_images_of_a_class} of a class",
        ],
        "docs/deviations.md": [f"on a GPU it has {verified.seconds:g} nominal seconds"],
        "docs/photographs.md": [
            f"without `--model` it is `{PRETRAINED}`",
            f"a rate of {SEARCH_FINE_TUNING['lr']:g}, {first_phase} steps and "
            f"{SEARCH_FINE_TUNING['least_epochs']} epochs at least;",
            f"| {scratch.lr:g} | {tuned.lr:g} | {FINE_TUNING_ADAMW['lr']} |",
            f"| {scratch.least_steps:,} steps, {scratch.least_epochs} at least | "
            f"{tuned.least_steps} steps, {tuned.least_epochs} at least |",
        ],
        "docs/train.md": [
            f"as many as make {scratch.least_steps:,} steps, {scratch.least_epochs} at least",
            f"| `--lr` | {scratch.lr:g} |",
        ],
        "docs/compare.md": [
            f"{scratch.least_steps:,} steps, and {scratch.least_epochs} passes at least",
            f"{tuned.least_steps} steps, and {tuned.least_epochs} passes at least",
        ],
        "docs/operations.md": [
            f"A batch of {large} images of 224x224 or more, or {small:,} of 32x32",
        ],
        "docs/data.md": [
            f"More than {IN_MEMORY_LIMIT // gib} GiB of decoded pixels",
            f"up to {copies.MOST_FILES:,} files",
            f"a side of `image_size` {one_size.MOST_PIXELS_OF_A_SIDE:,}",
            f"may unpack to {npz.DEFAULT_LIMIT_GIB:g} GiB",
            f"{annotations.MOST_OBJECTS:,} objects of an image, {annotations.MOST_CLASSES:,} "
            f"classes ({annotations.IGNORED - 1} for segmentation), {coco.MOST_BYTES // gib} GiB "
            f"of COCO's JSON, {voc.MOST_BYTES // mib} MB of a VOC or YOLO file",
        ],
        "SECURITY.md": [
            f"at most {coco.MOST_BYTES // gib} GiB (COCO) or {yolo.MOST_BYTES // mib} MB (a VOC",
            f"at most {annotations.MOST_OBJECTS:,} objects, a data set "
            f"{annotations.MOST_CLASSES:,} classes",
            f"refused above {npz.DEFAULT_LIMIT_GIB:g} GiB",
            f"The same as a policy file, of at most {safe_json.MOST_BYTES // mib} MB",
        ],
        "README.md": [needed],
        "docs/faq.md": [needed],
        "docs/explore.md": [
            f"at most {server.MOST_PICTURE // mib} MB and {session.MOST_PIXELS // 10**6} million "
            f"pixels, policies at most {session.MOST_SUBPOLICIES:,} sub-policies",
        ],
        "docs/reliability.md": [
            f"the others wait for {watch.JOIN:g} seconds",
            f"at most {safe_text.LONGEST_MESSAGE} characters",
        ],
        "docs/report.md": [
            f"the {gallery.MOST_CARDS} likeliest ({gallery.CUT_CARDS} where there are more)",
            f"up to {samples.MOST_IMAGES} training images, at most {samples.LONGEST_SIDE} pixels",
            f"at least {OFTEN:g} times as often as their mean",
        ],
    }


@pytest.mark.parametrize("page", sentences_about_settings())
def test_defaults_and_limits_in_the_text_are_the_codes(page: str) -> None:
    text = " ".join(read(ROOT / page).split())  # lines may be broken anywhere
    assert [words for words in sentences_about_settings()[page] if words not in text] == []


def test_tables_and_numbers_are_the_measured_ones() -> None:
    check = [sys.executable, str(ROOT / "benchmarks" / "tools" / "tables.py"), "--check"]
    subprocess.run(check, check=True)


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_no_line_begins_with_the_marker_of_a_number(page: Path) -> None:
    """Markdown takes a line that begins with a comment for HTML: its stars and links show raw."""
    begins = re.compile(r"^ *(?:[-*] +|\d+\. +)?<!-- number: .*", re.MULTILINE)
    assert begins.findall(read(page)) == []


def test_the_questions_name_every_dependency() -> None:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    needed = {re.split(r"[<>=]", name)[0] for name in project["dependencies"]}
    answer = read(ROOT / "docs" / "faq.md").partition("**May I use it at work?**")[2]
    answer = answer.partition("\n\n")[0]
    assert needed - set(re.findall(r"[a-z]+(?:-[a-z]+)*", answer.lower())) == set()


def test_the_page_lists_what_a_training_writes(tmp_path: Path) -> None:
    images = torch.arange(40 * 64).view(40, 1, 8, 8).remainder(256).to(torch.uint8)
    out = tmp_path / "run"
    api.train((images, torch.arange(40) % 2), "none", "small", epochs=2, device="cpu", out=out)
    table = read(ROOT / "docs" / "train.md").partition("## The run directory")[2]
    rows = re.findall(r"^\| (`.*?`) \|", table.partition("`scores.json`:")[0], re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    written = {file.name for file in out.iterdir()}
    assert written | {"checkpoint.previous.pt"} == listed  # which a long training has, too
    keys = table.partition("`scores.json`:")[2].partition("The weights are read")[0]
    scores = json.loads((out / "scores.json").read_text())
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| .*? \|", keys, re.M)))) == set(
        scores
    )


def test_the_site_has_every_page() -> None:
    listed = re.findall(r"[\w-]+\.md", read(ROOT / "mkdocs.yml"))
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert sorted(listed) == sorted(pages)
    linked = {link for link in LINK.findall(read(ROOT / "docs" / "index.md"))}
    assert {name for name in pages if name not in linked} == {"index.md"}


def test_the_reference_names_things_that_say_what_they_are() -> None:
    named = re.findall(r"^::: (\S+)$", read(ROOT / "docs" / "api.md"), re.MULTILINE)
    assert len(named) > 20
    for name in named:
        module, _, attribute = name.rpartition(".")
        thing = getattr(import_module(module), attribute)
        assert isinstance(thing, str) or thing.__doc__, name
        # Where it is defined: the page is made without running the code.
        assert isinstance(thing, str) or thing.__module__ == module, name


@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="pip install 'dada-augment[docs]'")
@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tutorial" / "index.html").is_file()


# --- these checks can fail ----------------------------------------------------------------------


def test_a_block_that_fails_is_named(folder: Path) -> None:
    text = "x\n\n```python\nassert 1 == 2\n```\n\n```bash\ndada show nowhere\n```\n"
    first, second = blocks_in(text, "page.md")
    with pytest.raises(AssertionError, match=r"page\.md:3: AssertionError"):
        run_block(first, {}, dada_here)
    with pytest.raises(AssertionError, match=r"page\.md:7: .* ended with 2"):
        run_block(second, {}, dada_here)


@pytest.mark.parametrize(
    "line", ["make nothing", "rm -rf x", "python no/such.py", "pip install .[x]"]
)
def test_a_command_that_cannot_be_run_is_named(folder: Path, line: str) -> None:
    (block,) = blocks_in(f"```bash\n{line}\n```\n", "page.md")
    with pytest.raises(AssertionError, match=r"page\.md:1: "):
        run_block(block, {}, dada_here)


def test_comments_above_a_block_are_read() -> None:
    text = "<!-- not run: needs a GPU -->\n```bash\ndada compare\n```\n"
    text += "<!-- slow -->\n\n```python\n```\n"
    first, second = blocks_in(text, "page.md")
    assert (first.directive, first.detail, first.slow) == ("not run", "needs a GPU", True)
    assert second.directive == "" and not second.slow  # a blank line between: not about this block


def test_an_unknown_option_and_a_broken_link_are_seen(tmp_path: Path) -> None:
    words = shlex.split("torchrun --nproc-per-node 2 -m dada search --epoch 3 --lr=1")
    assert unknown_options(words) == ["--epoch"]
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](#a-title) [b](#b) [c](nowhere.md) [d](page.md#a-title)")
    assert broken_links(page) == ["#b", "nowhere.md"]
