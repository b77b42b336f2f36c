"""Lines that several mechanisms share."""

from __future__ import annotations

from rebinding.planted.language.template import LABEL, OBJECT, SENTENCE
from rebinding.planted.language.wiring import Line


def grammar() -> Line:
    """What a label, a full stop or a colon is there for is told by the word two (or one) back."""
    distances = (("letter", 2), ("dot", 2), ("colon", 1))
    return Line("place", 0, "letter + dot + colon", "cue", "place <- cue", back=distances, grammar=True)


def anchors(boxes: int) -> tuple[Line, ...]:
    """Group E: one head per slot, which knows the label and the object of its sentence by their distance."""
    return tuple(
        Line(f"anchor {k}", 1, "context + thing", "marker", f"slot[{k}] <- marker", "E", "context_partner",
             back=(("context", LABEL + SENTENCE * k), ("thing", OBJECT + SENTENCE * k)))
        for k in range(boxes)
    )  # fmt: skip
