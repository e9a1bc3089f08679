"""The policy in pictures of the user's own data, drawn with a fixed seed."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

from PIL import Image

from dada.policy import Policy, PolicyOp, SubPolicy
from dada.report.markup import Html, fill, join, lead, section
from dada.report.plots import bar
from dada.report.run_directory import RunDirectory
from dada.report.samples import Sample, on_samples

MOST_CARDS = 25  # the paper's policies have as many
CUT_CARDS = 24  # of more: a number that fills two, three and four columns
PAIRS_ON_A_CARD = 4
PAIRS_ON_THE_WALL = 16
LONGEST_SIDE = 128  # of an embedded picture: 1.6 times what a card shows
PIXELS_SIDE = 40  # up to here single pixels are shown as they are, not smoothed
LOSSLESS_SIDE = 64  # up to here a PNG is small, and a JPEG would blur single pixels


def in_words(policy: Policy, step: PolicyOp) -> str:
    """One operation in physical units; a range that begins at zero is written as "up to"."""
    words = policy.describe_op(step).replace("+-", "±")
    return re.sub(r"(?<=by |of )(±?)0(?:\.0+)?%? to (?=\d)", r"up to \1", words)


def as_data(image: Image.Image, longest: int = LONGEST_SIDE) -> str:
    """A picture as the address of an <img> that carries its own bytes."""
    shown, content = image.copy(), io.BytesIO()
    shown.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    small = max(shown.size) <= LOSSLESS_SIDE
    if small:
        shown.save(content, "PNG", optimize=True)
    else:
        shown.save(content, "JPEG", quality=82, optimize=True)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"


def picture(image: Image.Image, words: str) -> Html:
    """An <img> of at most `LONGEST_SIDE` pixels a side."""
    return fill(
        '<img class="$css" src="$data" alt="$words" title="$words">',
        css="pixels" if max(image.size) <= PIXELS_SIDE else "photo",
        data=as_data(image),
        words=words,
    )


def _pairs(samples: list[Sample], policy: Policy, seed: int) -> Html:
    """Before above after, for every sample."""
    augmented = on_samples(policy, seed)
    return join(
        fill(
            '<span class="pair">$before$after</span>',
            before=picture(sample.picture, _caption(sample, "before")),
            after=picture(augmented(sample).picture, _caption(sample, "after")),
        )
        for sample in samples
    )


def _caption(sample: Sample, when: str) -> str:
    return f"{sample.label}, {when}" if sample.label else when


def wall(run: RunDirectory) -> Html | None:
    """A handful of images under the whole policy, as often and as strongly as it says."""
    if run.policy is None or not run.samples:
        return None
    chosen = run.samples[:PAIRS_ON_THE_WALL]
    return section(
        "seen",
        "What the network sees",
        lead(
            "Images of your data, each above what this policy made of it: one sub-policy drawn for "
            "each, every operation with its own probability. Some stay as they are; that is part "
            "of it."
        ),
        fill('<div class="wall">$pairs</div>', pairs=_pairs(chosen, run.policy, seed=0)),
    )


def _card(
    run: RunDirectory, policy: Policy, subpolicy: SubPolicy, rank: int, widest: float
) -> Html:
    steps = join(
        fill(
            '<li><span class="op">$words</span>$bar<span class="num">$chance</span></li>',
            words=in_words(policy, step),
            bar=bar(step.probability),
            chance=f"{step.probability:.0%}",
        )
        for step in subpolicy.ops
    )
    pictures = Html("")
    if run.samples:
        # With its own probabilities a quarter of the pictures would show nothing.
        certain = tuple(replace(step, probability=1.0) for step in subpolicy.ops)
        only_this = Policy((SubPolicy(1.0, certain),), policy.space)
        first = (rank - 1) * PAIRS_ON_A_CARD
        count = min(PAIRS_ON_A_CARD, len(run.samples))
        chosen = [run.samples[(first + i) % len(run.samples)] for i in range(count)]
        pairs = _pairs(chosen, only_this, seed=rank)
        pictures = fill('<div class="strip">$pairs</div>', pairs=pairs)
    return fill(
        '<article class="card"><header><span class="rank">$rank</span>$bar'
        '<span class="num">$weight of images</span></header>$pictures<ol>$steps</ol></article>',
        rank=rank,
        bar=bar(subpolicy.weight / widest, css="weight"),
        weight=f"{subpolicy.weight:.1%}",
        pictures=pictures,
        steps=steps or fill("<li>$nothing</li>", nothing="nothing is done"),
    )


def cards(run: RunDirectory) -> Html | None:
    """A card for each of the likeliest sub-policies."""
    policy = run.policy
    if policy is None:
        return None
    if not policy.subpolicies:
        said = "None: this policy leaves images alone."
        return section("subpolicies", "Sub-policies", lead(said))
    ranked = sorted(policy.subpolicies, key=lambda subpolicy: -subpolicy.weight)
    count = len(ranked)
    shown = ranked if count <= MOST_CARDS else ranked[:CUT_CARDS]
    words = [f"The {len(shown)} likeliest of {count}." if count > len(shown) else f"All {count}."]
    words.append(
        "For every image one is drawn; then each of its operations is done with the probability "
        "beside it, at a strength in the operation’s own unit."
    )
    words.append(
        "The pictures show all of a card’s operations carried out: before above, after below."
        if run.samples
        else "This run kept no pictures of your data, so there are none to show."
    )
    return section(
        "subpolicies",
        "Sub-policies",
        lead(" ".join(words)),
        fill(
            '<div class="cards">$cards</div>',
            cards=join(
                _card(run, policy, subpolicy, rank, ranked[0].weight or 1.0)
                for rank, subpolicy in enumerate(shown, start=1)
            ),
        ),
    )
