"""Rows that the paper may have judged under any of several conventions: readout tokens, candidates, shared keys. They
share the level, and a sentence is refuted where it fails under all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import conventions
from claims import test_binding as of_binding
from claims import test_roles as of_roles
from claims.catalogue import Row, catalogue, claim
from claims.conventions import SHARED_KEYS, judge_candidates, judge_studies, with_shared_keys
from rebinding.paper.claim import LEVEL, Claim
from rebinding.paper.procedure import builtin_procedure
from rebinding.study.study import Study
from rebinding.verdicts import Outcome, Verdict, effect, invalid, require
from rebinding.verdicts.gates import requirement

LOWERS = claim("roles.a_lowers_content")
MOVES = claim("roles.b_moves_pointer")
N_PROMPTS = 6
BOUNDARY = np.linspace(0.9, 1.1, N_PROMPTS)
"""Its mean lies on the margin: open at any level."""


def study_at(**places: Any) -> Any:
    """Studies at several tokens, each of which knows one number of every prompt."""
    return {name: SimpleNamespace(knows=value) for name, value in places.items()}


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
def test_a_row_that_may_be_about_either_token(knows: Mapping[str, float], outcome: Outcome, reason: str) -> None:
    def judged(claim: Claim, study: Any) -> Verdict:
        require(requirement("there", study.knows is not None, "nothing is known here"))
        return effect(study.knows + BOUNDARY - 1, margin=1.0, level=claim.level)

    result = judge_studies(LOWERS, judged, study_at(**knows))
    assert (result.outcome, reason in result.reason) == (outcome, True)
    assert result.gate == ("there" if outcome == "INVALID" else None)
    assert result.unidentified == (outcome == "INCONCLUSIVE" and -3.0 in knows.values())


def test_tokens_share_the_level() -> None:
    """To be held at one of two tokens takes half of the level each; to be refuted at both, all of it."""
    levels: set[float] = set()

    def noting(claim: Claim, study: Any) -> Verdict:
        levels.add(claim.level)
        return effect(BOUNDARY, margin=1.0, level=claim.level)

    for level, places, expected in ((LEVEL, ("here",), {LEVEL}), (LEVEL, ("here", "there"), {LEVEL, LEVEL / 2}),
                                 (0.02, ("here", "there"), {0.02, 0.01})):  # fmt: skip
        levels.clear()
        judge_studies(replace(LOWERS, level=level), noting, study_at(**dict.fromkeys(places, 0.0)))
        assert levels == expected


@pytest.mark.parametrize(
    ("row", "levels"), [(MOVES, {LEVEL / 4}), (claim("roles.b_raises_pointer"), {LEVEL / 4, LEVEL})]
)
def test_candidates_share_the_level(row: Claim, levels: set[float]) -> None:
    """One of several conventions is the right one, and nobody knows which: an error on any of them is an error. A
    sentence is refuted only if it fails under all of them, so there each has the whole level."""
    calls: set[tuple[str, float]] = set()

    def judge(name: str, level: float) -> Verdict:
        calls.add((name, level))
        return effect(BOUNDARY, margin=1.0, level=level)

    names = ("one", "two", "three", "four")
    judge_candidates(row, judge, names)
    assert calls == {(name, level) for name in names for level in levels}


def test_unknown_conventions_share_the_remaining_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which random direction was printed, and whether heads or examples switch, at either token."""
    levels: list[float] = []

    def noting(*_: Any, level: float, **options: Any) -> Verdict:
        levels.append(level)
        return effect(BOUNDARY, margin=1.0, level=level)

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


class NamedConvention(Exception):
    """A row asked for the conventions of a section."""


def test_every_row_of_both_sections_asks_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for its own section's convention, before anything is measured."""

    class Conventions:
        def __getattr__(self, name: str) -> Any:
            raise NamedConvention(name)

    study = Study(*(SimpleNamespace() for _ in range(4)))  # nothing of them is needed
    monkeypatch.setattr(Study, "procedure", lambda study, claim: Conventions())
    rows: list[Row] = [row for row in catalogue() if row.claim.section in ("roles", "binding")]
    assert len(rows) > 50
    for row in rows:
        with pytest.raises(NamedConvention, match=f"^{row.claim.section}$"):
            conventions.judge_row(row.claim, study, row.test)


# Keys of KV groups that all heads share

CANCELS = claim("binding.qk_cancels")


@pytest.mark.parametrize(
    ("n_kv_heads", "scope", "is_said"), [(1, "group", True), (1, "head", False), (2, "group", False)]
)
def test_a_row_says_that_all_heads_share_the_edited_keys(n_kv_heads: int, scope: str, is_said: bool) -> None:
    """Of a model whose lowest layer has no heads. A row that is not judged keeps its reason."""
    parts = [SimpleNamespace(n_heads=0, n_kv_heads=0), SimpleNamespace(n_heads=4, n_kv_heads=n_kv_heads)]
    anatomy = SimpleNamespace(parts=parts)
    study: Any = SimpleNamespace(_model=SimpleNamespace(loaded_model=SimpleNamespace(anatomy=anatomy)))
    study.has_one_kv_head = Study.has_one_kv_head.fget(study)
    study.procedure = lambda _: SimpleNamespace(binding=SimpleNamespace(scope=scope))
    reason = with_shared_keys(CANCELS, Verdict("ordering", "REPLICATED", "the estimate", n=12), study).reason
    assert reason == (f"the estimate; {SHARED_KEYS}" if is_said else "the estimate")
    stopped = invalid("ordering", "finite", "not a number")
    assert with_shared_keys(CANCELS, stopped, study) == stopped


def test_the_procedures_differ_in_what_they_edit() -> None:
    """The published row edits KV groups, the controlled one single heads: the text points from one to the other."""
    assert builtin_procedure("published").binding.scope == "group"
    assert builtin_procedure("controlled").binding.scope == "head"
