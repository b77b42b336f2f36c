"""Variants for the claims about head roles and binding IDs."""

from __future__ import annotations

from dataclasses import replace

from rebinding.planted.language.features import BASE
from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.mechanisms.pointer import FOUND, WANTED
from rebinding.planted.variants.variant import Change, Variant, edited, extended, undeclared

COPYING = f"{FOUND} found + {WANTED} want = slot"
SHARP = 30.0
"""Nats of a match that is as good as a hard choice."""
VOTE = 2.0
"""Logits of a head that votes for or against, clearly less than the eight of the heads that answer."""


def _bystander(beside: str, logits: float) -> Change:
    """A head outside the circuit that shares a B head's KV head, reads its keys, and adds to the answer."""

    def joined(line: Line) -> list[Line]:
        bystander = Line("bystander", line.layer, "readout", line.look, f"object <- {logits} object",
                         where="want = slot", prefer="0.25 thing", bench=line.bench)  # fmt: skip
        return [line, bystander]

    return lambda wiring: edited(wiring, beside, joined)


def _veto(wiring: Wiring) -> Wiring:
    """A further B head takes half of the slot of the matching box label away, so box keys work against object keys."""
    veto = Line(
        "veto", 5, "readout", "context", "found <- -0.5 slot", "B", "readout", where="want = slot", bench="veto"
    )
    return extended(wiring, veto)


def _sharp(wiring: Wiring) -> Wiring:
    """`match` listens to slots far more than to anything that a random direction could touch."""
    return edited(wiring, "match", lambda line: [replace(line, unit=SHARP)])


def _fresh(wiring: Wiring) -> Wiring:
    """`match` works in prompts of unfamiliar objects only, elsewhere a head outside the circuit does. The prompts that
    directions are measured on are familiar in the counterbalanced design, so they show its keys and not its query."""
    lines = (
        Line("novel", 3, "question", "thing - rehearsed", "novel <- thing"),
        Line("fetch fresh", 4, "readout", "question", "fresh <- goal", "B", "readout",
             prefer="novel", unit=SHARP),
    )  # fmt: skip
    split = edited(wiring, "match", lambda line: [
        replace(line, where="fresh = slot"),
        replace(undeclared(line), name="match familiar", where="want - fresh = slot"),
    ])  # fmt: skip
    return extended(split, *lines, novel=1, fresh=wiring.boxes)


def _faint(wiring: Wiring) -> Wiring:
    """A head that is counted with C copies at the readout too, and faintly."""
    faint = Line("faint copy", 6, "readout", "thing", f"object <- {VOTE} object", "C", "question_box",
                 where=COPYING, unit=1.0, right=FOUND + WANTED)  # fmt: skip
    return extended(wiring, faint)


def _classes(wiring: Wiring) -> Wiring:
    """The heads that copy are not declared. A are two others. One votes against the object that it looks at. The other
    looks at the swap's full stop if the answer is an odd object, else at the question, and promotes that half of the
    words."""

    def told(line: Line) -> list[Line]:
        return [replace(line, write=f"{line.write}; odd_one <- odd")]

    halves = ("question", "period")
    promoted = "; ".join(f"object[{n}] <- {VOTE} {halves[n % 2]}" for n in range(BASE["object"]))
    lines = (
        Line("against", 6, "readout", "thing", f"object <- -{VOTE} object", "A", "readout",
             where=COPYING, unit=1.0, right=FOUND + WANTED),
        Line("class", 6, "readout", "period + question", promoted, "A", "readout",
             where="odd_one = period", prefer="0.4 question", unit=SHARP, right=0.4),
    )  # fmt: skip
    quiet = edited(edited(edited(wiring, "match", told), "copy", lambda line: [undeclared(line)]),
                   "echo", lambda line: [undeclared(line)])  # fmt: skip
    return extended(quiet, *lines, odd_one=1)


HEADS = {
    "shared_key": Variant(
        ("pointer",), "a bystander shares the KV head of `match` and adds to the answer", _bystander("match", 4.0)
    ),
    "leak": Variant(
        ("recency",),
        "a bystander shares the KV head of a late head and decides the answer: shifted keys leak to it",
        _bystander("late object", 12.0),
    ),
    "against": Variant(
        ("pointer",),
        "a bystander shares the KV head of `match` and votes against what it sees",
        _bystander("match", -VOTE),
    ),
    "veto": Variant(("pointer",), "matching box labels work against matching objects", _veto),
    "sharp": Variant(("pointer",), "the match of slots is as good as a hard choice", _sharp),
    "fresh": Variant(("pointer",), "group B asks for a slot in prompts of unfamiliar objects only", _fresh),
    "faint": Variant(("pointer",), "a head of group C copies faintly at the readout", _faint),
    "classes": Variant(("pointer",), "group A votes against objects, and promotes half of the words", _classes),
}
