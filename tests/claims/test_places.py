"""Rows on what may have been read at one of two tokens: judged at both, and never refuted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import test_binding as of_binding
from claims import test_roles as of_roles
from claims.parts import at_every_readout
from rebinding.paper.claim import LEVEL, Claim
from rebinding.paper.procedure import BindingWay, RolesWay, given
from rebinding.paper.rows.binding import SIGNATURE, TABLE
from rebinding.paper.rows.roles import LOWERS, MOVES
from rebinding.power.rows import Row, rows
from rebinding.verdicts import Outcome, Verdict, effect, require
from rebinding.verdicts.gates import requirement

FEW = 6
READ_ELSEWHERE = ("binding.families_differ",)
"""A row on the verdicts of others."""
WHERE: tuple[Row, ...] = tuple(
    row for row in rows() if row.claim.id.startswith(("roles.", "binding.")) and row.claim.id not in READ_ELSEWHERE
)


def study_at(**places: Any) -> Any:
    """A study that may have been read at any of these, each of which knows one number of every prompt."""
    studies = {name: SimpleNamespace(knows=value) for name, value in places.items()}
    return SimpleNamespace(procedure=lambda claim: given(claim.procedure), at_readouts=lambda way: studies)


@at_every_readout("roles")
def judged(claim: Claim, study: Any) -> Verdict:
    require(requirement("there", study.knows is not None, "nothing is known here"))
    return effect(study.knows + np.linspace(-0.1, 0.1, FEW), margin=1.0, level=claim.level)


@pytest.mark.parametrize(
    ("knows", "outcome", "reason"),
    [
        ({"here": 3.0}, "REPLICATED", ""),
        ({"here": -3.0}, "NOT REPLICATED", ""),
        ({"here": None}, "INVALID", "nothing is known here"),
        ({"here": 3.0, "there": -3.0}, "REPLICATED", "unidentified in the paper; agrees with here"),
        ({"here": -3.0, "there": 3.0}, "REPLICATED", "unidentified in the paper; agrees with there"),
        ({"here": -3.0, "there": -4.0}, "INCONCLUSIVE", "unidentified in the paper; agrees with none of here, there"),
        ({"here": None, "there": 3.0}, "REPLICATED", "unidentified in the paper; agrees with there"),
        ({"here": -3.0, "there": None}, "INCONCLUSIVE", "unidentified in the paper; agrees with none of here"),
        ({"here": None, "there": None}, "INVALID", "nothing is known here"),
    ],
)
def test_a_row_that_may_be_about_either(knows: Mapping[str, float], outcome: Outcome, reason: str) -> None:
    found = judged(LOWERS, study_at(**knows))
    assert (found.outcome, reason in found.reason) == (outcome, True)


def test_places_share_the_level() -> None:
    levels: list[float] = []

    @at_every_readout("binding")
    def noting(claim: Claim, study: Any) -> Verdict:
        levels.append(claim.level)
        return effect(np.linspace(0.9, 1.1, FEW), margin=1.0, level=claim.level)

    noting(LOWERS, study_at(here=0.0))
    noting(LOWERS, study_at(here=0.0, there=0.0))
    noting(replace(LOWERS, level=0.02), study_at(here=0.0, there=0.0))
    assert levels == [LEVEL, LEVEL / 2, LEVEL / 2, 0.01, 0.01]


def test_what_is_not_known_besides_shares_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which random direction was printed, and whether heads or examples switch, at either token."""
    levels: list[float] = []

    def noting(*_: Any, level: float, **options: Any) -> Verdict:
        levels.append(level)
        return effect(np.linspace(0.9, 1.1, FEW), margin=1.0, level=level)

    study = SimpleNamespace(procedure=lambda claim: given(claim.procedure), printed=lambda _: 1.0, binding=lambda _: 0)
    study.at_readouts = lambda way: {"here": study, "there": study}
    monkeypatch.setattr(of_binding, "value", noting)
    monkeypatch.setattr(of_binding, "controls", lambda _: ("one", "two", "three"))
    monkeypatch.setattr(of_binding, "shift", lambda *_: np.zeros(FEW))
    of_binding.test_the_printed_table(TABLE["random.switch"], study)
    assert levels == pytest.approx([LEVEL / 12] * 12)
    levels.clear()
    monkeypatch.setattr(of_roles, "value", noting)
    monkeypatch.setattr(of_roles, "change", lambda *_: np.zeros(FEW))
    of_roles.test_b_moves_the_pointer_target(MOVES, study)
    assert min(levels) == pytest.approx(LEVEL / 4)


@pytest.mark.parametrize("row", WHERE, ids=lambda row: row.claim.id)
def test_every_row_of_both_sections_asks_where(row: Row) -> None:
    """Each for its own section's convention, and every part of its sentence at the level that is left to it."""
    asked: list[Any] = []

    def at_readouts(way: Any) -> Any:
        asked.append(way)
        raise LookupError

    study: Any = SimpleNamespace(procedure=lambda claim: given(claim.procedure), at_readouts=at_readouts)
    with pytest.raises(LookupError):
        row.test(row.claim, study)
    assert [type(one) for one in asked] == [RolesWay if row.claim.id.startswith("roles.") else BindingWay]


def test_signatures_are_told_of_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def shift(study: Any, condition: str, measure: str) -> Any:
        return {"q": study.knows, "k_both": 3.0, "qk": study.both}[condition] + np.linspace(-0.1, 0.1, FEW)

    monkeypatch.setattr(of_binding, "shift", shift)
    keys, matching = SimpleNamespace(knows=0.0, both=3.0), SimpleNamespace(knows=3.0, both=0.0)
    for one in (keys, matching):
        one.binding = partial(lambda of, claim: of, one)
    keys.procedure = lambda claim: given(claim.procedure)
    keys.at_readouts = lambda way: {"here": keys, "there": matching}
    found = of_binding.test_the_signature(SIGNATURE, keys)
    assert found.finding == "key-dominated here, matching there"
    assert found.measured == pytest.approx(3.0)
