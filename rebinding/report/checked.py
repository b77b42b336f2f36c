"""Is this a report? Every field of `claims.json` is of its type before anything is made of it: it may be a stranger's.

A report is data. What it names lies in its own folder, and nothing in it is looked up, run or opened elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rebinding.report.schema import DERIVED, READ, SCHEMA
from rebinding.verdicts.judgement import Judgement

MOST = 1 << 28
"""Bytes of a `claims.json`; one of four models has a few million."""
LARGEST = 10_000
"""Layers, or heads of a layer."""
AGAIN = "make it again with `pytest claims --report`"


class ReportError(ValueError):
    """A folder that no page can be made from."""


def parsed(path: Path) -> dict[str, Any]:
    """The content of a `claims.json` of any schema that can be read, with every field of its type."""
    try:
        if path.stat().st_size > MOST:
            raise ReportError(f"{path} has more than {MOST} bytes, as no report does; {AGAIN}")
        content = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError, OSError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError(f"{path} is not JSON ({error}); {AGAIN}") from None
    given = content.get("schema") if isinstance(content, dict) else None
    if type(given) is not int or given not in READ:
        raise ReportError(f"{path} has schema {given}; this version reads 1 to {SCHEMA}: run the claims again")
    found: dict[str, Any] = content
    _check(path, found)
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check(path: Path, content: Mapping[str, Any]) -> None:
    if "claims" not in content:
        raise ReportError(f"{path} has no claims; {AGAIN}")
    shape = {"settings": dict, "software": dict, "models": list, "claims": list}
    _typed(path, "the file", {name: content.get(name, kind()) for name, kind in shape.items()}, shape)
    for number, one in enumerate(content.get("models", [])):
        _check_model(path, f"models[{number}]", one)
    for number, one in enumerate(content.get("claims", [])):
        _check_claim(path, f"claims[{number}]", one)


MODEL: Mapping[str, Any] = {
    "name": str, "kind": str | None, "alias": str | None, "layers": int | None, "heads": int | None, "circuit": list,
    "printed": dict, "evidence": dict, "stages": dict, "fingerprint": str | None, "graph": dict | None,
}  # fmt: skip
"""What is read of a model, beside what is only shown."""
PAIR: Mapping[str, Any] = {"id": int, "original": list[str], "counterfactual": list[str] | None}


def _check_model(path: Path, place: str, one: Any) -> None:
    if not isinstance(one, dict) or "name" not in one:
        raise ReportError(f"{path}: {place} is no object with a name; {AGAIN}")
    _typed(path, place, one, MODEL)
    _typed(path, f"{place}.graph", one.get("graph") or {}, {"nodes": list, "edges": list})
    for name in ("layers", "heads"):
        if one.get(name) is not None and not 0 < one[name] <= LARGEST:
            raise ReportError(f"{path}: {place}.{name} is {one[name]}; 1 to {LARGEST} are possible; {AGAIN}")
    for label, entry in one.get("evidence", {}).items():
        where = f"{place}.evidence[{label!r}]"
        if not isinstance(entry, dict) or not {"file", "seconds"} <= entry.keys():
            raise ReportError(f"{path}: {where} has no file and seconds; {AGAIN}")
        _typed(path, where, entry, {"file": str, "seconds": float, "pair": dict | None})
        _typed(path, f"{where}.pair", entry.get("pair") or {}, PAIR)
        if Path(entry["file"]).name != entry["file"] or "\\" in entry["file"] or "\0" in entry["file"]:
            raise ReportError(f"{path}: {where} names the file {entry['file']!r}, which is not in the report's folder")
    strange = [label for label in one.get("stages", {}).values() if label not in one.get("evidence", {})]
    if strange:
        raise ReportError(f"{path}: {place}.stages names {strange[0]!r}, which is no evidence of this model; {AGAIN}")


def _check_claim(path: Path, place: str, one: Any) -> None:
    if not isinstance(one, dict) or not {"id", "model", "evidence"} <= one.keys():
        raise ReportError(f"{path}: {place} lacks a field: id, model or evidence; run the claims again")
    _typed(path, place, one, {**get_type_hints(Judgement), "evidence": list[str], **DERIVED})


def _typed(path: Path, place: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Every field that is there is of its type; fields that nobody knows are for others to refuse."""
    for name, kind in wanted.items():
        if name in given and not _fits(given[name], kind):
            raise ReportError(f"{path}: {place}.{name} is {_short(given[name])}, not {_named(kind)}; {AGAIN}")


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(one, get_args(kind)[0]) for one in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _named(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)


def _short(value: Any) -> str:
    return f"{value!r:.60}"
