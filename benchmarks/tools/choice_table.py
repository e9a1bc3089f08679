"""The table of the page "which policy?", from what the judge measured; `tables.py` writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measure import markdown, result_of

DATA = {
    "cifar10": "images of CIFAR-10",
    "rsscn7": "satellite images",
    "digits": "digits",
    "cifar10-cpu": "images of CIFAR-10",
    "rsscn7-cpu": "satellite images",
    "shirts-cpu": "pullovers and shirts, 9 to 1",
    "fashion-cpu": "images of clothes",
}
FREE = {
    "uniform": "`uniform`",
    "trivialaugment": "`trivialaugment`",
    "randaugment": "`randaugment`, its best setting",
}


def _title(data: str) -> str:
    result = result_of(f"judge-{data}")
    settings, card = result["settings"], result["machine"]["gpu"]
    return f"{settings['train']:,} {DATA[data]}, `{settings['model']}`, {'GPU' if card else 'CPU'}"


def _rows(data: str) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in result_of(f"judge-{data}")["table"]}


def _accuracy(rows: dict[str, dict[str, Any]], policy: str) -> str:
    return f"{rows[policy]['accuracy']:.1f}" if policy in rows else ""


def choice_table() -> str:
    """Accuracies of the free policies, of a published one and of a searched one."""
    columns = (
        "test accuracy, %",
        *FREE.values(),
        "`dada-cifar10`",
        "searched",
        "over the best free",
    )
    lines = []
    for data in DATA:
        rows = _rows(data)
        best = max((name for name in FREE if name in rows), key=lambda n: rows[n]["accuracy"])
        gain = rows[best]
        cells = [_accuracy(rows, name) for name in (*FREE, "dada-cifar10", "dada")]
        difference = f"{gain['dada_minus']:+.1f} ({gain['from']:+.1f} to {gain['to']:+.1f})"
        lines.append((_title(data), *cells, difference))
    return markdown(columns, lines)


CHOICE: dict[str, Callable[[], str]] = {"choice table": choice_table}
