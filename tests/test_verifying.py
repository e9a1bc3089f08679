"""dada.verify: of a search that has ended, again, of a stranger's, and of one that has not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dada
from dada.api import verifying
from dada.config import VerifyConfig
from quick import QUICK_LOOKAHEAD, TINY


def tiny_verification(asked: object) -> VerifyConfig:
    return VerifyConfig(seconds=0.0, training=TINY)


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A search of the digits without a verification."""
    monkeypatch.setattr(verifying, "usual_verification", tiny_verification)
    out = tmp_path / "run"
    dada.search("digits", epochs=1, lookahead=QUICK_LOOKAHEAD, device="cpu", out=out)
    return out


def test_a_finished_search_is_verified_later_and_more_is_added(finished: Path):
    before = dada.Policy.load(finished)
    assert before.provenance["verification"] is None
    told: list[int] = []
    first = dada.verify(finished, 3, on_training=lambda name, score, done, total: told.append(done))
    facts = first.policy.provenance["verification"]
    assert facts["trainings"] == len(told) > 0 and facts["looks"] == 1
    assert facts["budget"] == 3 and facts["seeds"] >= 4
    assert dada.Policy.load(finished / "searched.json").subpolicies == before.subpolicies
    assert dada.Policy.load(finished).provenance["verification"] == facts
    made = len(list((finished / "verification").rglob("*.json")))
    again = dada.verify(finished, 3).policy.provenance["verification"]
    assert again["budget"] == 6 and again["looks"] == 2
    assert again["trainings"] > facts["trainings"]
    # What had been made was not made again.
    assert len(list((finished / "verification").rglob("*.json"))) < made + again["trainings"]
    assert f"{again['difference']:+.2f}".lstrip("+-") in (finished / "report.html").read_text()


def test_mistakes_are_named(finished: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="no such run directory"):
        dada.verify(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="`budget` should be more than 0"):
        dada.verify(finished, 0)
    with pytest.raises(TypeError, match="`budget` should be a number"):
        dada.verify(finished, "much")  # type: ignore[arg-type]
    other = torch.zeros(40, 1, 8, 8, dtype=torch.uint8), torch.arange(40) % 2
    with pytest.raises(ValueError, match="not those of the search; give `train_data`"):
        dada.verify(finished, 3, train_data=other)
    config = finished / "config.toml"
    config.write_text(config.read_text().replace('model = "small"', 'model = "os:system"'))
    with pytest.raises(ValueError, match="code of one's own; give `model` again"):
        dada.verify(finished, 3)
    (finished / "finished.json").unlink()
    with pytest.raises(ValueError, match="only a finished search can be verified"):
        dada.verify(finished, 3)


def test_data_of_python_is_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verifying, "usual_verification", tiny_verification)
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 1, 8, 8), generator=noise, dtype=torch.uint8)
    data = images, torch.arange(60) % 3
    settings = replace(QUICK_LOOKAHEAD, seconds=2.0)
    dada.search(data, epochs=1, lookahead=settings, device="cpu", out=tmp_path / "run")
    with pytest.raises(ValueError, match="its data was a Python object; give `train_data` again"):
        dada.verify(tmp_path / "run", 3)
    found = dada.verify(tmp_path / "run", 3, train_data=data)
    assert found.policy.provenance["verification"]["trainings"] > 0


def test_what_is_a_free_policy_is_verified_under_its_name(finished: Path):
    """As where no signal was seen: it must not be given the record of policies that were found."""
    (finished / "searched.json").write_text(dada.Policy.load("none").to_json())
    facts = dada.verify(finished, 3).policy.provenance["verification"]
    names = [entry["name"] for entry in facts["candidates"]]
    assert "searched" not in names and "none" in names
