"""What became of a headline claim on one model: the verdict of the rows on which it rests, under both procedures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rebinding.paper.headlines import HEADLINES, Headline
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.outcome import Outcome
from rebinding.verdicts.standing import Sentence, Standing, sentences, standing

PRECEDENCE: tuple[Outcome, ...] = ("NOT REPLICATED", "INVALID", "INCONCLUSIVE", "REPLICATED", "NOT APPLICABLE")
"""The verdict of several rows is the first of these that one of them has."""


def verdict_of_all(verdicts: Iterable[str]) -> Outcome | None:
    """The verdict of a claim that rests on several rows; none, where there is no row.

    NOT REPLICATED if one row is; REPLICATED if all are. Otherwise it is as open as its rows: INVALID if one is, else
    INCONCLUSIVE. Rows that do not apply count only where no other row does. Rows that only report never count.
    """
    found = set(verdicts)
    return next((outcome for outcome in PRECEDENCE if outcome in found), None)


@dataclass(frozen=True)
class HeadlineVerdict:
    """A headline claim on one model, with the sentences that were judged there.

    If the paper asserts some of these sentences of the model, only those count. Of Gemma-3-12B it says that group B
    raises the pointer target, and does not say that B does so more than every other group. On any other model, planted
    ones included, every sentence counts but those about printed numbers, which are another model's.
    """

    headline: Headline
    sentences: tuple[Sentence, ...]

    @cached_property
    def counted(self) -> tuple[Sentence, ...]:
        """The sentences that count on this model."""
        others = tuple(one for one in self.sentences if not is_about_another_model(one)) or self.sentences
        return tuple(one for one in others if is_asserted(one)) or others

    @property
    def published_rows(self) -> tuple[Judgement, ...]:
        """The published rows that count."""
        return tuple(one.published for one in self.counted if one.published is not None)

    @property
    def controlled_rows(self) -> tuple[Judgement, ...]:
        """Their controlled rows."""
        return tuple(one.controlled for one in self.counted if one.controlled is not None)

    @property
    def published(self) -> Outcome | None:
        """The verdict under the published procedure."""
        return verdict_of_all(row.verdict for row in self.published_rows)

    @property
    def controlled(self) -> Outcome | None:
        """The verdict under the controlled procedure."""
        return verdict_of_all(row.verdict for row in self.controlled_rows)

    @property
    def standing(self) -> Standing | None:
        """Robust, artifact, hidden or refuted; none, unless both verdicts are decided."""
        return None if self.published is None or self.controlled is None else standing(self.published, self.controlled)

    @property
    def decisive(self) -> Judgement | None:
        """The row that shows why: the first with the verdict of the claim, if there is one with a number."""
        rows, verdict = self.published_rows, self.published
        if verdict is None:
            rows, verdict = self.controlled_rows, self.controlled
        same = [row for row in rows if row.verdict == verdict]
        return next((row for row in same if row.measured is not None), same[0] if same else None)

    @property
    def differing(self) -> tuple[Judgement, ...]:
        """The rows that count and are not as expected."""
        return tuple(row for row in (*self.published_rows, *self.controlled_rows) if not row.as_expected)


def is_asserted(sentence: Sentence) -> bool:
    """Whether it is known what must become of a sentence: the paper asserts it of the model, or it was planted."""
    return any(row is not None and row.expected is not None for row in (sentence.published, sentence.controlled))


def is_about_another_model(sentence: Sentence) -> bool:
    """Whether it compares with a printed number on a model of which the paper does not assert it."""
    rows = [row for row in (sentence.published, sentence.controlled) if row is not None]
    return any(row.kind == "value" and (row.expected is None or row.because is not None) for row in rows)


def headline_verdicts(rows: Iterable[Judgement]) -> tuple[HeadlineVerdict, ...]:
    """The headline claims of which something was judged, from the rows of one model."""
    by_number: dict[int, list[Sentence]] = {}
    for sentence in sentences(rows):
        first = sentence.published or sentence.controlled
        if first is not None and first.headline is not None:
            by_number.setdefault(first.headline, []).append(sentence)
    return tuple(HeadlineVerdict(one, tuple(by_number[one.number])) for one in HEADLINES if one.number in by_number)
