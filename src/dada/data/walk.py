"""The files under a folder: each once, none that is not a file, and what was passed over."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dada.runlog import holds_run
from dada.safe_text import LONGEST_NAME, printable

Identity = tuple[int, int]
"""Device and number of a folder: the same for all names that links give it."""

MOST_ENDINGS = 4  # of files that were passed over, in a note


@dataclass(kw_only=True)
class Walk:
    """Goes through folders that belong together, and remembers what it left out.

    Links to files are files. A link to a folder is followed, unless it leads back to a folder that
    it lies in (the folder would be searched again and again, and its classes taken for one), or to
    a folder that this walk has been in. What lies in a run directory is ours, and is passed over.
    """

    root: str
    takes: Callable[[str], bool]  # by its name
    skips_hidden: bool = True
    endings: Counter[str] = field(default_factory=Counter)  # of files not taken
    passed_over: list[str] = field(default_factory=list)
    not_files: list[str] = field(default_factory=list)
    not_followed: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # run directories
    seen: dict[Identity, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        real = Path(self.root).resolve()
        self.above = {_identity(str(place)) for place in (real, *real.parents)}

    def files(self, folder: str) -> list[str]:
        """The files under a folder that are taken, sorted."""
        found: list[str] = []
        waiting = [folder]
        while waiting:
            place = waiting.pop()
            who = _identity(place)
            if (before := self.seen.get(who)) is not None:
                if not before.startswith(os.path.join(folder, "")) and before != folder:
                    raise ValueError(
                        f"{printable(place)}: the same folder as {printable(before)}, so its "
                        "images would be in two classes; remove one of the two"
                    )
                self.not_followed.append(place)
                continue
            self.seen[who] = place
            if holds_run(place):
                self.runs.append(place)
                continue
            for entry in _entries(place):
                if self.skips_hidden and hidden(entry.name):
                    continue
                if _is(entry.is_dir):
                    if not entry.is_symlink() or not self.leads_back(entry.path):
                        waiting.append(entry.path)
                else:
                    self._sort(entry, found)
        return sorted(found)

    def has_runs(self, folder: str) -> bool:
        """Whether there are run directories under a folder that was searched."""
        return any(Path(run).is_relative_to(folder) for run in self.runs)

    def leads_back(self, folder: str) -> bool:
        """Whether this is a link to the root or to a folder above it; then it is noted."""
        back = _identity(folder) in self.above
        if back:
            self.not_followed.append(folder)
        return back

    def _sort(self, entry: os.DirEntry[str], found: list[str]) -> None:
        if not _is(entry.is_file):  # a pipe, a device, a socket, a link to nothing
            self.not_files.append(entry.path)
        elif self.takes(entry.name):
            found.append(entry.path)
        else:
            self.pass_over(entry.path)

    def pass_over(self, path: str) -> None:
        self.endings[os.path.splitext(path)[1].lower() or "without an ending"] += 1
        self.passed_over.append(path)

    def notes(self) -> list[str]:
        """A note to the user for each kind of thing that was left out."""
        notes = []
        if self.passed_over:
            kinds = [f"{n:,} {printable(e, 20)}" for e, n in self.endings.most_common(MOST_ENDINGS)]
            notes.append(
                f"{_some(self.passed_over, 'file')} passed over, not of an ending that is read "
                f"({', '.join(kinds)}{', ...' if len(self.endings) > MOST_ENDINGS else ''}): "
                f"{self._first(self.passed_over)}"
            )
        if self.not_files:
            what = "not opened, for it is no file (a pipe, a device, a link to nothing)"
            if len(self.not_files) > 1:
                what = "not opened, for they are no files (pipes, devices, links to nothing)"
            notes.append(f"{_some(self.not_files, 'name')} {what}: {self._first(self.not_files)}")
        if self.not_followed:
            what = "not followed, leading to folders that are searched anyway"
            first = self._first(self.not_followed)
            notes.append(f"{_some(self.not_followed, 'link')} {what}: {first}")
        if self.runs:
            runs = "run directory was" if len(self.runs) == 1 else "run directories were"
            notes.append(f"{len(self.runs):,} {runs} passed over: {self._first(self.runs)}")
        return notes

    def _first(self, paths: list[str]) -> str:
        name = printable(os.path.relpath(min(paths), self.root), LONGEST_NAME)
        return name if len(paths) == 1 else f"{name}, ..."


def _some(things: list[str], word: str) -> str:
    count = len(things)
    return f"1 {word} was" if count == 1 else f"{count:,} {word}s were"


def hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def subfolders(root: str) -> list[str]:
    return sorted(e.path for e in _entries(root) if _is(e.is_dir) and not hidden(e.name))


def files_beside(root: str) -> list[str]:
    """The files that lie directly in a folder."""
    return sorted(e.path for e in _entries(root) if _is(e.is_file) and not hidden(e.name))


def names_in(folder: str) -> list[str]:
    """All names there; none where it is no folder."""
    return sorted(e.name for e in _entries(folder)) if os.path.isdir(folder) else []


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """An unreadable folder is an error: its images would else be missing without a word."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise ValueError(f"{printable(folder)}: cannot be read ({error.strerror})") from None


def _is(kind: Callable[[], bool]) -> bool:
    """A link that leads to itself is of no kind; Python raises an error of it."""
    try:
        return kind()
    except OSError:
        return False


def _identity(folder: str) -> Identity:
    try:
        about = os.stat(folder)
    except OSError as error:
        raise ValueError(f"{printable(folder)}: cannot be read ({error.strerror})") from None
    return about.st_dev, about.st_ino
