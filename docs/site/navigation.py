"""What stands where on the site is what docs/README.md lists: each of its sections is a part of the navigation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LIST = "docs/README"
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
ITEM = re.compile(r"^(?:\d+\.|\*) \[([^\]]+)\]\(([^)#]+)\.(?:md|ipynb)\)", re.MULTILINE)


def sections(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Heading, and title and document of every page that the list under it begins a line with."""
    _, *parts = SECTION.split(text)
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        at = posixpath.dirname(LIST)
        yield heading, [(title, posixpath.normpath(f"{at}/{target}")) for title, target in ITEM.findall(body)]


def toctree(caption: str, lines: list[str]) -> str:
    """A part of the navigation."""
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *lines, "```", ""])


def with_navigation(app: Sphinx, document: str, source: list[str]) -> None:
    """The first page carries the navigation, and shows none of it itself."""
    if document != app.config.root_doc:
        return
    root = Path(app.srcdir)
    for heading, pages in sections((root / f"{LIST}.md").read_text("utf-8")):
        source[0] += toctree(heading, [f"{title} </{page}>" for title, page in pages])
    folder = root / "docs" / "made"
    packages = sorted(path.stem for path in (folder / "reference").glob("*.md"))
    source[0] += toctree(
        "Made from the code", ["/docs/made/catalogue", *(f"/docs/made/reference/{package}" for package in packages)]
    )
    source[0] += toctree("All pages", [f"/{LIST}"])
