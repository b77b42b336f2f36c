"""The verdict on a headline claim on one model, from the verdicts of its rows, under both procedures.

A claim is REPLICATED if every row is, each at 5 %: all rows would have to err at once. It is NOT REPLICATED if one row
is refuted after Holm's correction over its rows, so it is refuted wrongly in at most 5 % of runs of a model and
procedure. A row that is refuted at 5 % by itself, and not as one of several, leaves its claim open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rebinding.paper.claim import LEVEL
from rebinding.paper.headlines import HEADLINES, Headline
from rebinding.verdicts.judgement import Judgement, Sentence, Standing, sentences, standing
from rebinding.verdicts.outcome import Outcome, family

ALONE = "refuted by itself, not as one of several rows"
"""Why a claim is open of which a row is NOT REPLICATED."""
PRECEDENCE: tuple[Outcome, ...] = ("NOT REPLICATED", "INVALID", "INCONCLUSIVE", "REPLICATED", "NOT APPLICABLE")
"""The verdict of several rows is the first in this list that one of them has."""


def verdict_of_all(verdicts: Iterable[str]) -> Outcome | None:
    """The verdict of a claim with several rows; None without rows.

    NOT REPLICATED if one row is; REPLICATED if all are. Otherwise INVALID if one row is, else INCONCLUSIVE. Rows that
    do not apply count only where no other row does. Rows that only report never count.
    """
    outcomes = set(verdicts)
    return next((outcome for outcome in PRECEDENCE if outcome in outcomes), None)


def verdict_of_rows(rows: Sequence[Judgement]) -> Outcome | None:
    """`verdict_of_all`, where a row that is refuted only by itself counts as open."""
    verdicts = {row.id: row.as_verdict() for row in rows}
    unstated = {id for id, v in verdicts.items() if v.outcome == "NOT REPLICATED" and v.p_value is None}
    verdicts |= {id: replace(verdicts[id], p_value=LEVEL) for id in unstated}  # at most
    refuted = family(verdicts, level=LEVEL).surviving
    return verdict_of_all(
        "INCONCLUSIVE" if row.verdict == "NOT REPLICATED" and row.id not in refuted else row.verdict for row in rows
    )


@dataclass(frozen=True)
class HeadlineVerdict:
    """A headline claim on one model, with the sentences judged on it.

    If the paper asserts some of these sentences of the model, only those count, and those of ours, which have a
    controlled row only. For Gemma-3-12B it says that group B raises the pointer target, but not that B does so more
    than every other group. On any other model, planted ones included, every sentence counts except those about printed
    numbers, which belong to another model.
    """

    headline: Headline
    sentences: tuple[Sentence, ...]

    @cached_property
    def counted(self) -> tuple[Sentence, ...]:
        """The sentences that count on this model."""
        own = tuple(sentence for sentence in self.sentences if not is_about_another_model(sentence)) or self.sentences
        asserted = {sentence.id for sentence in own if is_asserted(sentence)}
        if not asserted:
            return own
        return tuple(sentence for sentence in own if sentence.id in asserted or sentence.published is None)

    @cached_property
    def published_rows(self) -> tuple[Judgement, ...]:
        """The published rows that count."""
        return tuple(sentence.published for sentence in self.counted if sentence.published is not None)

    @cached_property
    def controlled_rows(self) -> tuple[Judgement, ...]:
        """The controlled rows that count."""
        return tuple(sentence.controlled for sentence in self.counted if sentence.controlled is not None)

    @cached_property
    def published(self) -> Outcome | None:
        """The verdict under the published procedure."""
        return verdict_of_rows(self.published_rows)

    @cached_property
    def controlled(self) -> Outcome | None:
        """The verdict under the controlled procedure."""
        return verdict_of_rows(self.controlled_rows)

    @property
    def standing(self) -> Standing | None:
        """Robust, artifact, hidden or refuted; None unless both verdicts are decided."""
        return None if self.published is None or self.controlled is None else standing(self.published, self.controlled)

    @property
    def decisive(self) -> Judgement | None:
        """The row that explains the published verdict, or the controlled one if there is no published row."""
        rows, verdict = self.published_rows, self.published
        if verdict is None:
            rows, verdict = self.controlled_rows, self.controlled
        return find_deciding_row(rows, verdict)

    @property
    def differing(self) -> tuple[Judgement, ...]:
        """The rows that count and are not as expected."""
        return tuple(row for row in (*self.published_rows, *self.controlled_rows) if not row.as_expected)


def find_deciding_row(rows: Sequence[Judgement], verdict: str | None) -> Judgement | None:
    """The row that explains a verdict: the first with the same verdict and a number, else the first with it. Where no
    row has it, one is refuted only by itself, and explains why the claim is open."""
    candidates = [row for row in rows if row.verdict == verdict]
    candidates = candidates or [row for row in rows if verdict is not None and row.verdict == "NOT REPLICATED"]
    return next((row for row in candidates if row.measured is not None), candidates[0] if candidates else None)


def is_asserted(sentence: Sentence) -> bool:
    """Whether the verdict on a sentence has an expected value: the paper asserts it of the model, or it was planted."""
    return any(row is not None and row.expected is not None for row in (sentence.published, sentence.controlled))


def is_about_another_model(sentence: Sentence) -> bool:
    """Whether it compares this model with a number that the paper printed for another one."""
    rows = [row for row in (sentence.published, sentence.controlled) if row is not None]
    return any(row.kind == "value" and (row.expected is None or row.because is not None) for row in rows)


def headline_verdicts(rows: Iterable[Judgement]) -> tuple[HeadlineVerdict, ...]:
    """The headline claims that have judged rows on one model."""
    by_number: dict[int, list[Sentence]] = {}
    for sentence in sentences(rows):
        first = sentence.published or sentence.controlled
        if first is not None and first.headline is not None:
            by_number.setdefault(first.headline, []).append(sentence)
    return tuple(
        HeadlineVerdict(headline, tuple(by_number[headline.number]))
        for headline in HEADLINES
        if headline.number in by_number
    )
