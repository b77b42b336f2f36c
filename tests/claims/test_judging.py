"""Sentences of several parts, and what becomes of a verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict, effect
from rebinding.verdicts.judgement import Judgement, judgement
from rebinding.verdicts.sentences import Part, all_of, any_of

UP: Part = partial(effect, np.ones(30), margin=0.1)
DOWN: Part = partial(effect, -np.ones(30), margin=0.1)
OPEN: Part = partial(effect, np.tile([3.0, -2.5], 15), margin=0.1)
CLAIM = Claim("binding.k_redirects", "Keys redirect.", "section 5", "effect", ("dR",), "mean", "group B")


@pytest.mark.parametrize(
    ("parts", "every", "some"),
    [
        ((UP, UP), "REPLICATED", "REPLICATED"),
        ((UP, DOWN), "NOT REPLICATED", "REPLICATED"),
        ((DOWN, DOWN), "NOT REPLICATED", "NOT REPLICATED"),
        ((UP, OPEN), "INCONCLUSIVE", "REPLICATED"),
        ((DOWN, OPEN), "NOT REPLICATED", "INCONCLUSIVE"),
    ],
)
def test_all_and_any(parts: tuple[Part, ...], every: str, some: str) -> None:
    named = {str(number): part for number, part in enumerate(parts)}
    assert all_of("effect", named).outcome == every
    assert any_of("effect", named).outcome == some


def test_one_part_of_many_needs_more_evidence_to_refute() -> None:
    """A part that is refuted at 5 % alone, but not at 5 % / 20, leaves the sentence open."""
    draws = np.random.default_rng(0).normal(-0.23, 1, 60)
    barely: Part = partial(effect, draws, margin=0.1)
    assert all_of("effect", {"alone": barely}).outcome == "NOT REPLICATED"
    assert all_of("effect", {"barely": barely} | {str(n): UP for n in range(19)}).outcome == "INCONCLUSIVE"


def test_an_invalid_part_makes_the_sentence_invalid() -> None:
    broken: Part = partial(effect, np.full(30, np.nan), margin=0.1)
    found = all_of("effect", {"fine": UP, "broken": broken})
    assert (found.outcome, found.gate) == ("INVALID", "finite")


def test_no_parts_no_verdict() -> None:
    with pytest.raises(ValueError, match="without parts"):
        all_of("effect", {})


def judged(verdict: Verdict, expected: str | None) -> Judgement:
    return judgement(CLAIM, verdict, model="m", expected=expected, paper=None, design="published", circuit="declared")


def test_what_counts_as_expected() -> None:
    up, gone = UP(level=0.05), Verdict("effect", "INVALID", "no heads", gate="group_present")
    assert judged(up, "REPLICATED").as_expected
    assert not judged(up, "NOT REPLICATED").as_expected
    assert judged(gone, "INVALID (group_present)").as_expected
    assert not judged(gone, "INVALID (above_chance)").as_expected
    assert not judged(gone, None).as_expected, "a row that is only reported must still be valid"
    assert judged(DOWN(level=0.05), None).as_expected


def test_a_test_may_only_use_the_margins_of_its_claim() -> None:
    assert CLAIM.margin() == CLAIM.margin("dR") == 0.2
    with pytest.raises(ValueError, match="it declares dR; add dlogit to"):
        CLAIM.margin("dlogit")
    with pytest.raises(ValueError, match="never judged"):
        replace(CLAIM, metrics=("count",)).margin()
