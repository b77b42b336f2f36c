"""Beyond the paper: would the conclusions survive a better experiment?"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from claims.parts import over_random
from claims.rows import judges
from claims.shifts import more, nothing
from rebinding.experiments.binding.summary import shift
from rebinding.paper.claim import Claim
from rebinding.paper.rows.robustness import BALANCED_MEAN, FRESH, LEAK, MORE, RANDOM, THIRD
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, effect, guarded
from rebinding.verdicts.sentences import Part, all_of

MOST = 0.9


@judges(LEAK)
def test_shifted_keys_do_not_leak(claim: Claim, study: Study) -> Verdict:
    whole, alone = (shift(study.binding(claim, how), "k_both", "dlogit") for how in ("published", "isolated"))
    return nothing(whole - alone, claim.margin())(level=claim.level)


@judges(THIRD)
def test_shifts_reach_the_third_slot(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim, "third slot")
    return all_of(
        claim.kind,
        {name: more(shift(evidence, name, "dR"), claim.margin()) for name in ("q", "k_both")},
    )


@judges(RANDOM)
def test_shifts_leave_the_spread_of_random_directions(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim, "random directions")
    parts: dict[str, Part] = {}
    for name, control in (("q", "matched_q"), ("k_both", "matched_k")):
        random = np.abs(shift(evidence, control, "dR").mean(axis=1))
        smaller = random + claim.margin() < shift(evidence, name, "dR").mean()
        parts[name] = partial(effect, np.asarray(smaller), above=MOST, margin=0.0, unit=claim.unit)
    return all_of(claim.kind, parts)


@judges(BALANCED_MEAN)
def test_the_circuit_does_not_need_means_that_know_a_slot(claim: Claim, study: Study) -> Verdict:
    return over_random(claim, study.ablated(claim, means="counterbalanced"))(level=claim.level)


@judges(FRESH)
def test_the_circuit_serves_new_words(claim: Claim, study: Study) -> Verdict:
    """A word that the model knows well is answered well in every prompt: words are what is drawn."""
    halves = {
        "test half": study.ablated_elsewhere(claim, name="published", split="test"),
        "evaluation third": study.ablated_elsewhere(claim, name="counterbalanced", split="evaluation"),
    }
    return all_of(claim.kind, {name: over_random(claim, one, study.words(one)) for name, one in halves.items()})


@judges(MORE)
def test_the_circuit_serves_other_operations(claim: Claim, study: Study) -> Verdict:
    n = study.n(claim)
    kinds: dict[str, dict[str, Any]] = {"two swaps": {"operations": 2}, "a move": {"verb": "move"}}
    return guarded(
        claim.kind,
        (study.able_at(n, **options) for options in kinds.values()),
        lambda: all_of(
            claim.kind,
            {name: over_random(claim, study.ablated_elsewhere(claim, **options)) for name, options in kinds.items()},
        ),
    )
