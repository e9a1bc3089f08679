"""Policies go to the hub and come back the same; tested against a stand-in on this machine."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import dada
from dada.hub.card import write_card
from hub_stand_in import TOKEN, HubStandIn, hub_stand_in

pytest.importorskip("huggingface_hub")

ROOT = Path(__file__).parents[1]
HOSTILE = "<script>alert(1)</script> | [x](javascript:y) ![z](w) `q` \n---\nlicense: evil\n# title"
FOUND = dada.Policy.from_rows(
    [[("Rotate", 0.5, 0.8), ("Color", 1.0, (0.0, 1.0))], [("Invert", 0.2)]],
    "strength",
    name="dada policy for birds",
    data={"name": "birds", "train": 400, "val": 100, "classes": 5, "image_size": [64, 48]},
    model="small",
    preset="dada",
    seed=3,
    versions={"dada": "0.2.0", "torch": "2.8"},
    verification={"verdict": "better than uniform by 2.1 +- 0.8 points", "against": "uniform"},
)


def test_there_and_back(hub: HubStandIn) -> None:
    assert FOUND.push_to_hub("ann/birds", license="mit") == f"{hub.address}/ann/birds"
    back = dada.Policy.load("hf:ann/birds")
    assert back == FOUND and back.provenance == FOUND.provenance
    assert back.to_json() == FOUND.to_json() == hub.files["ann/birds"]["policy.json"].decode()
    assert set(hub.files["ann/birds"]) == {"policy.json", "README.md", "policy.png"}
    picture = Image.open(io.BytesIO(hub.files["ann/birds"]["policy.png"]))
    assert picture.format == "PNG" and picture.width > 500
    assert hub.private == {"ann/birds": False}


def test_a_second_push_is_another_revision(hub: HubStandIn) -> None:
    FOUND.push_to_hub("ann/birds", private=True)
    dada.Policy.load("hf:ann/birds")
    heads = [line for line in hub.requests if line.startswith("HEAD")]
    assert heads and hub.private == {"ann/birds": True}
    other = dada.Policy.load("dada-svhn")
    other.push_to_hub("ann/birds", token=TOKEN)
    assert dada.Policy.load("hf:ann/birds") == other
    assert dada.Policy.load("hf:ann/birds@main") == other
    with pytest.raises(ValueError, match="no such revision"):
        dada.Policy.load("hf:ann/birds@v9")


def test_it_is_kept_for_when_the_hub_is_away(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between its five tries
    FOUND.push_to_hub("ann/birds")
    dada.Policy.load("hf:ann/birds")
    hub.shutdown()
    hub.server_close()
    assert dada.Policy.load("hf:ann/birds") == FOUND
    with pytest.raises(ValueError, match="hf:ann/other: the hub cannot be reached") as raised:
        dada.Policy.load("hf:ann/other")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hf:ann/nothing", "no such repository, or it is private"),
        ("hf:ann/empty", r"it holds no policy\.json"),
        ("hf:ann", "is user/name"),
        ("hf:", "is user/name"),
        ("hf:../../etc", "is user/name"),
        ("hf:ann/wrong", r"hf:ann/wrong: not a policy file"),
        ("hf:ann/bomb", "hf:ann/bomb: not JSON: nested"),
        ("hf:ann/large", "has 65 MB, too many"),
    ],
)
def test_what_cannot_be_loaded_is_named(hub: HubStandIn, name: str, reason: str) -> None:
    wrong = {"wrong": b"{}", "bomb": b"[" * 2000, "large": b" " * 65 * 2**20}
    hub.files = {f"ann/{repo}": {"policy.json": content} for repo, content in wrong.items()}
    hub.files["ann/empty"] = {"README.md": b""}
    with pytest.raises(ValueError, match=reason) as raised:
        dada.Policy.load(name)
    assert "\n" not in str(raised.value) and "cache" not in str(raised.value)
    assert not any(line.startswith("GET /ann/large") for line in hub.requests)


def test_what_cannot_be_pushed_is_named(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="hf:ann/birds: this needs a login that may write"):
        FOUND.push_to_hub("ann/birds", token="hf_wrong")
    for repo in ("birds", "a/b/c", "ann/b rds", "ann/b\n"):
        with pytest.raises(ValueError, match="`repo`: a repository of the hub is user/name"):
            FOUND.push_to_hub(repo)
    with pytest.raises(ValueError, match="`license` should be a name"):
        FOUND.push_to_hub("ann/birds", license="mit\nevil: yes")
    assert hub.files == {}
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        FOUND.push_to_hub("ann/birds")
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        dada.Policy.load("hf:ann/birds")


def test_the_card_says_what_is_known(hub: HubStandIn) -> None:
    FOUND.push_to_hub("ann/birds", license="cc-by-4.0")
    card = hub.files["ann/birds"]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: dada-augment\nlicense: cc-by-4.0\n")
    for words in ("better than uniform", "400", "birds"):
        assert words in card
    assert "| Color | 50.0% |" in card and "| torch | 2.8 |" in card
    assert "Rotate by ±24.0 degrees (50%) then Color" in card
    assert 'Policy.load("hf:ann/birds")' in card and "](policy.png)" in card
    plain = write_card(dada.Policy.load("none"), "a/b", None, own_pictures=False)
    assert "has not been compared" in plain and "license" not in plain


def test_text_of_strangers_stays_text() -> None:
    about = {
        "name": HOSTILE,
        "data": {"name": HOSTILE, "train": HOSTILE},
        "versions": {HOSTILE: HOSTILE},
        "verification": {"verdict": HOSTILE, "against": HOSTILE},
    }
    policy = dada.Policy(FOUND.subpolicies, FOUND.space, provenance=about)
    card = write_card(policy, "ann/birds", None, own_pictures=False)
    front, _, body = card.removeprefix("---\n").partition("---\n")
    assert "evil" not in front and "<script" not in card
    outside = re.sub(r"\\.", "", body)  # what is escaped is text
    assert "](javascript" not in outside and "](w)" not in outside
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert len(headings) == 5 and not any(line.startswith("license") for line in body.splitlines())
    rows = [line for line in outside.splitlines() if line.startswith("| ") and "script" in line]
    assert rows and all(row.count("|") == 3 for row in rows)


def test_by_the_endpoint_of_the_environment(tmp_path: Path) -> None:
    """As users do it: nothing is patched, HF_ENDPOINT says where the hub is."""
    code = (
        "import dada\n"
        "print(dada.Policy.load('dada-svhn').push_to_hub('ann/svhn'))\n"
        "assert dada.Policy.load('hf:ann/svhn') == dada.Policy.load('dada-svhn')\n"
        "import sys; sys.argv = ['dada', 'export', 'hf:ann/svhn', '--to', 'timm']\n"
        "from dada.terminal.commands import main; main()\n"
    )
    with hub_stand_in() as hub:
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.address,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": TOKEN,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{hub.address}/ann/svhn\n")
    assert "DadaPolicy" in (tmp_path / "policy_timm.py").read_text()
