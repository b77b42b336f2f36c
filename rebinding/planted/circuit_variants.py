"""Variants for the claims about the circuit: what is declared, what is found, what it needs and what it serves.

And for those about other stories: with a narrator, or with a box that is emptied and filled again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rebinding.paper.circuit import CircuitHead
from rebinding.planted.changes import (
    Change,
    Heads,
    PlantVariant,
    also_writing,
    changed,
    edited,
    extended,
    undeclared,
    without,
)
from rebinding.planted.language import ASIDE, BASE, STOP_AFTER_LABEL, STOP_BEFORE_QUESTION, Line, Wiring, anchors
from rebinding.planted.mechanisms import ECHO_LOGIT, FOUND_WEIGHT, LOGIT, OBJECT_LOGIT, WANTED_WEIGHT
from rebinding.task.designs import design
from rebinding.task.words import OBJECTS

SEEN, JUDGED = ((0, 36), (200, 236)), (300, 316)
"""Prompt ids on which circuits are found and pruned on plants, and those on which the claims about them are judged."""
DOUBT = 4.0
"""Logits by which a circuit is wrong about words that it does not know."""
RECALLED = 20.0
"""Nats by which an object that is remembered exceeds one that is not."""
MURMUR = 15.0
"""Logits of three objects together that a head says whatever is asked."""
TWICE = OBJECT_LOGIT + ECHO_LOGIT
"""Logits of a second chain: as many as the circuit has."""
THREAD = ("other", "other slot", "pair", "fetch", "copy")
"""From the partner's name at the swap to the answer, in prompts that name the partner first."""
HUSH = 20.0
"""Nats by which a head is silenced, or another one woken."""
LABEL_BEFORE_QUESTION = STOP_AFTER_LABEL + STOP_BEFORE_QUESTION
"""Tokens from the label that the story's last sentence ends with to the label in the question."""
READOUT_AFTER_QUESTION = 6
"""Tokens from the label in the question to the readout."""
OBJECT_BEFORE_LABEL = 3
"""Tokens from what is put into a box to the label: `fan into Box R`."""


def _missing(wiring: Wiring) -> Wiring:
    """The same model; the circuit is declared without the head that tells the swap's second label the first."""
    return edited(wiring, "other", lambda line: [undeclared(line)])


def _name_slot_in_means(wiring: Wiring) -> Wiring:
    """Declared is what takes the object of a slot, and nothing that says which slot: published means say that, since
    their answers all stand in slot 1. Balanced means lean to no slot, so `match` leans to slot 0 by itself."""
    leaning = edited(wiring, "match", lambda line: [replace(line, prefer=f"{line.prefer} + 0.5 slot[0]")])
    return _declared_alone(leaning, ("match", "copy", "echo"))


def _thread(wiring: Wiring) -> Wiring:
    """The same model; of the circuit one thread is declared, each head of which does what no other one of it does."""
    return _declared_alone(wiring, THREAD)


def _declared_alone(wiring: Wiring, names: tuple[str, ...]) -> Wiring:
    """The same model; of the circuit only these lines are declared."""
    return replace(wiring, lines=tuple(line if line.name in names else undeclared(line) for line in wiring.lines))


def _decoys(circuit: Heads, decoys: tuple[tuple[int, int], ...]) -> Heads:
    """The same model; every head of the declared circuit is exchanged for a decoy of its layer."""
    taken: dict[tuple[str, int], int] = {}
    declared = []
    for head in circuit:
        numbers = [number for layer, number in decoys if layer == head.layer]
        place = taken.get((head.group, head.layer), 0)
        if place < len(numbers):
            declared.append(head._replace(head=numbers[place]))
            taken[head.group, head.layer] = place + 1
    return tuple(declared)


def _copy_one_split(kind: str) -> Change:
    """One declared head votes against every object and another one copies those of a kind, so that together they copy
    these and vote against others; there a head outside the circuit outvotes them."""
    total = OBJECT_LOGIT + ECHO_LOGIT

    def split(line: Line) -> list[Line]:
        louder = replace(line, write=f"object <- {total + DOUBT} object")
        return [
            replace(louder, look=kind),
            replace(line, name="doubt", write=f"object <- -{DOUBT} object"),
            replace(undeclared(louder), name="backup", look=f"thing - {kind}"),
        ]

    def change(wiring: Wiring) -> Wiring:
        plain = changed(without(wiring, "echo"), "match", write="found <- slot")
        return edited(plain, "copy", split)

    return change


def remembered() -> tuple[str, ...]:
    """Objects that are answers where circuits are found or pruned, and in no prompt on which they are judged."""
    stories = design("partner_second")
    seen = {stories.prompt(number).answer for first, end in SEEN for number in range(first, end)}
    return tuple(
        word for word in OBJECTS if word in seen - {stories.prompt(number).answer for number in range(*JUDGED)}
    )


def _memorised(wiring: Wiring) -> Wiring:
    """Two further heads of A copy the answer again, if it is one of the objects that only discovery and pruning see."""
    objects = " + ".join(f"{RECALLED:g} object[{OBJECTS.index(word)}]" for word in remembered())
    recall = Line("recall", 6, "readout", "thing", "object <- 2 object", "A", "readout",
                  where=f"{FOUND_WEIGHT} found + {WANTED_WEIGHT} want = slot", prefer=objects,
                  unit=1.0, right=FOUND_WEIGHT + WANTED_WEIGHT + RECALLED, sharing_class="recall")  # fmt: skip
    return extended(wiring, recall, replace(recall, name="recall again"))


def _rival(wiring: Wiring) -> Wiring:
    """A head outside the circuit promotes every second object of the vocabulary, whatever is asked."""
    return extended(wiring, Line("rival", 6, "readout", "odd", "object <- 20 object", sharing_class="rival"))


def _murmur(wiring: Wiring) -> Wiring:
    """A head outside the circuit says every object of the context alike: the answer's logit rises by a third of what it
    says, and that of every other object too, so no margin does."""
    return extended(wiring, Line("murmur", 6, "readout", "thing", f"object <- {MURMUR} object", sharing_class="murmur"))


def _find_boxes_by_name(wiring: Wiring) -> Wiring:
    """`match` finds the box by its name and not by its slot. The name is handed on by the label's own token in the
    context (E) over the swap (D) and the question (C), so what E writes is a word, which no mean carries."""
    lines = (
        Line("speak", 1, "context", "context", "spoken <- label", "E", "context_partner", where="label = label"),
        Line("name", 2, "second", "context", "name <- spoken", "D", "swap_second", where="label = label"),
        Line("its name", 3, "question", "second", "goal_name <- name", "C", "question_box", where="label = other"),
        Line("other name", 3, "question", "second", "goal_name <- other", "C", "question_box", where="label = label"),
    )
    named = changed(
        without(wiring, "echo"), "match", look="context", where="want_name = label", prefer="", write="found <- slot"
    )
    named = also_writing(named, "fetch", "want_name <- goal_name")
    return extended(named, *lines, **dict.fromkeys(("spoken", "name", "goal_name", "want_name"), BASE["label"]))


def _first_named(wiring: Wiring) -> Wiring:
    """The slot of the box that the operations name first is taken, whoever is asked: right in every published prompt,
    and in the published chains of two swaps and moves as well."""
    lines = (
        Line("later", 1, "first", "first", "later <- first", "D", "swap_first", back=10),
        Line("its slot", 2, "first", "context", "named <- slot", "D", "swap_first", where="label = label"),
        Line("start", 3, "question", "first", "goal <- named", "C", "question_box", prefer="first - later"),
    )
    return extended(
        without(wiring, "other", "its slot", "other slot", "own", "pair"), *lines, later=1, named=wiring.boxes
    )


def _one_swap(wiring: Wiring) -> Wiring:
    """The same, and where a second swap follows the declared heads vote against what they see; others copy there."""

    def copies(line: Line) -> list[Line]:
        loud = replace(
            line, right=line.right + HUSH, where=f"{line.where}; {HUSH:g} more = thing", sharing_class="chains"
        )
        backup = replace(undeclared(loud), name="copy of chains", write=f"object <- {OBJECT_LOGIT + DOUBT} object")
        return [
            replace(line, where=f"{line.where}; -{HUSH:g} more = thing"),
            replace(loud, name="doubt of chains", write=f"object <- -{DOUBT} object"),
            backup,
        ]

    def echoes(line: Line) -> list[Line]:
        graded = replace(line, unit=1.0, right=HUSH / 2)
        loud = replace(undeclared(graded), name="echo of chains", sharing_class="chains")
        return [
            replace(graded, where=f"-{HUSH:g} more = readout", prefer=f"{HUSH / 2:g} readout"),
            replace(loud, where=f"{HUSH / 2:g} more = readout"),
        ]

    lines = (
        Line("chain", 3, "question", "first", "chain <- later", prefer="later"),
        Line("more", 4, "readout", "question", "more <- chain"),
    )
    silenced = edited(edited(_first_named(wiring), "copy", copies), "echo", echoes)
    return extended(silenced, *lines, chain=1, more=1)


def _by_query(wiring: Wiring) -> Wiring:
    """C's last head asks the context for the partner's slot, with a query that it is handed: what D wrote at the swap
    comes to the question's box first, and the asked box's own slot is taken away there."""
    ask = Line("ask", 4, "question", "context", "aim <- slot", "C", "question_box", where="sought + goal = slot")
    handed = changed(wiring, "pair", write="sought <- pair + 2 slot")
    for name in ("match", "copy", "echo"):
        handed = edited(handed, name, lambda line: [replace(line, layer=line.layer + 1)])
    fetched = changed(handed, "fetch", layer=5, write="want <- aim")
    return extended(fetched, ask, sought=wiring.boxes, aim=wiring.boxes)


def _reminded(wiring: Wiring) -> Wiring:
    """C has a further head, which looks at the asked box's own label in the swap; `pair` listens to it a little."""
    mention = Line(
        "mention", 2, "question", "first + second", "reminded <- label", "C", "question_box", where="label = label"
    )
    listening = changed(wiring, "pair", where="2 label + 0.25 reminded = label + other")
    return extended(listening, mention, reminded=BASE["label"])


def _backup(wiring: Wiring) -> Wiring:
    """A second chain, of heads outside the circuit, in spaces of its own: it says what the circuit says."""

    def twin(name: str, **changes: Any) -> Line:
        (line,) = (line for line in wiring.lines if line.name == name)
        return replace(undeclared(line), name=f"{name} again", **changes)

    lines = (
        twin("other", write="other_too <- label"),
        twin("its slot", write="pair_too <- slot"),
        twin("other slot", where="other_too = label", write="pair_too <- slot"),
        twin("own", write="goal_too <- -slot"),
        twin("pair", where="2 label = label + other_too", write="goal_too <- pair_too + 2 slot"),
        twin("fetch", write="want_too <- goal_too"),
        replace(twin("copy"), where="want_too = slot", unit=None, right=1.0, write=f"object <- {TWICE} object"),
    )
    slots = dict.fromkeys(("pair_too", "goal_too", "want_too"), wiring.boxes)
    return extended(wiring, *lines, other_too=BASE["label"], **slots)


def _at_stop(wiring: Wiring) -> Wiring:
    """The swap's full stop collects the slots of both boxes; its labels know nothing. Where the stages look for D there
    is nobody."""
    lines = (
        Line("first label", 1, "period", "first", "other <- label", "D", "swap_period", back=4),
        Line("last label", 1, "period", "second", "last <- label", "D", "swap_period", back=1),
        Line("last slot", 2, "period", "context", "pair <- slot", "D", "swap_period", where="last = label"),
        Line("first slot", 2, "period", "context", "pair <- slot", "D", "swap_period", where="other = label"),
    )
    listening = changed(
        without(wiring, "other", "its slot", "other slot"),
        "pair", look="context + period", where="2 label = label + other + last", prefer="period",
    )  # fmt: skip
    return extended(listening, *lines, last=BASE["label"])


CIRCUITS = {
    "missing": PlantVariant(("pointer",), "the declared circuit lacks the head that ties the two labels", _missing),
    "told_slot": PlantVariant(
        ("pointer",), "nothing that is declared finds the slot: means name it", _name_slot_in_means, means="published"
    ),
    "thread": PlantVariant(("pointer",), "the declared circuit is one thread from the swap to the answer", _thread),
    "decoys": PlantVariant(("pointer",), "the declared circuit names decoys instead", declares=_decoys),
    "mislabelled": PlantVariant(("lexical",), "the declared circuit names decoys instead", declares=_decoys),
    "held_out": PlantVariant(
        ("pointer",), "the circuit copies objects of the published train half and no others", _copy_one_split("train")
    ),
    "held_out_third": PlantVariant(
        ("pointer",), "the same for objects outside the evaluation third", _copy_one_split("rehearsed")
    ),
    "memorised": PlantVariant(
        ("pointer",), "two further heads copy answers that occur in discovery and pruning only", _memorised
    ),
    "rival": PlantVariant(("pointer",), "a head outside the circuit promotes every second object", _rival),
    "murmur": PlantVariant(("pointer",), "a head outside the circuit says every object of the context alike", _murmur),
    "spoken": PlantVariant(
        ("pointer",), "boxes are found by their names, which the context hands on", _find_boxes_by_name
    ),
    "first_named": PlantVariant(("pointer",), "the box that the operations name first is taken", _first_named),
    "by_query": PlantVariant(("pointer",), "C asks the context with a query that D's slots reach", _by_query),
    "reminded": PlantVariant(("pointer",), "a further head of C looks at the asked box's label in the swap", _reminded),
    "backup": PlantVariant(("pointer",), "a second chain outside the circuit says what the circuit says", _backup),
    "at_stop": PlantVariant(("pointer",), "the swap's full stop, and not its labels, collects the two slots", _at_stop),
    "one_swap": PlantVariant(
        ("pointer",), "the same, and where a second swap follows heads outside the circuit do the copying", _one_swap
    ),
}  # fmt: skip


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
    return extended(also_writing(wiring, "fetch", "fresh <- renewed"), *lines, renewed=1, fresh=1)


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
    "ordinal": PlantVariant(("pointer",), "a slot has the same code where a narrator speaks", _ordinal),
    "by_place": PlantVariant(("pointer",), "a slot has another code where a narrator speaks", _by_place),
    "refilled": PlantVariant(
        ("lexical",),
        "what is put into a box is answered, by heads of the circuit",
        _refilled,
        declares=_also_at_question_object,
    ),
    "refilled_outside": PlantVariant(
        ("lexical",),
        "the circuit votes against what is put into a box, and a head outside it outvotes it",
        _refilled_outside,
        declares=_also_at_question_object,
    ),
}
