"""Evidence of section 5 under a candidate convention: rows of the table are taken from other measured conditions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pandas as pd

from rebinding.evidence import Evidence

Renamed: TypeAlias = tuple[tuple[str, str], ...]
"""Rows of the table, each with the condition that stands for it; other rows keep their own condition."""


@dataclass(frozen=True, eq=False)
class UnderCandidate(Evidence):
    """A selection from the evidence `whole` with one condition for each row of the table."""

    whole: Evidence
    renamed: Renamed


@lru_cache(maxsize=16)
def under(evidence: Evidence, renamed: Renamed) -> Evidence:
    """The evidence under a candidate: these rows of the table come from their conditions."""
    if not renamed:
        return evidence
    conditions = dict(evidence.settings["conditions"])
    chosen = {row: conditions[condition] for row, condition in renamed}  # a KeyError if it was not run
    rest = {
        name: settings_of for name, settings_of in conditions.items() if name not in {*chosen, *dict(renamed).values()}
    }
    settings = {**evidence.settings, "conditions": {**rest, **chosen}}
    return UnderCandidate(evidence.experiment, select(evidence.rows, renamed), settings, evidence, renamed)


def select(table: pd.DataFrame, renamed: Renamed) -> pd.DataFrame:
    """Select the conditions of a candidate from a table of all conditions, under the names of their rows."""
    names = {condition: row for row, condition in renamed}
    rest = table[~table["condition"].isin(names.values())]
    return rest.assign(condition=rest["condition"].replace(names)).reset_index(drop=True)
