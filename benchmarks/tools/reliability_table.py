"""The tables of docs/reliability.md, from what `python -m tests.fire` and versions.py wrote."""

from __future__ import annotations

from collections.abc import Callable

from measure import markdown, result_of


def fuzzers_table() -> str:
    rows = result_of("reliability")["fuzzers"]
    return markdown(
        ("fuzzer", "a case", "cases", "meant", "faults", "seconds"),
        (
            (
                name,
                row["what"],
                f"{row['cases']:,}",
                f"{row['wanted']:,}",
                f"{row['faults']:,}",
                f"{row['seconds']:,.0f}",
            )
            for name, row in rows.items()
        ),
    )


def machine_line() -> str:
    rows = result_of("reliability")["fuzzers"].values()
    found = [row["machine"] for row in rows]
    machines = {f"{m['cpu']}, Python {m['python']}, torch {m['torch']}" for m in found}
    return f"On {'; '.join(sorted(machines))}.\n"


def versions_table() -> str:
    found = result_of("versions")
    return markdown(
        ("what", "seconds before", "seconds now", "now / before", "quartiles"),
        (
            (
                row["what"],
                f"{row['before']:.3f}",
                f"{row['now']:.3f}",
                f"{row['ratio']:.2f}",
                f"{row['low']:.2f} to {row['high']:.2f}",
            )
            for row in found["rows"]
        ),
    )


RELIABILITY: dict[str, Callable[[], str]] = {
    "fuzzers table": fuzzers_table,
    "fuzzers machine": machine_line,
    "versions table": versions_table,
}
