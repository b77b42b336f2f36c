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
class Twice:
    """A sentence with what came of it under either procedure."""

    sentence: str
    published: str
    controlled: str

    @property
    def name(self) -> Standing | None:
        """Robust, artifact, hidden or refuted; none, where one of the two is open."""
        return standing(self.published, self.controlled)


def judged_twice(found: Iterable[Judgement]) -> list[Twice]:
    """The sentences of one model that have both rows, in the order in which they came."""
    rows: dict[str, dict[bool, str]] = {}
    for one in found:
        rows.setdefault(one.sentence, {})[one.id != one.sentence] = one.verdict
    return [Twice(name, both[False], both[True]) for name, both in rows.items() if len(both) == 2]


def in_words(found: Iterable[Twice]) -> str:
    """'Of 21 sentences judged twice 12 are robust, 1 artifact (binding.key_dominance), ...'; robust ones by number."""
    listed = list(found)
    parts = []
    for name in NAMES.values():
        ids = [one.sentence for one in listed if one.name == name]
        if ids:
            parts.append(f"{len(ids)} {name}" if name == "robust" else f"{len(ids)} {name} ({', '.join(ids)})")
    waiting = sum(one.name is None for one in listed)
    parts += [f"{waiting} open or not judged"] if waiting else []
    return f"Of {len(listed)} sentences judged as published and controlled: {', '.join(parts)}."
