"""What `make demo` runs: a search on the built-in digits, and a picture of what it found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

RUN = Path("runs/demo")


def dada(*arguments: str, quiet: bool = False) -> None:
    print(f"$ dada {' '.join(arguments)}", flush=True)
    output = subprocess.DEVNULL if quiet else None
    subprocess.run([sys.executable, "-m", "dada", *arguments], check=True, stdout=output)


def main() -> None:
    if RUN.exists():
        print(f"(removing {RUN} of an earlier demo)")
        shutil.rmtree(RUN)
    dada("search", "digits", "--out", str(RUN))
    dada("show", str(RUN), "--image", str(RUN / "policy.png"), quiet=True)
    print(f"\nOpen {RUN / 'report.html'} in a browser: the policy in pictures and numbers.")
    print(f"{RUN / 'policy.png'} has originals on the left, what the policy does on the right.")
    print("Next, with images of your own in one folder per class:  dada search FOLDER")


if __name__ == "__main__":
    main()
