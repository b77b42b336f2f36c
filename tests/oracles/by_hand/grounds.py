"""The evidence of a row, and the part of its sentence whose number a verdict gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rebinding.evidence import Request
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import Procedure
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import Judgement
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
