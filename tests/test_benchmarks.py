"""The benchmark scripts start, and what the pages say is what the results say."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dada import Policy, data, models, recipes
from dada.trials.cost import Layer, Work, forward_work

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*/*.py"))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a script as Python would that runs it: its own folder goes first."""
    before = dict(sys.modules)

    def module(path: str) -> ModuleType:
        file = BENCHMARKS / path
        monkeypatch.setattr(sys, "path", [str(file.parent), *sys.path])
        return importlib.import_module(file.stem)

    yield module
    for name in set(sys.modules) - set(before):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS, ids=[f"{f.parent.name}/{f.name}" for f in SCRIPTS])
def test_a_script_can_be_imported(script: Path, load: Callable[[str], ModuleType]) -> None:
    needs = {"batchnorm": "triton", "growth": "matplotlib", "paper_figures": "matplotlib"}
    if script.stem in needs:
        pytest.importorskip(needs[script.stem])
    module = load(f"{script.parent.name}/{script.name}")
    assert Path(str(module.__file__)) == script
    usage = re.search(r"python (benchmarks/\S+\.py)", module.__doc__ or "")
    assert usage is None or ROOT / usage[1] == script


def test_scripts_use_the_public_side_of_the_package() -> None:
    """Private names are those of helpers that the script has itself."""
    for script in SCRIPTS:
        nodes = list(ast.walk(ast.parse(script.read_text())))
        own = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        own |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and type(n.ctx) is ast.Store}
        used = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        used |= {n.name for each in nodes if isinstance(each, ast.ImportFrom) for n in each.names}
        private = {name for name in used - own if re.match("_[a-z]", name)}
        assert not private, f"{script.name} uses {sorted(private)}"


def test_the_judge_joins_what_several_processes_did(
    load: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    judge = load("studies/judge.py")
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    parts = (
        {"searches": {"dada 0": {}}, "accuracy": {"dada search 0": {"0": 80.0}}},
        {"searches": {}, "accuracy": {"uniform": {"2": 70.0}, "dada search 0": {"1": 82.0}}},
    )
    for first, (file, part) in enumerate(zip(files, parts, strict=True)):
        file.write_text(json.dumps(part | {"settings": {"epochs": 80, "first": first}}))
    settings = {"epochs": 80, "first": 0, "sides": (32, 32)}  # an option that is new
    found = {"settings": settings, "searches": {}, "accuracy": {"uniform": {"0": 72.0}}}
    one_sample = SimpleNamespace(sample_seed=0, samples=False)
    joined = judge.joined(found, files, apart=judge.apart(one_sample))
    assert joined["settings"] == settings
    assert list(joined["searches"]) == ["dada 0"]
    assert load("tools/measure.py").units_of(joined["accuracy"], " search ") == {
        "dada": [81.0],
        "uniform": [72.0, 70.0],
    }
    # Here the first search says which images are drawn, and the second file is about others.
    one_sample.sample_seed = None
    with pytest.raises(SystemExit, match=r"b\.json: first was 1, and is 0 here"):
        judge.joined(found, files, apart=judge.apart(one_sample))


def test_a_study_of_settings_that_has_all_trainings_concludes(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file without a table, as one that was stopped."""
    study, out = load("studies/fine_tuning_settings.py"), tmp_path / "all.json"
    accuracy = {"sgd": {"0": 80.0, "1": 82.0}, "adamw": {"0": 81.0, "1": 84.0}}
    settings = {"image_size": 96, "train": None}
    out.write_text(json.dumps({"settings": settings, "accuracy": accuracy}))
    words = f"x.py digits --weights w --seeds 2 --arms sgd;adamw --out {out}"
    whole = data.load("digits")
    monkeypatch.setattr(study, "load", lambda *_, **how: whole)
    monkeypatch.setattr(sys, "argv", words.split())
    study.main()
    usual, other = json.loads(out.read_text())["table"]
    assert usual["accuracy"] == 81.0 and other["gain"] == 1.5


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"settings": {"epochs": 40}}, "epochs was 40, and is 80 here"),
        ({"settings": {"epochs": 80, "reader": "x"}}, "reader was 'x', and is None here"),
        ({"rows": []}, "no settings in it"),
    ],
    ids=["other settings", "another study", "no study of this kind"],
)
def test_files_of_another_study_are_not_joined(
    load: Callable[[str], ModuleType], tmp_path: Path, held: dict[str, Any], words: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(held))
    found = {"settings": {"epochs": 80}}
    with pytest.raises(SystemExit, match=rf"a\.json: .*{re.escape(words)}"):
        load("tools/measure.py").joined(found, [tmp_path / "a.json"])
    assert found == {"settings": {"epochs": 80}}


def saved_by_two_machines(
    measure: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Path]:
    """A file of the machine "a", and one of "b", which is the machine afterwards."""
    files = [folder / f"{name}.json" for name in "ab"]
    for file in files:
        monkeypatch.setattr(measure, "machine", lambda name=file.stem: {"cpu": name})
        measure.save({"settings": {"train": 1}}, file)
    return files


def test_all_machines_that_had_a_part_are_kept(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = load("tools/measure.py")
    files, out = saved_by_two_machines(measure, tmp_path, monkeypatch), tmp_path / "out.json"
    assert not any("machines" in json.loads(file.read_text()) for file in files)
    for _ in range(2):  # and once each
        measure.save(measure.joined({"settings": {"train": 1}}, files), out)
        found = json.loads(out.read_text())
        assert found["machine"] == {"cpu": "b"}
        assert found["machines"] == [{"cpu": "a"}, {"cpu": "b"}]


def test_a_machine_that_only_joined_files_is_not_named(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = load("tools/measure.py")
    parts, out = saved_by_two_machines(measure, tmp_path, monkeypatch), tmp_path / "out.json"
    monkeypatch.setattr(measure, "machine", lambda: {"cpu": "c"})
    measure.save(measure.joined({"settings": {"train": 1}}, parts), out, measured=False)
    found = json.loads(out.read_text())
    assert (found["machine"], found["machines"]) == ({"cpu": "b"}, [{"cpu": "a"}, {"cpu": "b"}])
    measure.save({"settings": {"train": 1}}, out, measured=False)  # and where nobody else is known
    assert json.loads(out.read_text()) == {"settings": {"train": 1}, "machine": {"cpu": "c"}}


def test_words_of_other_processes_are_joined_or_refused(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = load("studies/words.py")
    row = {"word": "clear", "chance": 0.1, "agreement": 0.1, "runs": 2, "seconds": 1.0}
    for seed in (0, 1):
        part = {"settings": {"train": 40, "first": seed}, "searches": {seed: row | {"seed": seed}}}
        (tmp_path / f"{seed}.json").write_text(json.dumps(part))
    line = f"words.py digits --searches 2 --out {tmp_path / 'all.json'} --join"
    line = f"{line} {tmp_path / '0.json'} {tmp_path / '1.json'} --train"
    monkeypatch.setattr(sys, "argv", [*line.split(), "40"])
    words.main()
    found = json.loads((tmp_path / "all.json").read_text())
    assert found["words"] == {"clear": 2} and list(found["searches"]) == ["0", "1"]
    monkeypatch.setattr(sys, "argv", [*line.split(), "41"])
    with pytest.raises(SystemExit, match=r"all\.json: train was 40, and is 41 here"):
        words.main()


def test_the_null_check_counts_a_search_once_however_often_its_file_is_joined(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    null_check = load("studies/null_check.py")
    part, out = tmp_path / "part.json", tmp_path / "all.json"
    row = dict.fromkeys(("difference", "from", "to", "pairs", "largest_score"), 0.0)
    searches = {seed: row | {"seed": seed, "claims": 1} for seed in (1, 0)}
    settings = {"train": 200, "budget": 60.0}
    part.write_text(json.dumps({"settings": settings, "searches": searches}))
    words = ["null_check.py", "digits", "--searches", "2", "--join", str(part), "--out", str(out)]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", words)
        null_check.main()
        found = json.loads(out.read_text())
        assert sorted(found["searches"]) == ["0", "1"] and found["claims"] == 2


def test_a_rival_is_chosen_in_the_seconds_of_a_search(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of ten seconds: three in 35 of them, and one in any."""
    rivals = load("studies/rivals.py")
    now = 0.0

    def trained(jobs: list[SimpleNamespace], at_once: int) -> Iterator[tuple[Any, Any]]:
        nonlocal now
        now += 10
        for job in jobs:
            good = {"trivialaugment": 0.7, "randaugment:1,0.5": 0.8}.get(job.name, 0.5)
            # The first round deceives.
            accuracy = 0.9 if job.name == "none" and now == 10 else good
            yield job, SimpleNamespace(scores=SimpleNamespace(accuracy=accuracy))

    images_NCHW, labels_N = torch.zeros(20, 3, 4, 4, dtype=torch.uint8), torch.arange(20) % 2
    whole = data.load((images_NCHW, labels_N))

    def job(split: Any, policy: Any, seed: int, judge: Any) -> SimpleNamespace:
        assert len(split.train) == len(judge) == 10
        return SimpleNamespace(name=policy, seed=seed)

    monkeypatch.setattr(rivals, "train_many", trained)
    monkeypatch.setattr(rivals.time, "perf_counter", lambda: now)
    monkeypatch.setattr(rivals.Policy, "load", lambda name: name)
    found = rivals.rival_of(2, 35.0, whole, job, 1)
    assert (found["chosen"], found["seconds"]) == ("randaugment:1,0.5", 30.0)
    assert {len(each) for each in found["scores"].values()} == {3} and len(found["scores"]) == 9
    now = 0.0
    hurried = rivals.rival_of(0, 1.0, whole, job, 1)
    assert (hurried["chosen"], hurried["seconds"]) == ("none", 10.0)


def test_the_judge_compares_what_was_returned_with_what_was_found(
    load: Callable[[str], ModuleType],
) -> None:
    """Search by search: one verification returned what was found, one something better by 2."""
    judge = load("studies/judge.py")

    def searched(word: str, chosen: str) -> dict[str, str]:
        verified = {"signal": {"word": word}, "verification": {"chosen": chosen}}
        found = {"signal": {"word": word}}
        policies = {"policy": found, "verified": verified}
        return {kind: json.dumps({"provenance": each}) for kind, each in policies.items()}

    found = {
        "settings": {},
        "searches": {"dada 0": searched("clear", "searched"), "dada 1": searched("weak", "none")},
        "accuracy": {
            "dada search 0": {"0": 80.0, "1": 82.0},
            "dada, verified search 0": {"0": 80.0, "1": 82.0},
            "dada search 1": {"1000": 70.0},
            "dada, verified search 1": {"1000": 72.0},
            "uniform": {"0": 75.0, "1": 76.0},
        },
    }
    judge.conclude(found)
    assert found["signals"] == {"clear": 1, "weak": 1}
    assert found["verified"]["chosen"] == {"searched": 1, "none": 1}
    difference, low, high = found["verified"]["minus_found"]
    assert difference == 1 and high - 1 == pytest.approx(12.706, abs=1e-3) == 1 - low
    assert found["verified"]["minus_uniform"][0] == pytest.approx(1.0)


def test_where_all_differences_are_the_same_their_interval_is_a_point(
    load: Callable[[str], ModuleType],
) -> None:
    assert load("tools/measure.py").stratified_welch([([0.0, 0.0], [])]) == (0, 0, 0)


def test_costs_are_fitted_to_what_was_measured(load: Callable[[str], ModuleType]) -> None:
    """Networks of one kind of layer each, timed by other constants: those are found again."""
    costs = load("speed/costs.py")
    usual = costs.SPEEDS["cuda"]
    hidden = replace(usual, operations=2e14, grouped=5e12, numbers=2e12)
    layers = (
        Layer(operations=1e10, moved=1e5),
        Layer(operations=1e8, moved=1e5, grouped=True),
        Layer(moved=1e8),
    )
    works = [Work(layers=(layer,) * count) for layer in layers for count in (10, 100)]
    rows = [(work, 64, costs.nominal(hidden, work, 64)) for work in works]
    found = costs.fitted(usual, rows)
    for work, batch, took in rows:
        assert costs.nominal(found, work, batch) == pytest.approx(took, rel=0.1)
    assert found.operations == pytest.approx(2e14, rel=0.1)
    assert found.numbers == pytest.approx(2e12, rel=0.1)


def test_costs_are_told_by_todays_counting(load: Callable[[str], ModuleType]) -> None:
    """Every step that was timed has its layers; of small networks they are counted again."""
    costs, steps = load("speed/costs.py"), load("tools/step_costs.py")
    assert len(list(steps.steps())) > 0
    for case in {*costs.CASES["cuda"][:1], *costs.CASES["cpu"][:3]}:
        again = json.loads(json.dumps(steps.counted(forward_work(case.network(), case.shape))))
        assert again == steps.result_of("costs-layers")[str(case)], "run speed/costs.py --count"


def test_where_the_factor_of_nominal_costs_is_missed_is_said(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = load("tools/step_costs.py")
    near, far = ("card", "a", 10.0, 14.0), ("core", "b", 10.0, 6.0)
    monkeypatch.setattr(steps, "steps", lambda: [near])
    assert steps.steps_table().endswith("either way. All keep it.\n")
    monkeypatch.setattr(steps, "steps", lambda: [near, far])
    assert steps.steps_table().endswith("It is missed on core by b (0.60).\n")


# --- pages --------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def test_pages_say_what_the_results_say(load: Callable[[str], ModuleType]) -> None:
    stale = load("tools/tables.py").stale(ROOT)
    assert [page.name for page in stale] == [], "run python benchmarks/tools/tables.py"


def test_shipped_policies_are_the_first_searches_of_the_results(
    load: Callable[[str], ModuleType],
) -> None:
    tool = load("tools/found_policies.py")
    results = load("tools/measure.py").result_of("paper")
    assert tool.TARGET.read_text() == tool.text_of(results), "run tools/found_policies.py"
    # The rule is the seed, not the error.
    policy = json.dumps({"provenance": {"data": {"name": "cifar10"}, "seed": 1}})
    search = {"arm": "paper relax", "recipe": "reduced_cifar10_wrn40_2", "seconds": 1.0}
    for seed, names in ((1, []), (0, ["found-cifar10-paper-relax"])):
        held = {"a": search | {"policy": policy, "seed": seed}}
        assert list(tool.found_policies({"searches": held, "trainings": {}})) == names


@pytest.mark.parametrize(
    ("page", "said", "wrong"),
    [
        ("README.md", "uniform -->0.61<!--", "uniform -->0.71<!--"),
        ("docs/index.md", "uniform -->2.96<!--", "uniform -->3<!--"),
        ("docs/faq.md", "uniform -->0.49<!--", "uniform --><!--"),
        ("docs/search-study.md", "+0.61 (+0.35 to +0.87)", "+0.61 (+0.36 to +0.87)"),
        ("docs/estimators.md", "| 86.9 |", "| 8.9 |"),
    ],
)
def test_a_wrong_number_is_seen_and_put_right(
    site: Path, page: str, said: str, wrong: str, load: Callable[[str], ModuleType]
) -> None:
    text = (site / page).read_text()
    (site / page).write_text(text.replace(said, wrong))
    assert (site / page).read_text() != text
    assert load("tools/tables.py").stale(site) == {site / page: text}


def test_a_number_that_nobody_makes_is_refused(load: Callable[[str], ModuleType]) -> None:
    with pytest.raises(ValueError, match="number: guess: of mine: there are gain, "):
        load("tools/numbers_in_text.py").number("guess: of mine")


GENERATED = re.compile(r"<!-- number: .*?<!-- /number -->", re.DOTALL)
TABLE = re.compile(r"^<!-- [\w -]+ -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
# Versions, settings and a definition; no result among them.
PLAIN = {"3.11", "2.8", "0.5", "2.11"}


def typed_numbers(text: str) -> set[str]:
    """Numbers with a point, and percentages, that were typed by hand."""
    for made in (GENERATED, TABLE, CODE):
        text = made.sub("", text)
    return set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])|\d+(?=%)", text)) - PLAIN


HEADLINES = ("index", "results", "faq", "search-study")
ALLOWED = {"results": {"2"}, "search-study": {"95"}}  # of a search's time; intervals


@pytest.mark.parametrize("page", ["../README", *HEADLINES])
def test_no_result_is_typed_by_hand(page: str) -> None:
    typed = typed_numbers((ROOT / "docs" / f"{page}.md").read_text())
    assert typed - ALLOWED.get(page, set()) == set()


def test_a_number_typed_by_hand_is_seen() -> None:
    text = "better by 0.61 points, 27% off <!-- number: claims -->0.3<!-- /number --> `0.7`\n"
    assert typed_numbers(text) == {"0.61", "27"}


def test_what_the_study_says_of_its_intervals_is_so(load: Callable[[str], ModuleType]) -> None:
    """docs/search-study.md: every interval lies above zero, one of them only just."""
    table = load("tools/study_tables.py").verdicts_table()
    lows = [float(low) for low in re.findall(r"\(([+-][\d.]+) to", table)]
    assert len(lows) == 12 and min(lows) == 0.01


def test_no_threshold_of_the_paper_is_met_as_its_page_says(
    load: Callable[[str], ModuleType],
) -> None:
    """docs/paper.md has the three, and "none is met so far"."""
    numbers = load("tools/numbers_in_text.py").NUMBERS
    lows = [
        float(numbers["full-size gain"](free).split("(")[1].split(" ")[0])
        for free in ("uniform", "trivialaugment")
    ]
    met = lows[0] > 0, lows[1] > -0.15, float(numbers["full-size error"]("dada")) < 3.6
    assert met == (False, False, False)


# --- history ------------------------------------------------------------------------------------


def test_a_summary_keeps_means_and_intervals(
    load: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    history = load("tools/history.py")
    dada = {"policy": "dada", "accuracy": 80.3444, "n": 8, "lowest": 80.0, "highest": 81.0}
    gain = {"dada_minus": 0.6123, "from": 0.3491, "to": 0.8711}
    found: dict[str, Any] = {
        "machine": {"commit": "abc"},
        "table": [dada, {"policy": "uniform", "accuracy": 79.7, "n": 12} | gain],
        "searches": {"dada 0": "long"},
    }
    entry = history.summary(found, "some data", "a version")
    uniform = {"policy": "uniform", "n": 12, "accuracy": 79.7, "dada_minus": [0.61, 0.35, 0.87]}
    rows = [{"policy": "dada", "n": 8, "accuracy": 80.34}, uniform]
    assert entry == {"data": "some data", "what": "a version", "commit": "abc", "rows": rows}
    assert json.loads(history.as_text({"judged": [entry], "shapes": [1]})) == {
        "judged": [entry],
        "shapes": [1],
    }


def test_the_history_is_short_and_whole() -> None:
    file = BENCHMARKS / "results" / "history.json"
    judged = json.loads(file.read_text())["judged"]
    assert len(judged) == 10 and file.stat().st_size < 20_000
    for entry in judged:
        assert {"dada", "uniform", "trivialaugment"} <= {row["policy"] for row in entry["rows"]}


def test_welch_is_scipys(load: Callable[[str], ModuleType]) -> None:
    from scipy import stats

    one, other = [1.0, 2.0, 4.0, 3.5], [0.5, 1.0, 0.7]
    wanted = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    _, low, high = load("tools/measure.py").welch(one, other)
    assert (low, high) == pytest.approx((wanted.low, wanted.high))


# --- the paper's tables -------------------------------------------------------------------------


@pytest.fixture
def few_images(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0)
    labels = np.arange(160) % 4
    images = (noise.integers(0, 80, (160, 8, 8, 3)) + 40 * labels[:, None, None, None]).astype("u1")
    parts = {"train_images": images[:120], "train_labels": labels[:120]}
    parts |= {"test_images": images[120:], "test_labels": labels[120:]}
    np.savez(tmp_path / "images.npz", **parts)
    return tmp_path / "images.npz"


def errors_in(file: Path) -> dict[str, float]:
    trainings = json.loads(file.read_text())["trainings"]
    return {key: row["error"] for key, row in trainings.items()}


def run_study(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: object, only: str
) -> None:
    """The command, in this process."""
    line = ["paper.py", *map(str, words), "--trial", "--only", only]
    monkeypatch.setattr(sys, "argv", line)
    module.main()


@pytest.fixture
def study(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, few_images: Path
) -> Callable[..., None]:
    """Runs it on a few images; `turns` says how often the time may be asked for."""
    module = load("studies/paper.py")

    def run(out: Path, only: str, *more: object, turns: float = math.inf) -> None:
        asked = itertools.count()
        monkeypatch.setattr(module.Study, "over", property(lambda self: next(asked) >= turns))
        words = ("cifar10", "--data", few_images, "--out", out, "--at-once", 2, *more)
        run_study(module, monkeypatch, *words, only=only)

    return run


def test_a_study_that_runs_out_of_time_goes_on_to_the_same_end(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in a search, before a training, between epochs: the same errors as in one go."""
    arms = "paper relax,dada-cifar10"
    study(tmp_path / "whole.json", arms)
    whole = errors_in(tmp_path / "whole.json")
    assert len(whole) == 6 and {key.split(": ")[1] for key in whole} >= {"paper relax, seed 2"}
    capsys.readouterr()
    stops = 0
    for turns in (0, 1, 2, 3, 4, 5, 6, 7, math.inf):
        study(tmp_path / "parts.json", arms, turns=turns)
        stops += "stopped: the time is up" in capsys.readouterr().out
    assert stops >= 3
    study(tmp_path / "few.json", arms, "--most", 2)
    first = {f"cifar10_wrn40_2: {arm}, seed 0" for arm in arms.split(",")}
    assert errors_in(tmp_path / "few.json").items() == {k: whole[k] for k in first}.items()
    assert errors_in(tmp_path / "parts.json") == whole
    checkpoints = list((tmp_path / "parts" / "train").glob("*/checkpoint.pt"))
    assert len(checkpoints) == 6


def test_processes_share_a_study(study: Callable[..., None], tmp_path: Path) -> None:
    """One searches, another trains what it found and joins what a third has trained."""
    searches, others, both = (tmp_path / f"{name}.json" for name in ("searches", "others", "both"))
    study(searches, "paper relax", "--seeds", 1, "--searches-only")
    study(others, "dada-cifar10", "--seeds", 1)
    study(both, "paper relax,dada-cifar10", "--seeds", 1, "--join", searches, others)
    (search,) = json.loads(searches.read_text())["searches"].values()
    assert errors_in(searches) == {} and search["seed"] == 1
    assert list(json.loads(both.read_text())["searches"].values()) == [search]
    (training,) = errors_in(others).items()
    assert training in errors_in(both).items() and len(errors_in(both)) == 2


def write_svhn(root: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    noise = np.random.default_rng(0)
    for part, count in (("train", 40), ("test", 20), ("extra", 20)):
        digits = 1 + np.arange(count, dtype=np.uint8) % 10  # 10 stands for zero
        images = noise.integers(0, 80, (32, 32, 3, count), np.uint8) + 17 * digits
        savemat(root / f"{part}_32x32.mat", {"X": images.astype(np.uint8), "y": digits[:, None]})


def write_imagenet(root: Path) -> None:
    noise = np.random.default_rng(0)
    for part, name, number in itertools.product(("train", "val"), ("n01", "n02"), range(6)):
        (root / part / name).mkdir(parents=True, exist_ok=True)
        pixels = noise.integers(0, 256, (260, 300, 3), np.uint8)
        Image.fromarray(pixels).save(root / part / name / f"{number}.JPEG")


def test_svhn_is_searched_on_its_core_set(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both of its networks in one command; what both need is searched once."""
    write_svhn(tmp_path)
    out = tmp_path / "found.json"
    words = ("svhn_wrn28_10", "svhn_shakeshake26_2x96d", "--out", out)
    data = ("--data", f"svhn-extra:{tmp_path}", "--search-data", f"svhn:{tmp_path}")
    run_study(load("studies/paper.py"), monkeypatch, *words, *data, only="paper relax,fastaa-svhn")
    assert errors_in(out).keys() == {
        f"{recipe}: {arm}, seed 0"
        for recipe in ("svhn_wrn28_10", "svhn_shakeshake26_2x96d")
        for arm in ("paper relax", "fastaa-svhn")
    }
    (search,) = json.loads(out.read_text())["searches"].values()
    data_of_search = json.loads(search["policy"])["provenance"]["data"]
    assert (data_of_search["name"], search["recipe"]) == ("svhn", "reduced_svhn_wrn28_10")
    assert data_of_search["train"] + data_of_search["val"] == 40


def test_imagenet_is_cut_from_its_files(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_imagenet(tmp_path)
    out = tmp_path / "found.json"
    words = ("imagenet_resnet50", "--data", f"imagenet:{tmp_path}", "--out", out)
    run_study(load("studies/paper.py"), monkeypatch, *words, only="dada,none")
    assert {key.split(": ")[1] for key in errors_in(out)} == {"dada, seed 0", "none, seed 0"}


def test_every_row_of_the_paper_has_a_plan(load: Callable[[str], ModuleType]) -> None:
    plan, published = load("tools/paper_plan.py"), load("tools/measure.py").result_of("published")
    planned: dict[str, set[str]] = {}
    for name, each in plan.PLANS.items():
        arms = {arm for arm, _ in each.units()}
        planned.setdefault(each.train, set()).update(arms)
        assert recipes.named(each.train, wants="train")
        for arm in arms - {"randaugment"}:
            if arm in plan.SEARCHES:
                recipes.named(each.searched_by(arm), wants="search")
            else:
                Policy.load(arm)
        assert name in ("full-search", "full-search-wrn28_10") or "trivialaugment" in arms
    for row in [*published["table2"], *published["table3"], published["table4"]]:
        assert planned[f"{row['data']}_{row['model']}"] >= set(plan.arms_of_row(row["data"]))
    for row in published["table6"]:
        assert planned[f"cifar10_{row['model']}"] >= {"paper relax", "paper full"}


def test_the_plan_is_what_the_page_says(load: Callable[[str], ModuleType]) -> None:
    plans = load("tools/paper_plan.py").PLANS
    units = list(plans["cifar10"].units())
    counted = Counter(arm for arm, _ in units)
    five = ("dada", "uniform", "trivialaugment")
    assert units[:6] == [(arm, seed) for seed in (0, 1) for arm in five]
    three = ("paper relax", "paper gumbel", "dada-cifar10")
    wanted = dict.fromkeys(five, 5) | dict.fromkeys((*three, "dada-for-200"), 3)
    assert counted == wanted | {"fastaa-cifar10": 1, "randaugment": 1}
    page = (ROOT / "docs" / "paper.md").read_text()
    commands = " ".join(re.findall(r"studies/paper\.py (.*?) --data", page)).split()
    assert Counter(commands) == Counter(plans.keys() - {"harness"})


def test_a_measured_cell_is_mean_n_and_interval(load: Callable[[str], ModuleType]) -> None:
    tables = load("tools/paper_tables.py")
    assert tables.measured([]) == "not run"
    assert tables.measured([3.5]) == "**3.50** (n 1)"
    assert tables.measured([3.4, 3.5, 3.6]) == "**3.50** (n 3, 3.25 to 3.75)"
    assert tables.hours("cifar10", "wrn40_2") == pytest.approx(200 * 50_000 / 62_099 / 3600, 1e-3)


def test_a_cell_that_was_not_run_says_why(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = load("tools/paper_tables.py")
    trained = {"recipe": "cifar10_wrn28_10", "arm": "dada", "error": 2.5}
    held = {"trainings": {"cifar10_wrn28_10: dada, seed 0": trained}, "searches": {}}
    monkeypatch.setattr(tables, "found", lambda: held)
    assert tables.reason("cifar10_wrn28_10", ["dada"]) == "nothing"
    assert tables.reason("cifar10_wrn28_10", ["dada", "none", "cutout"]) == "2 x 0.22 h"
    assert tables.reason("imagenet_resnet50", ["none"]) == "no data; 1 x 22 h"
    assert tables.both(2.6, "cifar10_wrn28_10", None) == "2.6; not here"
    assert tables.both(None, "cifar10_wrn28_10", "dada") == "–; **2.50** (n 1)"
    # Nowhere on the page is a cell empty where the table could say what is missing.
    for name, table in tables.PAPER.items():
        for line in table().splitlines():
            if "not run" in line and name != "cost table":
                assert re.search(r"\| (no data; )?\d+ x [\d.]+ h[^|]*\|$", line), line


@pytest.mark.parametrize(("card", "seconds"), [("NVIDIA H200", 40.0), (None, None)])
def test_the_cost_of_a_search_is_that_on_a_card(
    load: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    card: str | None,
    seconds: float | None,
) -> None:
    tables = load("tools/paper_tables.py")
    asked = {"recipe": "reduced_cifar100_wrn40_2", "arm": "paper relax"}
    policy = json.dumps({"provenance": {"versions": {"gpu": card}}})
    held = {"a search": {**asked, "seconds": 40.0, "policy": policy}}
    monkeypatch.setattr(tables, "found", lambda: {"searches": held})
    assert tables.search_seconds(**asked) == seconds


@pytest.mark.parametrize("dense", [False, True])
def test_stacked_networks_learn_what_they_learn_alone(
    load: Callable[[str], ModuleType], dense: bool
) -> None:
    """Three steps of SGD in float32; every network has images and labels of its own."""
    stacked = load("speed/stacked.py")
    networks = [models.build("wrn10_1", stacked.CLASSES, seed=seed) for seed in range(3)]
    cpu = torch.device("cpu")
    together = stacked.Step(stacked.stack(networks, dense=dense), 3, 8, cpu, record=False)
    alone = [stacked.Step(network, 1, 8, cpu, record=False) for network in networks]
    for one, images, labels in zip(
        alone, together.images_BCHW.split(3, 1), together.labels_BG.unbind(1), strict=True
    ):
        one.images_BCHW, one.labels_BG = images.contiguous(), labels.unsqueeze(1)
    for _ in range(3):
        for step in (together, *alone):
            step()
    torch.testing.assert_close(
        together.network(together.images_BCHW).unbind(1),
        tuple(one.network(one.images_BCHW) for one in alone),
        rtol=1e-4,
        atol=1e-4,
    )
    apart = alone[0].network(alone[0].images_BCHW) - alone[1].network(alone[0].images_BCHW)
    assert apart.abs().max() > 0.01, "networks that agree would prove nothing"
