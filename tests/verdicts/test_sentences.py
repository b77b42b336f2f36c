"""Sentences of several parts: their verdict and p-value, and what programs read of it, which is the deciding part, the
gate, and whether the convention is unidentified. Expected values are worked out by hand, or hold for every tree.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebinding.verdicts import Outcome, Verdict, effect, guarded, invalid, not_applicable, value_unidentified
from rebinding.verdicts.gates import requirement
from rebinding.verdicts.sentences import Part, all_of, any_of, most_of, under_conventions
from tests.verdicts.characteristics import LEVEL, rate_is_at_most

Wrap = Literal["all", "any", "most", "candidates"]
WRAPS: tuple[Wrap, ...] = ("all", "any", "most", "candidates")
SHARE = 2 / 3


def fixed(outcome: Outcome, p_value: float | None = None) -> Part:
    """A part with the same outcome at every level."""
    return lambda *, level: Verdict("effect", outcome, "as given", p_value=p_value)


POSITIVE, NEGATIVE, OPEN = fixed("REPLICATED", 0.9), fixed("NOT REPLICATED", 0.001), fixed("INCONCLUSIVE", 0.4)
BROKEN: Part = lambda *, level: invalid("effect", "finite", "1 of 3 values are not finite")  # noqa: E731 - as above
MISSING: Part = lambda *, level: not_applicable("effect", "no such group")  # noqa: E731


def judge(wrap: Wrap, parts: Mapping[str, Part], *, level: float = 0.05) -> Verdict:
    if wrap == "candidates":
        return value_unidentified({name: part(level=level / len(parts)) for name, part in parts.items()})
    if wrap == "most":
        return most_of("effect", parts, SHARE, level=level)
    return {"all": all_of, "any": any_of}[wrap]("effect", parts, level=level)


def sentence(wrap: Wrap, **parts: Part) -> Part:
    return partial(judge, wrap, parts)


@pytest.mark.parametrize(
    ("part", "outcome", "path"),
    [
        (POSITIVE, "REPLICATED", ()),
        (sentence("all", a=POSITIVE, b=OPEN, c=NEGATIVE), "NOT REPLICATED", ("c",)),
        (sentence("all", a=POSITIVE, b=OPEN), "INCONCLUSIVE", ("b",)),
        (sentence("any", a=NEGATIVE, b=OPEN, c=POSITIVE), "REPLICATED", ("c",)),
        (sentence("any", a=NEGATIVE, b=OPEN), "INCONCLUSIVE", ("b",)),
        # one part holds and two must, one fails and two would have to: open, and c is nearest to being rejected
        (sentence("most", a=POSITIVE, b=OPEN, c=NEGATIVE), "INCONCLUSIVE", ("c",)),
        # no part of "any" holds, and only y does not fail; of "all" only B does not hold
        (
            sentence(
                "all", A=POSITIVE, B=sentence("any", x=NEGATIVE, y=sentence("most", a=POSITIVE, b=OPEN, c=NEGATIVE))
            ),
            "INCONCLUSIVE",
            ("B", "y", "c"),
        ),
        (sentence("most", a=POSITIVE, b=sentence("all", x=POSITIVE, y=NEGATIVE), c=POSITIVE), "REPLICATED", ("b", "y")),
        (sentence("all", a=POSITIVE, b=sentence("any", x=BROKEN, y=POSITIVE)), "INVALID", ("b", "x")),
        (
            sentence("candidates", Q=sentence("all", a=NEGATIVE), K=sentence("all", a=POSITIVE, b=POSITIVE)),
            "REPLICATED",
            ("K", "a"),
        ),
        (sentence("candidates", Q=NEGATIVE, K=OPEN), "INCONCLUSIVE", ("K",)),
    ],
)
def test_the_deciding_part(part: Part, outcome: Outcome, path: tuple[str, ...]) -> None:
    verdict = part(level=0.05)
    assert (verdict.outcome, verdict.part) == (outcome, path)


UNIDENTIFIED = sentence("candidates", Q=NEGATIVE, K=OPEN)
IDENTIFIED = sentence("candidates", Q=NEGATIVE, K=POSITIVE)


@pytest.mark.parametrize(
    ("part", "unidentified"),
    [
        (OPEN, False),
        (IDENTIFIED, False),
        (UNIDENTIFIED, True),
        (sentence("candidates", Q=BROKEN, K=OPEN), True),
        (sentence("candidates", Q=BROKEN, K=MISSING), False),
        (sentence("candidates", here=UNIDENTIFIED, there=IDENTIFIED), False),
        (sentence("all", a=POSITIVE, b=UNIDENTIFIED), True),
        (sentence("all", a=NEGATIVE, b=UNIDENTIFIED), False),
        (sentence("all", a=OPEN, b=UNIDENTIFIED), False),  # open whatever the convention
        (sentence("any", a=NEGATIVE, b=UNIDENTIFIED), True),
        (sentence("any", a=POSITIVE, b=UNIDENTIFIED), False),
        (sentence("most", a=UNIDENTIFIED, b=UNIDENTIFIED, c=fixed("REPLICATED")), True),
        (sentence("most", a=UNIDENTIFIED, b=fixed("REPLICATED"), c=fixed("REPLICATED")), False),
    ],
)
def test_unidentified_where_conventions_decide(part: Part, unidentified: bool) -> None:
    assert part(level=0.05).unidentified == unidentified


@pytest.mark.parametrize("outer", WRAPS)
@pytest.mark.parametrize("inner", WRAPS)
def test_an_invalid_verdict_has_its_gate_however_deep(outer: Wrap, inner: Wrap) -> None:
    verdict = judge(outer, {"a": sentence(inner, x=BROKEN)})
    assert (verdict.outcome, verdict.gate) == ("INVALID", "finite")
    closed = requirement("answer_changes", False, "the answers are equal")
    stopped = judge(outer, {"a": lambda *, level: guarded("effect", [closed], lambda: POSITIVE(level=level))})
    assert (stopped.outcome, stopped.gate) == ("INVALID", "answer_changes")


@dataclass(frozen=True)
class Leaf:
    """A part whose outcome depends on its level, as that of a rule does; `measured` tells it from all others."""

    p_value: float
    measured: float
    fails: Literal["gate", "applies"] | None

    def __call__(self, *, level: float) -> Verdict:
        if self.fails is not None:
            return BROKEN(level=level) if self.fails == "gate" else MISSING(level=level)
        outcome: Outcome = "NOT REPLICATED" if self.p_value < level else "INCONCLUSIVE"
        if 1 - self.p_value < level:
            outcome = "REPLICATED"
        return Verdict("effect", outcome, "as given", measured=self.measured, p_value=self.p_value)


@dataclass(frozen=True)
class Node:
    """A sentence of parts, or a sentence under several conventions."""

    wrap: Wrap
    parts: tuple[Leaf | Node, ...]

    def __call__(self, *, level: float) -> Verdict:
        return judge(self.wrap, {str(number): part for number, part in enumerate(self.parts)}, level=level)


Tree: TypeAlias = Leaf | Node
P_VALUES = st.sampled_from([0.001, 0.01, 0.02, 0.03, 0.3, 0.5, 0.97, 0.98, 0.999])
LEAVES = st.builds(Leaf, P_VALUES, st.integers(0, 10**9).map(float), st.sampled_from([None] * 8 + ["gate", "applies"]))
TREES: st.SearchStrategy[Tree] = st.recursive(
    LEAVES,
    lambda parts: st.builds(Node, st.sampled_from(WRAPS), st.lists(parts, min_size=1, max_size=3).map(tuple)),
    max_leaves=9,
)


def follow(tree: Tree, path: tuple[str, ...]) -> Tree:
    """The part of a sentence at the end of a path."""
    for name in path:
        tree = operator.attrgetter("parts")(tree)[int(name)]
    return tree


@settings(max_examples=200, deadline=None)
@given(tree=TREES)
def test_fields_hold_for_every_tree(tree: Tree) -> None:
    """The path leads to the part whose number the verdict has; a gate goes with INVALID, and with nothing else."""
    verdict = tree(level=0.05)
    assert (verdict.gate is not None) == (verdict.outcome == "INVALID")
    assert verdict.outcome == "INCONCLUSIVE" or not verdict.unidentified
    if verdict.judged:
        leaf = follow(tree, verdict.part)
        assert isinstance(leaf, Leaf)
        assert leaf.measured == verdict.measured


@pytest.mark.parametrize(
    ("conventions", "outcome", "path", "unidentified"),
    [
        ({"a": NEGATIVE, "b": POSITIVE, "c": OPEN}, "REPLICATED", ("b",), False),
        ({"a": NEGATIVE, "b": NEGATIVE}, "NOT REPLICATED", ("a",), False),
        ({"a": NEGATIVE, "b": BROKEN}, "INCONCLUSIVE", ("a",), True),
        ({"a": NEGATIVE, "b": MISSING}, "NOT REPLICATED", ("a",), False),
        ({"a": POSITIVE, "b": BROKEN}, "REPLICATED", ("a",), False),
        ({"a": NEGATIVE, "b": OPEN}, "INCONCLUSIVE", ("b",), True),
        ({"a": OPEN, "b": OPEN}, "INCONCLUSIVE", ("a",), False),
        ({"a": BROKEN, "b": MISSING}, "INVALID", ("a",), False),
    ],
)
def test_a_sentence_under_several_conventions(
    conventions: Mapping[str, Part], outcome: Outcome, path: tuple[str, ...], unidentified: bool
) -> None:
    verdict = under_conventions("effect", conventions)
    assert (verdict.outcome, verdict.part, verdict.unidentified) == (outcome, path, unidentified)


def test_conventions_keep_the_level() -> None:
    """Of three conventions one is true and lies on the boundary: the sentence is held, or refuted, in one of twenty.
    There a p-value is uniform."""
    rng, runs = np.random.default_rng(7), 4000
    outcomes = [
        under_conventions("effect", {name: Leaf(rng.random(), 0.0, None) for name in ("one", "two", "three")}).outcome
        for _ in range(runs)
    ]
    assert 0 < outcomes.count("REPLICATED") / runs <= rate_is_at_most(0.05, runs)
    assert outcomes.count("NOT REPLICATED") / runs <= rate_is_at_most(0.05, runs)


# Levels and p-values


def test_a_sentence_holds_at_the_full_level_and_is_refuted_at_a_share_of_it() -> None:
    """What is sure alone is sure together, for all parts would have to err at once. To refute one error is enough."""
    sure, weak = Leaf(0.97, 0.0, None), Leaf(0.03, 0.0, None)
    assert all_of("effect", dict.fromkeys("abcd", sure)).outcome == "REPLICATED"
    assert all_of("effect", {"a": weak}).outcome == "NOT REPLICATED"
    assert all_of("effect", {"a": weak} | dict.fromkeys("bcd", sure)).outcome == "INCONCLUSIVE"


def test_a_sentence_without_parts_is_refused() -> None:
    for rule in (all_of, any_of, partial(most_of, share=SHARE)):
        with pytest.raises(ValueError, match="without parts"):
            rule("effect", {})


def test_the_p_value_of_a_sentence_counts_its_parts() -> None:
    """Each of twenty parts is another chance to be refuted by luck."""
    rise: Part = partial(effect, np.ones(30), margin=0.1)
    weak: Part = partial(effect, np.linspace(-1.7, 1.7, 60) - 0.6, margin=0.1)
    single = weak(level=LEVEL).p_value
    joint = all_of("effect", {"barely": weak} | {str(number): rise for number in range(19)}).p_value
    assert joint == pytest.approx(20 * single, rel=1e-6)  # both read off Student's t, one off the bound at 5 % / 20
    assert all_of("effect", {"a": OPEN, "b": fixed("INCONCLUSIVE", 0.9)}).p_value == 2 * 0.4
    assert all_of("effect", dict.fromkeys("ab", fixed("INCONCLUSIVE", 0.9))).p_value == 1.0, "it is at most 1"


def test_most_of_judges_parts_at_a_share_of_the_level() -> None:
    """Four of five: they hold if one of the last two errs, and fail if one of four does."""
    levels: list[float] = []

    def part(*, level: float) -> Verdict:
        levels.append(level)
        return OPEN(level=level)

    most_of("effect", dict.fromkeys("abcde", part), 0.8)
    assert levels == pytest.approx([LEVEL / 2] * 5 + [LEVEL / 4] * 5)
