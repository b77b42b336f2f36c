"""Every row's estimate from its evidence, beside the one that the judge gives; and which rows are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.by_hand import rows_of_binding, rows_of_circuits, rows_of_roles, rows_of_tracing
from tests.by_hand.grounds import Grounds, part_told
from tests.by_hand.judged import Judged, Row
from tests.by_hand.rows_of_binding import Estimates

ROWS: Mapping[str, Estimates] = {
    **rows_of_binding.ROWS,
    **rows_of_circuits.ROWS,
    **rows_of_roles.ROWS,
    **rows_of_tracing.ROWS,
}
"""By sentence, or by how several begin."""
LEFT_OUT: Mapping[str, str] = {
    "circuit.heads_found_again": "by hand where ours are the lowest; tests/circuit has the selection that tests",
    "beyond.static_and_bystander": "the same, where its number is the overlap with the heads of static tracking",
    "roles.a_on_g9": "its verdict does not say which of two printed effects its number is",
}
SAME_SUMS = 1e-6
"""Two sums of the same float32 numbers in float64, of which one may have been taken in float32 by groups."""


@dataclass(frozen=True)
class Held:
    """An estimate of a row, or of a part of its sentence, and ours; None where there is none by hand."""

    id: str
    told: float
    by_hand: float | None
    part: str | None
    verdict: bool = True
    """Whether it is the one that the verdict tells."""

    @property
    def off(self) -> float:
        """How far they are apart, as a share of their size where that is above 1."""
        assert self.by_hand is not None
        return abs(self.told - self.by_hand) / max(1.0, abs(self.told))


def held(judged: Judged) -> list[Held]:
    """Of every row whose verdict has an estimate that one, and those of all parts that have a name by hand. (A part of
    a part has its own name alone, and is held under the name of the whole.)"""
    found = []
    for row in judged.rows:
        if row.told.measured is None:
            continue
        estimates = _estimates(row.claim.sentence)
        parts = estimates(Grounds(row, judged)) if estimates else {}
        found.append(_beside(row, row.told.reason, row.told.measured, parts))
        named = {f"{one.reason} {one.measured}": one for one in row.parts if one.measured is not None}
        others = (_beside(row, one.reason, float(one.measured or 0), parts, verdict=False) for one in named.values())
        found += [one for one in others if one.part]
    return found


def _beside(row: Row, reason: str, told: float, parts: Mapping[str, float], verdict: bool = True) -> Held:
    part = part_told(reason, parts)
    return Held(row.claim.id, told, None if part is None else float(parts[part]), part, verdict)


def left_out(id: str) -> bool:
    """Whether a row may go without an estimate by hand."""
    return any(id.startswith(name) for name in LEFT_OUT)


def _estimates(sentence: str) -> Estimates | None:
    if sentence in ROWS:
        return ROWS[sentence]
    return next((one for name, one in ROWS.items() if sentence.startswith(f"{name}.")), None)
