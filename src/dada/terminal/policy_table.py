"""A policy as a table, for a person at a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dada.policy import Policy
from dada.report.gallery import in_words
from dada.safe_text import printable

BAR_WIDTH = 12
MOST_ROWS = 25  # of a table; a published policy may have 500 sub-policies


def bar(share: float, width: int = BAR_WIDTH) -> str:
    filled = round(share * width)
    return "━" * filled + "·" * (width - filled)


def policy_content(policy: Policy) -> dict[str, Any]:
    """For programs: the file's fields, and how often each operation is done."""
    return {**json.loads(policy.to_json()), "op_probabilities": policy.op_probabilities()}


def print_policy(
    policy: Policy, console: Console, rows: int = MOST_ROWS, *, sheet: Path | None = None
) -> None:
    """The likeliest sub-policies first, then how often each operation is done in all."""
    if policy.subpolicies:
        _print_tables(policy, console, rows)
    else:
        console.print("no augmentation")
    if sheet is not None:
        console.print(f"wrote {sheet}", markup=False, highlight=False, soft_wrap=True)


def _print_tables(policy: Policy, console: Console, rows: int) -> None:
    name = printable(policy.provenance.get("name", "policy"))
    count = len(policy.subpolicies)
    kind = "sub-policy" if count == 1 else "sub-policies"
    how = f"{count} {kind}, one drawn for every image ({policy.sampling}; space {policy.space})"
    console.print(Text.assemble((name, "bold"), f": {how}"))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("drawn", justify="right", style="dim")
    table.add_column("what is done to the image", overflow="fold")
    table.add_column("with probability", no_wrap=True)
    ranked = sorted(policy.subpolicies, key=lambda subpolicy: -subpolicy.weight)
    for subpolicy in ranked[:rows]:
        steps = "\n".join(in_words(policy, step) for step in subpolicy.ops) or "nothing"
        chances = Text("\n").join(
            Text.assemble((bar(step.probability), "cyan"), f" {step.probability:.2f}")
            for step in subpolicy.ops
        )
        table.add_row(f"{subpolicy.weight:.1%}", steps, chances)
    console.print(table)
    if len(ranked) > rows:
        console.print(f"... and {len(ranked) - rows} more sub-policies\n", highlight=False)
    shares = Table(
        title=Text("how often each operation is done to an image", style="bold"),
        title_justify="left",
        box=None,
        show_header=False,
    )
    rates = sorted(policy.op_probabilities().items(), key=lambda item: -item[1])
    widest = rates[0][1] or 1.0  # full length; against 1.0 most bars would be two blocks
    for name, share in rates:
        shares.add_row(name, Text(bar(share / widest, 30), style="cyan"), f"{share:.1%}")
    console.print(shares)
