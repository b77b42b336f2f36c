"""What must hold of the rules for any sample."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rebinding.paper.numbers import printed_number
from rebinding.verdicts import effect, no_effect, ordering, value

STRENGTH = {"NOT REPLICATED": 0, "INCONCLUSIVE": 1, "REPLICATED": 2}
HUNDREDTHS = st.integers(-500, 500).map(lambda hundredths: hundredths / 128)  # exact in binary: shifts lose nothing
SAMPLES = st.integers(5, 40).flatmap(lambda n: arrays(np.float64, n, elements=HUNDREDTHS))
MARGINS = st.sampled_from([0.05, 0.2, 1.0, 3.0])


def printed(hundredths):
    return printed_number("plant", f"{hundredths / 100:.2f}", kind="dR", source="plant", n=100)


@settings(max_examples=60, deadline=None)
@given(SAMPLES, st.integers(-300, 300), MARGINS, MARGINS)
def test_a_wider_margin_never_weakens_a_value_or_a_no_effect(sample, paper, first_margin, second_margin):
    narrow, wide = sorted((first_margin, second_margin))
    for rule in (lambda m: value(sample, printed(paper), margin=m), lambda m: no_effect(sample, margin=m)):
        assert STRENGTH[rule(narrow).outcome] <= STRENGTH[rule(wide).outcome]


@settings(max_examples=60, deadline=None)
@given(SAMPLES, MARGINS, MARGINS)
def test_a_wider_margin_never_strengthens_an_effect(sample, first_margin, second_margin):
    narrow, wide = sorted((first_margin, second_margin))
    assert STRENGTH[effect(sample, margin=wide).outcome] <= STRENGTH[effect(sample, margin=narrow).outcome]


@settings(max_examples=60, deadline=None)
@given(SAMPLES, st.integers(-300, 300), MARGINS)
def test_signs_do_not_matter_where_the_claim_has_none(sample, paper, margin):
    assert (
        value(sample, printed(paper), margin=margin).outcome == value(-sample, printed(-paper), margin=margin).outcome
    )
    assert no_effect(sample, margin=margin).outcome == no_effect(-sample, margin=margin).outcome


@settings(max_examples=60, deadline=None)
@given(SAMPLES, MARGINS)
def test_effect_and_no_effect_never_agree_that_both_hold(sample, margin):
    if no_effect(sample, margin=margin).outcome == "REPLICATED":
        assert effect(sample, margin=margin).outcome == "NOT REPLICATED"


@settings(max_examples=60, deadline=None)
@given(SAMPLES, HUNDREDTHS, MARGINS)
def test_a_common_shift_cancels(sample, shift, margin):
    """Exact in binary, so that not even the last bit of the spread changes, up to rounding of the mean."""
    base = np.roll(sample, 1)
    assert (
        ordering(sample + shift, base + shift, margin=margin).outcome == ordering(sample, base, margin=margin).outcome
    )
    changed = effect(sample + shift, margin=margin, above=shift)
    assert changed.low - shift == np.float64(changed.low) - shift
    assert abs((changed.low - shift) - effect(sample, margin=margin).low) < 1e-9


@settings(max_examples=60, deadline=None)
@given(SAMPLES, st.randoms(use_true_random=False), MARGINS)
def test_the_order_of_examples_does_not_matter(sample, random, margin):
    shuffled = list(sample)
    random.shuffle(shuffled)
    first, second = effect(sample, margin=margin), effect(shuffled, margin=margin)
    assert first.outcome == second.outcome
    assert abs(first.high - second.high) < 1e-9


@settings(max_examples=60, deadline=None)
@given(SAMPLES, st.integers(-300, 300), MARGINS)
def test_every_verdict_is_complete(sample, paper, margin):
    for verdict in (value(sample, printed(paper), margin=margin), effect(sample, margin=margin)):
        assert verdict.low <= verdict.measured <= verdict.high or verdict.kind == "value"
        assert verdict.outcome in STRENGTH
        assert verdict.n == len(sample)
        assert (verdict.needed_n is None) or verdict.needed_n > verdict.n
        assert 0 <= verdict.p_value <= 1
