"""The summary of a run: made once from its judgements, and read by the terminal, the page and `claims.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rebinding.report.outline import SECTIONS, Section
from rebinding.report.stopped import Stopped, stopped
from rebinding.verdicts.families import Family, family
from rebinding.verdicts.headline import HeadlineVerdict, headline_verdicts
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.standing import Sentence, Standing, in_words, sentences

FAILED = ("NOT REPLICATED", "INVALID")
MARKS = {"REPLICATED": "✓", "NOT REPLICATED": "✗", "INCONCLUSIVE": "?", "INVALID": "!", "NOT APPLICABLE": "–"}
LETTERS: Mapping[str, str] = {
    "REPLICATED": "R", "NOT REPLICATED": "N", "INCONCLUSIVE": "?", "INVALID": "!", "NOT APPLICABLE": "–",
    "REPORTED": "·",
}  # fmt: skip
"""The letter of a verdict in the matrix of the page, and in `claims.json`."""
WORDS = {"NOT REPLICATED": "not", "INCONCLUSIVE": "inconclusive", "INVALID": "invalid"}


@dataclass(frozen=True)
class Failure:
    """Claims that failed in the same way, for the same reason."""

    verdict: str
    gate: str | None
    why: str
    as_expected: bool
    ids: tuple[str, ...]


@dataclass(frozen=True)
class SectionSummary:
    """The rows of a section on one model, in the paper's order: a line of the matrix."""

    section: Section
    rows: tuple[Judgement, ...]
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class ModelSummary:
    """What became of the claims on one model; `planted` says whether its truth is known.

    Rows are in the order in which they were given. Those that only report a property are in no count.
    """

    name: str
    planted: bool
    rows: tuple[Judgement, ...]

    @cached_property
    def sections(self) -> tuple[SectionSummary, ...]:
        """The sections of which something was judged."""
        by_key: dict[str, list[Judgement]] = {}
        for row in in_order(self.rows):
            by_key.setdefault(row.section, []).append(row)
        return tuple(
            SectionSummary(section, tuple(rows), sentences(rows))
            for section in SECTIONS
            if (rows := by_key.get(section.key))
        )

    @cached_property
    def headline(self) -> tuple[HeadlineVerdict, ...]:
        """The headline claims of which something was judged; none, where one gate has stopped all."""
        return () if self.is_lost else headline_verdicts(self.rows)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences in the order of the rows."""
        return sentences(self.rows)

    @cached_property
    def judged_twice(self) -> tuple[Sentence, ...]:
        """The sentences that were judged as published and controlled."""
        return tuple(one for one in self.sentences if one.is_judged_twice)

    def standing_of(self, row: Judgement) -> Standing | None:
        """What became of the sentence of a row under both procedures."""
        return self._standings[row.sentence or row.id]

    @cached_property
    def _standings(self) -> Mapping[str, Standing | None]:
        return {one.id: one.standing for one in self.sentences}

    @property
    def standings(self) -> str | None:
        """How many of these are robust, artifacts, hidden, refuted."""
        return in_words(self.judged_twice) if self.judged_twice else None

    @cached_property
    def stopped(self) -> tuple[Stopped, ...]:
        """The gates that have stopped several claims."""
        return tuple(stopped(self.rows))

    @property
    def is_lost(self) -> bool:
        """Whether one gate has stopped all."""
        return any(group.whole for group in self.stopped)

    @cached_property
    def stopped_ids(self) -> frozenset[str]:
        """The claims that these gates have stopped: they are told together."""
        return frozenset(id for group in self.stopped for id in group.ids)

    @cached_property
    def differing(self) -> tuple[Judgement, ...]:
        """Verdicts that are not as expected."""
        return tuple(row for row in self.rows if not row.as_expected)

    @property
    def differing_alone(self) -> tuple[Judgement, ...]:
        """The same, but for those that are told together."""
        return tuple(row for row in self.differing if row.id not in self.stopped_ids)

    @cached_property
    def family(self) -> Family:
        """What luck alone would do to so many claims."""
        return family({row.id: row.as_verdict() for row in self.rows})

    @property
    def sentence(self) -> str:
        """'27 of 31 claims replicated, 2 not, 2 inconclusive', and how many do not apply."""
        counts = Counter(row.verdict for row in self.rows if row.kind != "report")
        away, reports = counts.pop("NOT APPLICABLE", 0), sum(row.kind == "report" for row in self.rows)
        parts = [f"{counts['REPLICATED']} of {plural(counts.total(), 'claim')} replicated"]
        parts += [f"{counts[name]} {word}" for name, word in WORDS.items() if counts[name]]
        left = [f"{away} not applicable"] if away else []
        left += [f"{reports} only reported"] if reports else []
        return ", ".join(parts) + (f" ({' and '.join(left)} besides)" if left else "") + "."

    @property
    def agreement(self) -> str:
        """How the verdicts compare with what was expected, where something was."""
        if self.planted:
            same, differing = len(self.rows) - len(self.differing), len(self.differing)
            told = f"{same} of {plural(len(self.rows), 'verdict')} are as planted"
            return (
                f"{told}; {plural(differing, 'differs', 'differ')} from what was planted." if differing else f"{told}."
            )
        asserted = [row for row in self.rows if row.expected is not None]
        if not asserted:
            return "The paper asserts nothing of this model: every verdict is a property that is reported."
        came = sum(row.as_expected for row in asserted)
        return f"Of {plural(len(asserted), 'claim')} that the paper makes of this model {came} replicated."

    @property
    def luck(self) -> str:
        """What chance alone would do to so many claims, and what still stands when it is discounted."""
        found = self.family
        if not found.judged:
            return "No claim could be weighed."
        told = f"{plural(found.judged, 'claim')} could be weighed; luck alone would reject at most"
        told += f" {found.expected_false_alarms:.1f} of them. {len(found.rejected)} came out not replicated"
        surviving = f", {len(found.surviving)} of these surely so after Holm's correction" if found.rejected else ""
        return f"{told}{surviving}."

    @property
    def failed(self) -> int:
        """How many claims failed."""
        return sum(row.verdict in FAILED for row in self.rows)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What failed, by reason: what was not expected, then what was not replicated, then what could not be run."""
        together: dict[tuple[bool, int, str, str, str], list[str]] = {}
        for row in self.rows:
            if row.verdict in FAILED:
                kind = FAILED.index(row.verdict)
                key = (row.as_expected, kind, row.gate or "", row.verdict, row.because or row.reason)
                together.setdefault(key, []).append(row.id)
        listed = sorted(together.items(), key=lambda item: item[0][:3])
        return tuple(
            Failure(verdict, gate or None, why, expected, tuple(ids))
            for (expected, _, gate, verdict, why), ids in listed
        )

    def remark(self, found: HeadlineVerdict) -> str:
        """What must be said of a headline verdict beside it: nothing, where it is as expected."""
        if self.planted:
            ids = ", ".join(row.id for row in found.differing)
            return f"differs from what was planted: {ids}" if ids else ""
        asserted = any(row.expected is not None for row in found.published_rows)
        says_something = any(row.expected is not None for row in self.rows)
        return "" if asserted or not says_something else "the paper does not say this of it"

    def compare_with_expected(self, row: Judgement) -> str:
        """What a verdict means beside what was expected: in words, so that 'not' is not taken for an error."""
        if row.expected is None:
            return "reported, not asserted by the paper"
        if self.planted:
            return "as planted" if row.as_expected else f"differs from what was planted: {row.expected}"
        return "as the paper says" if row.as_expected else "the paper asserts it"


@dataclass(frozen=True)
class Summary:
    """A run: its models side by side, in the order in which they were named."""

    models: tuple[ModelSummary, ...]

    def of(self, model: str) -> ModelSummary:
        """One model, by its name."""
        return next(one for one in self.models if one.name == model)


def summarise(claims: Sequence[Judgement], models: Mapping[str, bool]) -> Summary:
    """The summary of judgements. `models` says of each whether it is planted; models that are not there come last."""
    by_model: dict[str, list[Judgement]] = {name: [] for name in models}
    for row in claims:
        by_model.setdefault(row.model, []).append(row)
    return Summary(tuple(ModelSummary(name, models.get(name, False), tuple(rows)) for name, rows in by_model.items()))


def in_order(claims: Iterable[Judgement]) -> list[Judgement]:
    """Section by section, in each as the paper has its sentences; both procedures of one stand together."""
    numbers = {section.key: number for number, section in enumerate(SECTIONS)}
    return sorted(claims, key=lambda row: (numbers[row.section], row.place, row.id))


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its word."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
