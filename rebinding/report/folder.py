"""A report's folder: `claims.json`, the same as tables for people who plot themselves, and the evidence.

What stands in each file, field by field, is docs/report.md.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rebinding.evidence import Evidence, Kind
from rebinding.evidence.request import Facet
from rebinding.evidence.shards import put_in_place, write_text
from rebinding.evidence.tables import read_table
from rebinding.experiments.circuit.kinds import PRUNING
from rebinding.report.checked import AGAIN, ReportError, parsed
from rebinding.report.schema import SCHEMA, lines, upgraded, without
from rebinding.verdicts.judgement import Judgement

CLAIMS, TABLE, SAMPLES, EVIDENCE = "claims.json", "claims.csv", "samples.parquet", "evidence"
LONGEST = 120
"""Characters of a file name that are taken from the names of model and evidence."""


def evidence_file(model: str, name: str) -> str:
    """The file of a piece of evidence: its name for people, and a digest so that no two names share a file."""
    plain = re.sub("[^a-z0-9.]+", "-", f"{model} {name}".lower())[:LONGEST].strip("-.")
    digest = hashlib.sha256(json.dumps([model, name]).encode()).hexdigest()[:8]
    return f"{plain}-{digest}.parquet"


@dataclass(frozen=True, eq=False)
class Model:
    """A model of a run: what is written down about it, and its evidence, read when it is asked for."""

    number: int
    about: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def files(self) -> Mapping[str, Path]:
        """Where each piece of evidence lies."""
        return {name: self.folder / EVIDENCE / one["file"] for name, one in self.about.get("evidence", {}).items()}

    @cached_property
    def evidence(self) -> Mapping[str, Evidence]:
        """All of it, by name."""
        return {name: Evidence.load(path) for name, path in self.files.items()}

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """sha256 of each piece of evidence as it lies there."""
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in self.files.items()}

    def of(self, kind: Kind, **facets: Facet) -> Mapping[str, Evidence]:
        """The evidence of a kind whose requests have these facets, by label."""
        return {label: found for label, found in sorted(self.evidence.items()) if asks(found, kind, **facets)}

    def one(self, kind: Kind, **facets: Facet) -> Evidence | None:
        """The one of these that rests on most units, as where a claim was judged on fewer prompts than another."""
        return max(self.of(kind, **facets).values(), key=lambda found: len(found.rows), default=None)

    @cached_property
    def stages(self) -> Mapping[str, Evidence]:
        """What each stage of our own discovery rests on, by group."""
        return {group: self.evidence[label] for group, label in self.about.get("stages", {}).items()}

    def discovered(self) -> list[tuple[str, int, int, str]]:
        """The circuit that our own discovery finds, before pruning."""
        found = self.one(PRUNING)
        return [] if found is None else [tuple(head) for head in found.settings["request"]["circuit"]]


def asks(evidence: Evidence, kind: Kind, **facets: Facet) -> bool:
    """Whether evidence answers a request of this kind with these facets."""
    told = evidence.settings["facets"]
    return evidence.experiment == kind.name and all(told.get(name) == value for name, value in facets.items())


@dataclass(frozen=True, eq=False)
class Run:
    """All that a page is made from."""

    settings: Mapping[str, Any]
    software: Mapping[str, str]
    models: tuple[Model, ...]
    claims: tuple[Judgement, ...]

    def of(self, model: Model) -> tuple[Judgement, ...]:
        """The judgements on one model."""
        return tuple(one for one in self.claims if one.model == model.name)


def write(
    folder: Path,
    settings: Mapping[str, Any],
    software: Mapping[str, str],
    models: Sequence[Mapping[str, Any]],
    claims: Sequence[Judgement],
) -> None:
    """`claims.json`, and as tables the claims and the numbers behind them: all three, or none of them."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "settings": dict(settings),
        "software": dict(software),
        "models": [dict(one) for one in models],
        "claims": lines([one.plain() for one in claims]),
    }
    told = as_text(content)
    table = pd.DataFrame([one | {"evidence": "; ".join(one["evidence"])} for one in content["claims"]])
    numbers = pa.Table.from_pandas(samples(claims), preserve_index=False)
    put_in_place(
        {
            folder / TABLE: lambda there: _csv(there, table),
            folder / SAMPLES: lambda there: pq.write_table(numbers, there),
            folder / CLAIMS: lambda there: write_text(there, told),
        }
    )


def as_text(content: Mapping[str, Any]) -> str:
    """The text of a `claims.json`."""
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _csv(there: Path, table: pd.DataFrame) -> None:
    table.map(_text).to_csv(there, index=False, quoting=csv.QUOTE_NONNUMERIC)  # a \r ends no row


def _text(value: Any) -> Any:
    """A cell as a spreadsheet may show it: what would be a formula there gets an apostrophe, which makes it a text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r\n")) else value


def samples(claims: Sequence[Judgement]) -> pd.DataFrame:
    """The numbers behind every estimate: a row per claim, model and unit."""
    rows = [(one.id, one.model, unit, value) for one in claims for unit, value in enumerate(one.sample)]
    table = pd.DataFrame(rows, columns=["claim", "model", "unit", "value"])
    return table.astype({"claim": str, "model": str, "unit": "int64", "value": "float64"})


def read(folder: Path) -> Run:
    """What `write` wrote, refusing a folder that is not one, lacks evidence, or leads elsewhere."""
    path = folder / CLAIMS
    if not path.is_file():
        raise ReportError(
            f"{folder} holds no {CLAIMS}: give a folder that was made with `pytest claims --report {folder}`"
        )
    content = upgraded(parsed(path))
    models = tuple(Model(number, about, folder) for number, about in enumerate(_models(content)))
    _complete(folder, models)
    try:
        claims = tuple(_with_samples(folder, [Judgement.read(without(one)) for one in content["claims"]]))
    except (TypeError, KeyError) as error:
        raise ReportError(f"{path} lacks a field, or has one too many: {error}; run the claims again") from None
    return Run(content.get("settings", {}), content.get("software", {}), models, claims)


def _models(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is said of the models, with an entry for every model that a claim names."""
    known = {one["name"]: one for one in content.get("models", [])}
    return [
        known.get(name, {"name": name}) for name in dict.fromkeys([*known, *(c["model"] for c in content["claims"])])
    ]


def _complete(folder: Path, models: Sequence[Model]) -> None:
    wanted = [path for model in models for path in model.files.values()]
    missing = [path.name for path in wanted if not path.is_file()]
    if missing:
        raise ReportError(
            f"{folder} lacks {len(missing)} of its {len(wanted)} files of evidence, such as {EVIDENCE}/{missing[0]};"
            f" copy the folder {EVIDENCE} as a whole, or make the report again with `pytest claims --report {folder}`"
        )
    _inside(folder, wanted)


def _inside(folder: Path, paths: Sequence[Path]) -> None:
    """Nothing is read through a link that leads out of the folder."""
    out = [path for path in paths if not path.resolve().is_relative_to(folder.resolve())]
    if out:
        raise ReportError(f"{out[0]} leads out of {folder}: a report's files lie in its folder; copy them there")


def _with_samples(folder: Path, claims: Sequence[Judgement]) -> Iterator[Judgement]:
    """The judgements with the numbers behind them, where these were kept."""
    path = folder / SAMPLES
    if not path.is_file():
        yield from claims
        return
    _inside(folder, [path])
    try:
        rows = read_table(path).to_pandas().astype({"value": "float64"})
        by_claim = {name: tuple(found["value"]) for name, found in rows.groupby(["claim", "model"])}
    except (pa.ArrowException, ValueError, KeyError, OSError) as error:
        raise ReportError(f"{path} holds no samples ({error}); {AGAIN}") from error
    for one in claims:
        yield replace(one, sample=by_claim.get((one.id, one.model), ()))
