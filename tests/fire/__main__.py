"""Runs the fuzzers and adds what they saw to benchmarks/results/reliability.json."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reliability.json"
MOST_MEMORY = 6 * 2**30  # of a fuzzer's process: hostile numbers ask for more
FAULTS_KEPT = 20
SECONDS_BETWEEN_RECORDS = 20  # what a fuzzer that is stopped has done is not lost
MEMORY = Path("/dev/shm")  # where files cost least, if there is such a place


def main() -> None:
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks" / "tools")]
    from measure import machine

    from . import annotations, commands, exports, files, kills
    from .cases import Fuzzer

    kinds: tuple[type[Fuzzer], ...] = (
        files.Policies,
        files.Imports,
        files.Data,
        annotations.Annotations,
        commands.Images,
        commands.Options,
        files.RunFiles,
        files.Checkpoints,
        files.WeightFiles,
        exports.ExportTrees,
        exports.ExportImports,
        kills.Kills,
        kills.Soak,
    )
    names = ", ".join(kind.name for kind in kinds)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help=f"one of {names}")
    parser.add_argument("--count", type=int, help="cases; default: what is left of all")
    parser.add_argument("--minutes", type=float, help="for each fuzzer, at most")
    parser.add_argument("--seed", type=int, default=0, help="other cases; none is recorded then")
    parser.add_argument("--case", type=int, help="only the case of this number; nothing recorded")
    parser.add_argument("--fresh", action="store_true", help="forget earlier counts")
    asked = parser.parse_args()
    chosen = [kind for kind in kinds if asked.only in (None, kind.name)]
    if not chosen:
        parser.error(f"--only should be one of {names}")
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    import torch

    torch.set_num_threads(1)
    failed = 0
    # Kills first: what the others do in this process must not be inherited by forks.
    for kind in sorted(chosen, key=lambda kind: not issubclass(kind, kills.Forks)):
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            fuzzer = kind(Path(folder))
            if asked.case is not None:
                fuzzer.prepare()
                print(fuzzer.run(asked.case, asked.seed) or "no fault")
                continue
            failed += run(fuzzer, asked, machine())
    sys.exit(1 if failed else 0)


def run(fuzzer: Any, asked: argparse.Namespace, machine: dict[str, Any]) -> int:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"fuzzers": {}}
    blank: dict[str, Any] = {"cases": 0, "faults": 0, "seconds": 0.0, "examples": []}
    recorded = asked.seed == 0  # other seeds are other cases, and begin with the first
    goes_on = recorded and not asked.fresh
    record = known["fuzzers"].get(fuzzer.name, blank) if goes_on else blank
    first = record["cases"]
    count = asked.count if asked.count is not None else max(0, fuzzer.full - first)
    begun = time.monotonic()
    faults: list[str] = []

    def report(fault: str) -> None:
        faults.append(fault.replace(str(fuzzer.folder), "."))
        print(f"{fuzzer.name}: {faults[-1]}", flush=True)

    def write(done: int) -> None:
        if not recorded or not done:
            return
        known["fuzzers"][fuzzer.name] = {
            "what": fuzzer.what,
            "wanted": fuzzer.full,
            "cases": first + done,
            "faults": record["faults"] + len(faults),
            "seconds": round(record["seconds"] + time.monotonic() - begun, 1),
            "examples": [*record["examples"], *(fault[:300] for fault in faults)][:FAULTS_KEPT],
            "machine": machine,
        }
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")

    fuzzer.prepare()
    done = 0
    written = begun
    for number in range(first, first + count):
        now = time.monotonic()
        if asked.minutes is not None and now - begun > 60 * asked.minutes:
            break
        if now - written > SECONDS_BETWEEN_RECORDS:
            write(done)
            written = now
        if (fault := fuzzer.run(number, asked.seed)) is not None:
            report(f"case {number}: {fault}")
        done += 1
    try:
        fuzzer.finish()
    except Exception as fault:
        report(f"at the end: {fault}")
    write(done)
    seconds = time.monotonic() - begun
    print(f"{fuzzer.name}: {done:,} cases, {len(faults)} faults, {seconds:.0f} s", flush=True)
    return len(faults)


if __name__ == "__main__":
    main()
