"""Rows that edit the keys of KV groups say what they reach in a model with one KV head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from claims.catalogue import claim
from claims.conventions import SHARED_KEYS, with_shared_keys
from rebinding.paper.procedure import builtin_procedure
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, invalid

CANCELS = claim("binding.qk_cancels")
JUDGED = Verdict("ordering", "REPLICATED", "the estimate", n=12)


def make_study(n_kv_heads: int, scope: str) -> Any:
    """A study that knows its layers, the lowest without heads, and one convention."""
    parts = [SimpleNamespace(n_heads=0, n_kv_heads=0), SimpleNamespace(n_heads=4, n_kv_heads=n_kv_heads)]
    anatomy = SimpleNamespace(parts=parts)
    study = SimpleNamespace(_model=SimpleNamespace(loaded_model=SimpleNamespace(anatomy=anatomy)))
    study.has_one_kv_head = Study.has_one_kv_head.fget(study)  # type: ignore[attr-defined]
    study.procedure = lambda _: SimpleNamespace(binding=SimpleNamespace(scope=scope))
    return study


@pytest.mark.parametrize(
    ("n_kv_heads", "scope", "is_said"), [(1, "group", True), (1, "head", False), (2, "group", False)]
)
def test_a_row_says_that_all_heads_share_the_edited_keys(n_kv_heads: int, scope: str, is_said: bool) -> None:
    reason = with_shared_keys(CANCELS, JUDGED, make_study(n_kv_heads, scope)).reason
    assert reason == (f"the estimate; {SHARED_KEYS}" if is_said else "the estimate")


def test_a_row_that_is_not_judged_keeps_its_reason() -> None:
    verdict = invalid("ordering", "finite", "not a number")
    assert with_shared_keys(CANCELS, verdict, make_study(1, "group")) == verdict


def test_the_procedures_differ_in_what_they_edit() -> None:
    """The published row edits KV groups, the controlled one single heads: the text points from one to the other."""
    assert builtin_procedure("published").binding.scope == "group"
    assert builtin_procedure("controlled").binding.scope == "head"
