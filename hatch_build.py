"""What hatchling asks when it builds the package: README.md as a package index can show it.

An index shows the page without the repository around it, so a link to docs/data.md leads nowhere
there. With `link-base` in pyproject.toml, the address of the repository's files, such links become
whole addresses. Without one they become text, and pictures their description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")


def index_page(readme: str, base: str = "") -> str:
    """The page with links that lead somewhere from anywhere."""

    def elsewhere(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        if path.startswith("#"):
            return link.group()
        if base:
            return f"{picture}[{words}]({base.rstrip('/')}/{path})"
        return f"({words})" if picture else words

    return LINK.sub(elsewhere, readme)


class IndexPage(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = index_page(text, self.config.get("link-base", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
