"""What a gate has stopped on a model: said once, and not again for each of its claims."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rebinding.report.outline import SECTIONS
from rebinding.verdicts.judgement import Judgement

FEW = 4
"""Up to so many claims are named, more of them counted by section."""
NEXT = {
    "above_chance": (
        "what may help: a larger model, another --design, another chat form (ALIAS=FOLDER), more --samples",
        "what it is asked, and answers: python -m rebinding prompt --model {model} --answer",
    ),
    "group_present": (
        "what may help: another circuit (--circuit discovered, or a file saved by python -m rebinding discover)",
    ),
}
"""What can be done where a gate has failed."""


@dataclass(frozen=True)
class Stopped:
    """Claims of one model that one gate has made INVALID, where something else was expected.

    `why` has every reason with the number of its claims, the most frequent first. `whole`: the gate has stopped all
    that was to be judged on the model.
    """

    model: str
    gate: str
    rows: tuple[Judgement, ...]
    why: tuple[tuple[str, int], ...]
    whole: bool

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.rows)

    @property
    def statement(self) -> str:
        """The one sentence."""
        return self.why[0][0] + (": nothing can be judged on this model" if self.whole else "")

    @property
    def besides(self) -> tuple[str, ...]:
        """Other reasons under the same gate, as with five boxes instead of three."""
        return tuple(f"for {count} of the claims: {why}" for why, count in self.why[1:])

    @property
    def next(self) -> tuple[str, ...]:
        """What can be done."""
        return tuple(line.format(model=shlex.quote(self.model)) for line in NEXT.get(self.gate, ()))

    @property
    def counted(self) -> str:
        """The line in place of the rows."""
        told = f"{len(self.ids)} claims: INVALID ({self.gate})"
        return told if self.whole else f"{told}: {self._where}"

    @property
    def lines(self) -> tuple[str, ...]:
        """All that is said in place of the rows."""
        return (self.statement, *self.besides, *self.next, self.counted)

    @property
    def _where(self) -> str:
        if len(self.ids) <= FEW:
            return ", ".join(self.ids)
        names = {section.key: section.ids for section in SECTIONS}
        counts = Counter(row.section for row in self.rows)
        return ", ".join(f"{names[key]} {count}" for key, count in counts.items())


def stopped(claims: Sequence[Judgement]) -> Iterator[Stopped]:
    """What was stopped on one model, gate by gate. What a plant's truth has as INVALID is a result like others."""
    for gate in dict.fromkeys(one.gate for one in claims if one.gate and not one.as_expected):
        same = [one for one in claims if one.gate == gate]
        whole = len(same) == len(claims)
        found = same if whole else [one for one in same if not one.as_expected]
        if len(found) > 1:
            why = Counter(one.reason for one in found).most_common()
            yield Stopped(found[0].model, gate, tuple(found), tuple(why), whole)
