"""Made-up evidence has the columns, the types and the units of what the experiments themselves produce."""

from __future__ import annotations

import pandas as pd
import pytest

from rebinding.evidence import Evidence, Request
from rebinding.paper.rows.binding import K_REDIRECTS
from rebinding.paper.rows.circuit import E_PRIME, LINKS, NEAR_FULL
from rebinding.paper.rows.roles import IS_POINTER
from rebinding.power.makers import MAKERS
from rebinding.power.world import Run, world
from rebinding.study.asked import asked_of
from rebinding.study.case import Case
from rebinding.study.settings import Settings
from rebinding.study.study import Study

N = 6
KEYS = ("prompt", "answer_slot", "i", "j", "condition", "draw", "which", "word", "group", "layer", "head", "order")
"""Columns that tell rows apart; everything else was measured."""


@pytest.fixture(scope="module")
def case() -> Case:
    asked = asked_of("planted:pointer@llama")
    return Case(asked, Settings((asked,), samples=N, device="cpu"))


@pytest.fixture(scope="module")
def measured(case: Case) -> dict[Request, Evidence]:
    """What a plant gives to the questions of a few rows, by question."""
    study = Study(case)
    list(study.gates(IS_POINTER))
    for pairs in ("pointer", "content_control"):
        study.roles(IS_POINTER, pairs)
    study.binding(K_REDIRECTS)
    study.ablated(NEAR_FULL)
    study.link(LINKS["B"], "B")
    study.prunings(NEAR_FULL)
    study.carried_on(E_PRIME)
    return study.known


def test_every_kind_that_can_be_made_up_is_compared(measured: dict[Request, Evidence]) -> None:
    assert {type(request) for request in measured} == set(MAKERS)


def test_rows_are_those_of_the_experiment(case: Case, measured: dict[Request, Evidence]) -> None:
    run = Run(world("paper", "gemma2-9b"), 0)
    for request, real in measured.items():
        rows, _ = MAKERS[type(request)](case.bench, request, run)
        kind = request.KIND
        made = kind.evidence(rows, {}).rows
        assert set(made.columns) == set(real.rows.columns), kind.name
        assert made[kind.unit].nunique() == real.rows[kind.unit].nunique() == request.n, kind.name
        keys = [name for name in KEYS if name in made and kind.name not in ("replays", "floors")]
        assert keyed(made, keys) == keyed(real.rows, keys), kind.name
        for name in made:
            assert numeric(made[name].dtype.kind) == numeric(real.rows[name].dtype.kind), (kind.name, name)


def keyed(rows: pd.DataFrame, keys: list[str]) -> list[tuple[object, ...]]:
    return sorted(zip(*(rows[name] for name in keys), strict=True)) if keys else []


def numeric(kind: str) -> bool:
    return kind in "iufb"
