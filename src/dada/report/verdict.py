"""The top of the page: what was found, and how it compares with the free alternatives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dada.report.base import base_sentence
from dada.report.markup import Html, code_block, fill, join
from dada.report.measured import even_rate, own_name
from dada.report.plots import IntervalRow, interval_plot, points
from dada.report.repeat import compare_commands, data_argument, search_command
from dada.report.run_directory import RunDirectory, interval
from dada.report.signal import signal_sentence, signal_word
from dada.safe_json import mapping, number, sequence
from dada.safe_text import shell_word

OFTEN, SELDOM = 1.25, 0.5  # times the mean rate of all operations


def verdict_block(run: RunDirectory) -> Html:
    facts = compared_facts(run)
    if run.unfinished:
        return join([_unfinished(run), _compared(facts) if facts else ""])
    return _compared(facts) if facts else _not_compared(run)


def _unfinished(run: RunDirectory) -> Html:
    data = data_argument(run.config) or "DATA"
    usual = f"dada search {data} --out {shell_word(run.path)} --resume"
    return fill(
        '<div class="verdict open"><p class="say">This search has not finished.</p><p>$words</p>'
        "$command</div>",
        words="The page shows what it has learned so far. Its policy is not the result: later "
        "epochs, looking ahead and verification may still change it. To continue the search:",
        command=code_block(search_command(run.config, run.path, resume=True) or usual),
    )


def compared_facts(run: RunDirectory) -> dict[str, Any] | None:
    """The verification of the policy, else what a comparison says of it; None: never compared."""
    if run.verification:
        return dict(run.verification)
    if not run.comparison:
        return None
    ours = own_name(run)
    differences = [mapping(entry) for entry in sequence(run.comparison.get("differences"))]
    own = [entry for entry in differences if ours is None or entry.get("policy") == ours]
    chosen: Mapping[str, Any] = next(
        (e for e in own if e.get("against") == "uniform"), own[0] if own else {}
    )
    return {
        "verdict": run.comparison.get("verdict"),
        "against": chosen.get("against"),
        "difference": chosen.get("mean"),
        "interval": chosen.get("interval"),
        "seeds": chosen.get("seeds"),
        "seconds": run.comparison.get("seconds"),
    }


def _compared(compared: Mapping[str, Any]) -> Html:
    difference, ends = number(compared.get("difference")), interval(compared.get("interval"))
    against = str(compared.get("against") or "uniform")
    tone = "open"
    if ends is not None and ends[0] > 0:
        tone = "good"
    elif ends is not None and ends[1] < 0:
        tone = "bad"
    said = str(compared.get("verdict") or "").replace("+-", "±")
    said = re.sub(r"^no(t|thing)?\b", lambda word: word[0].capitalize(), said)
    if not said:
        said = f"Compared with {against}." if difference is not None else "Compared."
    facts = []
    if ends is not None:
        facts.append(f"95% interval {points(ends[0])} to {points(ends[1])}")
    seeds, seconds = number(compared.get("seeds")), number(compared.get("seconds"))
    if seeds is not None:
        facts.append(f"{seeds:.0f} seed{'' if seeds == 1 else 's'}")
    if seconds is not None:
        facts.append(f"compared in {duration(seconds)}")
    figure, plot = Html(""), Html("")
    if difference is not None:
        figure = fill(
            '<p class="figure"><strong>$points</strong> points of accuracy against $against</p>',
            points=points(difference),
            against=against,
        )
    if difference is not None and ends is not None:
        row = IntervalRow(name=against, mean=difference, interval=ends, ours=True)
        label = ", ".join(facts)
        plot = interval_plot([row], label=label, unit="points", zero=True, names=False)
    return fill(
        '<div class="verdict $tone"><p class="say">$said</p>$figure$plot'
        '<p class="facts">$facts</p></div>',
        tone=tone,
        said=said,
        figure=figure,
        plot=plot,
        facts=" · ".join(facts),
    )


def _not_compared(run: RunDirectory) -> Html:
    found = "The search found this policy; it" if run.path.is_dir() else "Here this policy"
    if run.policy is not None and signal_word(run.policy) == "none":
        found = "The search saw no signal, so this is a policy that needs none. It"
    return fill(
        '<div class="verdict open"><p class="say">Not yet compared.</p><p>$words</p>$command</div>',
        words=f"{found} has not been compared with the free alternatives by training. Whether it "
        "beats drawing operations at random on your data is not known until you do so:",
        command=code_block("\n".join(compare_commands(run.config, run.path))),
    )


def found(run: RunDirectory) -> Html | None:
    """Which operations the search came to favour or avoid, in words, and the cost, in tiles."""
    policy = run.policy
    if policy is None:
        return None
    even = even_rate(run)
    shares = sorted(policy.op_probabilities().items(), key=lambda item: -item[1])
    signal = signal_sentence(policy)
    lines = [line for line in (signal, base_sentence(policy)) if line is not None]
    word = signal_word(policy)
    if even is not None and word != "none":
        often = [f"{n} ({s:.0%})" for n, s in shares if s > OFTEN * even][:4]
        seldom = [n for n, s in shares[::-1] if s < SELDOM * even and n not in run.excluded][:4]
        # Only what is more than chance was favoured.
        most, least = ("Favoured", "Avoided") if word else ("Most often", "Most seldom")
        if often:
            lines.append(f"{most}: {', '.join(often)}.")
        if seldom:
            lines.append(f"{least}: {', '.join(seldom)}.")
        if not often and not seldom:
            lines.append("No operation is done far more often, or more seldom, than the others.")
    tiles = [("sub-policies", f"{len(policy.subpolicies)}")]
    if run.seconds is not None:
        tiles.append(("search", duration(run.seconds)))
    if run.log and (epochs := number(run.log[-1].get("epoch"))) is not None:
        tiles.append(("epochs", f"{epochs:.0f}"))
    accuracy = number(run.log[-1].get("val_accuracy")) if run.log else None
    if accuracy is not None:
        tiles.append(("network’s validation accuracy", f"{accuracy:.1%}"))
    return fill(
        '<p class="found">$words</p><dl class="tiles">$tiles</dl>',
        words=" ".join(lines),
        tiles=join(fill("<div><dt>$k</dt><dd>$v</dd></div>", k=k, v=v) for k, v in tiles),
    )


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
