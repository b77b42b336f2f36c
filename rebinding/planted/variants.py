"""Variants of mechanisms; each changes the truth of some claim.

Their order is that of the claims: about tracing, the circuit (`circuit_variants`), binding IDs, head roles, other
stories, and printed numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from rebinding.paper.numbers import Quantity, tolerance
from rebinding.planted.changes import (
    Change,
    Numbers,
    PlantVariant,
    also_writing,
    changed,
    edited,
    extended,
    undeclared,
    without,
)
from rebinding.planted.circuit_variants import CIRCUITS, STORIES
from rebinding.planted.language import (
    BASE,
    Line,
    Wiring,
    WiringError,
    anchors,
    grammar,
)
from rebinding.planted.mechanisms import (
    ECHO_LOGIT,
    FOUND_WEIGHT,
    LOGIT,
    OBJECT_LOGIT,
    WANTED_WEIGHT,
    global_state,
)

STORED = 0.9
"""Share of the answer that a swap's full stop holds ready."""
BEFORE = 0.4
"""What the asked box held to begin with, as a share of what the swap's label holds ready."""
HINT = 2.0
"""Logits by which the full stop helps the question about the box that was named last."""


def _shortcut(wiring: Wiring) -> Wiring:
    """The slot after the asked one is taken, whatever was swapped: right in every prompt of fixed slots."""
    target = "; ".join(f"goal[{(k + 1) % wiring.boxes}] <- slot[{k}]" for k in range(wiring.boxes))
    asking = without(wiring, "other", "its slot", "other slot", "own")
    return changed(asking, "pair", look="context", where="label = label", prefer="", right=1.0, write=target)


def _neighbour(wiring: Wiring) -> Wiring:
    """A box that the swap names last gets the slot after its own; who the partner is nobody asks."""
    both = "pair <- slot; " + "; ".join(f"pair[{(k + 1) % wiring.boxes}] <- slot[{k}]" for k in range(wiring.boxes))
    return changed(without(wiring, "other slot"), "its slot", write=both)


def _early(wiring: Wiring) -> Wiring:
    """Objects take their label in the very first layer; after that the label in the context is read no more."""
    return changed(wiring, "bind", layer=0, look="letter")


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


def _stored(wiring: Wiring) -> Wiring:
    """Nine tenths of the answer come from the state at the full stop, as in `global`, one tenth by the pointer."""
    state = global_state(wiring.boxes)
    names = {line.name for line in wiring.lines}
    lines = [undeclared(line) for line in state.lines if line.name not in names]
    say = f"object <- {STORED * (OBJECT_LOGIT + ECHO_LOGIT)} answer"
    lines = [replace(line, write=say) if line.name == "say" else line for line in lines]
    for name, source, logits in (("copy", "object", OBJECT_LOGIT), ("echo", "echo", ECHO_LOGIT)):
        wiring = changed(wiring, name, layer=7, write=f"object <- {logits * (1 - STORED):.2f} {source}")
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
        Line("say", 7, "readout", "readout", f"object <- {LOGIT} spoken", "A", "readout"),
    )
    slots, label, thing = wiring.spaces["slot"], BASE["label"], BASE["object"]
    objects = dict.fromkeys(("coming", "going", "answer", "spoken"), thing)
    return Wiring(wiring.boxes, {"slot": slots, "own": slots, "pair": slots, "other": label, **objects}, lines)


TRACING = {
    "shortcut": PlantVariant(("pointer",), "the swap is ignored and the next slot taken", _shortcut),
    "neighbour": PlantVariant(("pointer",), "the box named last gets the slot after its own", _neighbour),
    "early": PlantVariant(("lexical",), "objects take their label in the first layer", _early),
    "hint": PlantVariant(("pointer",), "the full stop helps the question about the box named last", _hint),
    "labels": PlantVariant(("global",), "the state is stored at the swap's second label", _labels),
    "stored": PlantVariant(("pointer",), "nine tenths of the answer are ready at the full stop", _stored),
}


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
    return changed(wiring, "match", group="A")


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
    return changed(wiring, "match", unit=SHARP)


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

    def later(line: Line) -> list[Line]:
        where = f"{line.where}; {AWAY} odd_one = period"
        return [replace(line, layer=6, look=f"{line.look} + period", where=where)]

    votes = "; ".join(f"object[{n}] <- -{AWAY} period" for n in range(1, BASE["object"], 4))
    against = Line("against", 7, "readout", "period + question", votes, where="odd_one = period",
                   prefer="0.4 question", unit=SHARP, right=0.4, sharing_class="against")  # fmt: skip
    marked = extended(also_writing(wiring, "match", "odd_one <- odd"), against, odd_one=1)
    return edited(edited(marked, "late object", later), "late token", later)


HEADS = {
    "shared_key": PlantVariant(
        ("pointer",), "a bystander shares the KV head of `match` and adds to the answer", _bystander("match", 4.0)
    ),
    "leak": PlantVariant(
        ("recency",),
        "a bystander shares the KV head of a late head and decides the answer: shifted keys leak to it",
        _bystander("late object", 12.0),
    ),
    "glance": PlantVariant(
        ("pointer",), "the head that matches is counted with A, and B looks at the question", _glance
    ),
    "faint": PlantVariant(
        ("pointer",), "the same, and a further head of B matches slots with hardly any of its attention", _faint
    ),
    "distracted": PlantVariant(
        ("recency",),
        "odd answers call group B away, and half of them are wrong: what keys do is smaller over all prompts",
        _distracted,
    ),
    "chained": PlantVariant(("pointer",), "a second head of group B matches what the first has found", _chained),
    "swap_reader": PlantVariant(("pointer",), "group B also matches slots at the labels of the swap", _swap_reader),
    "veto": PlantVariant(("pointer",), "matching box labels work against matching objects", _veto),
    "sharp": PlantVariant(("pointer",), "the match of slots is as good as a hard choice", _sharp),
    "fresh": PlantVariant(("pointer",), "group B asks for a slot in prompts of unfamiliar objects only", _fresh),
}


HELD_BACK = 0.75
"""Logits by which the object that the asked box held is held back: what A's pattern moves (4.5) and this together are
less than what B's moves (5.9)."""
SHARE = 0.45
"""What the declared heads of C do of the question. Less than half, so B keeps looking for the right slot when these
heads alone are redirected: the pointer target then gains 1.5 logits of 7.5."""


def _quiet(wiring: Wiring) -> Wiring:
    """The heads that copy are not declared; the readout knows whether the answer is an odd object."""
    marked = extended(also_writing(wiring, "match", "odd_one <- odd"), odd_one=1)
    for name in ("copy", "echo"):
        marked = changed(marked, name, group=None, role=None)
    return marked


def _class(logits: float) -> Line:
    """A head of A that looks at the swap's full stop if the answer is an odd object, else at the question, and votes on
    that half of the words."""
    halves = ("question", "period")
    votes = "; ".join(f"object[{n}] <- {logits} {halves[n % 2]}" for n in range(BASE["object"]))
    return Line("class", 6, "readout", "period + question", votes, "A", "readout",
                where="odd_one = period", prefer="0.4 question", unit=SHARP, right=0.4)  # fmt: skip


def _classes(wiring: Wiring) -> Wiring:
    """A are two heads that do not copy. One votes against the object that it looks at, the other for the answer's half
    of the words."""
    against = Line("against", 6, "readout", "thing", f"object <- -{VOTE} object", "A", "readout",
                   where=f"{FOUND_WEIGHT} found + {WANTED_WEIGHT} want = slot", unit=1.0,
                   right=FOUND_WEIGHT + WANTED_WEIGHT)  # fmt: skip
    return extended(_quiet(wiring), against, _class(VOTE))


def _shun(wiring: Wiring) -> Wiring:
    """A is one head, which votes against the answer's half of the words."""
    return extended(_quiet(wiring), _class(-VOTE))


def _vote_on_old_object(logits: float) -> Change:
    """A further head of A votes on the object that the asked box held before the swap."""

    def change(wiring: Wiring) -> Wiring:
        lines = (
            Line("own slot", 2, "question", "context", "mine <- slot", where="label = label"),
            Line("slot asked", 3, "readout", "question", "slot_asked <- mine"),
            Line("held", 6, "readout", "thing", f"object <- {logits} object", "A", "readout",
                 where="slot_asked = slot", sharing_class="held"),
        )  # fmt: skip
        return extended(wiring, *lines, mine=wiring.boxes, slot_asked=wiring.boxes)

    return change


def _hub(wiring: Wiring) -> Wiring:
    """Heads outside the circuit do the larger part of what C does, and A holds back what the asked box held."""

    def part(line: Line, share: float) -> Line:
        scaled = {"own": f"goal <- -{share} slot", "pair": f"goal <- {share} pair + {2 * share} slot"}
        return replace(line, write=scaled[line.name])

    def split(line: Line) -> list[Line]:
        helper = undeclared(part(line, 1 - SHARE))
        return [part(line, SHARE), replace(helper, name=f"{line.name} aside")]

    return _vote_on_old_object(-HELD_BACK)(edited(edited(wiring, "own", split), "pair", split))


ROLES = {
    "hub": PlantVariant(
        ("pointer",), "helpers do most of what C does, and A holds back what the asked box held", _hub
    ),
    "reluctant": PlantVariant(("pointer",), "a head of A also says what the asked box held", _vote_on_old_object(VOTE)),
    "shun": PlantVariant(("pointer",), "group A demotes the answer's half of the words", _shun),
    "classes": PlantVariant(("pointer",), "group A votes against objects, and promotes half of the words", _classes),
}  # fmt: skip


APART = 3.0
"""Margins by which a misprinted number is off; one margin is allowed."""
KINDS: dict[str, Quantity] = {
    "accuracy.": "accuracy", "margin.": "margin", "logit.": "logit", "roles.": "dlogit",
    ".dR": "dR", ".dlogit": "dlogit", ".switch": "switch",
}  # fmt: skip
"""Kinds of quantity by the begin or end of a number's name; counts of heads are not changed."""


def _misprinted(numbers: Numbers) -> Numbers:
    """Every number far off."""
    return MappingProxyType({id: _off(id, value) for id, value in numbers.items()})


def _off(id: str, value: float) -> float:
    kind = next((kind for part, kind in KINDS.items() if id.startswith(part) or id.endswith(part)), None)
    if kind is None:
        return value
    allowed = tolerance(kind)
    step = APART * (allowed.around(value) or 0.0)
    return value - step if allowed.proportion and value > 0.5 else value + step


def _zero_random_shifts(numbers: Numbers) -> Numbers:
    """Of a random shift: with no direction from slot to slot there is nothing whose length a random one could have."""
    return MappingProxyType({**numbers, **{f"binding.random.{name}": 0.0 for name in ("dR", "dlogit", "switch")}})


PAPERS = {
    "misprint": PlantVariant(("pointer",), "the printed numbers are those of another model", prints=_misprinted),
    "still": PlantVariant(
        ("lexical",), "the paper also prints a row for random shifts: nothing moves", prints=_zero_random_shifts
    ),
}


VARIANTS: Mapping[str, PlantVariant] = MappingProxyType({**TRACING, **CIRCUITS, **HEADS, **ROLES, **STORIES, **PAPERS})


def variant_of(mechanism: str, name: str) -> PlantVariant:
    """A variant by name, if the mechanism has it."""
    fitting = sorted(variant_name for variant_name, variant in VARIANTS.items() if mechanism in variant.mechanisms)
    if name not in fitting:
        raise WiringError(f"{mechanism} has no variant {name!r}; it has {', '.join(fitting) or 'none'}")
    return VARIANTS[name]
