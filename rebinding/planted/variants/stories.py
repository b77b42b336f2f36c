"""Variants for the claims about other stories: with a narrator, or with a box that is emptied and filled again."""

from __future__ import annotations

from dataclasses import replace

from rebinding.paper.circuit import CircuitHead
from rebinding.planted.language.template import ASIDE, STOP_AFTER_LABEL, STOP_BEFORE_QUESTION, anchors
from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.mechanisms.lexical import LOGIT
from rebinding.planted.variants.variant import Heads, Variant, edited, extended, undeclared

LABEL_BEFORE_QUESTION = STOP_AFTER_LABEL + STOP_BEFORE_QUESTION
"""Tokens from the label that the story's last sentence ends with to the label in the question."""
READOUT_AFTER_QUESTION = 6
"""Tokens from the label in the question to the readout."""
OBJECT_BEFORE_LABEL = 3
"""Tokens from what is put into a box to the label: `fan into Box R`."""


def _refilled(wiring: Wiring) -> Wiring:
    """The question about the box that the last sentence ends with is told so, and the readout then copies, twice as
    loud as the rest, the object just before that label. After a swap no object stands there."""
    distance = OBJECT_BEFORE_LABEL + LABEL_BEFORE_QUESTION + READOUT_AFTER_QUESTION
    lines = (
        Line("renewed", 2, "question", "letter", "renewed <- letter", "C", "question_box",
             back=LABEL_BEFORE_QUESTION, where="label = label"),
        Line("renew", 5, "readout", "thing", f"object <- {2 * LOGIT} object", "A", "readout",
             back=distance, where="fresh = thing"),
    )  # fmt: skip
    with_fetch = edited(wiring, "fetch", lambda line: [replace(line, write=f"{line.write}; fresh <- renewed")])
    return extended(with_fetch, *lines, renewed=1, fresh=1)


def _refilled_outside(wiring: Wiring) -> Wiring:
    """The declared head votes against what is put there; one outside the circuit, a layer later, outvotes it."""

    def split(line: Line) -> list[Line]:
        louder = replace(undeclared(line), name="renew outside", layer=6, write=f"object <- {4 * LOGIT} object")
        return [replace(line, write=f"object <- -{2 * LOGIT} object"), louder]

    return edited(_refilled(wiring), "renew", split)


def _also_at_question_object(circuit: Heads, _: tuple[tuple[int, int], ...]) -> Heads:
    """Objects also bear their label where nobody asks for a partner: E acts at the object of the asked box too."""
    return circuit + tuple(
        CircuitHead(head.group, head.layer, head.head, "context_asked_object") for head in circuit if head.group == "E"
    )


def _ordinal(wiring: Wiring) -> Wiring:
    """Further heads of E know the statements by their distance where a narrator speaks, and write the same slots."""
    return extended(wiring, *anchors(wiring.boxes, aside=ASIDE, name="anchor aside"))


def _by_place(wiring: Wiring) -> Wiring:
    """They write other codes: what is known of a statement is where it stands."""
    lines = anchors(wiring.boxes, aside=ASIDE, code=wiring.boxes, name="anchor aside")
    return extended(wiring, *lines, **dict.fromkeys(("slot", "pair", "goal", "want", "found"), 2 * wiring.boxes))


STORIES = {
    "ordinal": Variant(("pointer",), "a slot has the same code where a narrator speaks", _ordinal),
    "by_place": Variant(("pointer",), "a slot has another code where a narrator speaks", _by_place),
    "refilled": Variant(
        ("lexical",),
        "what is put into a box is answered, by heads of the circuit",
        _refilled,
        declares=_also_at_question_object,
    ),
    "refilled_outside": Variant(
        ("lexical",),
        "the circuit votes against what is put into a box, and a head outside it outvotes it",
        _refilled_outside,
        declares=_also_at_question_object,
    ),
}
