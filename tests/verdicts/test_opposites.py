"""A sentence and its opposite, for every kind of rule; parts and their order; scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rebinding.paper.numbers import PublishedNumber
from rebinding.verdicts import (
    Outcome,
    Verdict,
    effect,
    effect_somewhere,
    emptiness,
    no_effect,
    nowhere,
    ordering,
    overlap,
    value,
)
from rebinding.verdicts.sentences import Part, all_of, any_of

Array = npt.NDArray[np.float64]
QUICK = settings(max_examples=20, deadline=None)
DYADIC = st.integers(-640, 640).map(lambda whole: whole / 128)  # exact in binary, and so are sums of a few
SAMPLES = st.integers(5, 30).flatmap(lambda n: arrays(np.float64, n, elements=DYADIC))
TABLES = st.tuples(st.integers(1, 4), st.integers(5, 12)).flatmap(lambda s: arrays(np.float64, s, elements=DYADIC))
MARGINS = st.sampled_from([0.0625, 0.25, 1.0, 2.0])
MIRROR: Mapping[Outcome, Outcome] = {"REPLICATED": "NOT REPLICATED", "NOT REPLICATED": "REPLICATED"}


def printed(number: float, half_width: float = 0.0) -> PublishedNumber:
    return PublishedNumber("plant", number, half_width, "dR", "plant", f"{number}", 100, 10)


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
    "somewhere": (lambda x, margin: effect_somewhere(x[None], margin=margin), no_effect),
}


@pytest.mark.parametrize("kind", CONTRARY)
@QUICK
@given(sample=SAMPLES, margin=MARGINS)
def test_a_sentence_and_its_contrary_are_never_both_replicated(kind: str, sample: Array, margin: float) -> None:
    said, contrary = (rule(sample, margin=margin).outcome for rule in CONTRARY[kind])
    assert {said, contrary} != {"REPLICATED"}


@QUICK
@given(table=TABLES, margin=MARGINS)
def test_nowhere_is_the_mirror_of_somewhere(table: Array, margin: float) -> None:
    there, gone = effect_somewhere(table, margin=margin).outcome, nowhere(table, margin=margin).outcome
    assert gone == MIRROR.get(there, there)


@given(ours=st.sets(st.integers(0, 9), max_size=3), again=st.lists(st.sets(st.integers(0, 9), max_size=3), max_size=30))
def test_empty_is_the_mirror_of_not_empty(ours: set[int], again: list[set[int]]) -> None:
    empty, full = (emptiness(ours, empty=stated, selections=again).outcome for stated in (True, False))
    assert full == MIRROR.get(empty, empty)


def opposite(part: Part) -> Part:
    """The same data, and a sentence that holds exactly where the other does not."""

    def turned(*, level: float) -> Verdict:
        found = part(level=level)
        return Verdict(found.kind, MIRROR.get(found.outcome, found.outcome), found.reason, p_value=found.p_value)

    return turned


RULES: Mapping[str, Callable[..., Verdict]] = {
    "effect": effect,
    "no-effect": no_effect,
    "value": lambda x, **more: value(x, printed(0.25), **more),
    "ordering": lambda x, **more: ordering(x, 0 * x, **more),
    "somewhere": lambda x, **more: effect_somewhere(np.stack([x, x[::-1] - 1]), **more),
    "nowhere": lambda x, **more: nowhere(np.stack([x, x[::-1] - 1]), **more),
    "nested": lambda x, **more: effect(x[: len(x) // 5 * 5].reshape(5, -1), unit="nested", **more),
}
PARTS = st.lists(st.tuples(st.sampled_from(sorted(RULES)), SAMPLES, MARGINS), min_size=1, max_size=4)


def named(parts: list[tuple[str, Array, float]]) -> dict[str, Part]:
    return {f"{number}": partial(RULES[rule], x, margin=margin) for number, (rule, x, margin) in enumerate(parts)}


@QUICK
@given(parts=PARTS)
def test_a_sentence_of_parts(parts: list[tuple[str, Array, float]]) -> None:
    """It holds if all its parts hold, whatever their order; what it denies, its mirror affirms."""
    told = named(parts)
    found = all_of("effect", told)
    alone = {part(level=0.05).outcome for part in told.values()}
    assert (found.outcome == "REPLICATED") == (alone == {"REPLICATED"})
    assert found.outcome != "NOT REPLICATED" or "NOT REPLICATED" in alone
    back = all_of("effect", dict(reversed(told.items())))
    assert (back.outcome, back.reason, back.p_value) == (found.outcome, found.reason, found.p_value)
    mirrored = any_of("effect", {name: opposite(part) for name, part in told.items()})
    assert mirrored.outcome == MIRROR.get(found.outcome, found.outcome)


@pytest.mark.parametrize("rule", RULES)
@QUICK
@given(sample=SAMPLES, margin=MARGINS, factor=st.sampled_from([2.0**-6, 0.5, 4.0, 1024.0]))
def test_scaling_values_and_margin_together_changes_nothing(
    rule: str, sample: Array, margin: float, factor: float
) -> None:
    """Powers of two, so that every number keeps its digits. (Where two places are told, the second is moved by 1.)"""
    if rule in ("somewhere", "nowhere"):
        table = np.stack([sample, sample[::-1] - 1])
        judge: Callable[..., Verdict] = effect_somewhere if rule == "somewhere" else nowhere
        one, other = judge(table, margin=margin), judge(factor * table, margin=factor * margin)
    elif rule == "value":
        one = value(sample, printed(0.25, 0.125), margin=margin)
        other = value(factor * sample, printed(factor * 0.25, factor * 0.125), margin=factor * margin)
    else:
        one, other = RULES[rule](sample, margin=margin), RULES[rule](factor * sample, margin=factor * margin)
    assert other.outcome == one.outcome
    assert other.p_value == (None if one.p_value is None else pytest.approx(one.p_value, rel=1e-9, abs=1e-300))
    assert (other.n, other.needed_n) == (one.n, one.needed_n)


@QUICK
@given(
    sample=st.lists(st.sets(st.integers(0, 39), min_size=4, max_size=6), min_size=21, max_size=21),
    turn=st.permutations(range(40)),
    random=st.randoms(use_true_random=False),
)
def test_names_and_order_of_heads_do_not_matter(sample: list[set[int]], turn: list[int], random: Any) -> None:
    """A set has no scale; other names for the heads, and the repetitions in another order, are the same evidence."""
    ours, theirs, *again = sample
    found = overlap(ours, theirs, universe=40, selections=again)
    renamed = [{turn[head] for head in one} for one in again]
    random.shuffle(renamed)
    other = overlap({turn[h] for h in ours}, {turn[h] for h in theirs}, universe=40, selections=renamed)
    assert (other.outcome, other.p_value, other.measured) == (found.outcome, found.p_value, found.measured)
