"""JSON of strangers: what is read can be written again, and the rest is refused in one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada import safe_json

REFUSED = {
    '{"a": 1, "a": 2}': "'a' is there twice",
    '{"a": {"b": [{"c": 1, "c": 1}]}}': "'c' is there twice",
    "[NaN]": "NaN",
    "[-Infinity]": "-Infinity",
    "[1e999]": "too large",
    "9" * 301: "301 digits",
    "9" * 5000: "5000 digits",
    '"\\ud800"': "half of a character",
    '{"\\udfff": 1}': "half of a character",
    "[" * 60 + "]" * 60: "nested more than 50 deep",
    '{"a":' * 60 + "1" + "}" * 60: "nested more than 50 deep",
    "[" * 200_000: "nested",
    "{": "not JSON",
    "": "not JSON",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_what_is_not_strict_is_refused_in_one_line(text):
    with pytest.raises(ValueError) as refused:
        safe_json.parse(text)
    message = str(refused.value)
    assert REFUSED[text] in message
    assert "\n" not in message and len(message) <= 300


def test_a_key_of_any_size_is_quoted_in_part():
    with pytest.raises(ValueError, match="is there twice") as refused:
        safe_json.parse(json.dumps({"a" * 10**6: 1})[:-1] + f', "{"a" * 10**6}": 2}}')
    assert len(str(refused.value)) < 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**298), 10**298) | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)  # fmt: skip
def test_what_is_read_is_written_and_read_the_same(content):
    assert safe_json.parse(json.dumps(safe_json.parse(json.dumps(content)))) == content


def test_a_file_names_its_problem(tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    for damage, says in (
        (b"\xff", "not JSON: not UTF-8"),
        (b"[]", "not a JSON object"),
        (b"", "not JSON"),
    ):
        file.write_bytes(damage)
        with pytest.raises(ValueError, match=rf"run\.json is damaged: {says}"):
            safe_json.read_object(file)
    monkeypatch.setattr(safe_json, "MOST_BYTES", 3)
    file.write_text('{"a": 1}')
    with pytest.raises(ValueError, match="more than"):
        safe_json.read(file)
