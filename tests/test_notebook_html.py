"""What a notebook shows of a policy, a search and a comparison; names in them stay text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

import dada
from dada.comparison.result import PolicyScores
from dada.trials.statistics import Difference

HOSTILE = "<img src=x onerror=alert(1)>\"'&</p><script>alert(1)</script>\x1b[31m"


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert self.open == [], "a tag is not closed"

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.seen.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def policy(name: str) -> dada.Policy:
    rows = [[("Rotate", 0.5, (0.0, 1.0)), ("Invert", 1.0)], [("Rotate", 0.1, 0.5)]]
    return dada.Policy.from_rows(rows, "strength", name=name, verification={"verdict": name})


def comparison(name: str) -> dada.Comparison:
    def row(of: str, mean: float) -> PolicyScores:
        return PolicyScores(
            name=of,
            mean=mean,
            interval=(mean - 1, mean + 1),
            scores=(mean,) * 3,
            class_error=(1.0,),
            balanced_accuracy=mean,
            loss=None,
            top5=None,
        )

    return dada.Comparison(
        data=name,
        model=name,
        metric="accuracy",
        policies=(row("uniform", 80.0), row(name, 90.5)),
        differences=(
            Difference(policy=name, against="uniform", mean=10.5, interval=None, seeds=3),
        ),
        verdict=f"{name} is better",
        classes=(name,),
        seeds=(0, 1, 2),
        images=100,
        seconds=1.0,
        versions={},
    )


def result(name: str) -> dada.Result:
    return dada.Result(policy=policy(name), history=[], seconds=12.3, out=Path(name))


@pytest.mark.parametrize("make", [policy, comparison, result])
def test_names_stay_text(make) -> None:
    shown, plain = Tags(make(HOSTILE)._repr_html_()), Tags(make("mine")._repr_html_())
    assert shown.seen == plain.seen and "script" not in shown.seen and "img" not in shown.seen
    assert "\x1b" not in "".join(shown.words) and "onerror" in "".join(shown.words)
    assert "mine" in "".join(plain.words)


def test_a_policy_in_physical_units() -> None:
    words = Tags(policy("mine")._repr_html_()).words
    assert words[:2] == ["mine", " (2 sub-policies, space strength)"]
    first = words.index("Invert")
    assert words[first : first + 2] == ["Invert", "50.0%"]
    assert words[-3:] == ["Rotate", "30.0%", "by ±0.0 to 30.0 degrees"]
    assert "left as they are" in dada.Policy.load("none")._repr_html_()


def test_the_best_policy_comes_first() -> None:
    words = Tags(comparison("mine")._repr_html_()).words
    assert words[0] == "mine is better"
    assert words.index("90.50") < words.index("80.00") and "89.50 to 91.50" in words


def test_a_result_says_what_is_known() -> None:
    assert "12 s, in mine" in result("mine")._repr_html_()
    unknown = dada.Result(policy=dada.Policy.load("dada-svhn"), history=[], seconds=1.0)
    assert "Not compared yet" in unknown._repr_html_()
