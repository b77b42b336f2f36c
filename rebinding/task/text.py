"""A story and a question as text, with the place of every role, and a name for every token.

The template is that of the published experiments, character for character. Each piece of text with a role is written
together with the role's name, so the place of a role is known by construction and never searched for.

A token without a role is named by its word and its distance from the nearest role of its sentence:
`contains@context_box[1]+1` is the word after the label of the second statement, `.@context_object[0]+1` the full stop
that ends the first. The same token also has a name by function if its role has one: `contains@context_asked+1` in a
prompt that asks about that box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from rebinding.task.boxes import Move, Operation, Put, Remove, Story, StoryError, Swap, labels_of

INSTRUCTION = "Answer the question based on the context below. Answer with the single object word only."
PREFILL = "Answer:"
AROUND = ("It rained all day.", "Nobody said a word.", "The street was quiet.")
"""Neutral sentences of a narrator. They have equally many words, so that all stories have the same length."""
FUNCTIONS = (
    "context_asked",
    "context_partner",
    "context_asked_object",
    "context_partner_object",
    "swap_asked",
    "swap_partner",
)
"""Roles by function in the prompt. Every other role is named by place."""
ANSWER_ROLE = "context_answer_object"
"""Another name of one of these roles, which token names do not use."""
TOKEN_NAME = re.compile(r"(?P<word>.+)@(?P<role>[^\W\d]\w*(\[\d+\])?)(?P<offset>[+-]\d+)")

WordingName: TypeAlias = Literal["published", "holds", "stores", "keeps"]


@dataclass(frozen=True)
class Wording:
    """The words of statements, of a swap, and of the question. All wordings name the same tokens in the same order."""

    statement: str
    swap: str
    question: str
    end: str


WORDINGS: Mapping[WordingName, Wording] = MappingProxyType(
    {
        "published": Wording(" contains the ", " Swap the items of Box ", "Which item does Box ", " contain?"),
        "holds": Wording(" holds the ", " Exchange the objects of Box ", "Which object does Box ", " hold?"),
        "stores": Wording(" stores the ", " Switch the contents of Box ", "What does Box ", " store?"),
        "keeps": Wording(" keeps the ", " Trade the things of Box ", "Which thing does Box ", " keep?"),
    }
)
"""The published words and three paraphrases."""
Span: TypeAlias = tuple[int, int]
Piece: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class Prompt:
    """A story, the label of the box that is asked about, and the operation that the `swap_*` roles refer to.

    With `narrative` a sentence of `AROUND` stands before the first statement and after each; `wording` names a
    paraphrase.
    """

    story: Story
    question: str
    focus: int = 0
    narrative: bool = False
    wording: WordingName = "published"

    def __post_init__(self) -> None:
        count = len(self.story.operations)
        if not 0 <= self.focus < max(count, 1):
            raise StoryError(f"focus {self.focus} names no operation: this story has {count}")
        if self.story.impossible == "refuse":
            self.story.slot(self.question)

    @property
    def operation(self) -> Operation | None:
        """The operation in focus, if the story has any."""
        return self.story.operations[self.focus] if self.story.operations else None

    @property
    def answerable(self) -> bool:
        """Whether the asked box is in the story and holds an object at the end."""
        return self.question in self.story.boxes and self.story.state()[self.question] is not None

    @property
    def answer(self) -> str:
        """The object in the asked box at the end; an error if there is none (see `answerable`)."""
        return self.story.answer(self.question)

    @property
    def partner(self) -> str | None:
        """The other label that the operation in focus names, if it names the asked box; it may be an absent box."""
        labels = labels_of(self.operation) if self.operation is not None else ()
        if len(labels) != 2 or self.question not in labels:
            return None
        return labels[1 - labels.index(self.question)]

    @property
    def query_slot(self) -> int:
        """The slot of the asked box."""
        return self.story.slot(self.question)

    @property
    def answer_slot(self) -> int:
        """The slot of the answer in the context."""
        answer = self.answer
        if answer not in self.story.objects:
            raise StoryError(f"the answer, {answer}, was put into a box later and stands in no slot of the context")
        return self.story.objects.index(answer)


@dataclass(frozen=True)
class Rendered:
    """A prompt's text, and the characters `text[start:end]` of each role."""

    text: str
    spans: Mapping[str, Span] = field(hash=False)


def render_raw(prompt: Prompt) -> Rendered:
    """The raw form: instruction, context, operations, question, and the start of the answer; no trailing blank."""
    parts: list[str] = []
    spans: dict[str, Span] = {}
    length = 0
    for piece, role in _pieces(prompt):
        if role is not None:
            spans[role] = (length, length + len(piece))
        parts.append(piece)
        length += len(piece)
    return Rendered("".join(parts), spans)


def roles_by_function(prompt: Prompt, places: Mapping[str, int]) -> dict[str, int]:
    """The positions of roles by function, from those of roles by place (`places`).

    A role that the story lacks (no partner, an absent box, an answer outside the context) is omitted.
    """
    boxes, partner = prompt.story.boxes, prompt.partner
    places_by_function: dict[str, str] = {}
    for function, label in (("asked", prompt.question), ("partner", partner)):
        if label in boxes:
            slot = boxes.index(label)
            places_by_function[f"context_{function}"] = f"context_box[{slot}]"
            places_by_function[f"context_{function}_object"] = f"context_object[{slot}]"
    if partner is not None and prompt.operation is not None:
        asked_is_first = labels_of(prompt.operation)[0] == prompt.question
        places_by_function["swap_asked"] = "swap_first" if asked_is_first else "swap_second"
        places_by_function["swap_partner"] = "swap_second" if asked_is_first else "swap_first"
    if prompt.answerable and prompt.answer in prompt.story.objects:
        places_by_function["context_answer_object"] = f"context_object[{prompt.answer_slot}]"
    return {function: places[place] for function, place in places_by_function.items()}


def _pieces(prompt: Prompt) -> Iterator[Piece]:
    asides = [f" {AROUND[n % len(AROUND)]}" if prompt.narrative else "" for n in range(len(prompt.story.contents) + 1)]
    words = WORDINGS[prompt.wording]
    yield f"{INSTRUCTION}\n\nContext:{asides[0]}", None
    for slot, statement in enumerate(prompt.story.contents):
        yield " Box ", None
        yield statement.box, f"context_box[{slot}]"
        yield words.statement, None
        yield statement.object, f"context_object[{slot}]"
        yield f".{asides[slot + 1]}", None
    for index, operation in enumerate(prompt.story.operations):
        for piece, role in _sentence(operation, words):
            yield piece, role if index == prompt.focus else None
    yield f"\n\nQuestion: {words.question}", None
    yield prompt.question, "question_box"
    yield f"{words.end}\n\n{PREFILL[:-1]}", None
    yield PREFILL[-1], "readout"


def _sentence(operation: Operation, words: Wording) -> Iterator[Piece]:
    match operation:
        case Swap(first, second):
            yield words.swap, None
            yield first, "swap_first"
            yield " and Box ", None
            yield second, "swap_second"
        case Move(source, target):
            yield " Move the item of Box ", None
            yield source, "swap_first"
            yield " to Box ", None
            yield target, "swap_second"
        case Put(thing, box):
            yield f" Put the {thing} into Box {box}", None
        case Remove(thing, box):
            yield f" Remove the {thing} from Box {box}", None
    yield ".", "swap_period"


def token_at(name: str, roles: Mapping[str, int]) -> int | None:
    """The position of a token by name in a prompt with these roles; None if the prompt lacks its role."""
    if name in roles:
        return roles[name]
    match = TOKEN_NAME.fullmatch(name)
    if match is None or match["role"] not in roles:
        return None
    return roles[match["role"]] + int(match["offset"])


def names_by_place(roles: Mapping[str, int], pieces: Sequence[str]) -> list[str]:
    """The name of every token by place; the same in all prompts of one template."""
    places = {at: role for role, at in roles.items() if role not in (*FUNCTIONS, ANSWER_ROLE)}
    sentence = [sum("." in piece for piece in pieces[:at]) for at in range(len(pieces))]  # ends with its full stop
    return [places.get(at) or _name_near(at, places, sentence, pieces) for at in range(len(pieces))]


def names_by_function(roles: Mapping[str, int], names: Sequence[str]) -> list[str | None]:
    """The name of every token by function, or None; `names` are those by place."""
    function_at = {at: role for role, at in roles.items() if role in FUNCTIONS}
    functions = {
        role: function_at[at]
        for role, at in roles.items()
        if role not in (*FUNCTIONS, ANSWER_ROLE) and at in function_at
    }
    return [_renamed(name, functions) for name in names]


def word_of(piece: str) -> str:
    """A token's text without the tokenizer's marks for blanks."""
    return piece.strip("Ġ▁ \n").replace("Ċ", "newline") or "blank"


def _name_near(at: int, places: Mapping[int, str], sentence: Sequence[int], pieces: Sequence[str]) -> str:
    same = [place for place in places if sentence[place] == sentence[at]]
    near = min(same or places, key=lambda place: (abs(at - place), place))
    return f"{word_of(pieces[at])}@{places[near]}{at - near:+d}"


def _renamed(name: str, functions: Mapping[str, str]) -> str | None:
    if name in functions:
        return functions[name]
    match = TOKEN_NAME.fullmatch(name)
    if match is None or match["role"] not in functions or int(match["offset"]) not in _around(match["role"]):
        return None
    return f"{match['word']}@{functions[match['role']]}{match['offset']}"


def _around(role: str) -> tuple[int, ...]:
    """The offsets at which every role of a kind has the same neighbour: the word after a label differs between the two
    labels of a swap, but not in the context."""
    return (-1,) if role.startswith("swap") else (-1, 1)
