"""`pointer`: retrieval conditioned rebinding. The contents are never rewritten; the question is sent to another slot.

Labels and objects of the context know their slot (E). The second label of a swap collects the slots of both boxes (D).
The question box takes the two and takes its own away, and what is left is its partner's slot; without a swap it takes
its own twice (C). The readout fetches that slot (`fetch`) and finds the tokens that bear it (`match`), the two kinds of
group B; A listens to both, more to the second. Group A copies the object there (`copy`), and repeats what `match` saw
of it (`echo`).

Any number of swaps works, as long as no box is swapped twice.
"""

from __future__ import annotations

from rebinding.planted.language.features import BASE
from rebinding.planted.language.template import anchors, grammar
from rebinding.planted.language.wiring import Line, Wiring

OBJECT_LOGIT, ECHO_LOGIT = 4.5, 3.5
"""Logits of the answer from the object's own token, and from the object as `match` saw it."""
FOUND_WEIGHT, WANTED_WEIGHT = 4.5, 3.0
"""Nats by which A prefers the slot that `match` found, and the slot that `fetch` brought."""


def wiring(boxes: int) -> Wiring:
    """The lines of the mechanism."""
    lines = (
        grammar(),
        *anchors(boxes),
        Line("other", 1, "second", "first", "other <- label", "D", "swap_second", back=3),
        Line("its slot", 2, "second", "context", "pair <- slot", "D", "swap_second", where="label = label"),
        Line("other slot", 2, "second", "context", "pair <- slot", "D", "swap_second", where="other = label"),
        Line("own", 2, "question", "context", "goal <- -slot", "C", "question_box", where="label = label"),
        Line("pair", 3, "question", "context + second", "goal <- pair + 2 slot", "C", "question_box",
             where="2 label = label + other", prefer="second", right=2.0),
        # The preference decides what little falls on the context, so that no rounding does.
        Line("fetch", 4, "readout", "question", "want <- goal", "B", "readout", prefer="0.25 slot[0]", right=0.0),
        Line("match", 5, "readout", "context + thing", "found <- slot; echo <- object", "B", "readout",
             where="want = slot", prefer="0.25 thing"),
        Line("copy", 6, "readout", "thing", f"object <- {OBJECT_LOGIT} object", "A", "readout",
             where=f"{FOUND_WEIGHT} found + {WANTED_WEIGHT} want = slot", unit=1.0, right=FOUND_WEIGHT + WANTED_WEIGHT),
        Line("echo", 6, "readout", "readout", f"object <- {ECHO_LOGIT} echo", "A", "readout"),
    )  # fmt: skip
    spaces = dict.fromkeys(("slot", "pair", "goal", "want", "found"), boxes)
    return Wiring(boxes, spaces | {"other": BASE["label"], "echo": BASE["object"]}, lines)
