"""Summarise a run: computed once from its judgements; the terminal, the page and `claims.json` read it.

Sections come in the order of the paper's outline.

The claims of a model that one gate stopped are grouped, so that the reason is given once and not for each claim.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rebinding.paper.claim import SectionName
from rebinding.verdicts.headline import HeadlineVerdict, headline_verdicts
from rebinding.verdicts.judgement import RUN, Judgement, Sentence, Standing, in_words, sentences
from rebinding.verdicts.outcome import FamilyOfClaims, family


@dataclass(frozen=True)
class Section:
    """A section of the page. `ids` is the common prefix of the ids of its claims."""

    key: SectionName
    short: str
    title: str
    description: str
    ids: str


SECTIONS: tuple[Section, ...] = (
    Section(
        "tracing",
        "3",
        "Section 3: where the answer comes from",
        "Activation patching of the residual stream, at each layer and token.",
        "tracing",
    ),
    Section(
        "five",
        "3, five boxes",
        "Section 3, with five boxes",
        "The claims of section 3 on prompts with five boxes and a distracting swap.",
        "tracing.five_boxes",
    ),
    Section(
        "circuit",
        "4.1",
        "Section 4.1: the circuit",
        "Path patching and mean ablation: a small set of heads does the task, and its groups form a chain.",
        "circuit",
    ),
    Section(
        "roles",
        "4.2",
        "Section 4.2: what the groups do",
        "Activation patching of each group: attention patterns or outputs come from a counterfactual.",
        "roles",
    ),
    Section(
        "binding",
        "5",
        "Section 5: binding IDs in queries and keys",
        "The queries and keys of group B are shifted from one slot to another.",
        "binding",
    ),
    Section(
        "robust", "beyond", "Beyond the paper", "Further experiments: do the paper's conclusions hold there?", "robust"
    ),
    Section("other", "other", "Other claims", "Claims outside the sections of the paper.", "other"),
)


MAX_NAMED = 4
"""Up to this many claims are named; more are counted by section."""
ADVICE = {
    "above_chance": (
        "what may help: a larger model, another --design, another chat form (ALIAS=FOLDER), more --samples",
        "its prompt and its answer: rebinding prompt --model {model} --answer",
    ),
    "group_present": ("what may help: another circuit (--circuit discovered, or a file saved by rebinding discover)",),
}
"""Advice by failed gate."""


@dataclass(frozen=True)
class StoppedClaims:
    """Claims of one model that one gate made INVALID although something else was expected.

    `reasons` has every reason with the number of its claims, the most frequent first. `has_all_claims` says that the
    gate stopped every claim of the model.
    """

    model: str
    gate: str
    rows: tuple[Judgement, ...]
    reasons: tuple[tuple[str, int], ...]
    has_all_claims: bool

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.rows)

    @property
    def statement(self) -> str:
        """The most frequent reason, in a sentence."""
        nothing_left = self.has_all_claims and self.model != RUN
        return self.reasons[0][0] + (": nothing can be judged on this model" if nothing_left else "")

    @property
    def other_reasons(self) -> tuple[str, ...]:
        """Other reasons under the same gate, as with five boxes instead of three."""
        return tuple(f"for {count} of the rows: {reason}" for reason, count in self.reasons[1:])

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do next. What stopped a claim about several models stands with the model that it stopped."""
        if self.model == RUN or all(row.section == "other" for row in self.rows):
            return ()  # of a task of its own a claim knows more
        return tuple(line.format(model=shlex.quote(self.model)) for line in ADVICE.get(self.gate, ()))

    @property
    def count_line(self) -> str:
        """The line that stands for the rows."""
        line = f"{len(self.ids)} rows: INVALID ({self.gate})"
        return line if self.has_all_claims else f"{line}: {self._ids_in_words}"

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines that stand for the rows."""
        return (self.statement, *self.other_reasons, *self.advice, self.count_line)

    @property
    def _ids_in_words(self) -> str:
        if len(self.ids) <= MAX_NAMED:
            return ", ".join(self.ids)
        names = {section.key: section.ids for section in SECTIONS}
        counts = Counter(row.section for row in self.rows)
        return ", ".join(f"{names[key]} {count}" for key, count in counts.items())


def group_stopped_claims(claims: Sequence[Judgement]) -> Iterator[StoppedClaims]:
    """The stopped claims of one model, grouped by gate. INVALID that a plant's truth table expects is not grouped."""
    for gate in dict.fromkeys(row.gate for row in claims if row.gate and not row.as_expected):
        same_gate = [row for row in claims if row.gate == gate]
        has_all_claims = len(same_gate) == len(claims)
        rows = same_gate if has_all_claims else [row for row in same_gate if not row.as_expected]
        if len(rows) > 1:
            reasons = Counter(row.reason for row in rows).most_common()
            yield StoppedClaims(rows[0].model, gate, tuple(rows), tuple(reasons), has_all_claims)


FAILED = ("NOT REPLICATED", "INVALID")
MARKS = {"REPLICATED": "✓", "NOT REPLICATED": "✗", "INCONCLUSIVE": "?", "INVALID": "!", "NOT APPLICABLE": "–"}
LETTERS: Mapping[str, str] = {
    "REPLICATED": "R", "NOT REPLICATED": "N", "INCONCLUSIVE": "?", "INVALID": "!", "NOT APPLICABLE": "–",
    "REPORTED": "·",
}  # fmt: skip
"""The letter of a verdict in the matrix of the page, and in `claims.json`."""
MEANINGS: Mapping[str, str] = {
    "REPLICATED": "the evidence supports the claim",
    "NOT REPLICATED": "the evidence contradicts the claim",
    "INCONCLUSIVE": "the data do not decide",
    "INVALID": "a precondition (gate) failed",
    "NOT APPLICABLE": "the claim is not about this model",
    "REPORTED": "a number without a claim",
}
"""The meaning of a verdict in a few words."""
WORDS = {"NOT REPLICATED": "not", "INCONCLUSIVE": "inconclusive", "INVALID": "invalid"}


@dataclass(frozen=True)
class Failure:
    """Claims that failed with the same verdict, gate and reason."""

    verdict: str
    gate: str | None
    reason: str
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
    """The verdicts of the claims on one model; `is_planted` says whether its mechanism is known.

    Rows are in the order of the input. Rows that only report a property are in no count.
    """

    name: str
    is_planted: bool
    rows: tuple[Judgement, ...]

    @cached_property
    def sections(self) -> tuple[SectionSummary, ...]:
        """The sections with a judged row."""
        by_key: dict[str, list[Judgement]] = {}
        for row in sort_rows(self.rows):
            by_key.setdefault(row.section, []).append(row)
        return tuple(
            SectionSummary(section, tuple(rows), sentences(rows))
            for section in SECTIONS
            if (rows := by_key.get(section.key))
        )

    @cached_property
    def headline(self) -> tuple[HeadlineVerdict, ...]:
        """The headline claims with a judged row; none if one gate stopped everything."""
        return () if self.is_stopped else headline_verdicts(self.rows)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences in the order of the rows."""
        return sentences(self.rows)

    @cached_property
    def sentence_pairs(self) -> tuple[Sentence, ...]:
        """The sentences that were judged as published and controlled."""
        return tuple(sentence for sentence in self.sentences if sentence.is_judged_twice)

    def standing_of(self, row: Judgement) -> Standing | None:
        """The standing of a row's sentence under both procedures."""
        return self._standings[row.sentence or row.id]

    @cached_property
    def _standings(self) -> Mapping[str, Standing | None]:
        return {sentence.id: sentence.standing for sentence in self.sentences}

    @property
    def standings(self) -> str | None:
        """How many sentences judged twice are robust, artifacts, hidden, refuted."""
        return in_words(self.sentence_pairs) if self.sentence_pairs else None

    @cached_property
    def stopped_groups(self) -> tuple[StoppedClaims, ...]:
        """The gates that stopped several claims."""
        return tuple(group_stopped_claims(self.rows))

    @property
    def is_stopped(self) -> bool:
        """Whether one gate stopped everything."""
        return any(group.has_all_claims for group in self.stopped_groups)

    @cached_property
    def stopped_ids(self) -> frozenset[str]:
        """The ids of the claims that these gates stopped; they are reported together."""
        return frozenset(id for group in self.stopped_groups for id in group.ids)

    @cached_property
    def unexpected_rows(self) -> tuple[Judgement, ...]:
        """Verdicts that are not as expected."""
        return tuple(row for row in self.rows if not row.as_expected)

    @property
    def unexpected_single_rows(self) -> tuple[Judgement, ...]:
        """The same, without those that are reported together."""
        return tuple(row for row in self.unexpected_rows if row.id not in self.stopped_ids)

    @cached_property
    def family(self) -> FamilyOfClaims:
        """The tested claims as a family, for multiple testing."""
        return family({row.id: row.as_verdict() for row in self.rows})

    @property
    def sentence(self) -> str:
        """'27 of 31 rows replicated, 2 not, 2 inconclusive', and how many do not apply."""
        counts = Counter(row.verdict for row in self.rows if row.kind != "report")
        not_applicable, reports = counts.pop("NOT APPLICABLE", 0), sum(row.kind == "report" for row in self.rows)
        parts = [f"{counts['REPLICATED']} of {format_count(counts.total(), 'row')} replicated"]
        parts += [f"{counts[name]} {word}" for name, word in WORDS.items() if counts[name]]
        uncounted = [f"{not_applicable} not applicable"] if not_applicable else []
        uncounted += [f"{reports} only reported"] if reports else []
        return ", ".join(parts) + (f" ({' and '.join(uncounted)} besides)" if uncounted else "") + "."

    @property
    def agreement(self) -> str:
        """How the verdicts compare with the expected ones, if there are any."""
        if self.is_planted:
            unexpected_count = len(self.unexpected_rows)
            text = f"{len(self.rows) - unexpected_count} of {format_count(len(self.rows), 'verdict')} are as planted"
            end = f"; {format_count(unexpected_count, 'differs', 'differ')} from what was planted"
            return f"{text}{end if unexpected_count else ''}."
        asserted = [row for row in self.rows if row.expected is not None]
        if not asserted:
            return "The paper asserts nothing of this model: no verdict is expected, all are reported."
        replicated = sum(row.as_expected for row in asserted)
        return f"Of {format_count(len(asserted), 'row')} that the paper asserts of this model {replicated} replicated."

    @property
    def luck(self) -> str:
        """How many rows chance alone would reject, and how many rejections remain after Holm's correction."""
        family = self.family
        if not family.judged:
            return "No row was tested."
        text = f"{format_count(family.judged, 'row')} tested. If all were true, chance alone would make at most"
        text += f" {family.expected_false_alarms:.1f} of them NOT REPLICATED. {len(family.rejected)} came out so"
        surviving = f"; {len(family.surviving)} remain after Holm's correction" if family.rejected else ""
        return f"{text}{surviving}."

    @property
    def failure_count(self) -> int:
        """How many rows failed."""
        return sum(row.verdict in FAILED for row in self.rows)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures by reason: unexpected ones first; in each group NOT REPLICATED before INVALID."""
        groups: dict[tuple[bool, int, str, str, str], list[str]] = {}
        for row in self.rows:
            if row.verdict in FAILED:
                kind = FAILED.index(row.verdict)
                key = (row.as_expected, kind, row.gate or "", row.verdict, row.because or row.reason)
                groups.setdefault(key, []).append(row.id)
        ordered = sorted(groups.items(), key=lambda item: item[0][:3])
        return tuple(
            Failure(verdict, gate or None, reason, expected, tuple(ids))
            for (expected, _, gate, verdict, reason), ids in ordered
        )

    def remark(self, verdict: HeadlineVerdict) -> str:
        """A remark on a headline verdict that is not as expected, or that the paper does not assert; else nothing."""
        if self.is_planted:
            ids = ", ".join(row.id for row in verdict.differing)
            return f"differs from what was planted: {ids}" if ids else ""
        is_asserted = any(row.expected is not None for row in verdict.published_rows)
        has_assertions = any(row.expected is not None for row in self.rows)
        return "" if is_asserted or not has_assertions else "the paper does not say this of it"

    def compare_with_expected(self, row: Judgement) -> str:
        """How a verdict compares with the expected one, in words: a 'not' need not be an error."""
        if row.expected is None:
            return "reported, not asserted by the paper"
        if self.is_planted:
            return "as planted" if row.as_expected else f"differs from what was planted: {row.expected}"
        return "as the paper says" if row.as_expected else "the paper asserts it"


@dataclass(frozen=True)
class Summary:
    """A run: its models in the order in which they were named."""

    models: tuple[ModelSummary, ...]

    def find_model(self, model: str) -> ModelSummary:
        """The model with this name."""
        return next(summary for summary in self.models if summary.name == model)


def summarise(claims: Sequence[Judgement], models: Mapping[str, bool]) -> Summary:
    """The summary of judgements. `models` says for each model whether it is planted; other models come last."""
    by_model: dict[str, list[Judgement]] = {name: [] for name in models}
    for row in claims:
        by_model.setdefault(row.model, []).append(row)
    return Summary(tuple(ModelSummary(name, models.get(name, False), tuple(rows)) for name, rows in by_model.items()))


def sort_rows(claims: Iterable[Judgement]) -> list[Judgement]:
    """Judgements by section, then in the order of the paper's sentences; both procedures of one stand together."""
    numbers = {section.key: number for number, section in enumerate(SECTIONS)}
    return sorted(claims, key=lambda row: (numbers[row.section], row.place, row.id))


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """A count with its word."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"
