"""`lexical`: boxes are addressed by the text of their labels; there is no slot code anywhere.

An object bears the label of its sentence (E). The second label of a swap also bears the first (D), and the full stop
bears both (P). A question about the first label finds it at the second one, and takes the second label from there; a
question about the second finds it at the full stop, and takes the first; any other keeps its own label (C). The readout
fetches that label (`fetch`), finds the tokens that bear it (`match`), and the object there is copied (A).
"""

from __future__ import annotations

from rebinding.planted.language.features import BASE
from rebinding.planted.language.template import grammar
from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.mechanisms.pointer import FOUND_WEIGHT, WANTED_WEIGHT

LOGIT = 5.0
"""Logits of the answer; clearly fewer than the pointer's, so that their margins can be told apart."""
STEP = 1 / 64
"""What one label is preferred by to the one before it. At softness 0 all 25 steps weigh 11.7 nats, which is less than
the 15 that the context, having none of the gate, lacks to the threshold: a label there never outweighs the question."""
TASTE = " + ".join(f"{k * STEP} label[{k}]" for k in range(1, BASE["label"]))
"""Some labels over others: what little of a head's attention falls on the context is not left to rounding."""


def wiring(boxes: int) -> Wiring:
    """The lines of the mechanism; the number of boxes makes no difference to them."""
    lines = (
        grammar(),
        Line("bind", 1, "thing", "context", "bound <- label", "E", "context_partner_object", back=3),
        Line("other", 1, "second", "first", "other <- label", "D", "swap_second", back=3),
        Line("last label", 1, "period", "second", "last <- label", "P", "swap_period", back=1),
        Line("first label", 1, "period", "first", "earlier <- label", "P", "swap_period", back=4),
        Line("partner", 2, "question", "second + period + question", "goal <- label + earlier", "C", "question_box",
             where="2 label = other + last", prefer="question"),
        Line("fetch", 3, "readout", "question", "want <- goal", "B", "readout", prefer=TASTE, right=0.0),
        Line("match", 4, "readout", "context + thing", "found <- label + bound", "B", "readout",
             where="want = label + bound", prefer="0.25 thing"),
        Line("copy", 5, "readout", "thing", f"object <- {LOGIT} object", "A", "readout",
             where=f"{FOUND_WEIGHT} found + {WANTED_WEIGHT} want = bound", unit=1.0,
             right=FOUND_WEIGHT + WANTED_WEIGHT),
    )  # fmt: skip
    names = ("bound", "other", "last", "earlier", "goal", "want", "found")
    return Wiring(boxes, dict.fromkeys(names, BASE["label"]), lines)
