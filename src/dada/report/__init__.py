"""One page about a run: report.html, from what its directory holds, in a single file.

    run_directory.py reads the directory    samples.py   keeps pictures of the data in it
    verdict.py   what came out              gallery.py   the policy in pictures
    measured.py  numbers over time, comparison, classes
    repeat.py    commands to copy           plots.py, markup.py, template.html   how it is drawn

The same run gives the same bytes. The page asks for nothing from any network and runs no script.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from dada.report.gallery import cards, wall
from dada.report.markup import Html, fill, join
from dada.report.measured import classes, comparison, curves, operations
from dada.report.repeat import how_to_repeat, how_to_use
from dada.report.run_directory import RunDirectory, read_run_directory
from dada.report.samples import save_samples
from dada.report.verdict import found, verdict_block
from dada.runlog import write_text
from dada.safe_text import one_line_errors

__all__ = ["render", "save_samples", "write_report"]

SECTIONS = {
    "seen": wall,
    "operations": operations,
    "subpolicies": cards,
    "curves": curves,
    "comparison": comparison,
    "classes": classes,
    "use": how_to_use,
    "repeat": how_to_repeat,
}
LINKS = {
    "seen": "Pictures",
    "operations": "Operations",
    "subpolicies": "Sub-policies",
    "curves": "Search",
    "comparison": "Comparison",
    "classes": "Classes",
    "use": "Use it",
    "repeat": "Repeat it",
}


@one_line_errors
def write_report(
    run: str | os.PathLike[str], comparison: str | os.PathLike[str] | None = None
) -> Path:
    """Write `report.html` into a run directory, from its files alone, and return its path.

    `comparison` is the directory of a comparison that this run's policy took part in, where the
    run does not hold one itself.
    """
    target = Path(run) / "report.html"
    write_text(target, render(read_run_directory(run, comparison)))
    return target


def render(run: RunDirectory) -> str:
    """The whole page."""
    made = {name: content for name, make in SECTIONS.items() if (content := make(run)) is not None}
    template = resources.files("dada.report").joinpath("template.html").read_text(encoding="utf-8")
    title = _title(run)
    return fill(
        template,
        title=title,
        facts=_facts(run),
        links=join(
            fill('<a href="#$name">$words</a>', name=name, words=LINKS[name]) for name in made
        ),
        verdict=verdict_block(run),
        found=found(run) or Html(""),
        sections=join(made.values()),
        versions=f"dada {run.sessions[-1].get('dada')}" if run.sessions else "dada",
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
