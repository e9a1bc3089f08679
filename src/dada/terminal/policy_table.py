"""A policy as a table, for a person at a terminal."""

from __future__ import annotations

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


def print_policy(policy: Policy, console: Console, rows: int = MOST_ROWS) -> None:
    """Rich where a person looks; plain lines where a program reads."""
    if not console.is_terminal:
        console.print(policy.describe(), soft_wrap=True, markup=False, highlight=False)
        return
    if not policy.subpolicies:
        console.print("no augmentation")
        return
    name = printable(policy.provenance.get("name", "policy"))
    table = Table(title=Text(name, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
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
