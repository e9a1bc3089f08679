"""A search, a training or a comparison as a person follows it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dada.api.bars import Bars
from dada.api.progress import PROGRESS, Callbacks, CompareProgress, both
from dada.terminal import signals
from dada.terminal.console import console
from dada.terminal.options import RunOptions
from dada.terminal.tracking import tracker


class Run:
    """Where it is written, its progress and its tracking; `with` closes them however it ends."""

    def __init__(self, command: str, data: str | None, options: RunOptions) -> None:
        self.options = options
        self.data = data or "digits"
        # Of ".", too; a link keeps its own name, under which the run is resumed.
        name = os.path.basename(os.path.abspath(self.data)).replace(":", "-")
        self.out = options.out or Path("runs") / f"{command}-{name}"
        self.bars = Bars(console())
        self.progress = PROGRESS[command](self.bars)
        if isinstance(self.progress, CompareProgress):
            self.progress.out = self.out
        # Under torchrun only the first process speaks, to services as to people.
        first = os.environ.get("RANK", "0") == "0"
        self.tracker = tracker(options.track if first else "", self.out)
        signals.watch(self.out, self.bars.stop, self.tracker.close)

    @property
    def arguments(self) -> dict[str, Any]:
        """What dada.search, dada.train and dada.compare are all given, by name.

        A comparison has `seeds` of its own, so `seed` is left to the command.
        """
        options = asdict(self.options)
        for own in ("seed", "track", "quiet", "json"):
            del options[own]
        return options | {"out": self.out} | self._callbacks()

    def _callbacks(self) -> Callbacks:
        """Those of the progress; epochs and trainings that have ended are tracked as well."""
        callbacks, track = self.progress.callbacks(), self.tracker
        for name, tracked in (("on_epoch", track), ("on_trial", track.trial)):
            if name in callbacks:
                callbacks[name] = both(callbacks[name], tracked)
        return callbacks

    def __enter__(self) -> Run:
        self.bars.wait(f"reading {self.data}")
        return self

    def __exit__(self, *problem: object) -> None:
        self.progress.__exit__(*problem)
        self.tracker.close()
