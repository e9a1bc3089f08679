"""The card of a policy on the hub: README.md, in which text of strangers stays text."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from dada.policy import Policy
from dada.report.gallery import in_words
from dada.safe_json import mapping
from dada.safe_text import LONGEST_MESSAGE, LONGEST_NAME, printable

PICTURE = "policy.png"
MOST_ROWS = 10
FACTS = {
    "train": "training images",
    "val": "validation images",
    "classes": "classes",
    "image_size": "height and width",
    "channels": "channels",
    "fingerprint": "fingerprint",
}


def text(value: object, limit: int = LONGEST_NAME) -> str:
    """One line that Markdown, and the HTML in it, takes for what it is."""
    shown = html.escape(printable(value, limit), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~$@:-])", r"\\\1", shown)


def write_card(policy: Policy, repo: str, license: str | None, *, own_pictures: bool) -> str:
    """Front matter, picture, operations, data, verdict, versions, and how to use it."""
    about = policy.provenance
    shown = "images of the author's data" if own_pictures else "built-in images, not of the data"
    licensed = [f"license: {license}"] if license else []
    lines = [
        "---",
        "library_name: dada-augment",
        *licensed,
        "tags:",
        "- data-augmentation",
        "- image-augmentation",
        "- dada",
        "---",
        "",
        f"# {text(about.get('name') or repo)}",
        "",
        "An image augmentation policy of `dada-augment` (DADA, ECCV 2020).",
        "",
        f"![An original in each row, then what the policy makes of it]({PICTURE})",
        "",
        f"The pictures show {shown}: in each row an original, then draws of one sub-policy.",
        "",
        "## Use",
        "",
        "```python",
        "import dada",
        "",
        f'transform = dada.Policy.load("hf:{repo}").transform()  # after crop and flip',
        "```",
        "",
        "## Does it help?",
        "",
        *_verdict(mapping(about.get("verification"))),
        "",
        "## Operations",
        "",
        *_operations(policy),
        "",
        "## Where it comes from",
        "",
        *_origin(about),
    ]
    return "\n".join(lines) + "\n"


def _verdict(verification: Mapping[str, Any]) -> list[str]:
    said = verification.get("verdict")
    if not said:
        return ["It has not been compared with the free alternatives. `dada compare` does so."]
    against = verification.get("against")
    compared = [f"It was compared with {text(against)}."] if against else []
    caution = "What holds on the author's data need not hold on yours: `dada compare` tells."
    return [text(said, LONGEST_MESSAGE), "", *compared, caution]


def _operations(policy: Policy) -> list[str]:
    count = len(policy.subpolicies)
    if not count:
        return ["None: images are left as they are."]
    rates = sorted(policy.op_probabilities().items(), key=lambda item: -item[1])
    listed = [f"| {op} | {rate:.1%} |" for op, rate in rates if rate > 0]
    ranked = sorted(policy.subpolicies, key=lambda subpolicy: -subpolicy.weight)[:MOST_ROWS]
    steps = [
        " then ".join(f"{in_words(policy, s)} ({s.probability:.0%})" for s in subpolicy.ops)
        for subpolicy in ranked
    ]
    rows = [
        f"| {s.weight:.1%} | {words or 'nothing'} |" for s, words in zip(ranked, steps, strict=True)
    ]
    return [
        "| operation | done to |",
        "|---|---|",
        *listed,
        "",
        f"For every image one of {count} sub-policies is drawn; the {len(rows)} likeliest:",
        "",
        "| drawn for | operations, each with its probability |",
        "|---|---|",
        *rows,
    ]


def _origin(about: Mapping[str, Any]) -> list[str]:
    data = mapping(about.get("data"))
    facts: dict[str, Any] = {"data": data.get("name")}
    facts |= {words: data.get(name) for name, words in FACTS.items()}
    facts |= {name: about.get(name) for name in ("model", "preset", "seed")}
    facts |= dict(mapping(about.get("versions")))
    rows = [
        f"| {text(name)} | {text(value)} |" for name, value in facts.items() if value is not None
    ]
    if not rows:
        return ["Not recorded."]
    return ["| | |", "|---|---|", *rows]
