"""The four mechanisms, each a wiring: one line per head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from rebinding.planted.language import BASE, STOP_BEFORE_QUESTION, Line, Wiring, anchors, grammar

OBJECT_LOGIT, ECHO_LOGIT = 4.5, 3.5
"""Logits of the answer from the object's own token, and from the object as `match` saw it."""
FOUND_WEIGHT, WANTED_WEIGHT = 4.5, 3.0
"""Nats by which A prefers the slot that `match` found, and the slot that `fetch` brought."""
LOGIT = 5.0
"""Logits of the answer in `global` and `lexical`; clearly fewer than the pointer's, so that their margins can be told
apart."""


def pointer(boxes: int) -> Wiring:
    """Retrieval conditioned rebinding. The contents are never rewritten; the question is sent to another slot.

    Labels and objects of the context know their slot (E). The second label of a swap collects the slots of both boxes
    (D). The question box takes the two and takes its own away, and what is left is its partner's slot; without a swap
    it takes its own twice (C). The readout fetches that slot (`fetch`) and finds the tokens that bear it (`match`), the
    two kinds of group B; A listens to both, more to the second. Group A copies the object there (`copy`), and repeats
    what `match` saw of it (`echo`).

    Any number of swaps works, as long as no box is swapped twice.
    """
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


def global_state(boxes: int) -> Wiring:
    """The state is rewritten as soon as a swap has been read, and the question only looks it up.

    Every full stop writes down the whole state as it is there: the label and the object of every box. A swap's full
    stop fetches the slots of both boxes; each slot's mate is the slot it was swapped with, and a slot's object is its
    mate's, or its own where it has none. The question box goes back to the last full stop, finds its label there and
    takes the object. Nothing after that full stop looks at the context again.

    Any number of swaps works, as long as no box is swapped twice. No head binds by slot at the readout: there is no B.
    """
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


LATE_STEP = 2.0
"""Nats by which a slot is preferred to the one before it."""
LISTENING = 0.01
"""Share of a step for the slot that is asked for: next to nothing, but no query is the same for every question."""
WHISPER = 0.1
"""Logits of the object that such a head attends to."""
BINDING = ("fetch", "match")
LOOKS = {"late object": "thing", "late token": "context + thing"}


def recency(boxes: int) -> Wiring:
    """The answer comes by the pointer's route, and the heads that are called group B have nothing to do with it.

    They stand at the readout and prefer the later slot, whatever is asked. Under an experiment with one fixed pair of
    slots that looks like "the key decides and the query does not"; over both orders of the pair it vanishes. The heads
    that do bind are listed with group A, so that the circuit as a whole is complete.
    """
    route = pointer(boxes)
    preference = " + ".join(f"{k} slot[{k}]" for k in range(1, boxes))
    late = [
        Line(name, 5, "readout", look, f"object <- {WHISPER} object", "B", "readout", sharing_class="late",
             where=f"{LISTENING} want = slot", prefer=preference, unit=LATE_STEP, right=boxes - 1.0)
        for name, look in LOOKS.items()
    ]  # fmt: skip
    lines = [replace(line, group="A") if line.name in BINDING else line for line in route.lines]
    return replace(route, lines=(*lines, *late))


TASTE_STEP = 1 / 64
"""What one label is preferred by to the one before it. At softness 0 all 25 steps weigh 11.7 nats, which is less than
the 15 that the context, having none of the gate, lacks to the threshold: a label there never outweighs the question."""
TASTE = " + ".join(f"{k * TASTE_STEP} label[{k}]" for k in range(1, BASE["label"]))
"""Some labels over others: what little of a head's attention falls on the context is not left to rounding."""


def lexical(boxes: int) -> Wiring:
    """Boxes are addressed by the text of their labels; there is no slot code anywhere.

    An object bears the label of its sentence (E). The second label of a swap also bears the first (D), and the full
    stop bears both (P). A question about the first label finds it at the second one, and takes the second label from
    there; a question about the second finds it at the full stop, and takes the first; any other keeps its own label
    (C). The readout fetches that label (`fetch`), finds the tokens that bear it (`match`), and the object there is
    copied (A).
    """
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


MECHANISMS: Mapping[str, Callable[[int], Wiring]] = MappingProxyType(
    {"pointer": pointer, "global": global_state, "recency": recency, "lexical": lexical}
)
