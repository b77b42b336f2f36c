"""`global`: the state is rewritten as soon as a swap has been read, and the question only looks it up.

Every full stop writes down the whole state as it is there: the label and the object of every box. A swap's full stop
fetches the slots of both boxes; each slot's mate is the slot it was swapped with, and a slot's object is its mate's, or
its own where it has none. The question box goes back to the last full stop, finds its label there and takes the object.
Nothing after that full stop looks at the context again.

Any number of swaps works, as long as no box is swapped twice. No head binds by slot at the readout: there is no B.
"""

from __future__ import annotations

from rebinding.planted.language.features import BASE
from rebinding.planted.language.template import STOP_BEFORE_QUESTION, anchors, grammar
from rebinding.planted.language.wiring import Line, Wiring

LOGIT = 5.0
"""Logits of the answer; clearly fewer than the pointer's, so that their margins can be told apart."""


def wiring(boxes: int) -> Wiring:
    """The lines of the mechanism."""
    lines = [
        grammar(),
        *anchors(boxes),
        Line("last label", 1, "period", "second", "last <- label", "D", "swap_period", back=1),
        Line("first label", 1, "period", "first", "other <- label", "D", "swap_period", back=4),
        Line("last slot", 2, "period", "context", "pair <- slot", "D", "swap_period", where="last = label"),
        Line("first slot", 2, "period", "context", "pair <- slot", "D", "swap_period", where="other = label"),
    ]
    for k in range(boxes):
        lines += [
            Line(f"tag {k}", 2, "dot", "context", f"tag[{k}] <- label", "D", "swap_period", prefer=f"slot[{k}]"),
            Line(f"mate {k}", 3, "dot", "period", f"mate[{k}] <- pair", "D", "swap_period", prefer=f"pair[{k}]"),
            Line(f"state {k}", 4, "dot", "thing", f"state[{k}] <- object", "D", "swap_period",
                 where=f"mate[{k}] = slot; -2 mate[{k}][{k}] = slot[{k}]", prefer=f"slot[{k}]"),
            Line(f"look up {k}", 5, "question", "dot", f"answer <- state[{k}]", "C", "question_box",
                 back=STOP_BEFORE_QUESTION, where=f"label = tag[{k}]"),
        ]  # fmt: skip
    lines.append(Line("say", 6, "readout", "question", f"object <- {LOGIT} answer", "A", "readout"))
    sizes = {"tag": BASE["label"], "mate": boxes, "state": BASE["object"]}
    spaces = {f"{name}[{k}]": size for name, size in sizes.items() for k in range(boxes)}
    labels = {"last": BASE["label"], "other": BASE["label"]}
    return Wiring(boxes, {"slot": boxes, "pair": boxes, "answer": BASE["object"]} | labels | spaces, tuple(lines))
