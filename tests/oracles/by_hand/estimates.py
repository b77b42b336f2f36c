"""Every row's estimate from its evidence, beside the one that the judge gives; and which rows are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import Judgement
from tests.oracles.by_hand import (
    beyond_estimates,
    binding_estimates,
    circuit_estimates,
    role_estimates,
    tracing_estimates,
)
from tests.oracles.by_hand.binding_estimates import Estimates
from tests.oracles.by_hand.grounds import Grounds, part_told
from tests.oracles.by_hand.judgements import Judged, Row

ROWS: Mapping[str, Estimates] = {
    **beyond_estimates.ROWS,
    **binding_estimates.ROWS,
    **circuit_estimates.ROWS,
    **role_estimates.ROWS,
    **tracing_estimates.ROWS,
}
"""By sentence, or by how several begin."""
LEFT_OUT: Mapping[str, str] = {
    "circuit.heads_found_again": "by hand where ours are the lowest; tests/experiments/circuit has the selection",
    "beyond.static_and_bystander": "the same, where its number is the overlap with the heads of static tracking",
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
        found.append(_beside(row, row.told, parts))
        named = {(one.part, one.reason, one.measured): one for one in row.parts if one.measured is not None}
        others = (_beside(row, one, parts) for one in named.values())
        found += [one for one in others if one.part]
    return found


def _beside(row: Row, told: Verdict | Judgement, parts: Mapping[str, float]) -> Held:
    part, measured = part_told(told, parts), float(told.measured or 0)
    return Held(row.claim.id, measured, None if part is None else float(parts[part]), part, told is row.told)


def left_out(id: str) -> bool:
    """Whether a row may go without an estimate by hand."""
    return any(id.startswith(name) for name in LEFT_OUT)


def _estimates(sentence: str) -> Estimates | None:
    if sentence in ROWS:
        return ROWS[sentence]
    return next((one for name, one in ROWS.items() if sentence.startswith(f"{name}.")), None)
