"""Write the files of a report: `claims.json`, the same as tables for people who plot themselves, and the evidence.

docs/report.md describes every field of each file.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rebinding.evidence.shards import put_in_place, write_text
from rebinding.report.summary import LETTERS, ModelSummary, Summary
from rebinding.verdicts.judgement import Judgement

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
    remaining: int = 0,
) -> None:
    """Write `claims.json`, `claims.csv` and `samples.parquet`: all three, or none of them. `remaining` rows of the run
    are not judged yet."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "schema": SCHEMA,
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
    return {**line, "evidence": "; ".join(line["evidence"]), "part": ": ".join(line["part"])}


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
