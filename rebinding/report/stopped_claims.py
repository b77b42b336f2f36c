"""Group the claims of a model that one gate stopped, so that the reason is given once and not for each claim."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rebinding.report.outline import SECTIONS
from rebinding.verdicts.judgement import RUN, Judgement

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
        return tuple(f"for {count} of the claims: {reason}" for reason, count in self.reasons[1:])

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do next. What stopped a claim about several models stands with the model that it stopped."""
        if self.model == RUN:
            return ()
        return tuple(line.format(model=shlex.quote(self.model)) for line in ADVICE.get(self.gate, ()))

    @property
    def count_line(self) -> str:
        """The line that stands for the rows."""
        line = f"{len(self.ids)} claims: INVALID ({self.gate})"
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
