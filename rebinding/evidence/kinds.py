"""Kinds of evidence: which columns each has, what of them is one unit, and what an edit is.

Every kind is declared once, beside the experiment that makes it. Evidence is made through its kind, so a column that is
missing, misspelt or new is an error where it arises and not a wrong number three rooms away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rebinding.evidence.evidence import Evidence, EvidenceError


@dataclass(frozen=True)
class Kind:
    """One kind of evidence.

    `numbered` is a pattern for families of columns such as `before_logit_0`; `lacking` are columns whose numbers may
    not exist (NaN). `unit` is the column that tells units apart. `edits` are the columns that tell edits apart, each of
    which must have `moved` something in some row; None for kinds in which nothing is edited, or nothing is recorded.
    `unedited` is a column and its value in rows that are there to compare with, and in which nothing is edited.
    """

    name: str
    columns: tuple[str, ...]
    numbered: str = "(?!)"
    lacking: tuple[str, ...] = ()
    unit: str = "prompt"
    edits: tuple[str, ...] | None = None
    unedited: tuple[str, str] | None = None

    def evidence(self, rows: pd.DataFrame, settings: Mapping[str, Any]) -> Evidence:
        """Rows and settings, if the rows are of this kind."""
        given, wanted = set(rows.columns), set(self.columns)
        missing = sorted(wanted - given)
        strange = sorted(name for name in given - wanted if not re.fullmatch(self.numbered, str(name)))
        if missing or strange:
            raise EvidenceError(f"evidence of {self.name} lacks the columns {missing} and has {strange}, unknown to it")
        return Evidence(self.name, rows, settings)
