"""A report's folder as it is read: the run with its judgements, its models and their evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from rebinding.evidence import Evidence, Kind
from rebinding.evidence.request import Facet
from rebinding.evidence.tables import read_table
from rebinding.experiments.circuit.request import PRUNING
from rebinding.experiments.figure import has_facets
from rebinding.report.files import CLAIMS, EVIDENCE, SAMPLES
from rebinding.report.printed import printed
from rebinding.report.schema import AGAIN, DERIVED, ReportError, parse
from rebinding.report.summary import Summary, in_order, summarise
from rebinding.verdicts.judgement import Judgement


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

    @property
    def printed(self) -> Mapping[str, float]:
        """The numbers that the model is compared with, by quantity."""
        return printed(self.about)

    def of(self, kind: Kind, **facets: Facet) -> Mapping[str, Evidence]:
        """The evidence of a kind whose requests have these facets, by label."""
        return {label: found for label, found in sorted(self.evidence.items()) if has_facets(found, kind, **facets)}

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


@dataclass(frozen=True, eq=False)
class Run:
    """All that a page is made from."""

    settings: Mapping[str, Any]
    software: Mapping[str, str]
    models: tuple[Model, ...]
    claims: tuple[Judgement, ...]

    @cached_property
    def summary(self) -> Summary:
        """Its summary, with rows in the order of the page."""
        return summarise(in_order(self.claims), {one.name: one.about.get("kind") == "planted" for one in self.models})


def read(folder: Path) -> Run:
    """What `write` wrote, refusing a folder that is not one, lacks evidence, or leads elsewhere."""
    path = folder / CLAIMS
    if not path.is_file():
        raise ReportError(
            f"{folder} holds no {CLAIMS}: give a folder that was made with `pytest claims --report {folder}`"
        )
    content = parse(path)
    models = tuple(Model(number, about, folder) for number, about in enumerate(_models(content)))
    _complete(folder, models)
    rows = [{name: value for name, value in one.items() if name not in DERIVED} for one in content["claims"]]
    claims = tuple(_with_samples(folder, [Judgement.read(row) for row in rows]))
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
