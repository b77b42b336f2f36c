"""The catalogue: every sentence that is judged, from the rows of `claims/` and the truth table of the plants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from reference import write

from claims.catalogue import catalogue, catalogue_of_runs
from rebinding.paper.claim import Claim
from rebinding.planted import MECHANISMS
from rebinding.planted.truth import Truth, truth_of
from rebinding.report.summary import SECTIONS, Section

HEAD = """# The catalogue of claims

Every sentence that `pytest claims` judges: {sentences} sentences in {count} rows, made from the rows themselves
when this site was built. A sentence has a row as published, or under the best experiment that we know
(*controlled*), or both ([why](../decisions/procedures.md)); the id of a controlled row of two ends in
`.controlled`. *Asserted of* names the models of which the paper says it; on others the verdict is a finding.
Under the names of the planted mechanisms stands the verdict that the row must get on each ([what they
are](../../rebinding/planted/README.md)): a test of the row passes there if that is what comes out. [Its
numbers](../verdicts.md) on the embedded models; [what could be decided](../power.md) at this N on the paper's
models.
"""
COLUMNS = ("procedure", "rule", "what is measured, and where", "N", *MECHANISMS)
Truths: TypeAlias = Mapping[str, Mapping[str, Truth]]


def write_catalogue(folder: Path) -> None:
    """The page."""
    sentences: dict[str, list[Claim]] = defaultdict(list)
    for row in (*catalogue(), *catalogue_of_runs()):
        sentences[row.claim.sentence].append(row.claim)
    truths = {mechanism: truth_of(mechanism) for mechanism in MECHANISMS}
    parts = [HEAD.format(sentences=len(sentences), count=sum(map(len, sentences.values())))]
    for section in SECTIONS:
        parts += section_lines(section, [rows for rows in sentences.values() if rows[0].section == section.key], truths)
    write(folder / "catalogue.md", "\n".join(parts))


def section_lines(section: Section, sentences: list[list[Claim]], truths: Truths) -> Iterator[str]:
    """A section's heading and its sentences; nothing where it has none."""
    if sentences:
        yield f"## {section.title}\n\n{section.description}\n"
    for rows in sentences:
        yield f"### {rows[0].sentence}\n"
        yield from dict.fromkeys(describe(row, rows[0]) for row in rows)
        yield line(COLUMNS)
        yield line(["---"] * len(COLUMNS))
        yield from (line(cells(row, truths)) for row in rows)
        yield ""


def describe(row: Claim, first: Claim) -> str:
    """The sentence, where it stands, and of whom the paper says it; a controlled row may say it otherwise."""
    models = f" Asserted of {', '.join(first.models)}." if first.models else ""
    return f"{row.statement} *{first.source}.*{models}\n"


def cells(row: Claim, truths: Truths) -> list[str]:
    """A row under one procedure. A sentence about several models has no truth on one."""
    rule = f"{row.kind} of {', '.join(row.metrics)}"
    truths_of_row = [truths[mechanism].get(row.id) for mechanism in MECHANISMS]
    verdicts = ["of a run" if truth is None else str(truth) for truth in truths_of_row]
    return [row.procedure, rule, f"{row.statistic}: {row.where}", f"{row.n} {row.unit}", *verdicts]


def line(cells: Iterable[str]) -> str:
    """Cells as a line of a table; a bar in a text is no end of a cell."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
