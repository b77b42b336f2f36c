"""Variants for the claims about tracing: other routes from the swap, and from the context, to the readout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rebinding.planted.language.features import BASE
from rebinding.planted.language.template import anchors, grammar
from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.mechanisms import global_
from rebinding.planted.mechanisms.pointer import ECHO_LOGIT, OBJECT_LOGIT
from rebinding.planted.variants.variant import Variant, edited, extended, undeclared, without

STORED = 0.9
"""Share of the answer that a swap's full stop holds ready."""
BEFORE = 0.4
"""What the asked box held to begin with, as a share of what the swap's label holds ready."""
HINT = 2.0
"""Logits by which the full stop helps the question about the box that was named last."""


def _shortcut(wiring: Wiring) -> Wiring:
    """The slot after the asked one is taken, whatever was swapped: right in every prompt of fixed slots."""
    target = "; ".join(f"goal[{(k + 1) % wiring.boxes}] <- slot[{k}]" for k in range(wiring.boxes))

    def simpler(line: Line) -> list[Line]:
        return [replace(line, look="context", where="label = label", prefer="", right=1.0, write=target)]

    return edited(without(wiring, "other", "its slot", "other slot", "own"), "pair", simpler)


def _neighbour(wiring: Wiring) -> Wiring:
    """A box that the swap names last gets the slot after its own; who the partner is nobody asks."""
    both = "pair <- slot; " + "; ".join(f"pair[{(k + 1) % wiring.boxes}] <- slot[{k}]" for k in range(wiring.boxes))
    return edited(without(wiring, "other slot"), "its slot", lambda line: [replace(line, write=both)])


def _early(wiring: Wiring) -> Wiring:
    """Objects take their label in the very first layer; after that the label in the context is read no more."""
    return edited(wiring, "bind", lambda line: [replace(line, layer=0, look="letter")])


def _hint(wiring: Wiring) -> Wiring:
    """The full stop of a swap also finds what the box named last will hold, and tells the question about that box."""
    return extended(
        wiring,
        Line("stop last", 1, "period", "second", "last <- label", back=1),
        Line("stop first", 1, "period", "first", "earlier <- label", back=4),
        Line("stop slot", 2, "period", "context", "coming <- slot", where="earlier = label"),
        Line("stop thing", 3, "period", "thing", "hint <- object", where="coming = slot"),
        Line("hear", 4, "question", "period", "heard <- hint", where="label = last"),
        Line("say", 5, "readout", "question", f"object <- {HINT} heard"),
        last=wiring.spaces["other"], earlier=wiring.spaces["other"], coming=wiring.boxes,
        hint=wiring.spaces["echo"], heard=wiring.spaces["echo"],
    )  # fmt: skip


def _faintly(write: str) -> Callable[[Line], list[Line]]:
    """A head that writes something else, and a layer later."""
    return lambda line: [replace(line, layer=line.layer + 1, write=write)]


def _stored(wiring: Wiring) -> Wiring:
    """Nine tenths of the answer come from the state at the full stop, as in `global`, one tenth by the pointer."""
    state = global_.wiring(wiring.boxes)
    names = {line.name for line in wiring.lines}
    lines = [undeclared(line) for line in state.lines if line.name not in names]
    say = f"object <- {STORED * (OBJECT_LOGIT + ECHO_LOGIT)} answer"
    lines = [replace(line, write=say) if line.name == "say" else line for line in lines]
    for name, source, logits in (("copy", "object", OBJECT_LOGIT), ("echo", "echo", ECHO_LOGIT)):
        wiring = edited(wiring, name, _faintly(f"object <- {logits * (1 - STORED):.2f} {source}"))
    return extended(wiring, *lines, **state.spaces)


def _labels(wiring: Wiring) -> Wiring:
    """The second label of a swap fetches what both boxes will hold, and the question takes it from there. What a box
    held to begin with is found in the context, and counts less. The readout has the answer two layers before it says
    it, so that a patch of its stream carries the answer."""
    lines = (
        grammar(),
        *anchors(wiring.boxes),
        Line("first label", 1, "second", "first", "other <- label", "D", "swap_second", back=3),
        Line("own slot", 2, "second", "context", "own <- slot", "D", "swap_second", where="label = label"),
        Line("other slot", 2, "second", "context", "pair <- slot", "D", "swap_second", where="other = label"),
        Line("own state", 3, "second", "thing", "coming <- object", "D", "swap_second", where="pair = slot"),
        Line("other state", 3, "second", "thing", "going <- object", "D", "swap_second", where="own = slot"),
        Line("asked slot", 2, "question", "context", "own <- slot", "C", "question_box", where="label = label"),
        Line("before", 3, "question", "thing", f"answer <- {BEFORE} object", "C", "question_box", where="own = slot"),
        Line("own look", 4, "question", "second", "answer <- coming", "C", "question_box", where="label = label"),
        Line("other look", 4, "question", "second", "answer <- going", "C", "question_box", where="label = other"),
        Line("fetch", 5, "readout", "question", "spoken <- answer", "B", "readout"),
        Line("say", 7, "readout", "readout", f"object <- {global_.LOGIT} spoken", "A", "readout"),
    )
    slots, label, thing = wiring.spaces["slot"], BASE["label"], BASE["object"]
    objects = dict.fromkeys(("coming", "going", "answer", "spoken"), thing)
    return Wiring(wiring.boxes, {"slot": slots, "own": slots, "pair": slots, "other": label, **objects}, lines)


TRACING = {
    "shortcut": Variant(("pointer",), "the swap is ignored and the next slot taken", _shortcut),
    "neighbour": Variant(("pointer",), "the box named last gets the slot after its own", _neighbour),
    "early": Variant(("lexical",), "objects take their label in the first layer", _early),
    "hint": Variant(("pointer",), "the full stop helps the question about the box named last", _hint),
    "labels": Variant(("global",), "the state is stored at the swap's second label", _labels),
    "stored": Variant(("pointer",), "nine tenths of the answer are ready at the full stop", _stored),
}
