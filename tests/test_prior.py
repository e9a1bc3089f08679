"""What is expected of a candidate: the record of studies, and what was seen of it here."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
import torch

from dada.policy_search.verify import prior
from dada.policy_search.verify.plan import plan_for
from dada.policy_search.verify.prior import NOTHING_KNOWN, Prior, expected, prior_of
from dada.policy_search.verify.rounds import decide

REPOSITORY = Path(__file__).parents[1]


def test_the_record_is_what_the_results_say(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks" / "tools"))
    import record

    assert record.TARGET.read_text() == record.text()
    sys.modules.pop("record")


def test_searched_policies_are_expected_to_help_and_their_own_data_is_left_out():
    everywhere = prior_of("searched", pretrained=False)
    rows = [r for r in prior._record() if r["policy"] == "searched" and r["kind"] == "from scratch"]
    assert everywhere.mean == pytest.approx(statistics.mean(row["gain"] for row in rows))
    assert everywhere.mean > 0.5
    without = prior_of("searched", pretrained=False, without=["rsscn7"])
    assert without.mean < everywhere.mean
    names = {row["data"] for row in rows}
    assert prior_of("searched", pretrained=False, without=names) == NOTHING_KNOWN


@pytest.mark.parametrize("name", ["randaugment:1,0.5", "randaugment:2,0.5 without Invert"])
def test_names_are_those_of_the_record(name):
    assert prior_of(name, pretrained=False) == prior_of("randaugment", pretrained=False)
    assert prior_of("something else", pretrained=False) == NOTHING_KNOWN


def test_what_is_expected_lies_between_what_was_known_and_what_was_seen():
    known = {"a": Prior(1.0, 1.0)}
    assert expected({"a": []}, known, 1.0)["a"] == 1.0
    assert expected({"a": [3.0, 3.0]}, known, 1.0)["a"] == pytest.approx((1 + 2 * 3) / 3)
    much = expected({"a": [3.0] * 1000}, known, 1.0)["a"]
    assert much == pytest.approx(3.0, abs=0.01)


def test_few_lucky_differences_do_not_beat_a_good_record():
    """Both candidates are as good as uniform in truth; the record knows one to be better."""
    known = {"proven": Prior(1.0, 0.5), "lucky": Prior(0.0, 0.5)}
    gains = {"proven": [0.0, 0.0], "lucky": [1.0, 0.6]}
    guess = expected(gains, known, 1.5)
    assert guess["proven"] > guess["lucky"]


def test_a_good_record_makes_the_best_guess_better():
    """Simulated: true gains are drawn from the record, noise is that of a short verification."""
    known = {"searched": Prior(1.0, 1.0), "other": Prior(-1.0, 1.0)}
    names = [*known, "uniform"]

    def gain_of_the_choice(number: int, use: dict[str, Prior]) -> float:
        noise = torch.Generator().manual_seed(number)
        true = {n: float(m + s * torch.randn((), generator=noise)) for n, (m, s) in known.items()}
        true["uniform"] = 0.0

        def train(wanted, seeds):
            return {
                n: [70 + true[n] + 2 * float(torch.randn((), generator=noise)) for _ in seeds]
                for n in wanted
            }

        outcome = decide(names, plan_for(16, 3), train, prior=use, seed=number, images=2000)
        return true[outcome.chosen]

    with_it, without = (
        statistics.mean(gain_of_the_choice(number, use) for number in range(150))
        for use in (known, {})
    )
    assert with_it > without > 0


def test_the_record_is_part_of_the_package():
    text = (REPOSITORY / "src/dada/policy_search/verify/record.json").read_text()
    assert {"data", "kind", "policy", "gain", "error"} == set(json.loads(text)[0])
