"""The standing of a sentence under both procedures: robust, artifact, hidden or refuted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.outcome import Outcome

Standing: TypeAlias = Literal["robust", "artifact", "hidden", "refuted"]
NAMES: Mapping[tuple[Outcome, Outcome], Standing] = {
    ("REPLICATED", "REPLICATED"): "robust",
    ("REPLICATED", "NOT REPLICATED"): "artifact",
    ("NOT REPLICATED", "REPLICATED"): "hidden",
    ("NOT REPLICATED", "NOT REPLICATED"): "refuted",
}
"""By the verdict under the published procedure, then under the controlled one."""


def standing(published: str, controlled: str) -> Standing | None:
    """The name of a combination of verdicts; None while either is open or could not be judged."""
    return next((name for verdicts, name in NAMES.items() if verdicts == (published, controlled)), None)


@dataclass(frozen=True)
class Sentence:
    """A sentence with its judgement on one model under each procedure."""

    id: str
    published: Judgement | None
    controlled: Judgement | None

    @property
    def is_judged_twice(self) -> bool:
        """Whether it has both rows; some sentences have only one."""
        return self.published is not None and self.controlled is not None

    @property
    def standing(self) -> Standing | None:
        """Robust, artifact, hidden or refuted; None unless both rows are decided."""
        if self.published is None or self.controlled is None:
            return None
        return standing(self.published.verdict, self.controlled.verdict)


def sentences(rows: Iterable[Judgement]) -> tuple[Sentence, ...]:
    """The sentences of one model with their rows, in order of appearance."""
    by_id: dict[str, dict[bool, Judgement]] = {}
    for row in rows:
        id = row.sentence or row.id
        controlled = row.id != id or row.procedure == "controlled"  # some sentences have only a controlled row
        by_id.setdefault(id, {})[controlled] = row
    return tuple(Sentence(id, pair.get(False), pair.get(True)) for id, pair in by_id.items())


def in_words(judged_twice: Iterable[Sentence]) -> str:
    """'Of 21 sentences ...: 12 robust, 1 artifact (binding.key_dominance), ...'; robust ones as a count only."""
    all_sentences = list(judged_twice)
    parts = []
    for name in NAMES.values():
        ids = [sentence.id for sentence in all_sentences if sentence.standing == name]
        if ids:
            parts.append(f"{len(ids)} {name}" if name == "robust" else f"{len(ids)} {name} ({', '.join(ids)})")
    undecided = sum(sentence.standing is None for sentence in all_sentences)
    parts += [f"{undecided} open or not judged"] if undecided else []
    return f"Of {len(all_sentences)} sentences judged as published and controlled: {', '.join(parts)}."
