"""A policy as a notebook shows it."""

from __future__ import annotations

from dada.policy.policy import Policy, PolicyOp
from dada.safe_html import Html, fill, table
from dada.safe_text import printable


def policy_html(policy: Policy) -> Html:
    """What it is called, and its operations: the likeliest first, in physical units."""
    count = len(policy.subpolicies)
    about = f"{count} sub-polic{'y' if count == 1 else 'ies'}, space {policy.space}"
    rates = sorted(policy.op_probabilities().items(), key=lambda item: -item[1])
    rows = [(op, f"{rate:.1%}", _all_strengths(policy, op)) for op, rate in rates if rate > 0]
    return fill(
        "<p><b>$name</b> ($about)</p>$operations",
        name=printable(policy.provenance.get("name") or "policy"),
        about=about,
        operations=table(("operation", "done to", "how strongly"), rows)
        if rows
        else fill("<p>$nothing</p>", nothing="Images are left as they are."),
    )


def _all_strengths(policy: Policy, op: str) -> str:
    """From the weakest to the strongest of its steps, e.g. "by +-0.0 to 30.0 degrees"."""
    steps = [step for subpolicy in policy.subpolicies for step in subpolicy.ops if step.op == op]
    ends = [end for step in steps for end in step.magnitude_range]
    words = policy.describe_op(PolicyOp(op, 1.0, (min(ends), max(ends))))
    return words.removeprefix(op).strip().replace("+-", "±")
