"""The truth table: the true verdict of every claim on a plant, with its reason (`truths/`, a file per section)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

Wanted: TypeAlias = Literal["REPLICATED", "NOT REPLICATED", "INCONCLUSIVE", "INVALID", "NOT APPLICABLE", "REPORTED"]
CODES: Mapping[str, Wanted] = MappingProxyType(
    {
        "yes": "REPLICATED",
        "no": "NOT REPLICATED",
        "open": "INCONCLUSIVE",
        "invalid": "INVALID",
        "na": "NOT APPLICABLE",
        "reported": "REPORTED",
    }
)
"""`open` is for a printed number that may be one of several: with none of them ours agrees, and it is not refuted;
for an ordering of what is equal in the mean and far apart in every prompt; and for a share near its boundary."""
FIVE_BOXES = "tracing.five_boxes."


@dataclass(frozen=True)
class Truth:
    """The true verdict of a claim, its reason, the number of prompts, and a detail: the gate that must fail for
    INVALID, the result for REPORTED."""

    verdict: Wanted
    reason: str
    n: int
    detail: str | None = None

    def __str__(self) -> str:
        return f"{self.verdict} ({self.detail})" if self.detail else self.verdict


def truth_of(mechanism: str, variant: str | None = None) -> Mapping[str, Truth]:
    """The truth of every row on a mechanism; on a variant, only of the rows that it is made for."""
    table = whole_table()
    stated = table["variants"].get(variant, {}) if variant else None
    rows = {
        row: _cell(cells[mechanism] if stated is None else stated[plain], cells.get(f"n_{mechanism}", cells["n"]), row)
        for row, plain, cells in _rows(table["rows"])
        if stated is None or plain in stated
    }
    return MappingProxyType(rows)


def directions_of(mechanism: str) -> int:
    """The number of prompts over which binding directions are averaged on a mechanism."""
    count: int = whole_table()["directions"][mechanism]
    return count


def _rows(rows: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Row id, the id in the file, and the cells; tracing rows are repeated with five boxes."""
    for row, cells in rows.items():
        yield row, row, cells
        if row.startswith("tracing."):
            yield row.replace("tracing.", FIVE_BOXES), row, cells | {"n": cells.get("five", cells["n"])}


def _cell(text: str, n: int, row: str) -> Truth:
    code, _, reason = text.partition(" ")
    code, _, detail = code.partition(":")
    reasons = whole_table()["reasons"]
    if code not in CODES or reason not in reasons:
        raise ValueError(f"truths, {row}: {text!r} is not a verdict ({', '.join(CODES)}) and the name of a reason")
    return Truth(CODES[code], reasons[reason], n, detail or None)


@cache
def whole_table() -> dict[str, Any]:
    """All files as one table. A row, a reason or a variant's cell in two files is an error."""
    table: dict[str, Any] = {"rows": {}, "reasons": {}, "variants": {}}
    for part in _parts():
        table.setdefault("directions", part.get("directions", {}))
        for name in ("rows", "reasons"):
            add_once(table[name], part.get(name, {}), name)
        for variant, cells in part.get("variants", {}).items():
            add_once(table["variants"].setdefault(variant, {}), cells, f"variants.{variant}")
    return table


def _parts() -> Iterator[dict[str, Any]]:
    folder = files("rebinding.planted").joinpath("truths")
    for path in sorted(folder.iterdir(), key=lambda path: (path.name != "common.toml", path.name)):
        if path.name.endswith(".toml"):
            yield tomllib.loads(path.read_text())


def add_once(table: dict[str, Any], entries: Mapping[str, Any], section: str) -> None:
    twice = table.keys() & entries.keys()
    if twice:
        raise ValueError(f"truths, {section}: {', '.join(sorted(twice))} stands in two files; say it once")
    table.update(entries)
