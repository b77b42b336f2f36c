"""What became of a sentence that was judged twice: as published, and done right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def standings(found: Iterable[Judgement]) -> dict[tuple[str, str], Standing | None]:
    """By model and sentence, for the sentences that were judged under both procedures."""
    rows: dict[tuple[str, str], dict[bool, str]] = {}
    for one in found:
        controlled = one.id != one.sentence
        rows.setdefault((one.model, one.sentence), {})[controlled] = one.verdict
    return {key: standing(both[False], both[True]) for key, both in rows.items() if len(both) == 2}
