"""Read the folder of a report: the run with its judgements, its models and their evidence.

The printed numbers that a model is compared with are the paper's own, or those that a plant's construction promises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from rebinding.evidence import Evidence, Kind
from rebinding.evidence.evidence import read_table
from rebinding.evidence.request import Facet
from rebinding.experiments.circuit.request import PRUNING
from rebinding.paper.numbers import PublishedNumber, numbers
from rebinding.report.files import CLAIMS, DERIVED_FIELDS, EVIDENCE, RERUN_HINT, SAMPLES, ReportError, parse
from rebinding.report.summary import Summary, sort_rows, summarise
from rebinding.verdicts.judgement import Judgement

COUNTS = ("heads.kept", "heads.total")
"""Quantities that are whole numbers."""


def printed_numbers(about: Mapping[str, Any]) -> Mapping[str, float]:
    """The numbers by quantity, such as `binding.q.dR`; empty if nothing is printed about the model."""
    return about.get("printed") or {name: number.value for name, number in _of_paper(about.get("alias")).items()}


def printed_text(about: Mapping[str, Any]) -> Mapping[str, str]:
    """The same as text, with as many decimals as printed."""
    predicted = {
        quantity: f"{value:.{0 if quantity in COUNTS else 2}f}" for quantity, value in about.get("printed", {}).items()
    }
    return predicted or paper_text(about.get("alias"))


def paper_text(alias: str | None) -> Mapping[str, str]:
    """The numbers of the paper as text, by quantity."""
    return {quantity: number.printed.replace("-", "−") for quantity, number in _of_paper(alias).items()}


def _of_paper(alias: str | None) -> Mapping[str, PublishedNumber]:
    """The numbers that the paper prints for one of its models."""
    by_name = ((name.partition("@"), number) for name, number in numbers().items())
    return {quantity: number for (quantity, _, model), number in by_name if alias and model == alias}


def has_facets(evidence: Evidence, kind: Kind, **facets: Facet) -> bool:
    """Whether evidence is of this kind, and its request has these facets."""
    own = evidence.settings["facets"]
    return evidence.experiment == kind.name and all(own.get(name) == value for name, value in facets.items())


@dataclass(frozen=True, eq=False)
class ReportedModel:
    """A model of a run: its description (`about`), and its evidence, read on first use."""

    number: int
    about: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def files(self) -> Mapping[str, Path]:
        """The path of each piece of evidence, by name."""
        entries = self.about.get("evidence", {})
        return {name: self.folder / EVIDENCE / entry["file"] for name, entry in entries.items()}

    @cached_property
    def evidence(self) -> Mapping[str, Evidence]:
        """All evidence, by name."""
        return {name: Evidence.load(path) for name, path in self.files.items()}

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """sha256 of the file of each piece of evidence."""
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in self.files.items()}

    @property
    def provenance(self) -> Literal["printed", "declared"]:
        """The source of the numbers that it is compared with: printed in the paper, or declared with a plant."""
        return "declared" if self.about.get("kind") == "planted" else "printed"

    @property
    def printed_numbers(self) -> Mapping[str, float]:
        """The numbers that the model is compared with, by quantity."""
        return printed_numbers(self.about)

    def find_evidence(self, kind: Kind, **facets: Facet) -> Mapping[str, Evidence]:
        """The evidence of a kind whose requests have these facets, by label."""
        pieces = sorted(self.evidence.items())
        return {label: evidence for label, evidence in pieces if has_facets(evidence, kind, **facets)}

    def find_largest_evidence(self, kind: Kind, **facets: Facet) -> Evidence | None:
        """The largest of these; claims may be judged on different numbers of prompts."""
        return max(self.find_evidence(kind, **facets).values(), key=lambda evidence: len(evidence.rows), default=None)

    @cached_property
    def stages(self) -> Mapping[str, Evidence]:
        """The evidence of each stage of our own discovery, by group."""
        return {group: self.evidence[label] for group, label in self.about.get("stages", {}).items()}

    def discovered_circuit(self) -> list[tuple[str, int, int, str]]:
        """The circuit that our own discovery finds, before pruning."""
        evidence = self.find_largest_evidence(PRUNING)
        return [] if evidence is None else [tuple(head) for head in evidence.settings["request"]["circuit"]]


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """A run as its page needs it. `remaining` of its rows were not judged when the report was written."""

    settings: Mapping[str, Any]
    software: Mapping[str, str]
    models: tuple[ReportedModel, ...]
    claims: tuple[Judgement, ...]
    command: str = ""
    date: str = ""
    remaining: int = 0

    @cached_property
    def summary(self) -> Summary:
        """The summary of the run, with rows in the order of the page."""
        planted = {model.name: model.about.get("kind") == "planted" for model in self.models}
        return summarise(sort_rows(self.claims), planted)


def read(folder: Path) -> ReportedRun:
    """Read what `write` wrote. Refuses a folder without a report, without all evidence, or with links out of it."""
    path = folder / CLAIMS
    if not path.is_file():
        raise ReportError(
            f"{folder} holds no {CLAIMS}: give a folder that was made with `pytest claims --report {folder}`"
        )
    content = parse(path)
    models = tuple(ReportedModel(number, about, folder) for number, about in enumerate(_models(content)))
    _refuse_missing(folder, models)
    rows = [{name: value for name, value in row.items() if name not in DERIVED_FIELDS} for row in content["claims"]]
    claims = tuple(_with_samples(folder, [Judgement.read(row) for row in rows]))
    facts = {name: content[name] for name in ("command", "date", "remaining") if name in content}
    return ReportedRun(content.get("settings", {}), content.get("software", {}), models, claims, **facts)


def _models(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The descriptions of the models, with an entry for every model that a claim names."""
    described = {model["name"]: model for model in content.get("models", [])}
    names = dict.fromkeys([*described, *(row["model"] for row in content["claims"])])
    return [described.get(name, {"name": name}) for name in names]


def _refuse_missing(folder: Path, models: Sequence[ReportedModel]) -> None:
    paths = [path for model in models for path in model.files.values()]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ReportError(
            f"{folder} lacks {len(missing)} of its {len(paths)} files of evidence, such as {EVIDENCE}/{missing[0]};"
            f" copy the folder {EVIDENCE} as a whole, or make the report again with `pytest claims --report {folder}`"
        )
    _refuse_outside(folder, paths)


def _refuse_outside(folder: Path, paths: Sequence[Path]) -> None:
    """Refuse paths that lead out of the folder through a link."""
    outside = [path for path in paths if not path.resolve().is_relative_to(folder.resolve())]
    if outside:
        raise ReportError(f"{outside[0]} leads out of {folder}: the files of a report must be in it; copy them there")


def _with_samples(folder: Path, claims: Sequence[Judgement]) -> Iterator[Judgement]:
    """The judgements with the numbers behind them, if the report has these."""
    path = folder / SAMPLES
    if not path.is_file():
        yield from claims
        return
    _refuse_outside(folder, [path])
    try:
        rows = read_table(path).to_pandas().astype({"value": "float64"})
        by_claim = {name: tuple(group["value"]) for name, group in rows.groupby(["claim", "model"])}
    except (pa.ArrowException, ValueError, KeyError, OSError) as error:
        raise ReportError(f"{path} holds no samples ({error}); {RERUN_HINT}") from error
    for claim in claims:
        yield replace(claim, sample=by_claim.get((claim.id, claim.model), ()))
