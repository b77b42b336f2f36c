"""Hypothesis strategies for stories and prompts, and a second, plainer way to say what a story does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from rebinding.task.boxes import Contains, Move, Operation, Put, Remove, Story, StoryError, Swap
from rebinding.task.prompts import Prompt
from rebinding.task.words import LABELS, OBJECTS


@st.composite
def contents(draw: st.DrawFn, maximum: int = 26) -> tuple[Contains, ...]:
    count = draw(st.integers(2, maximum))
    labels = draw(st.permutations(LABELS))[:count]
    objects = draw(st.permutations(OBJECTS))[:count]
    return tuple(Contains(label, object) for label, object in zip(labels, objects, strict=True))


@st.composite
def swaps(draw: st.DrawFn, boxes: tuple[str, ...], maximum: int = 6) -> tuple[Swap, ...]:
    pairs = st.lists(st.sampled_from(boxes), min_size=2, max_size=2, unique=True)
    return tuple(Swap(*draw(pairs)) for _ in range(draw(st.integers(0, maximum))))


@st.composite
def swap_stories(draw: st.DrawFn, maximum: int = 26) -> Story:
    start = draw(contents(maximum))
    return Story(start, draw(swaps(tuple(statement.box for statement in start))))


@st.composite
def any_stories(draw: st.DrawFn, maximum: int = 26) -> Story:
    """Stories with every kind of operation, each possible when its turn comes."""
    start = draw(contents(maximum))
    state: dict[str, str | None] = {statement.box: statement.object for statement in start}
    spare = [word for word in OBJECTS if word not in state.values()]
    operations: list[Operation] = []
    for _ in range(draw(st.integers(0, 6))):
        operation = draw(st.sampled_from(_possible(state, spare)))
        operations.append(operation)
        follow(state, operation)
        spare = [word for word in spare if word not in state.values()]
    return Story(start, tuple(operations))


@st.composite
def prompts(draw: st.DrawFn, maximum: int = 8) -> Prompt:
    story = draw(any_stories(maximum))
    focus = draw(st.integers(0, max(len(story.operations) - 1, 0)))
    return Prompt(story, draw(st.sampled_from(story.boxes)), focus)


def rho(i: int, j: int) -> Callable[[int], int]:
    """The paper's readout permutation: exchanges slots i and j and leaves every other slot where it is."""
    exchanged = {i: j, j: i}
    return lambda slot: exchanged.get(slot, slot)


def retrieved_slot(story: Story, box: str) -> int:
    """The slot whose object answers a question about `box`: retrieval conditioned rebinding, as the paper describes it.

    It never touches the contents. It turns the swaps into permutations of slots and remaps the asked slot.
    The last swap is undone first: what stands in the asked slot now stood in `rho(asked)` before that swap, and so on
    back to the context.
    """
    slot = story.slot(box)
    for operation in reversed(story.operations):
        if not isinstance(operation, Swap):
            raise StoryError(f"{operation} is no permutation of slots; only stories made of swaps can be read this way")
        if operation.first in story.boxes and operation.second in story.boxes:
            slot = rho(story.slot(operation.first), story.slot(operation.second))(slot)
    return slot


def follow(state: dict[str, str | None], operation: Any) -> None:
    """What an operation does, written with a case for each kind and without the code under test."""
    kind = type(operation).__name__
    if kind == "Swap":
        first = state[operation.first]
        state[operation.first] = state[operation.second]
        state[operation.second] = first
    elif kind == "Move":
        state[operation.target] = state[operation.source]
        state[operation.source] = None
    elif kind == "Put":
        state[operation.box] = operation.object
    else:
        state[operation.box] = None


def _possible(state: dict[str, str | None], spare: list[str]) -> list[Operation]:
    full = [box for box, item in state.items() if item is not None]
    empty = [box for box in state if box not in full]
    boxes = list(state)
    operations: list[Operation] = [swap for a, b in pairwise(boxes) for swap in (Swap(a, b), Swap(b, a))]
    operations += [Remove(str(state[box]), box) for box in full[:3]]
    operations += [Move(source, target) for source in full[:3] for target in empty[:3]]
    operations += [Put(spare[0], box) for box in empty[:3]]
    return operations
