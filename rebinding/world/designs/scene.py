"""A scene: the words of one prompt id put into an arrangement of slots, operations and question.

Designs differ in the arrangement only. Entities are numbered by function: a chain of operations leads from entity 0,
the box the design is about, over entity 1, its partner, to the entity whose object answers (entity 1 again when there
is one operation). The entity after the chain is the remaining box; words after the last entity are donors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rebinding.world.boxes import Contains, Move, Operation, Put, Remove, Story, Swap
from rebinding.world.prompts import Prompt
from rebinding.world.words import DesignError, Draw

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
    asked: int = 0
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

    def asking(self, entity: int) -> Scene:
        return replace(self, asked=entity)

    def refilled(self, objects: dict[int, int]) -> Scene:
        """The same scene in which some entities hold donor objects (entity -> number of the donor)."""
        return replace(
            self, objects=tuple(self.boxes + objects[e] if e in objects else o for e, o in enumerate(self.objects))
        )

    def dealt(self, on: int) -> Scene:
        """The same scene in which every entity holds the object of the entity so many further on."""
        own = self.objects[: self.boxes]
        return replace(self, objects=(*own[on:], *own[:on], *self.objects[self.boxes :]))

    def renamed(self, labels: dict[int, int]) -> Scene:
        """The same scene in which some entities bear donor labels (entity -> number of the donor)."""
        return replace(
            self, labels=tuple(self.boxes + labels[e] if e in labels else o for e, o in enumerate(self.labels))
        )

    def exchanged(self, one: int, other: int) -> Scene:
        """The same scene with the statements of two entities in each other's place."""
        places = {one: other, other: one}
        return replace(self, order=tuple(places.get(entity, entity) for entity in self.order))

    def prompt(self) -> Prompt:
        """Write the scene down."""
        contents = tuple(Contains(self.label(entity), self.object(entity)) for entity in self.order)
        chain = [operation for step in range(self.operations, 0, -1) for operation in self._step(step)]
        distraction = self._distraction()
        before, after = (distraction, []) if self.distractor == "before" else ([], distraction)
        focus = max(len(before) + len(chain) - 1, 0)
        return Prompt(Story(contents, (*before, *chain, *after)), self.label(self.asked), focus, self.narrative)

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
