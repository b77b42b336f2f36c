"""The files of a report: write `claims.json`, tables and evidence; read and validate what a stranger wrote.

Written are `claims.json`, the same as tables for people who plot themselves, and the evidence.

docs/report.md describes every field of each file.

Read and validate a `claims.json`, which may come from a stranger: every field is checked before anything uses it.

A report is data. The files that it names must be in its own folder; nothing in it is imported, run or opened elsewhere.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from rebinding.evidence.shards import put_in_place, write_text
from rebinding.paper.claim import SectionName
from rebinding.report.summary import LETTERS, ModelSummary, Summary
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.outcome import Quantity
from rebinding.verdicts.quantities import format_quantity

CLAIMS, TABLE, SAMPLES, EVIDENCE = "claims.json", "claims.csv", "samples.parquet", "evidence"
SCHEMA = 4
"""The schema of `claims.json`."""
MAX_NAME_LENGTH = 120
"""Characters of a file name that come from the names of model and evidence."""


def evidence_file(model: str, name: str) -> str:
    """The file of a piece of evidence: a readable name, and a digest so that no two names share a file."""
    plain = re.sub("[^a-z0-9.]+", "-", f"{model} {name}".lower())[:MAX_NAME_LENGTH].strip("-.")
    digest = hashlib.sha256(json.dumps([model, name]).encode()).hexdigest()[:8]
    return f"{plain}-{digest}.parquet"


def write(
    folder: Path,
    settings: Mapping[str, Any],
    software: Mapping[str, str],
    models: Sequence[Mapping[str, Any]],
    summary: Summary,
    *,
    command: str = "",
    date: str = "",
    remaining: int = 0,
) -> None:
    """Write `claims.json`, `claims.csv` and `samples.parquet`: all three, or none of them. `command` made the run, and
    `date` is its day; `remaining` rows of it are not judged yet."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command,
        "date": date,
        "settings": dict(settings),
        "software": dict(software),
        "remaining": remaining,
        "models": [dict(model) for model in models],
        "headline": [headline(model) for model in summary.models if model.headline],
        "claims": [line(model, row) for model in summary.models for row in sort_by_place(model.rows)],
    }
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    table = pd.DataFrame([_cells(row) for row in content["claims"]])
    numbers = pa.Table.from_pandas(samples(summary), preserve_index=False)
    put_in_place(
        {
            folder / TABLE: lambda path: _csv(path, table),
            folder / SAMPLES: lambda path: pq.write_table(numbers, path),
            folder / CLAIMS: lambda path: write_text(path, text),
        }
    )


def sort_by_place(rows: Iterable[Judgement]) -> list[Judgement]:
    """Rows of a model in the order of the paper's sentences."""
    return sorted(rows, key=lambda row: (row.place, row.id))


def line(model: ModelSummary, row: Judgement) -> dict[str, Any]:
    """A row of `claims.json`: a judgement, its letter, and the standing of its sentence under both procedures."""
    return {**row.plain(), "letter": LETTERS.get(row.verdict, ""), "standing": model.standing_of(row)}


def headline(model: ModelSummary) -> dict[str, Any]:
    """The headline claims on a model, as they follow from their rows."""
    claims = [
        {
            "number": verdict.headline.number,
            "title": verdict.headline.title,
            "statement": verdict.headline.statement,
            "published": verdict.published,
            "controlled": verdict.controlled,
            "standing": verdict.standing,
            "decided_by": verdict.decisive.id if verdict.decisive else None,
            "rows": [row.id for row in (*verdict.published_rows, *verdict.controlled_rows)],
            "as_expected": not verdict.differing,
            "remark": model.remark(verdict),
        }
        for verdict in model.headline
    ]
    return {"model": model.name, "claims": claims}


def _cells(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `claims.csv`: lists become text."""
    quantities = "; ".join(format_quantity(Quantity(**entry)) for entry in line["quantities"])
    return {**line, "evidence": "; ".join(line["evidence"]), "part": ": ".join(line["part"]), "quantities": quantities}


def _csv(path: Path, table: pd.DataFrame) -> None:
    table.map(_text).to_csv(path, index=False, quoting=csv.QUOTE_NONNUMERIC)  # a \r ends no row


def _text(value: Any) -> Any:
    """A cell that a spreadsheet can show: an apostrophe turns a would-be formula into text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r\n")) else value


def samples(summary: Summary) -> pd.DataFrame:
    """The numbers behind every estimate: a row per claim, model and unit."""
    rows = [
        (row.id, row.model, unit, value)
        for model in summary.models
        for row in sort_by_place(model.rows)
        for unit, value in enumerate(row.sample)
    ]
    table = pd.DataFrame(rows, columns=["claim", "model", "unit", "value"])
    return table.astype({"claim": str, "model": str, "unit": "int64", "value": "float64"})


MAX_BYTES = 1 << 28
"""The largest size of a `claims.json` in bytes; that of four models has a few million."""
MAX_COUNT = 10_000
"""The largest number of layers, or of heads per layer."""
RERUN_HINT = "make it again with `pytest claims --report`"
DERIVED_FIELDS = {"letter": (str, ""), "standing": (str | None, None)}
"""Fields of a row that follow from others: written for readers of the file, ignored here."""


class ReportError(ValueError):
    """A folder from which no page can be made."""


def _in_the_folder(name: str) -> str:
    if Path(name).name != name or "\\" in name or "\0" in name:
        raise PydanticCustomError("place", "it is not in the report's folder")
    return name


class CheckedFields(BaseModel):
    """The fields of an object that the code uses, without conversion; fields that are only shown are not checked."""

    model_config = ConfigDict(strict=True)


class PromptTexts(CheckedFields):
    """The first prompts of a piece of evidence."""

    id: int
    original: list[str]
    counterfactual: list[str] | None


class EvidenceEntry(CheckedFields):
    """A piece of evidence."""

    file: Annotated[str, AfterValidator(_in_the_folder)]
    kind: str
    seconds: float
    pair: PromptTexts | None


class GraphShape(CheckedFields):
    """The graph of a search."""

    nodes: list[Any]
    edges: list[Any]


class CertificateSummary(CheckedFields):
    """The certificate of a model."""

    is_passed: bool
    sites: int
    layers: int
    deviation: float
    not_supported: list[str]
    device: str
    versions: dict[str, str]


class ModelEntry(CheckedFields):
    """A model."""

    name: str
    kind: str | None = None
    alias: str | None = None
    layers: int | None = Field(None, ge=1, le=MAX_COUNT)
    heads: int | None = Field(None, ge=1, le=MAX_COUNT)
    circuit: list[Any] = []
    printed: dict[str, Any] = {}
    evidence: dict[str, EvidenceEntry] = {}
    stages: dict[str, str] = {}
    fingerprint: str | None = None
    certificate: CertificateSummary | None = None
    certified: str | None = None
    graph: GraphShape | None = None


class ConventionEntry(BaseModel):
    """What one convention shows of a signature."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    outcome: str
    shows_other: bool
    p_value: float | None


class QuantityEntry(BaseModel):
    """A number that a reader expects, with its interval."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    n: int


def _row_fields() -> dict[str, Any]:
    """The fields of a row with type and default: those of a judgement without its sample, which has its own file."""
    lists = {"part": list[str], "conventions": list[ConventionEntry], "quantities": list[QuantityEntry]}
    hints = get_type_hints(Judgement) | lists
    defaults = {field.name: ... if field.default is MISSING else field.default for field in fields(Judgement)}
    columns = {name: (hints[name], default) for name, default in defaults.items() if name != "sample"}
    return {**columns, "evidence": (list[str], ...), "section": (SectionName, ...), **DERIVED_FIELDS}


Row = create_model("Row", __config__=ConfigDict(strict=True, extra="forbid"), **_row_fields())


class HeadlineClaim(CheckedFields):
    """A headline claim on a model, as it follows from its rows."""

    number: int
    title: str
    statement: str
    published: str | None
    controlled: str | None
    standing: str | None
    decided_by: str | None
    rows: list[str]
    as_expected: bool
    remark: str | None


class HeadlineEntry(CheckedFields):
    """The headline claims on a model."""

    model: str
    claims: list[HeadlineClaim]


class Content(CheckedFields):
    """The whole file."""

    schema_: Literal[4] = Field(alias="schema")
    command: str = ""
    date: str = ""
    settings: dict[str, Any] = {}
    software: dict[str, Any] = {}
    remaining: int = Field(0, ge=0)
    models: Annotated[list[ModelEntry], FailFast()] = []
    headline: list[HeadlineEntry] = []
    claims: Annotated[list[Row], FailFast()]  # type: ignore[valid-type]  # made from the fields of a judgement


def parse(path: Path) -> dict[str, Any]:
    """The validated content of a `claims.json` of this schema."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ReportError(f"{path} has more than {MAX_BYTES} bytes, which no report has; {RERUN_HINT}")
        content = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError, OSError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError(f"{path} is not JSON ({error}); {RERUN_HINT}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        raise ReportError(f"{path} has schema {schema!r:.60}; this version reads {SCHEMA}: run the claims again")
    try:
        Content.model_validate(content)
    except ValidationError as error:
        raise ReportError(f"{path}: {_first(error)}; {RERUN_HINT}") from None
    valid: dict[str, Any] = content
    for number, model in enumerate(valid.get("models", [])):
        missing = [label for label in model.get("stages", {}).values() if label not in model.get("evidence", {})]
        if missing:
            name = f"models[{number}].stages"
            raise ReportError(f"{path}: {name} names {missing[0]!r}, which is no evidence of this model; {RERUN_HINT}")
    return valid


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _first(error: ValidationError) -> str:
    """The first invalid field, in words."""
    first = error.errors(include_url=False, include_context=False)[0]
    steps = (f".{step}" if str(step).isidentifier() else f"[{step!r}]" for step in first["loc"])
    place = "".join(steps).lstrip(".")
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} is {first['input']!r:.60}: {first['msg'].replace('Input', 'it', 1)}"
