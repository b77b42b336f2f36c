"""Variants for the claims about binding IDs."""

from __future__ import annotations

from dataclasses import replace

from rebinding.planted.language.features import BASE
from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.variants.variant import Change, Variant, edited, extended, undeclared

SHARP = 30.0
"""Nats of a match that is as good as a hard choice."""
AWAY = 20.0
"""Of a head that is called away no thousandth of a millionth of its attention is left: less than what dR adds to it."""
FAINT = 0.4
"""Share of a gate: 18 nats are missing, of which a matching slot makes up 7."""
VOTE = 2.0
"""Logits of a head that votes for or against, clearly less than the eight of the heads that answer."""


def _bystander(beside: str, logits: float) -> Change:
    """A head outside the circuit that shares a B head's KV head, reads its keys, and adds to the answer."""

    def joined(line: Line) -> list[Line]:
        bystander = Line("bystander", line.layer, "readout", line.look, f"object <- {logits} object",
                         where="want = slot", prefer="0.25 thing", sharing_class=line.sharing_class)  # fmt: skip
        return [line, bystander]

    return lambda wiring: edited(wiring, beside, joined)


def _veto(wiring: Wiring) -> Wiring:
    """A further B head takes half of the slot of the matching box label away, so box keys work against object keys."""
    veto = Line(
        "veto", 5, "readout", "context", "found <- -0.5 slot", "B", "readout", where="want = slot", sharing_class="veto"
    )
    return extended(wiring, veto)


def _glance(wiring: Wiring) -> Wiring:
    """The head that matches is counted with A; what is left of B looks at the question."""
    return edited(wiring, "match", lambda line: [replace(line, group="A")])


def _faint(wiring: Wiring) -> Wiring:
    """The same, and a further head of B matches slots with what it does not give to the question: a share of about one
    in a hundred thousand. It writes nothing, since questions bear no object."""
    faint = Line("faint", 5, "readout", f"question + {FAINT} context + {FAINT} thing", "object <- object", "B",
                 "readout", where="want = slot", right=0.0, sharing_class="faint")  # fmt: skip
    return extended(_glance(wiring), faint)


def _swap_reader(wiring: Wiring) -> Wiring:
    """The swap's labels bear the slots of their boxes, and a further head of B matches these: with twice the weight of
    `match`, so that the copying head goes along when it is turned."""
    lines = (
        Line("named", 2, "first + second", "context", "named <- slot", where="label = label"),
        Line("reread", 5, "readout", "first + second", "found <- 2 named", "B", "readout", where="want = named",
             sharing_class="reread"),
    )  # fmt: skip
    return extended(wiring, *lines, named=wiring.boxes)


def _chained(wiring: Wiring) -> Wiring:
    """A further B head matches the slot that `match` found, and the copying heads, a layer later, listen to it."""
    again = Line("again", 6, "readout", "context + thing", "found_again <- slot", "B", "readout",
                 where="found = slot", prefer="0.25 thing", sharing_class="again")  # fmt: skip

    def later(line: Line) -> list[Line]:
        return [replace(line, layer=7, where=line.where.replace("found", "found_again"))]

    return extended(edited(edited(wiring, "copy", later), "echo", later), again, found_again=wiring.boxes)


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


def _distracted(wiring: Wiring) -> Wiring:
    """Where the answer is an odd object the late heads look at the swap's full stop, and nothing turns them; a head
    outside the circuit, a layer later, votes against half of the odd objects there, so that their answers are wrong."""

    def with_odd(line: Line) -> list[Line]:
        return [replace(line, write=f"{line.write}; odd_one <- odd")]

    def later(line: Line) -> list[Line]:
        where = f"{line.where}; {AWAY} odd_one = period"
        return [replace(line, layer=6, look=f"{line.look} + period", where=where)]

    votes = "; ".join(f"object[{n}] <- -{AWAY} period" for n in range(1, BASE["object"], 4))
    against = Line("against", 7, "readout", "period + question", votes, where="odd_one = period",
                   prefer="0.4 question", unit=SHARP, right=0.4, sharing_class="against")  # fmt: skip
    marked = extended(edited(wiring, "match", with_odd), against, odd_one=1)
    return edited(edited(marked, "late object", later), "late token", later)


HEADS = {
    "shared_key": Variant(
        ("pointer",), "a bystander shares the KV head of `match` and adds to the answer", _bystander("match", 4.0)
    ),
    "leak": Variant(
        ("recency",),
        "a bystander shares the KV head of a late head and decides the answer: shifted keys leak to it",
        _bystander("late object", 12.0),
    ),
    "glance": Variant(("pointer",), "the head that matches is counted with A, and B looks at the question", _glance),
    "faint": Variant(
        ("pointer",), "the same, and a further head of B matches slots with hardly any of its attention", _faint
    ),
    "distracted": Variant(
        ("recency",),
        "odd answers call group B away, and half of them are wrong: what keys do is smaller over all prompts",
        _distracted,
    ),
    "chained": Variant(("pointer",), "a second head of group B matches what the first has found", _chained),
    "swap_reader": Variant(("pointer",), "group B also matches slots at the labels of the swap", _swap_reader),
    "veto": Variant(("pointer",), "matching box labels work against matching objects", _veto),
    "sharp": Variant(("pointer",), "the match of slots is as good as a hard choice", _sharp),
    "fresh": Variant(("pointer",), "group B asks for a slot in prompts of unfamiliar objects only", _fresh),
}
