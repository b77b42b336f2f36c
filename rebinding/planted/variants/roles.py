"""Variants for the claims about head roles."""

from __future__ import annotations

from dataclasses import replace

from rebinding.planted.language.features import BASE
from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.mechanisms.pointer import FOUND_WEIGHT, WANTED_WEIGHT
from rebinding.planted.variants.heads import SHARP, VOTE
from rebinding.planted.variants.variant import Change, Variant, edited, extended, undeclared

HELD_BACK = 0.75
"""Logits by which the object that the asked box held is held back: what A's pattern moves (4.5) and this together are
less than what B's moves (5.9)."""
SHARE = 0.45
"""What the declared heads of C do of the question. Less than half, so B keeps looking for the right slot when these
heads alone are redirected: the pointer target then gains 1.5 logits of 7.5."""


def _quiet(wiring: Wiring) -> Wiring:
    """The heads that copy are not declared; the readout knows whether the answer is an odd object."""

    def with_odd(line: Line) -> list[Line]:
        return [replace(line, write=f"{line.write}; odd_one <- odd")]

    marked = extended(edited(wiring, "match", with_odd), odd_one=1)
    for name in ("copy", "echo"):
        marked = edited(marked, name, lambda line: [undeclared(line)])
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
    "hub": Variant(
        ("pointer",), "helpers do most of what C does, and A holds back what the asked box held", _hub
    ),
    "reluctant": Variant(("pointer",), "a head of A also says what the asked box held", _vote_on_old_object(VOTE)),
    "shun": Variant(("pointer",), "group A demotes the answer's half of the words", _shun),
    "classes": Variant(("pointer",), "group A votes against objects, and promotes half of the words", _classes),
}  # fmt: skip
