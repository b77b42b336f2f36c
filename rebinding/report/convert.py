"""An old report becomes one of this version: its `claims.json` is written anew, and what it was is kept beside it."""

from __future__ import annotations

from pathlib import Path

from rebinding.evidence.shards import put_in_place, write_text
from rebinding.report.checked import parsed
from rebinding.report.folder import CLAIMS, as_text
from rebinding.report.schema import SCHEMA, upgraded


def convert(folder: Path) -> str | None:
    """Convert the folder's `claims.json` if it has an older schema; what is to be said of it."""
    path = folder / CLAIMS
    if not path.is_file() or (content := parsed(path))["schema"] == SCHEMA:
        return None
    kept = path.with_name(f"claims.schema{content['schema']}.json")
    before, after = path.read_text("utf-8"), as_text(upgraded(content))
    put_in_place({kept: lambda there: write_text(there, before), path: lambda there: write_text(there, after)})
    return (
        f"{path} had schema {content['schema']}: converted to schema {SCHEMA}, and kept as {kept.name}; prompt"
        " pairs and the graph of a search were not written down then, so the page has none"
    )
