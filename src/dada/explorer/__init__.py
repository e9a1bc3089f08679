"""A local page to play with a policy: `dada explore`.

    session.py   what the page may ask for: policies, images, draws, saving
    server.py    HTTP on 127.0.0.1: who may ask, how much, and in which form
    page.html, page.css, page.js   the page, sent as one file

Draws are made by the library's own transform. The page fetches nothing from any network, and the
server answers nobody but the page it has sent.
"""

from __future__ import annotations

import os
from pathlib import Path

from dada.explorer.server import Server
from dada.explorer.session import Session, pictures_of

__all__ = ["Server", "Session", "open_explorer"]


def open_explorer(
    policy: str | os.PathLike[str],
    data: str | None = None,
    *,
    against: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "edited-policy.json",
    port: int = 0,
) -> Server:
    """A server that is ready and waits for `serve_forever`; its `address` opens in a browser.

    `data` names the images that are shown first; without it those that a run kept, else the
    digits. `against` is the policy on the right, at first the same one. `out` is the file that
    Save writes; one that exists is never written over.
    """
    session = Session(
        policy, against=against, data=data, pictures=pictures_of(policy, data), out=Path(out)
    )
    return Server(session, port)
