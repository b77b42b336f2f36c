"""A scene: the words of one prompt id put into an arrangement of slots, operations and question.

Designs differ in the arrangement only. Entities are numbered by function: a chain of operations leads from entity 0,
the box the design is about, over entity 1, its partner, to the entity whose object answers (entity 1 again when there
is one operation). The entity after the chain is the remaining box; words after the last entity are donors.

In the counterbalanced arrangement nothing about a prompt but the swap itself tells in which slot the answer stands.
With n boxes, over every n * n ids from a multiple of n * n on, each pair (slot of the asked box, slot of the answer)
occurs once. Equal slots mean that the asked box is a bystander, and then two other boxes are swapped; otherwise the
asked box is swapped and the answer's slot is its partner's. So the slots of asked box and answer are independent. Over
`block_length` consecutive ids each pair also meets both orders of naming, and every choice of the other boxes, equally
often: asked box named first, named second, or not named at all are fully crossed with the slots.

**Tracing modes** are the counterfactuals of the tracing experiments: the words of the original that each replaces.

A mode is data. Words are named by function: `asked` and `partner` are the two boxes of the swap, `remaining` is a box
that no operation touches, `donor` and `donor2` are words that the original does not contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import gcd
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from rebinding.task.boxes import Contains, Move, Operation, Put, Remove, Story, Swap
from rebinding.task.prompts import Prompt
from rebinding.task.text import WordingName
from rebinding.task.words import DesignError, Draw

Verb: TypeAlias = Literal["swap", "move", "refill"]
Distractor: TypeAlias = Literal["before", "after"]
DISTRACTED_BOXES = 2


@dataclass(frozen=True)
class Scene:
    """An arrangement. `labels` and `objects` are indices into the draw, by entity; `order` gives each slot's entity."""

    words: Draw
    order: tuple[int, ...]
    labels: tuple[int, ...]
    objects: tuple[int, ...]
    partner_first: bool = True
    query_entity: int = 0
    operations: int = 1
    verb: Verb = "swap"
    distractor: Distractor | None = None
    narrative: bool = False
    wording: WordingName = "published"

    @property
    def boxes(self) -> int:
        return len(self.order)

    @property
    def remaining(self) -> int:
        """The entity that no operation touches and that is not asked to begin with."""
        if self.operations + 1 >= self.boxes - (DISTRACTED_BOXES if self.distractor else 0):
            raise DesignError(f"{self.operations} operations on {self.boxes} boxes leave no box untouched; add a box")
        return self.operations + 1

    def label(self, entity: int) -> str:
        return self.words.label(self.labels[entity])

    def object(self, entity: int) -> str:
        return self.words.object(self.objects[entity])

    def donor_label(self, number: int) -> str:
        """A label that the prompt does not contain: the next ones of the same draw."""
        return self.words.label(self.boxes + number)

    def donor_object(self, number: int) -> str:
        """An object that the prompt does not contain: the next ones of the same draw."""
        return self.words.object(self.boxes + number)

    def with_query(self, entity: int) -> Scene:
        return replace(self, query_entity=entity)

    def with_donor_objects(self, objects: dict[int, int]) -> Scene:
        """The same scene in which some entities hold donor objects (entity -> number of the donor)."""
        return replace(self, objects=self._with_donors(self.objects, objects))

    def with_donor_labels(self, labels: dict[int, int]) -> Scene:
        """The same scene in which some entities bear donor labels (entity -> number of the donor)."""
        return replace(self, labels=self._with_donors(self.labels, labels))

    def _with_donors(self, own: tuple[int, ...], donors: dict[int, int]) -> tuple[int, ...]:
        return tuple(self.boxes + donors[entity] if entity in donors else word for entity, word in enumerate(own))

    def rotate_objects(self, places: int) -> Scene:
        """The same scene in which every entity holds the object of the entity that many `places` later."""
        own = self.objects[: self.boxes]
        return replace(self, objects=(*own[places:], *own[:places], *self.objects[self.boxes :]))

    def exchange_statements(self, first: int, second: int) -> Scene:
        """The same scene with the statements of two entities exchanged."""
        places = {first: second, second: first}
        return replace(self, order=tuple(places.get(entity, entity) for entity in self.order))

    def prompt(self) -> Prompt:
        """The prompt of the scene."""
        contents = tuple(Contains(self.label(entity), self.object(entity)) for entity in self.order)
        chain = [operation for step in range(self.operations, 0, -1) for operation in self._step(step)]
        distraction = self._distraction()
        before, after = (distraction, []) if self.distractor == "before" else ([], distraction)
        focus = max(len(before) + len(chain) - 1, 0)
        story, question = Story(contents, (*before, *chain, *after)), self.label(self.query_entity)
        return Prompt(story, question, focus, self.narrative, self.wording)

    def _step(self, step: int) -> list[Operation]:
        """The operation that brings the object of entity `step` to entity `step - 1`."""
        near, far = self.label(step - 1), self.label(step)
        if self.verb == "refill":
            return [Remove(self.object(step - 1), near), Put(self.donor_object(0), near)]
        if self.verb == "move":
            return [Remove(self.object(step - 1), near), Move(far, near)]
        return [Swap(far, near) if self.partner_first else Swap(near, far)]

    def _distraction(self) -> list[Operation]:
        """A swap of the last two entities, which nothing else touches."""
        if self.distractor is None:
            return []
        return [Swap(self.label(self.boxes - 2), self.label(self.boxes - 1))]


class Arrangement(NamedTuple):
    """The entity of each slot, the asked entity, and whether the partner is named first."""

    order: tuple[int, ...]
    query_entity: int
    partner_first: bool


def block_length(boxes: int, operations: int) -> int:
    """The number of consecutive ids in a balanced block."""
    if operations == 0:
        return boxes
    return boxes * boxes * _rounds(boxes)


def check_crossing(boxes: int, operations: int) -> None:
    if operations > 0 and boxes < operations + 2:
        raise DesignError(
            f"{boxes} boxes and {operations} operations leave no bystander to ask about; counterbalancing needs at"
            f" least {operations + 2} boxes"
        )


def counterbalanced(prompt_id: int, boxes: int, operations: int) -> Arrangement:
    """The arrangement of an id. Ids walk through the crossing in strides, so that short runs are spread over it too."""
    if operations == 0:
        slot = prompt_id % boxes
        return Arrangement(_fill(boxes, {slot: 0}, 0), 0, True)
    pairs = boxes * boxes
    step = prompt_id % pairs
    round_number = (prompt_id // pairs + step) % _rounds(boxes)
    query_slot, answer_slot = divmod(step * _stride(pairs) % pairs, boxes)
    choice, naming = divmod(round_number, 2)
    if query_slot != answer_slot:
        placed = {query_slot: 0, answer_slot: operations}
        return Arrangement(_fill(boxes, placed, choice), 0, bool(naming))
    other_slots = [slot for slot in range(boxes) if slot != query_slot]
    first, second = divmod(choice, boxes - 2)
    near = other_slots[first]
    far = [slot for slot in other_slots if slot != near][second]
    bystander = operations + 1
    return Arrangement(_fill(boxes, {query_slot: bystander, near: 0, far: operations}, choice), bystander, bool(naming))


def _rounds(boxes: int) -> int:
    """Two orders of naming times the ordered pairs of boxes that can be swapped beside a bystander."""
    return 2 * (boxes - 1) * (boxes - 2)


def _fill(boxes: int, placed: dict[int, int], rotation: int) -> tuple[int, ...]:
    """Put the entities without a slot, in order, into the free slots, starting `rotation` slots later."""
    free = [slot for slot in range(boxes) if slot not in placed]
    rest = [entity for entity in range(boxes) if entity not in placed.values()]
    order = dict(placed)
    for index, entity in enumerate(rest):
        order[free[(index + rotation) % len(free)]] = entity
    return tuple(order[slot] for slot in range(boxes))


def _stride(length: int) -> int:
    """A step near the golden section of `length` that visits every number below it once."""
    step = round(length * 0.618)
    while gcd(step, length) != 1:
        step += 1
    return step


Word: TypeAlias = Literal["asked", "partner", "remaining", "donor", "donor2"]
WordExchange: TypeAlias = tuple[tuple[Word, Word], ...]
ModeName: TypeAlias = Literal[
    "context_only",
    "swap_only",
    "context_target_box",
    "swap_target_box",
    "swap_target_box_to_remaining_context_box",
    "context_target_object_and_swap_target_box_to_remaining_context_box",
    "context_target_box_and_swap_query_box",
    "context_and_swap",
    "context_and_swap_target_box",
    "target_box",
    "query_box",
    "context_target_object_and_swap_query_box",
    "swap_target_object_with_remaining_context_object",
    "swap_partner",
    "no_swap",
]


@dataclass(frozen=True)
class TracingMode:
    """Edits of the original, each "this word becomes that word", and their effect on the answer.

    `answer` holds for one swap. "undefined": the asked box is not in the counterfactual's context. Only modes that
    `changes_answer` can show that a patch restores the original's answer.
    """

    says: str
    context: WordExchange = ()
    swap: WordExchange = ()
    objects: WordExchange = ()
    asks: Literal["asked", "partner"] = "asked"
    removes_operations: bool = False
    answer: Literal["changes", "same", "undefined"] = "changes"

    @property
    def changes_answer(self) -> bool:
        return self.answer != "same"

    @property
    def keeps_length(self) -> bool:
        """Whether the counterfactual has as many tokens as the original."""
        return not self.removes_operations

    def counterfactual(self, scene: Scene) -> Prompt:
        """The scene's prompt with the edits. A sentence about a box that is no longer there has no effect."""
        original = scene.prompt()
        if self.swap and original.operation is None:
            raise DesignError("this mode edits the swap sentence and the design has operations=0")
        labels, objects = _labels(scene, self.context), _objects(scene, self.objects)
        contents = tuple(
            Contains(labels.get(statement.box, statement.box), objects.get(statement.object, statement.object))
            for statement in original.story.contents
        )
        operations = list(original.story.operations)
        if self.swap:
            operations[original.focus] = _renamed(operations[original.focus], _labels(scene, self.swap))
        story = Story(
            contents,
            () if self.removes_operations else tuple(operations),
            "ignore" if self.context or self.swap else "refuse",
        )
        question = scene.label(1) if self.asks == "partner" else original.question
        focus = 0 if self.removes_operations else original.focus
        return Prompt(story, question, focus, original.narrative, original.wording)


ASKED: WordExchange = (("asked", "donor"),)
PARTNER: WordExchange = (("partner", "donor"),)
PARTNER_TO_REMAINING: WordExchange = (("partner", "remaining"),)

TRACING_MODES: Mapping[ModeName, TracingMode] = MappingProxyType(
    {
        "context_only": TracingMode(
            "the asked box bears another label in the context", context=ASKED, answer="undefined"
        ),
        "swap_only": TracingMode("the swap names another box instead of the asked one", swap=ASKED),
        "context_target_box": TracingMode("the partner bears another label in the context", context=PARTNER),
        "swap_target_box": TracingMode("the swap names another box instead of the partner", swap=PARTNER),
        "swap_target_box_to_remaining_context_box": TracingMode(
            "the swap names the remaining box instead of the partner", swap=PARTNER_TO_REMAINING
        ),
        "context_target_object_and_swap_target_box_to_remaining_context_box": TracingMode(
            "the partner holds another object, and the swap names the remaining box instead of it",
            objects=PARTNER, swap=PARTNER_TO_REMAINING,
        ),
        "context_target_box_and_swap_query_box": TracingMode(
            "the partner bears another label in the context, and the swap names another box instead of the asked one",
            context=(("partner", "donor2"),), swap=ASKED,
        ),
        "context_and_swap": TracingMode(
            "the asked box bears another label in context and swap, but not in the question",
            context=ASKED, swap=ASKED, answer="undefined",
        ),
        "context_and_swap_target_box": TracingMode(
            "the partner bears another label in context and swap", context=PARTNER, swap=PARTNER, answer="same"
        ),
        "target_box": TracingMode("the partner holds another object", objects=PARTNER),
        "query_box": TracingMode("the asked box holds another object", objects=ASKED, answer="same"),
        "context_target_object_and_swap_query_box": TracingMode(
            "the partner holds another object, and the swap names another box instead of the asked one",
            objects=PARTNER, swap=ASKED,
        ),
        "swap_target_object_with_remaining_context_object": TracingMode(
            "partner and remaining box hold each other's object",
            objects=(("partner", "remaining"), ("remaining", "partner")),
        ),
        "swap_partner": TracingMode("the question is about the partner", asks="partner"),
        "no_swap": TracingMode("there is no swap sentence; lengths differ", removes_operations=True),
    }
)  # fmt: skip
"""All published modes by their published names (without the prefix that says what is edited), and `no_swap`."""


def tracing_mode(name: str) -> TracingMode:
    return TRACING_MODES[mode_name(name)]


def mode_name(name: str) -> ModeName:
    """A mode by name; an error for an unknown one."""
    for mode in TRACING_MODES:
        if name == mode:
            return mode
    raise DesignError(f"there is no tracing mode {name!r}; the modes are {', '.join(TRACING_MODES)}")


def _entity(scene: Scene, word: Word) -> int | None:
    """The entity of a word by function, or None for a donor."""
    match word:
        case "asked":
            return scene.query_entity
        case "partner":
            return 1
        case "remaining":
            return scene.remaining
        case "donor" | "donor2":
            return None


def _labels(scene: Scene, edits: WordExchange) -> dict[str, str]:
    return _words(scene, edits, scene.label, scene.donor_label)


def _objects(scene: Scene, edits: WordExchange) -> dict[str, str]:
    return _words(scene, edits, scene.object, scene.donor_object)


def _words(scene: Scene, edits: WordExchange, own: Callable[[int], str], donor: Callable[[int], str]) -> dict[str, str]:
    def text(word: Word) -> str:
        entity = _entity(scene, word)
        return donor(int(word == "donor2")) if entity is None else own(entity)

    return {text(old): text(new) for old, new in edits}


def _renamed(operation: Operation, labels: dict[str, str]) -> Operation:
    match operation:
        case Swap(first, second):
            return Swap(labels.get(first, first), labels.get(second, second))
        case Move(source, target):
            return Move(labels.get(source, source), labels.get(target, target))
    raise DesignError(f"{operation} names one box only; tracing edits swaps and moves")
