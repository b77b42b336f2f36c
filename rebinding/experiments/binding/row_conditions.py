"""Evidence of section 5 under a candidate convention: rows of the table are taken from other measured conditions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pandas as pd

from rebinding.evidence import Evidence

RowConditions: TypeAlias = tuple[tuple[str, str], ...]
"""Rows of the table, each with the condition that stands for it; other rows keep their own condition."""


@dataclass(frozen=True, eq=False)
class CandidateEvidence(Evidence):
    """A selection from the evidence `source` with one condition for each row of the table."""

    source: Evidence
    row_conditions: RowConditions


@lru_cache(maxsize=16)
def apply_candidate(evidence: Evidence, row_conditions: RowConditions) -> Evidence:
    """The evidence under a candidate: these rows of the table come from their conditions."""
    if not row_conditions:
        return evidence
    conditions = dict(evidence.settings["conditions"])
    chosen = {row: conditions[condition] for row, condition in row_conditions}  # a KeyError if it was not run
    rest = {
        name: settings_of
        for name, settings_of in conditions.items()
        if name not in {*chosen, *dict(row_conditions).values()}
    }
    settings = {**evidence.settings, "conditions": {**rest, **chosen}}
    return CandidateEvidence(
        evidence.experiment, select_conditions(evidence.rows, row_conditions), settings, evidence, row_conditions
    )


def select_conditions(table: pd.DataFrame, row_conditions: RowConditions) -> pd.DataFrame:
    """Select the conditions of a candidate from a table of all conditions, under the names of their rows."""
    names = {condition: row for row, condition in row_conditions}
    rest = table[~table["condition"].isin(names.values())]
    return rest.assign(condition=rest["condition"].replace(names)).reset_index(drop=True)
