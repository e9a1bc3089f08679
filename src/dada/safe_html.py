"""HTML that cannot be broken by what is put into it: whatever is not marked as HTML is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
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


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A plain table, as a notebook shows it; the first cell of a row is its heading."""
    head = join(fill('<th style="text-align:left">$name</th>', name=name) for name in columns)
    body = join(
        fill(
            '<tr><th scope="row" style="text-align:left">$first</th>$cells</tr>',
            first=first,
            cells=join(fill('<td style="text-align:left">$cell</td>', cell=c) for c in cells),
        )
        for first, *cells in rows
    )
    return fill(
        "<table><thead><tr>$head</tr></thead><tbody>$body</tbody></table>", head=head, body=body
    )
