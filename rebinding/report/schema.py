"""Read a `claims.json`, which may be a stranger's: every field is of its type before anything is made of it.

A report is data. What it names lies in its own folder, and nothing in it is looked up, run or opened elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from rebinding.paper.claim import SectionName
from rebinding.report.files import SCHEMA
from rebinding.verdicts.judgement import Judgement

MOST = 1 << 28
"""Bytes of a `claims.json`; one of four models has a few million."""
LARGEST = 10_000
"""Layers, or heads of a layer."""
AGAIN = "make it again with `pytest claims --report`"
DERIVED = {"letter": (str, ""), "standing": (str | None, None)}
"""Fields of a row that follow from others: written for those who read the file, and not read again."""


class ReportError(ValueError):
    """A folder that no page can be made from."""


def _in_the_folder(name: str) -> str:
    if Path(name).name != name or "\\" in name or "\0" in name:
        raise PydanticCustomError("place", "it is not in the report's folder")
    return name


class Shape(BaseModel):
    """What is read of an object, every field as it is; what is only shown is not looked at."""

    model_config = ConfigDict(strict=True)


class PromptTexts(Shape):
    """The first prompts of a piece of evidence."""

    id: int
    original: list[str]
    counterfactual: list[str] | None


class EvidenceEntry(Shape):
    """A piece of evidence."""

    file: Annotated[str, AfterValidator(_in_the_folder)]
    kind: str
    seconds: float
    pair: PromptTexts | None


class GraphShape(Shape):
    """The graph of a search."""

    nodes: list[Any]
    edges: list[Any]


class ModelEntry(Shape):
    """A model."""

    name: str
    kind: str | None = None
    alias: str | None = None
    layers: int | None = Field(None, ge=1, le=LARGEST)
    heads: int | None = Field(None, ge=1, le=LARGEST)
    circuit: list[Any] = []
    printed: dict[str, Any] = {}
    evidence: dict[str, EvidenceEntry] = {}
    stages: dict[str, str] = {}
    fingerprint: str | None = None
    graph: GraphShape | None = None


def _row_fields() -> dict[str, Any]:
    """The fields of a row, each with its type and default: those of a judgement, whose sample has a file of its own."""
    hints = get_type_hints(Judgement) | {"part": list[str]}
    listed = {one.name: (hints[one.name], ... if one.default is MISSING else one.default) for one in fields(Judgement)}
    del listed["sample"]
    return {**listed, "evidence": (list[str], ...), "section": (SectionName, ...), **DERIVED}


Row = create_model("Row", __config__=ConfigDict(strict=True, extra="forbid"), **_row_fields())


class Content(Shape):
    """The whole file."""

    settings: dict[str, Any] = {}
    software: dict[str, Any] = {}
    models: Annotated[list[ModelEntry], FailFast()] = []
    claims: Annotated[list[Row], FailFast()]  # type: ignore[valid-type]  # made from the fields of a judgement


def parse(path: Path) -> dict[str, Any]:
    """The content of a `claims.json` of this schema, with every field of its type."""
    try:
        if path.stat().st_size > MOST:
            raise ReportError(f"{path} has more than {MOST} bytes, as no report does; {AGAIN}")
        content = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError, OSError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError(f"{path} is not JSON ({error}); {AGAIN}") from None
    given = content.get("schema") if isinstance(content, dict) else None
    if type(given) is not int or given != SCHEMA:
        raise ReportError(f"{path} has schema {given!r:.60}; this version reads {SCHEMA}: run the claims again")
    try:
        Content.model_validate(content)
    except ValidationError as error:
        raise ReportError(f"{path}: {_first(error)}; {AGAIN}") from None
    found: dict[str, Any] = content
    for number, model in enumerate(found.get("models", [])):
        strange = [label for label in model.get("stages", {}).values() if label not in model.get("evidence", {})]
        if strange:
            name = f"models[{number}].stages"
            raise ReportError(f"{path}: {name} names {strange[0]!r}, which is no evidence of this model; {AGAIN}")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _first(error: ValidationError) -> str:
    """The first field that is not as it should be."""
    first = error.errors(include_url=False, include_context=False)[0]
    steps = (f".{step}" if str(step).isidentifier() else f"[{step!r}]" for step in first["loc"])
    place = "".join(steps).lstrip(".")
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} is {first['input']!r:.60}: {first['msg'].replace('Input', 'it', 1)}"
