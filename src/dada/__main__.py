"""`python -m dada` is the `dada` command."""

from __future__ import annotations

from dada.terminal.start import main

if __name__ == "__main__":
    main()
