"""Writes the tables of README.md from the results, so that no number there is typed by hand.

python benchmarks/tables.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
START, END = "<!-- ops table -->\n", "<!-- end -->"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def ops_table() -> str:
    lines = [
        "| | 32x32 | 224x224 | of the fastest peer, 32 / 224 |",
        "|---|---|---|---|",
    ]
    for name in ("ops-cpu", "ops-gpu"):
        result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        machine = result["machine"]
        where = machine["gpu"] if name == "ops-gpu" else f"{machine['cpu']}, one thread"
        lines.append(f"| **{where}** | | | |")
        by_name: dict[str, dict[int, dict[str, Any]]] = {}
        for row in result["rows"]:
            by_name.setdefault(row["contender"], {})[row["side"]] = row
        for contender, sides in by_name.items():
            speeds = " | ".join(f"{sides[side]['images_per_second']:,.0f}" for side in (32, 224))
            times = " / ".join(_times(sides[side]["times_fastest_peer"]) for side in (32, 224))
            lines.append(f"| {contender} | {speeds} | {times} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when the README is stale")
    arguments = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(START)
    fresh = before + START + ops_table() + END + rest.split(END, 1)[1]
    if arguments.check:
        sys.exit("README.md: run python benchmarks/tables.py" if fresh != text else 0)
    readme.write_text(fresh)


if __name__ == "__main__":
    main()
