"""Evidence of section 5 whose rows of the table are filled from other conditions, measured once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pandas as pd

from rebinding.evidence import Evidence

Renamed: TypeAlias = tuple[tuple[str, str], ...]
"""Rows of the table, each with the condition that is run for it; other rows are run under their own name."""


@dataclass(frozen=True, eq=False)
class UnderCandidate(Evidence):
    """A part of the evidence `whole`; a row of the table has one condition."""

    whole: Evidence
    renamed: Renamed


@lru_cache(maxsize=16)
def under(evidence: Evidence, renamed: Renamed) -> Evidence:
    """The evidence with these rows of the table filled from their conditions."""
    if not renamed:
        return evidence
    conditions = dict(evidence.settings["conditions"])
    named = {row: conditions[condition] for row, condition in renamed}  # a KeyError where it was not run
    others = {name: one for name, one in conditions.items() if name not in {*named, *dict(renamed).values()}}
    settings = {**evidence.settings, "conditions": {**others, **named}}
    return UnderCandidate(evidence.experiment, select(evidence.rows, renamed), settings, evidence, renamed)


def select(table: pd.DataFrame, renamed: Renamed) -> pd.DataFrame:
    """What a table of all conditions says under these names."""
    names = {condition: row for row, condition in renamed}
    kept = table[~table["condition"].isin(names.values())]
    return kept.assign(condition=kept["condition"].replace(names)).reset_index(drop=True)
