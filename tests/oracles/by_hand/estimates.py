"""Compare every row's estimate by hand with the judge's; list the rows without an estimate by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import Judgement
from tests.oracles.by_hand import binding_estimates, circuit_estimates, role_estimates, tracing_estimates
from tests.oracles.by_hand.grounds import Estimates, Grounds
from tests.oracles.by_hand.judgements import Judged, Row

ROWS: Mapping[str, Estimates] = {
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
class EstimateComparison:
    """An estimate of a row, or of a part of its sentence, and ours; None where there is none by hand."""

    id: str
    reported: float
    by_hand: float | None
    part: str | None
    verdict: bool = True
    """Whether it is the one that the verdict tells."""

    @property
    def difference(self) -> float:
        """How far they are apart, as a share of their size where that is above 1."""
        assert self.by_hand is not None
        return abs(self.reported - self.by_hand) / max(1.0, abs(self.reported))


def compare_estimates(judged: Judged) -> list[EstimateComparison]:
    """Of every row whose verdict has an estimate that one, and those of all parts that have a name by hand. (A part of
    a part has its own name alone, and is held under the name of the whole.)"""
    comparisons = []
    for row in judged.rows:
        if row.judgement.measured is None:
            continue
        estimates = _estimates(row.claim.sentence)
        parts = estimates(Grounds(row, judged)) if estimates else {}
        comparisons.append(_compare_with_parts(row, row.judgement, parts))
        parts_by_key = {
            (part.part, part.reason, part.measured): part for part in row.parts if part.measured is not None
        }
        part_comparisons = (_compare_with_parts(row, part, parts) for part in parts_by_key.values())
        comparisons += [comparison for comparison in part_comparisons if comparison.part]
    return comparisons


def _compare_with_parts(row: Row, verdict: Verdict | Judgement, parts: Mapping[str, float]) -> EstimateComparison:
    part, measured = find_part(verdict, parts), float(verdict.measured or 0)
    return EstimateComparison(
        row.claim.id, measured, None if part is None else float(parts[part]), part, verdict is row.judgement
    )


def find_part(verdict: Verdict | Judgement, parts: Mapping[str, float]) -> str | None:
    """Which part a verdict's numbers are of: the longest name with which its path begins. Of many places its reason
    tells the number (`name@place`). A whole sentence has no name."""
    path, place = "".join(f"{name}: " for name in verdict.part), re.search(r" at place (\d+) of ", verdict.reason)
    end = f"@{place[1]}" if place else ""
    plain = {name: name.removesuffix(end) if end else name for name in parts if not end or name.endswith(end)}
    names = [name for name, begin in plain.items() if begin and path.startswith(f"{begin}: ")]
    if names:
        return max(names, key=len)
    return next((name for name, begin in plain.items() if not begin), None)


def is_left_out(id: str) -> bool:
    """Whether a row may go without an estimate by hand."""
    return any(id.startswith(name) for name in LEFT_OUT)


def _estimates(sentence: str) -> Estimates | None:
    if sentence in ROWS:
        return ROWS[sentence]
    return next((estimate for name, estimate in ROWS.items() if sentence.startswith(f"{name}.")), None)
