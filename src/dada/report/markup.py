"""HTML that cannot be broken by what is put into it: whatever is not marked as HTML is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from string import Template


class Html(str):
    """Text that is HTML already. Only `fill` and `join` should need to make one."""

    __slots__ = ()


def escape(value: object) -> Html:
    """HTML as it is; anything else as text, safe between tags and inside quoted attributes."""
    if isinstance(value, Html):
        return value
    # A lone surrogate (a file name that is not UTF-8) could not be written to the file.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return Html(html.escape(text, quote=True))


def join(pieces: Iterable[object]) -> Html:
    return Html("".join(escape(piece) for piece in pieces))


def fill(template: str, **values: object) -> Html:
    """`template` with its $names replaced by the escaped values."""
    safe = {name: escape(value) for name, value in values.items()}
    return Html(Template(template).substitute(safe))


def code_block(text: str, title: str = "") -> Html:
    """Something to copy: one click selects it, without a script."""
    heading = fill("<figcaption>$title</figcaption>", title=title) if title else ""
    return fill(
        '<figure class="code">$heading<pre tabindex="0"><code>$text</code></pre></figure>',
        heading=heading,
        text=text,
    )


def section(name: str, title: str, *content: object) -> Html:
    return fill(
        '<section id="$name"><h2>$title</h2>$content</section>',
        name=name,
        title=title,
        content=join(content),
    )
