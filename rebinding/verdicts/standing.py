"""What became of a sentence that was judged twice: as published, and done right."""

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
"""What the published experiment says, then what the controlled one says."""


def standing(published: str, controlled: str) -> Standing | None:
    """The name of a combination; none, as long as one of the two is open or could not be judged."""
    return next((name for (one, other), name in NAMES.items() if (one, other) == (published, controlled)), None)


@dataclass(frozen=True)
class Sentence:
    """A sentence with what was judged of it on one model under either procedure."""

    id: str
    published: Judgement | None
    controlled: Judgement | None

    @property
    def is_judged_twice(self) -> bool:
        """Whether it has both rows; some have one alone."""
        return self.published is not None and self.controlled is not None

    @property
    def standing(self) -> Standing | None:
        """Robust, artifact, hidden or refuted; none, unless both rows are decided."""
        if self.published is None or self.controlled is None:
            return None
        return standing(self.published.verdict, self.controlled.verdict)


def sentences(rows: Iterable[Judgement]) -> tuple[Sentence, ...]:
    """The sentences of one model with their rows, in the order in which they come."""
    by_id: dict[str, dict[bool, Judgement]] = {}
    for row in rows:
        id = row.sentence or row.id
        controlled = row.id != id or row.procedure == "controlled"  # some sentences have a controlled row alone
        by_id.setdefault(id, {})[controlled] = row
    return tuple(Sentence(id, both.get(False), both.get(True)) for id, both in by_id.items())


def in_words(judged_twice: Iterable[Sentence]) -> str:
    """'Of 21 sentences judged twice 12 are robust, 1 artifact (binding.key_dominance), ...'; robust ones by number."""
    listed = list(judged_twice)
    parts = []
    for name in NAMES.values():
        ids = [one.id for one in listed if one.standing == name]
        if ids:
            parts.append(f"{len(ids)} {name}" if name == "robust" else f"{len(ids)} {name} ({', '.join(ids)})")
    waiting = sum(one.standing is None for one in listed)
    parts += [f"{waiting} open or not judged"] if waiting else []
    return f"Of {len(listed)} sentences judged as published and controlled: {', '.join(parts)}."
