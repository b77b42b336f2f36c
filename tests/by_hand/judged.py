"""The claims' own code in this process, on a model and a few prompts: verdicts, and the evidence that they rest on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import claims
from fixtures.judging import judge
from rebinding.evidence import Evidence, Request
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import GIVEN, Procedure, given
from rebinding.study import case, circuit, contributions, knockout, static
from rebinding.study.asked import asked_of
from rebinding.study.case import Case
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.verdicts.judgement import Judgement

FEW, FEWER, ABLE = 3, 1, 9
"""Prompts of a row; of what is run at every layer or with every head, which takes most of the time in thirty layers;
and of what a gate looks at that wants the task done surely: 3 ** -7 is the first power below 0.1 %."""
SEARCHING = ("beyond.route_through_swap_labels", "beyond.groups_at_their_places")
"""Rows on a search over all heads and tokens: an hour of two cores in thirty layers, on however few prompts. What a
step of it computes is held against full forwards in tests/anywhere."""
NEEDS_ABLE = ("robust.more_operations", "beyond.static_and_bystander")


class Small(Case):
    """A case that asks for few prompts, whatever rows say."""

    def n(self, claim: Claim) -> int:
        if self.plant is None and claim.id.startswith("tracing."):
            return FEWER
        return ABLE if claim.id in NEEDS_ABLE else FEW

    def size(self, what: str) -> int:
        return ABLE if what.startswith("able") else FEWER if what == "paths" else FEW

    def directions(self, sets: int) -> int:
        return FEW


@dataclass(frozen=True)
class Row:
    """What the judge says of a row, and what it asked for."""

    claim: Claim
    told: Judgement
    grounds: tuple[Request, ...]


@dataclass(frozen=True, eq=False)
class Judged:
    """All rows on one model."""

    case: Case
    study: Study
    rows: tuple[Row, ...]

    @property
    def known(self) -> dict[Request, Evidence]:
        """Every piece of evidence that some row asked for."""
        return self.study.known


def judged(name: str, circuit_file: Path | None = None) -> Judged:
    """Every row of the claims judged on a model, but those on a search. Sizes that no setting changes are made small
    as well: what is compared is arithmetic, for which any number of prompts will do."""
    asked = asked_of(name)
    told = None if circuit_file is None else str(circuit_file)
    small = Small(asked, Settings((asked,), device="cpu", dtype="float32", circuit=told, procedures=ways()))
    study = Study(small)
    with pytest.MonkeyPatch.context() as patch:
        for module, constant, value in SMALLER:
            patch.setattr(module, constant, value)
        asked_for = (one for one in every() if one[0].id not in SEARCHING)
        rows = tuple(_row(claim, small, study, test) for claim, test in asked_for)
    return Judged(small, study, rows)


def ways() -> tuple[Procedure, ...]:
    """The two procedures, with fewer sets of directions, and one of the published discoveries that it may have been."""
    return tuple(
        replace(
            one,
            binding=replace(one.binding, batches=min(2, one.binding.batches)),
            circuit=next(iter(one.circuit.candidates.values())),
        )
        for one in map(given, GIVEN)
    )


SMALLER: tuple[tuple[Any, str, Any], ...] = (
    (circuit, "PROMPTS_OF_MEANS", dict.fromkeys(circuit.PROMPTS_OF_MEANS, FEW)),
    (circuit, "DRAWS", 2),
    (static, "DRAWS", 2),
    (knockout, "DRAWS", 2),
    (circuit, "ORDERS", 2),
    (static, "PAIRS", FEWER),
    (contributions, "RANDOM_SETS", 2),
    (case, "DRAWS", 2),
    (case, "PLANTED_DRAWS", 2),
)


def every() -> Iterator[tuple[Claim, Any]]:
    """Rows with the tests that judge them."""
    for path in sorted(Path(str(claims.__file__)).parent.glob("test_*.py")):
        for test in vars(importlib.import_module(f"claims.{path.stem}")).values():
            for mark in getattr(test, "pytestmark", ()):
                if mark.name == "parametrize" and mark.args[0] == "claim":
                    yield from ((claim, test) for claim in mark.args[1])


def _row(claim: Claim, small: Case, study: Study, test: Any) -> Row:
    """Of so few prompts a head's score may have no spread at all, and is then surely what it is: t is infinite."""
    with np.errstate(over="ignore"):
        told = judge(claim, small, study, partial(test, claim, study))
    return Row(claim, told, tuple(use.request for use in study.used if use.ground))
