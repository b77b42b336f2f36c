"""A story and a question as text, with every role's place in it, and a name for every token.

The template is that of the published experiments, character for character. Each piece of text that plays a role is
written down together with the role's name, so the place of a role is known by construction and never searched for.

A token without a role has a name by its word and how far it stands from the nearest role of its sentence:
`contains@context_box[1]+1` is the word after the label of the second statement, `.@context_object[0]+1` the full stop
that ends the first. The same token also has a name by function where its role has one: `contains@context_asked+1` in a
prompt that asks about that box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rebinding.task.boxes import Move, Operation, Put, Remove, Story, StoryError, Swap, labels_of

INSTRUCTION = "Answer the question based on the context below. Answer with the single object word only."
PREFILL = "Answer:"
AROUND = ("It rained all day.", "Nobody said a word.", "The street was quiet.")
"""What a narrator may say that has nothing to do with boxes. As many words each, so that no story is longer than
another for what is said in it."""
FUNCTIONS = (
    "context_asked",
    "context_partner",
    "context_asked_object",
    "context_partner_object",
    "swap_asked",
    "swap_partner",
)
"""Roles that say what a token does in a prompt. Every other role says where it stands."""
ANSWER_ROLE = "context_answer_object"
"""A further name of one of them, which no token is called by here."""
TOKEN_NAME = re.compile(r"(?P<word>.+)@(?P<role>[a-z_]+(\[\d+\])?)(?P<offset>[+-]\d+)")

Span: TypeAlias = tuple[int, int]
Piece: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class Prompt:
    """A story, the label of the box that is asked about, and the operation that the `swap_*` roles refer to.

    With `narrative` a sentence of `AROUND` stands before the first statement and after each.
    """

    story: Story
    question: str
    focus: int = 0
    narrative: bool = False

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
        """Whether the asked box is in the story and holds something at the end."""
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
    def asked_slot(self) -> int:
        """The slot of the asked box."""
        return self.story.slot(self.question)

    @property
    def answer_slot(self) -> int:
        """The slot in which the answer stands in the context."""
        answer = self.answer
        if answer not in self.story.objects:
            raise StoryError(f"the answer, {answer}, was put into a box later and stands in no slot of the context")
        return self.story.objects.index(answer)


@dataclass(frozen=True)
class Rendered:
    """A prompt's text, and for each role the characters `text[start:end]` that play it."""

    text: str
    spans: Mapping[str, Span] = field(hash=False)


def written(prompt: Prompt) -> Rendered:
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
    """The roles named by what they do, resolved through the story to roles named by place (positions in `places`).

    A role that the story does not have (no partner, an absent box, an answer that stands nowhere) is left out.
    """
    boxes, partner = prompt.story.boxes, prompt.partner
    found: dict[str, str] = {}
    for function, label in (("asked", prompt.question), ("partner", partner)):
        if label in boxes:
            slot = boxes.index(label)
            found[f"context_{function}"] = f"context_box[{slot}]"
            found[f"context_{function}_object"] = f"context_object[{slot}]"
    if partner is not None and prompt.operation is not None:
        asked_is_first = labels_of(prompt.operation)[0] == prompt.question
        found["swap_asked"] = "swap_first" if asked_is_first else "swap_second"
        found["swap_partner"] = "swap_second" if asked_is_first else "swap_first"
    if prompt.answerable and prompt.answer in prompt.story.objects:
        found["context_answer_object"] = f"context_object[{prompt.answer_slot}]"
    return {function: places[place] for function, place in found.items()}


def _pieces(prompt: Prompt) -> Iterator[Piece]:
    around = [f" {AROUND[n % len(AROUND)]}" if prompt.narrative else "" for n in range(len(prompt.story.contents) + 1)]
    yield f"{INSTRUCTION}\n\nContext:{around[0]}", None
    for slot, statement in enumerate(prompt.story.contents):
        yield " Box ", None
        yield statement.box, f"context_box[{slot}]"
        yield " contains the ", None
        yield statement.object, f"context_object[{slot}]"
        yield f".{around[slot + 1]}", None
    for index, operation in enumerate(prompt.story.operations):
        for piece, role in _sentence(operation):
            yield piece, role if index == prompt.focus else None
    yield "\n\nQuestion: Which item does Box ", None
    yield prompt.question, "question_box"
    yield f" contain?\n\n{PREFILL[:-1]}", None
    yield PREFILL[-1], "readout"


def _sentence(operation: Operation) -> Iterator[Piece]:
    match operation:
        case Swap(first, second):
            yield " Swap the items of Box ", None
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
    """Where the token of a name stands in a prompt with these roles; None if the prompt lacks its role."""
    if name in roles:
        return roles[name]
    found = TOKEN_NAME.fullmatch(name)
    if found is None or found["role"] not in roles:
        return None
    return roles[found["role"]] + int(found["offset"])


def names_by_place(roles: Mapping[str, int], pieces: Sequence[str]) -> list[str]:
    """The name of every token by its place; the same in all prompts that are written alike."""
    places = {at: role for role, at in roles.items() if role not in (*FUNCTIONS, ANSWER_ROLE)}
    sentence = [sum("." in piece for piece in pieces[:at]) for at in range(len(pieces))]  # ends with its full stop
    return [places.get(at) or _name_near(at, places, sentence, pieces) for at in range(len(pieces))]


def names_by_function(roles: Mapping[str, int], names: Sequence[str]) -> list[str | None]:
    """The name of every token by what it does, or None; `names` are those by place."""
    doing = {at: role for role, at in roles.items() if role in FUNCTIONS}
    functions = {role: doing[at] for role, at in roles.items() if role not in (*FUNCTIONS, ANSWER_ROLE) and at in doing}
    return [_renamed(name, functions) for name in names]


def word_of(piece: str) -> str:
    """A token's text without what tokenizers write for blanks."""
    return piece.strip("Ġ▁ \n").replace("Ċ", "newline") or "blank"


def _name_near(at: int, places: Mapping[int, str], sentence: Sequence[int], pieces: Sequence[str]) -> str:
    same = [place for place in places if sentence[place] == sentence[at]]
    near = min(same or places, key=lambda place: (abs(at - place), place))
    return f"{word_of(pieces[at])}@{places[near]}{at - near:+d}"


def _renamed(name: str, functions: Mapping[str, str]) -> str | None:
    if name in functions:
        return functions[name]
    found = TOKEN_NAME.fullmatch(name)
    if found is None or found["role"] not in functions or int(found["offset"]) not in _around(found["role"]):
        return None
    return f"{found['word']}@{functions[found['role']]}{found['offset']}"


def _around(role: str) -> tuple[int, ...]:
    """The neighbours that stand alike beside every role of a kind: what follows a label depends on which label it is in
    a swap, but not in the context."""
    return (-1,) if role.startswith("swap") else (-1, 1)
