"""Stories: boxes that hold at most one object each, and operations that move the objects.

A `Story` has the contents of every box and then the operations. `Story.answer` moves the objects from box to box, as a
global update of the state would. The tests compare it with a second method, which permutes slots and moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

MAX_BOXES = 26
MIN_BOXES = 2


class StoryError(ValueError):
    """A story, or a question about it, is impossible."""


@dataclass(frozen=True, slots=True)
class Contains:
    """A statement that `box` holds `object` at the beginning. The k-th statement is slot k, the paper's binding ID."""

    box: str
    object: str


@dataclass(frozen=True, slots=True)
class Swap:
    """The two boxes exchange their contents."""

    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Move:
    """The object of `source` goes to `target`, which has to be empty."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Put:
    """A new object goes into an empty box."""

    object: str
    box: str


@dataclass(frozen=True, slots=True)
class Remove:
    """`object` is removed from `box` and from the story."""

    object: str
    box: str


Operation: TypeAlias = Swap | Move | Put | Remove
State: TypeAlias = dict[str, str | None]


def labels_of(operation: Operation) -> tuple[str, ...]:
    """The box labels that an operation names, in the order in which its sentence names them."""
    match operation:
        case Swap(first, second):
            return first, second
        case Move(source, target):
            return source, target
        case Put(_, box) | Remove(_, box):
            return (box,)


@dataclass(frozen=True)
class Story:
    """Contents, then operations in order.

    Some published counterfactuals name a box that the context lacks; that sentence has no effect. Such a story has
    `impossible="ignore"`; any other story with an impossible operation is refused.
    """

    contents: tuple[Contains, ...]
    operations: tuple[Operation, ...] = ()
    impossible: Literal["refuse", "ignore"] = "refuse"

    def __post_init__(self) -> None:
        if not MIN_BOXES <= len(self.contents) <= MAX_BOXES:
            raise StoryError(f"{len(self.contents)} boxes given; a story has {MIN_BOXES} to {MAX_BOXES}")
        _refuse_twice("box", self.boxes)
        _refuse_twice("object", self.objects)
        _refuse_blanks((*self.boxes, *self.objects))
        if self.impossible == "refuse":
            _ = self._end

    @cached_property
    def boxes(self) -> tuple[str, ...]:
        """Labels by slot."""
        return tuple(statement.box for statement in self.contents)

    @cached_property
    def objects(self) -> tuple[str, ...]:
        """Objects by slot, before any operation."""
        return tuple(statement.object for statement in self.contents)

    def slot(self, box: str) -> int:
        """The place of a box among the context statements, counted from 0."""
        if box not in self.boxes:
            raise StoryError(f"Box {box} is not in this story; its boxes are {', '.join(self.boxes)}")
        return self.boxes.index(box)

    def state(self) -> State:
        """The content of every box at the end (None: empty)."""
        return dict(self._end)

    @cached_property
    def _end(self) -> State:
        """The state after all operations."""
        state: State = {statement.box: statement.object for statement in self.contents}
        for operation in self.operations:
            obstacle = _obstacle(state, operation)
            if obstacle is None:
                _carry_out(state, operation)
            elif self.impossible == "refuse":
                raise StoryError(f"{operation} is impossible: {obstacle}")
        return state

    def answer(self, box: str) -> str:
        """The object in `box` at the end."""
        self.slot(box)
        content = self._end[box]
        if content is None:
            raise StoryError(f"Box {box} is empty at the end of this story; ask about a box that holds an object")
        return content


def _carry_out(state: State, operation: Operation) -> None:
    match operation:
        case Swap(first, second):
            state[first], state[second] = state[second], state[first]
        case Move(source, target):
            state[source], state[target] = None, state[source]
        case Put(thing, box):
            state[box] = thing
        case Remove(_, box):
            state[box] = None


def _obstacle(state: State, operation: Operation) -> str | None:
    """Why an operation cannot be carried out in a state, or None if it can."""
    labels = labels_of(operation)
    for label in labels:
        if label not in state:
            return f"there is no Box {label}; the boxes are {', '.join(state)}"
    if len(set(labels)) < len(labels):
        return f"it names Box {labels[0]} twice"
    match operation:
        case Move(source, target):
            if state[source] is None:
                return f"Box {source} is empty"
            if state[target] is not None:
                return f"Box {target} still holds the {state[target]}; remove it first"
        case Put(thing, box):
            if state[box] is not None:
                return f"Box {box} still holds the {state[box]}; remove it first"
            if thing in state.values():
                return f"the {thing} is already in a box"
        case Remove(thing, box):
            if state[box] != thing:
                return f"Box {box} holds {'nothing' if state[box] is None else f'the {state[box]}'}"
    return None


def _refuse_twice(kind: str, words: tuple[str, ...]) -> None:
    if len(set(words)) < len(words):
        twice = sorted({word for word in words if words.count(word) > 1})
        raise StoryError(f"each {kind} may occur once in a context; given twice: {', '.join(twice)}")


def _refuse_blanks(words: tuple[str, ...]) -> None:
    for word in words:
        if not word or word != word.strip():
            raise StoryError(f"{word!r} cannot stand in a sentence; give a word without blanks around it")
