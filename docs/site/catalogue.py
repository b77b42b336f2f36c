"""The catalogue: every sentence that is judged, from the rows of `claims/` and the truth table of the plants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from reference import write

from claims.rows import every
from rebinding.paper.claim import Claim
from rebinding.paper.rows.binding import FAMILIES
from rebinding.planted import MECHANISMS
from rebinding.planted.truth import Truth, truth_of
from rebinding.report.outline import SECTIONS, Section, section_of

HEAD = """# The catalogue of claims

Every sentence that `pytest claims` judges, {count} rows, made from the rows themselves when this site was built. A row
whose id ends in `.controlled` is the same sentence under the best experiment that we know
([why](../decisions/procedures.md)). *Asserted of* names the models of which the paper says it; on others the verdict is
a finding. The last column is the verdict that the row must get on the four planted mechanisms
([what they are](../../rebinding/planted/README.md)), which is what it was seen to get; on the embedded models with
[its numbers](../verdicts.md). What could be decided at this N on the paper's models is [simulated](../power.md).
"""
COLUMNS = ("row", "sentence, and where it stands", "judged by", "on " + ", ".join(MECHANISMS))


def write_catalogue(made: Path) -> None:
    """The page."""
    rows = [*every(), *FAMILIES]
    truths = {mechanism: truth_of(mechanism) for mechanism in MECHANISMS}
    parts = [HEAD.format(count=len(rows))]
    for section in SECTIONS:
        parts += page_of(section, [row for row in rows if section_of(row.id) == section.key], truths)
    write(made / "catalogue.md", "\n".join(parts))


def page_of(section: Section, rows: Iterable[Claim], truths: Mapping[str, Mapping[str, Truth]]) -> Iterator[str]:
    """A section's heading and its table; nothing where it has no rows."""
    lines = [line(row, [truths[mechanism].get(row.id) for mechanism in truths]) for row in rows]
    if lines:
        yield f"## {section.title}\n\n{section.says}\n"
        yield told(COLUMNS)
        yield told(["---"] * len(COLUMNS))
        yield from lines
        yield ""


def line(row: Claim, truths: Iterable[Truth | None]) -> str:
    """A row of the table."""
    asserted = f" Asserted of {', '.join(row.asserted)}." if row.asserted else ""
    judged = (
        f"{row.kind} of {', '.join(row.metrics)}, {row.procedure}; N {row.n} {row.unit}. {row.statistic}: {row.where}"
    )
    return told(
        [
            f"`{row.id}`",
            f"{row.says} *{row.source}.*{asserted}",
            judged,
            ", ".join("judged of a run" if truth is None else str(truth) for truth in truths),
        ]
    )


def told(cells: Iterable[str]) -> str:
    """Cells as a line; a bar in a text is no end of a cell."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
