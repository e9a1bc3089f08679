"""Pieces of the page that several of its sections use."""

from __future__ import annotations

from dada.safe_html import Html, fill, join

__all__ = ["Html", "code_block", "fill", "join", "lead", "section"]


def code_block(text: str, title: str = "") -> Html:
    """Something to copy: one click selects it, without a script."""
    heading = fill("<figcaption>$title</figcaption>", title=title) if title else ""
    return fill(
        '<figure class="code">$heading<pre tabindex="0"><code>$text</code></pre></figure>',
        heading=heading,
        text=text,
    )


def lead(words: object) -> Html:
    """The first words of a section."""
    return fill('<p class="lead">$words</p>', words=words)


def section(name: str, title: str, *content: object) -> Html:
    return fill(
        '<section id="$name"><h2>$title</h2>$content</section>',
        name=name,
        title=title,
        content=join(content),
    )
