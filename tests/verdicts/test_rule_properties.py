"""What must hold of the rules for any sample: shift, sign, scale, order and margin; a sentence and its opposite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rebinding.paper.numbers import PublishedNumber, printed_number
from rebinding.verdicts import (
    Outcome,
    Verdict,
    effect,
    effect_nowhere,
    effect_somewhere,
    emptiness,
    no_effect,
    ordering,
    overlap,
    value,
)
from rebinding.verdicts.sentences import Part, all_of, any_of

Array = npt.NDArray[np.float64]
QUICK = settings(max_examples=20, deadline=None)
THOROUGH = settings(max_examples=60, deadline=None)
STRENGTH = {"NOT REPLICATED": 0, "INCONCLUSIVE": 1, "REPLICATED": 2}
MIRROR: Mapping[Outcome, Outcome] = {"REPLICATED": "NOT REPLICATED", "NOT REPLICATED": "REPLICATED"}
DYADIC = st.integers(-640, 640).map(lambda n: n / 128)  # exact in binary, so are sums of a few: shifts lose nothing
SAMPLES = st.integers(5, 30).flatmap(lambda n: arrays(np.float64, n, elements=DYADIC))
TABLES = st.tuples(st.integers(1, 4), st.integers(5, 12)).flatmap(lambda s: arrays(np.float64, s, elements=DYADIC))
MARGINS = st.sampled_from([0.0625, 0.25, 1.0, 2.0])
PAPERS = st.integers(-300, 300)
"""In hundredths."""


def printed(number: float, half_width: float = 0.0) -> PublishedNumber:
    return PublishedNumber("plant", number, half_width, "dR", "plant", f"{number}", 100, 10)


def printed_hundredths(hundredths: int) -> PublishedNumber:
    return printed_number("plant", f"{hundredths / 100:.2f}", kind="dR", source="plant", n=100)


@THOROUGH
@given(SAMPLES, PAPERS, MARGINS, MARGINS)
def test_a_wider_margin_helps_equality_and_never_an_effect(
    sample: Array, paper: int, first_margin: float, second_margin: float
) -> None:
    narrow, wide = sorted((first_margin, second_margin))
    for rule in (partial(value, sample, printed_hundredths(paper)), partial(no_effect, sample)):
        assert STRENGTH[rule(margin=narrow).outcome] <= STRENGTH[rule(margin=wide).outcome]
    assert STRENGTH[effect(sample, margin=wide).outcome] <= STRENGTH[effect(sample, margin=narrow).outcome]


@THOROUGH
@given(SAMPLES, PAPERS, MARGINS)
def test_signs_do_not_matter_where_the_claim_has_none(sample: Array, paper: int, margin: float) -> None:
    first, second = (value(s * sample, printed_hundredths(s * paper), margin=margin) for s in (1, -1))
    assert first.outcome == second.outcome
    assert no_effect(sample, margin=margin).outcome == no_effect(-sample, margin=margin).outcome


@THOROUGH
@given(SAMPLES, DYADIC, MARGINS)
def test_a_common_shift_cancels(sample: Array, shift: float, margin: float) -> None:
    """Exact in binary, so that not even the last bit of the spread changes, up to rounding of the mean."""
    base = np.roll(sample, 1)
    shifted, plain = (ordering(sample + s, base + s, margin=margin) for s in (shift, 0))
    assert shifted.outcome == plain.outcome
    changed = effect(sample + shift, margin=margin, above=shift)
    assert abs((changed.low - shift) - effect(sample, margin=margin).low) < 1e-9


@THOROUGH
@given(SAMPLES, st.randoms(use_true_random=False), MARGINS)
def test_the_order_of_examples_does_not_matter(sample: Array, random: Random, margin: float) -> None:
    shuffled = list(sample)
    random.shuffle(shuffled)
    first, second = effect(sample, margin=margin), effect(shuffled, margin=margin)
    assert first.outcome == second.outcome
    assert abs(first.high - second.high) < 1e-9


@THOROUGH
@given(SAMPLES, PAPERS, MARGINS)
def test_every_verdict_is_complete(sample: Array, paper: int, margin: float) -> None:
    for verdict in (value(sample, printed_hundredths(paper), margin=margin), effect(sample, margin=margin)):
        assert verdict.low <= verdict.measured <= verdict.high or verdict.kind == "value"
        assert verdict.outcome in STRENGTH
        assert verdict.n == len(sample)
        assert (verdict.needed_n is None) or verdict.needed_n > verdict.n
        assert 0 <= verdict.p_value <= 1


# Opposites


def at_places(rule: Callable[..., Verdict], table: Array, **options: Any) -> Verdict:
    """A rule about many places, whose support is the range of the values."""
    return rule(table, support=(float(table.min()), float(table.max())), **options)


CONTRARY: Mapping[str, tuple[Callable[..., Verdict], Callable[..., Verdict]]] = {
    "effect": (effect, lambda x, margin: effect(-x, margin=margin)),
    "effect and none": (effect, no_effect),
    "no effect": (no_effect, lambda x, margin: no_effect(x, margin=margin, about=2.5 * margin)),
    "ordering": (
        lambda x, margin: ordering(x, x[::-1] / 2, margin=margin),
        lambda x, margin: ordering(x[::-1] / 2, x, margin=margin),
    ),
    "value": (
        lambda x, margin: value(x, printed(0.5), margin=margin),
        lambda x, margin: value(x, printed(0.5 + 2.5 * margin), margin=margin),
    ),
    "somewhere": (lambda x, margin: at_places(effect_somewhere, x[None], margin=margin), no_effect),
}


@pytest.mark.parametrize("kind", CONTRARY)
@QUICK
@given(sample=SAMPLES, margin=MARGINS)
def test_a_sentence_and_its_contrary_are_never_both_replicated(kind: str, sample: Array, margin: float) -> None:
    """Where there is surely no effect, a sentence that there is one is even refuted."""
    outcome, contrary = (rule(sample, margin=margin).outcome for rule in CONTRARY[kind])
    assert {outcome, contrary} != {"REPLICATED"}
    if kind == "effect and none" and contrary == "REPLICATED":
        assert outcome == "NOT REPLICATED"


@QUICK
@given(table=TABLES, margin=MARGINS)
def test_nowhere_is_the_mirror_of_somewhere(table: Array, margin: float) -> None:
    somewhere, nowhere = (at_places(rule, table, margin=margin).outcome for rule in (effect_somewhere, effect_nowhere))
    assert nowhere == MIRROR.get(somewhere, somewhere)


HEADS = st.sets(st.integers(0, 9), max_size=3)


@given(groups=HEADS, repetitions=st.lists(HEADS, max_size=30))
def test_empty_is_the_mirror_of_not_empty(groups: set[int], repetitions: list[set[int]]) -> None:
    empty, full = (emptiness(groups, empty=stated, selections=repetitions).outcome for stated in (True, False))
    assert full == MIRROR.get(empty, empty)


def opposite(part: Part) -> Part:
    """The same data, and a sentence that holds exactly where the other does not."""

    def reverse_part(*, level: float) -> Verdict:
        verdict = part(level=level)
        outcome = MIRROR.get(verdict.outcome, verdict.outcome)
        return Verdict(verdict.kind, outcome, verdict.reason, p_value=verdict.p_value)

    return reverse_part


RULES: Mapping[str, Callable[..., Verdict]] = {
    "effect": effect,
    "no-effect": no_effect,
    "value": lambda x, **options: value(x, printed(0.25), **options),
    "ordering": lambda x, **options: ordering(x, 0 * x, **options),
    "somewhere": lambda x, **options: at_places(effect_somewhere, np.stack([x, x[::-1] - 1]), **options),
    "nowhere": lambda x, **options: at_places(effect_nowhere, np.stack([x, x[::-1] - 1]), **options),
    "nested": lambda x, **options: effect(x[: len(x) // 5 * 5].reshape(5, -1), unit="nested", **options),
}
PARTS = st.lists(st.tuples(st.sampled_from(sorted(RULES)), SAMPLES, MARGINS), min_size=1, max_size=4)


@QUICK
@given(parts=PARTS)
def test_a_sentence_of_parts_holds_if_all_do_and_its_mirror_affirms_what_it_denies(
    parts: list[tuple[str, Array, float]],
) -> None:
    """Whatever the order of the parts."""
    sentence: dict[str, Part] = {
        f"{number}": partial(RULES[rule], x, margin=margin) for number, (rule, x, margin) in enumerate(parts)
    }
    verdict = all_of("effect", sentence)
    single = {part(level=0.05).outcome for part in sentence.values()}
    assert (verdict.outcome == "REPLICATED") == (single == {"REPLICATED"})
    assert verdict.outcome != "NOT REPLICATED" or "NOT REPLICATED" in single
    backwards = all_of("effect", dict(reversed(sentence.items())))
    for field in ("outcome", "reason", "p_value"):
        assert getattr(backwards, field) == getattr(verdict, field)
    mirrored = any_of("effect", {name: opposite(part) for name, part in sentence.items()})
    assert mirrored.outcome == MIRROR.get(verdict.outcome, verdict.outcome)


@pytest.mark.parametrize("rule", RULES)
@QUICK
@given(sample=SAMPLES, margin=MARGINS, factor=st.sampled_from([2.0**-6, 0.5, 4.0, 1024.0]))
def test_scaling_values_and_margin_together_changes_nothing(
    rule: str, sample: Array, margin: float, factor: float
) -> None:
    """Powers of two, so that every number keeps its digits. (Where two places are told, the second is moved by 1.)"""
    if rule in ("somewhere", "nowhere"):
        table = np.stack([sample, sample[::-1] - 1])
        judge: Callable[..., Verdict] = effect_somewhere if rule == "somewhere" else effect_nowhere
        first, second = (at_places(judge, times * table, margin=times * margin) for times in (1.0, factor))
    elif rule == "value":
        first = value(sample, printed(0.25, 0.125), margin=margin)
        second = value(factor * sample, printed(factor * 0.25, factor * 0.125), margin=factor * margin)
    else:
        first, second = RULES[rule](sample, margin=margin), RULES[rule](factor * sample, margin=factor * margin)
    assert second.outcome == first.outcome
    assert second.p_value == (None if first.p_value is None else pytest.approx(first.p_value, rel=1e-9, abs=1e-300))
    assert (second.n, second.needed_n) == (first.n, first.needed_n)


@QUICK
@given(
    sample=st.lists(st.sets(st.integers(0, 39), min_size=4, max_size=6), min_size=40, max_size=40),
    turn=st.permutations(range(40)),
    random=st.randoms(use_true_random=False),
)
def test_names_and_order_of_heads_do_not_matter(sample: list[set[int]], turn: list[int], random: Random) -> None:
    """A set has no scale; other names for the heads, and the repetitions in another order, are the same evidence."""
    groups, published, *own = sample
    repetitions = list(zip(own[::2], own[1::2], strict=True))
    verdict = overlap(groups, published, universe=40, repetitions=repetitions)
    renamed = [({turn[head] for head in second}, {turn[head] for head in first}) for first, second in repetitions]
    random.shuffle(renamed)
    second = overlap({turn[h] for h in groups}, {turn[h] for h in published}, universe=40, repetitions=renamed)
    assert (second.outcome, second.p_value, second.measured) == (verdict.outcome, verdict.p_value, verdict.measured)
