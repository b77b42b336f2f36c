"""Verdicts of sentences with several parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict, effect
from rebinding.verdicts.judgement import Judgement, judgement
from rebinding.verdicts.sentences import Part, all_of, any_of

RISE: Part = partial(effect, np.ones(30), margin=0.1)
FALL: Part = partial(effect, -np.ones(30), margin=0.1)
OPEN: Part = partial(effect, np.tile([3.0, -2.5], 15), margin=0.1)
CLAIM = Claim("binding.k_redirects", "Keys redirect.", "section 5", "effect", ("dR",), "mean", "group B")


@pytest.mark.parametrize(
    ("parts", "expected_all", "expected_any"),
    [
        ((RISE, RISE), "REPLICATED", "REPLICATED"),
        ((RISE, FALL), "NOT REPLICATED", "REPLICATED"),
        ((FALL, FALL), "NOT REPLICATED", "NOT REPLICATED"),
        ((RISE, OPEN), "INCONCLUSIVE", "REPLICATED"),
        ((FALL, OPEN), "NOT REPLICATED", "INCONCLUSIVE"),
    ],
)
def test_sentence_verdicts_of_all_and_any(parts: tuple[Part, ...], expected_all: str, expected_any: str) -> None:
    by_name = {str(number): part for number, part in enumerate(parts)}
    assert all_of("effect", by_name).outcome == expected_all
    assert any_of("effect", by_name).outcome == expected_any


def test_refuting_by_a_single_part_needs_more_evidence() -> None:
    """A part that is refuted at 5 % alone, but not at 5 % / 20, leaves the sentence open."""
    draws = np.random.default_rng(0).normal(-0.23, 1, 60)
    weak: Part = partial(effect, draws, margin=0.1)
    assert all_of("effect", {"alone": weak}).outcome == "NOT REPLICATED"
    assert all_of("effect", {"barely": weak} | {str(n): RISE for n in range(19)}).outcome == "INCONCLUSIVE"


def test_an_invalid_part_makes_the_sentence_invalid() -> None:
    broken: Part = partial(effect, np.full(30, np.nan), margin=0.1)
    verdict = all_of("effect", {"fine": RISE, "broken": broken})
    assert (verdict.outcome, verdict.gate) == ("INVALID", "finite")


def test_sentence_without_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="without parts"):
        all_of("effect", {})


def judged(verdict: Verdict, expected: str | None) -> Judgement:
    return judgement(CLAIM, verdict, model="m", expected=expected, paper=None, design="published", circuit="declared")


def test_expected_verdicts_are_recognised() -> None:
    rise, invalid = RISE(level=0.05), Verdict("effect", "INVALID", "no heads", gate="group_present")
    assert judged(rise, "REPLICATED").as_expected
    assert not judged(rise, "NOT REPLICATED").as_expected
    assert judged(invalid, "INVALID (group_present)").as_expected
    assert not judged(invalid, "INVALID (above_chance)").as_expected
    assert not judged(invalid, None).as_expected, "a row that is only reported must still be valid"
    assert judged(FALL(level=0.05), None).as_expected


def test_a_test_may_only_use_the_margins_of_its_claim() -> None:
    assert CLAIM.margin() == CLAIM.margin("dR") == 0.2
    with pytest.raises(ValueError, match="it declares dR; add dlogit to"):
        CLAIM.margin("dlogit")
    with pytest.raises(ValueError, match="never judged"):
        replace(CLAIM, metrics=("count",)).margin()
