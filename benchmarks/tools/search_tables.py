"""How long searches take and how sure they are: tables from the results, for `tables.py`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from measure import markdown, result_of

from dada.policy_search.lookahead.arms import ACCURACY
from dada.policy_search.lookahead.scoring import ArmLosses
from dada.policy_search.lookahead.signal import signal_of


def look_again_table() -> str:
    """The words of recorded searches of two runs, and of every two of them as one of four."""
    rows = []
    for data, title in (("rsscn7", "RSSCN7, 64 pixels"), ("cifar10", "CIFAR-10")):
        searches = result_of(f"judge-verified-{data}")["searches"].values()
        seen = [list(search["lookahead"].values()) for search in searches]
        lost = [runs for runs in seen if _word(runs) == "none"]
        pairs, of_lost = (itertools.combinations(each, 2) for each in (seen, lost))
        kinds = (seen, *(([*one, *other] for one, other in each) for each in (pairs, of_lost)))
        rows.append((title, *(counted(map(_word, runs)) for runs in kinds)))
    two, four = "searches of two runs", "every two of these as one of four"
    return markdown(("data", two, four, "two that both say none as one of four"), rows)


def words_table() -> str:
    """How sure each search of the plan says it is, of those that were run."""
    searches = result_of("words-rsscn7")["searches"].values()
    rows = [
        (row["seed"], row["word"], f"{row['chance']:.1g}", f"{row['agreement']:.2f}", row["runs"])
        for row in sorted(searches, key=lambda row: row["seed"])
    ]
    return markdown(("seed", "says", "chance alone", "its halves agree by", "runs"), rows)


def durations_table() -> str:
    """What searches said that they would take, and what they took."""
    rows = []
    for row in result_of("durations-cpu"):
        phases = [phase for phase in row["measured"] if phase != "reading"]
        said, took = (sum(row[kind][phase] for phase in phases) for kind in ("said", "measured"))
        each = (
            f"{phase} {row['said'][phase]:.0f} and {row['measured'][phase]:.0f}" for phase in phases
        )
        images = f"{row['images']:,} of {row['image_size'][1]}x{row['image_size'][0]}"
        network = f"`{row['model']}`{', pretrained' if row['pretrained'] else ''}"
        rows.append((row["data"], images, network, f"{said:.0f}", f"{took:.0f}", ", ".join(each)))
    seconds = ("said, s", "measured, s", "by phase: said and measured")
    return markdown(("data", "images", "network", *seconds), rows)


def _word(runs: Sequence[Mapping[str, float]]) -> str:
    names = [name for name in runs[0] if name != ACCURACY]
    return word_of({name: [run[name] for run in runs] for name in names}, looks=2)


def word_of(loss: Mapping[str, Sequence[float]], looks: int) -> str:
    """What a search says of its first round, by the losses of every operation in its runs."""
    losses = ArmLosses(loss={name: list(of_runs) for name, of_runs in loss.items()})
    return signal_of(losses, [], looks=looks).word


def counted(words: Iterable[str]) -> str:
    seen = Counter(words)
    each = (f"{seen[word]} {word}" for word in ("clear", "weak", "none") if seen[word])
    return ", ".join(each) or "there are none"
