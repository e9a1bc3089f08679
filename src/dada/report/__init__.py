"""One page about a run: report.html, from what its directory holds, in a single file.

    run_directory.py reads the directory    samples.py   keeps pictures of the data in it
    verdict.py   what came out              gallery.py   the policy in pictures
    measured.py  numbers over time, comparison, classes
    repeat.py    commands to copy           plots.py, markup.py, template.html   how it is drawn

The same run gives the same bytes. The page asks for nothing from any network and runs no script.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

from dada.policy import names
from dada.report.contact_sheet import pictures_for
from dada.report.gallery import PAIRS_ON_THE_WALL as PICTURES
from dada.report.gallery import cards, wall
from dada.report.markup import Html, fill, join
from dada.report.measured import classes, comparison, curves, operations
from dada.report.repeat import how_to_repeat, how_to_use
from dada.report.run_directory import RunDirectory, read_policy_alone, read_run_directory
from dada.report.samples import save_samples
from dada.report.verdict import found, verdict_block
from dada.runlog import write_text
from dada.safe_text import one_line_errors

__all__ = ["render", "save_samples", "write_report"]

OURS = '<p class="brand">dada report</p>'  # in every page, so that one may replace another

SECTIONS = {  # what leads to it, and what makes it, None where the run holds nothing of the kind
    "seen": ("Pictures", wall),
    "operations": ("Operations", operations),
    "subpolicies": ("Sub-policies", cards),
    "curves": ("Search", curves),
    "comparison": ("Comparison", comparison),
    "classes": ("Classes", classes),
    "use": ("Use it", how_to_use),
    "repeat": ("Repeat it", how_to_repeat),
}


@one_line_errors
def write_report(
    run: str | os.PathLike[str],
    comparison: str | os.PathLike[str] | None = None,
    *,
    data: str | None = None,
) -> Path:
    """Write `report.html` into a run directory, from its files alone, and return its path.

    `comparison` is the directory of a comparison that this run's policy took part in, where the
    run does not hold one itself.

    In place of a run directory `run` may be a policy (a file or a name): its page is NAME.html in
    the working directory, with images of `data` (by default the digits).
    """
    if Path(run).is_dir() or not _is_policy(run):
        target = Path(run) / "report.html"
        write_text(target, render(read_run_directory(run, comparison)))
        return target
    name = Path(run).stem if Path(run).is_file() else Path(run).name
    target = Path(f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.html")
    if target.exists() and OURS not in target.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{target}: exists already, and is no report; move it away first")
    pictures = [replace(sample, label="image") for sample in pictures_for(data, PICTURES)]
    write_text(target, render(read_policy_alone(run, comparison, pictures)))
    return target


def _is_policy(name: str | os.PathLike[str]) -> bool:
    """A file, or a name of one: what is neither is a run directory that is not there."""
    known = {each.partition(":")[0] for each in names()} | {"autoaugment", "hf"}
    return Path(name).is_file() or str(name).partition(":")[0] in known


def render(run: RunDirectory) -> str:
    """The whole page."""
    made = {name: made for name, (_, make) in SECTIONS.items() if (made := make(run)) is not None}
    template = resources.files("dada.report").joinpath("template.html").read_text(encoding="utf-8")
    title = _title(run)
    return fill(
        template,
        title=title,
        facts=_facts(run),
        links=join(
            fill('<a href="#$name">$words</a>', name=name, words=SECTIONS[name][0]) for name in made
        ),
        verdict=verdict_block(run),
        found=found(run) or Html(""),
        sections=join(made.values()),
        versions=f"dada {run.sessions[-1].get('dada')}" if run.sessions else "dada",
        source="the files of one run" if run.path.is_dir() else "one policy",
    )


def _title(run: RunDirectory) -> str:
    data = run.data_facts.get("name") or run.config.get("data") or run.comparison.get("data")
    what = "A policy" if run.policy else "A comparison"
    if run.unfinished:
        what = "An unfinished policy"
    if data:
        return f"{what} for {data}"
    named = run.policy.provenance.get("name") if run.policy else None
    return str(named or what)


def _facts(run: RunDirectory) -> str:
    """The data, the network and the settings, in one line."""
    data = run.data_facts
    facts = [f"{data[part]:,} {part} images" for part in ("train", "val") if _whole(data.get(part))]
    if _whole(data.get("classes")):
        facts.append(f"{data['classes']} classes")
    size = data.get("image_size")
    if isinstance(size, list) and len(size) == 2:
        facts.append(f"{size[1]} × {size[0]} {'grey' if data.get('channels') == 1 else 'RGB'}")
    model = run.config.get("model") or run.comparison.get("model")
    facts += [f"network {model}"] if model else []
    preset = run.search_settings.get("preset")
    facts += [f"preset {preset}"] if preset else []
    facts += [f"seed {run.config['seed']}"] if run.config.get("seed") is not None else []
    return " · ".join(facts)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
