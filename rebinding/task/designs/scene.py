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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Literal, NamedTuple, TypeAlias

from rebinding.task.boxes import Contains, Move, Operation, Put, Remove, Story, Swap
from rebinding.task.prompts import Prompt
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
        return Prompt(Story(contents, (*before, *chain, *after)), self.label(self.query_entity), focus, self.narrative)

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
