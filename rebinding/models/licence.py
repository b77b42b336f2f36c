"""The licence that a base model states in its description; weights are never read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from rebinding.models.gguf_header import header
from rebinding.models.hub import fetch
from rebinding.models.names import Origin

README = "README.md"
GGUF_KEY = "general.license"
FENCE = "---"
MAX_README_CHARACTERS = 100_000
"""Characters of a README.md that are read; the front matter comes first."""
MAX_NAME_LENGTH = 200
"""Characters of a licence's name."""
UNSTATED = ("", "other", "unknown", "null", "~")
"""Values of `license:` that name no licence."""


def stated_licence(base: Origin) -> str | None:
    """The licence that a base states, or None: `general.license` of a GGUF file, else `license:` in the front matter
    of the README.md of a folder or of a model on the Hub (nothing else is fetched)."""
    if base.kind == "gguf":
        value = header(Path(base.target)).facts.get(GGUF_KEY)
        return _single_licence(value) if isinstance(value, str) else None
    if base.kind not in ("folder", "hub"):
        return None
    folder = Path(base.target) if base.kind == "folder" else fetch(base.target, base.revision, [README])
    if not (folder / README).is_file():
        return None
    with (folder / README).open(encoding="utf-8", errors="replace") as file:
        return licence_of_page(file.read(MAX_README_CHARACTERS))


def licence_of_page(page: str) -> str | None:
    """`license:` in the front matter of a README.md; where that is `other`, `license_name:`."""
    lines = list(_front_matter(page))
    return _single_licence(_value(lines, "license")) or _single_licence(_value(lines, "license_name"))


def _front_matter(page: str) -> Iterator[str]:
    """The lines between the first two fences; none if the page does not begin with a fence or has no second one."""
    first, *rest = page.removeprefix("\ufeff").splitlines() or [""]
    lines = [line.rstrip() for line in rest]
    if first.rstrip() == FENCE and FENCE in lines:
        yield from lines[: lines.index(FENCE)]


def _value(lines: Sequence[str], key: str) -> str:
    """The value of a key on its own line, or the entries of the list below it, separated by commas."""
    for number, line in enumerate(lines):
        name, colon, value = line.partition(":")
        if name == key and colon:
            entries = takewhile(lambda entry: entry.startswith("- "), (below.strip() for below in lines[number + 1 :]))
            return value.partition(" #")[0].strip() or ",".join(entry.removeprefix("- ") for entry in entries)
    return ""


def _single_licence(value: str) -> str | None:
    """The value without quotes or brackets, if it names one licence and is printable. Several licences count as none:
    it is unknown which one holds."""
    plain = value.strip().removeprefix("[").removesuffix("]").strip().strip("\"'").strip()
    fits = plain.isprintable() and len(plain) <= MAX_NAME_LENGTH and "," not in plain
    return plain if fits and plain.lower() not in UNSTATED else None
