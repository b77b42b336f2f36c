"""Rows whose readout token may be one of two are judged at both, and refuted where they fail at both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import conventions, signatures
from claims import test_binding as of_binding
from claims import test_binding_signatures as of_signatures
from claims import test_roles as of_roles
from claims.catalogue import Row, catalogue, claim
from claims.conventions import judge_studies
from rebinding.paper.claim import LEVEL, Claim
from rebinding.paper.procedure import builtin_procedure
from rebinding.study.study import Study
from rebinding.verdicts import Outcome, Verdict, effect, require
from rebinding.verdicts.gates import requirement

SIGNATURE = claim("binding.signature")
LOWERS = claim("roles.a_lowers_content")
MOVES = claim("roles.b_moves_pointer")
N_PROMPTS = 6
PLACE_ROWS: tuple[Row, ...] = tuple(row for row in catalogue() if row.claim.section in ("roles", "binding"))


def study_at(**places: Any) -> Any:
    """Studies at several tokens, each of which knows one number of every prompt."""
    return {name: SimpleNamespace(knows=value) for name, value in places.items()}


def judged(claim: Claim, study: Any) -> Verdict:
    require(requirement("there", study.knows is not None, "nothing is known here"))
    return effect(study.knows + np.linspace(-0.1, 0.1, N_PROMPTS), margin=1.0, level=claim.level)


@pytest.mark.parametrize(
    ("knows", "outcome", "reason"),
    [
        ({"here": 3.0}, "REPLICATED", ""),
        ({"here": -3.0}, "NOT REPLICATED", ""),
        ({"here": None}, "INVALID", "nothing is known here"),
        ({"here": 3.0, "there": -3.0}, "REPLICATED", "; here: "),
        ({"here": -3.0, "there": 3.0}, "REPLICATED", "; there: "),
        ({"here": -3.0, "there": -4.0}, "NOT REPLICATED", "; there: "),
        ({"here": -3.0, "there": 1.0}, "INCONCLUSIVE", "; there: "),
        ({"here": 1.0, "there": 1.0}, "INCONCLUSIVE", "; here: "),
        ({"here": None, "there": 3.0}, "REPLICATED", "; there: "),
        ({"here": -3.0, "there": None}, "INCONCLUSIVE", "not judged under there (there), and refuted under all others"),
        ({"here": None, "there": None}, "INVALID", "nothing is known here"),
    ],
)
def test_a_row_that_may_be_about_either(knows: Mapping[str, float], outcome: Outcome, reason: str) -> None:
    result = judge_studies(LOWERS, judged, study_at(**knows))
    assert (result.outcome, reason in result.reason) == (outcome, True)
    assert result.gate == ("there" if outcome == "INVALID" else None)
    assert result.unidentified == (outcome == "INCONCLUSIVE" and -3.0 in knows.values())


def test_places_share_the_level() -> None:
    """To be held at one of two tokens takes half of the level each; to be refuted at both, all of it."""
    levels: set[float] = set()

    def noting(claim: Claim, study: Any) -> Verdict:
        levels.add(claim.level)
        return effect(np.linspace(0.9, 1.1, N_PROMPTS), margin=1.0, level=claim.level)

    for level, places, expected in ((LEVEL, ("here",), {LEVEL}), (LEVEL, ("here", "there"), {LEVEL, LEVEL / 2}),
                                 (0.02, ("here", "there"), {0.02, 0.01})):  # fmt: skip
        levels.clear()
        judge_studies(replace(LOWERS, level=level), noting, study_at(**dict.fromkeys(places, 0.0)))
        assert levels == expected


def test_unknown_conventions_share_the_remaining_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which random direction was printed, and whether heads or examples switch, at either token."""
    levels: list[float] = []

    def noting(*_: Any, level: float, **options: Any) -> Verdict:
        levels.append(level)
        return effect(np.linspace(0.9, 1.1, N_PROMPTS), margin=1.0, level=level)

    study = SimpleNamespace(
        has_one_kv_head=False,
        procedure=lambda claim: builtin_procedure(claim.procedure),
        printed=lambda _: 1.0,
        binding=lambda _: 0,
    )
    study.at_readouts = lambda claim: {"here": study, "there": study}
    study.candidates = study.at_readouts
    monkeypatch.setattr(of_binding, "value", noting)
    monkeypatch.setattr(of_binding, "controls", lambda _: ("one", "two", "three"))
    monkeypatch.setattr(of_binding, "shift", lambda *_: np.zeros(N_PROMPTS))
    monkeypatch.setattr(conventions, "attention_by_head", lambda _: "some")
    conventions.judge_row(claim("binding.table.random.switch"), study, of_binding.test_the_printed_table)
    assert levels == pytest.approx([LEVEL / 12] * 12)
    levels.clear()
    monkeypatch.setattr(of_roles, "value", noting)
    monkeypatch.setattr(of_roles, "change", lambda *_: np.zeros(N_PROMPTS))
    study.candidates = lambda claim: dict.fromkeys(("code", "there", "text"), study)
    conventions.judge_row(MOVES, study, of_roles.test_b_moves_the_pointer_target)
    assert min(levels) == pytest.approx(LEVEL / 3), "either token as released, and the text's version at one of them"


@pytest.mark.parametrize("row", PLACE_ROWS, ids=lambda row: row.claim.id)
def test_every_row_of_both_sections_asks_where(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for its own section's convention, and every part of its sentence at the level that is left to it."""
    requests: list[str] = []

    class Conventions:
        def __getattr__(self, name: str) -> Any:
            requests.append(name)
            raise LookupError

    study = Study(*(SimpleNamespace() for _ in range(4)))  # type: ignore[arg-type]  # nothing of them is needed
    monkeypatch.setattr(Study, "procedure", lambda study, claim: Conventions())
    with pytest.raises(LookupError):
        conventions.judge_row(row.claim, study, row.test)
    assert requests == ["roles" if row.claim.section == "roles" else "binding"]


def test_signatures_are_told_of_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def shift(study: Any, condition: str, measure: str) -> Any:
        return {"q": study.knows, "qk": study.both}.get(condition, 3.0) + np.linspace(-0.1, 0.1, N_PROMPTS)

    monkeypatch.setattr(of_signatures, "shift", shift)
    monkeypatch.setattr(signatures, "shift", shift)
    monkeypatch.setattr(conventions, "attention_by_head", lambda study: f"{study.knows:.0f} of each head")
    keys, matching = SimpleNamespace(knows=0.0, both=3.0), SimpleNamespace(knows=3.0, both=0.0)
    for case in (keys, matching):
        case.paper_model = None
        case.binding = partial(lambda value, claim: value, case)
    keys.has_one_kv_head = False
    keys.procedure = lambda claim: builtin_procedure(claim.procedure)
    keys.at_readouts = lambda claim: {"here": keys, "there": matching}
    verdict = of_signatures.test_the_signature(SIGNATURE, keys)
    assert verdict.finding == "key-dominated here, matching there"
    assert verdict.reason.endswith("; here, 0 of each head; there, 3 of each head")
    assert verdict.measured == pytest.approx(3.0)
