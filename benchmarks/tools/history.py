"""What the judge said of versions that others replaced, kept short.

    python benchmarks/tools/history.py RESULT.json --data "reduced CIFAR-10" --what "eight shapes"

Adds a summary of a file that `judge.py` wrote to benchmarks/results/history.json: who was judged,
how often, the means and by how much `dada` was better. The file itself may be deleted then.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from measure import RESULTS, result_of


def as_text(history: dict[str, list[Any]]) -> str:
    """A line for every entry, so that one more is one more line."""
    parts = []
    for name, entries in history.items():
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
        parts.append(f" {json.dumps(name)}: [\n{lines}\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def summary(found: dict[str, Any], data: str, what: str) -> dict[str, Any]:
    """One entry of the history: numbers to two digits, as they are shown."""
    rows = []
    for row in found["table"]:
        short = {"policy": row["policy"], "n": row["n"], "accuracy": round(row["accuracy"], 2)}
        if "dada_minus" in row:
            short["dada_minus"] = [round(row[key], 2) for key in ("dada_minus", "from", "to")]
        rows.append(short)
    entry = {"data": data, "what": what, "commit": found["machine"]["commit"], "rows": rows}
    if "relax_minus_gumbel" in found:
        entry["relax_minus_gumbel"] = [round(x, 2) for x in found["relax_minus_gumbel"]]
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--data", required=True, help="what it was judged on, in words")
    parser.add_argument("--what", required=True, help="what was different in that version")
    args = parser.parse_args()
    history = result_of("history")
    history["judged"].append(summary(json.loads(args.result.read_text()), args.data, args.what))
    (RESULTS / "history.json").write_text(as_text(history))


if __name__ == "__main__":
    main()
