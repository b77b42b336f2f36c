"""The evidence of a row, for an estimate by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from rebinding.evidence import Request
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import Procedure
from tests.oracles.by_hand.judgements import Judged, Row


@dataclass(frozen=True, eq=False)
class Grounds:
    """The evidence of one row, by what was asked."""

    row: Row
    judged: Judged

    @property
    def claim(self) -> Claim:
        return self.row.claim

    @property
    def conventions(self) -> Procedure:
        """The conventions of the row."""
        return self.judged.study.procedure(self.claim)

    @property
    def margin(self) -> float:
        """What counts, of the row's first quantity."""
        return self.claim.margin()

    def all(self, kind: type[Request], **options: Any) -> list[tuple[Any, pd.DataFrame]]:
        """Every request of a kind with these fields, and its evidence."""
        return [
            (request, self.judged.evidence_by_request[request].rows)
            for request in dict.fromkeys(self.row.grounds)
            if type(request) is kind and all(getattr(request, name) == value for name, value in options.items())
        ]

    def single(self, kind: type[Request], **options: Any) -> tuple[Any, pd.DataFrame]:
        """The only one."""
        (pair,) = self.all(kind, **options)
        return pair

    def rows(self, kind: type[Request], **options: Any) -> pd.DataFrame:
        """Its evidence."""
        return self.single(kind, **options)[1]


Estimates: TypeAlias = Callable[[Grounds], Mapping[str, float]]
"""From a row to estimates of the parts of its sentence, by name; a whole sentence has none."""
