"""The prompts of a model: a design and ids become tokens, and the identity of these tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from rebinding.evidence import OnPrompts, PromptSet, Request
from rebinding.evidence.request import digest
from rebinding.experiments.answers import Answers
from rebinding.task.answers import AnswerSet, is_single_token
from rebinding.task.designs import Design, Pair, design
from rebinding.task.prompts import Encoded, Encoder, Prompt
from rebinding.task.text import token_at
from rebinding.task.words import Vocabulary

DISCOVERY_ID, MEANS_ID, PRUNING_ID, EVALUATION_ID, DIRECTIONS_ID, BALANCED_ID = 0, 100, 200, 300, 10_000, 20_000
"""Where the prompts for each use begin; `BALANCED_ID` is that of discovery in the counterbalanced design."""
STORY = ("split", "boxes", "operations", "verb", "distractor", "narrative")
"""What a design and a set of its prompts say alike of the stories."""
MOST_PROMPTS = DIRECTIONS_ID - EVALUATION_ID
"""Evaluation prompts end where those for directions begin."""
Item: TypeAlias = Prompt | Pair
Pairing: TypeAlias = tuple[str, ...]
"""How the counterfactual of a prompt is made: a name below, and its arguments."""
MIRRORED: Mapping[str, tuple[bool, ...]] = MappingProxyType({"code": (False,), "text": (True,), "both": (False, True)})
"""Which of the two pairs of an id the directions of head-role pairs stand for."""
PAIRINGS: dict[str, Callable[..., Sequence[Item]]] = {
    "": lambda stories, number: [stories.prompt(number)],
    "slot": lambda stories, number, slot: [stories.direction(number, int(slot))],
    "noise": lambda stories, number, how: [stories.noise(number, how)],
    "pointer": lambda stories, number, conventions: [
        stories.pointer(number, mirror=side) for side in MIRRORED[conventions]
    ],
    "structure_only_pointer": lambda stories, number, conventions: [
        stories.structure_only_pointer(number, mirror=side) for side in MIRRORED[conventions]
    ],
    "content_control": lambda stories, number, conventions: [
        stories.content_control(number, mirror=side) for side in MIRRORED[conventions]
    ],
}
"""From stories, an id and the arguments of a pairing to prompts; a section adds its own."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Prompts, their counterfactuals where they have any, and what they are known by; `sizes` says how many of them
    each id has, and `contents` is the sha256 of what numbers depend on, id by id."""

    asked: PromptSet
    items: tuple[Item, ...]
    prompts: tuple[Encoded, ...]
    others: tuple[Encoded, ...]
    sizes: tuple[int, ...]
    contents: tuple[str, ...]

    @property
    def pairs(self) -> Iterator[tuple[int, Encoded, Encoded]]:
        """Id, original and counterfactual."""
        for item, own, other in zip(self.items, self.prompts, self.others, strict=True):
            assert isinstance(item, Pair)
            yield item.id, own, other

    def part(self, begin: int, end: int) -> Drawn:
        """The prompts of some of the ids, by place."""
        contents = self.contents[begin:end]
        asked = replace(self.asked, ids=self.asked.ids[begin:end], tokens=digest(contents))
        items = slice(sum(self.sizes[:begin]), sum(self.sizes[:end]))
        return Drawn(asked, self.items[items], self.prompts[items], self.others[items], self.sizes[begin:end], contents)


class Prompts:
    """Draws the prompts of one model, and encodes each of them once, however many requests ask for it."""

    def __init__(self, encoder: Encoder, *, first: int = 0) -> None:
        self.encoder = encoder
        self.first = first
        """How much later than usual the prompts begin on which claims are judged: a run is repeated on others."""
        self._sets: dict[PromptSet, Drawn] = {}
        self._known: dict[tuple[Design, tuple[int, ...], Pairing, int], PromptSet] = {}
        self._encoded: dict[tuple[Prompt, int], Encoded] = {}

    @property
    def evaluation(self) -> int:
        """The id of the first prompt on which claims are judged."""
        return EVALUATION_ID + self.first

    def range_of(self, n: int) -> range:
        """The ids of `n` prompts on which claims are judged."""
        return range(self.evaluation, self.evaluation + n)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that are single tokens of this model."""
        return Vocabulary().keep(partial(is_single_token, self.encoder.tokenizer))

    def design(self, name: Any, **options: Any) -> Design:
        """A design in those words."""
        return design(name, vocabulary=self.vocabulary, **options)

    def draw(self, stories: Design, ids: Sequence[int], pairing: Pairing = (), cut: int = 0) -> PromptSet:
        """The prompts of some ids, or their pairs, `cut` tokens short of their end."""
        words = Vocabulary()  # in place of the model's own
        key = (replace(stories, vocabulary=words), tuple(ids), pairing, cut)
        if key not in self._known:
            self._known[key] = self.add(self._draw(stories, ids, pairing, cut))
        return self._known[key]

    def draw_with(self, stories: Design, first: int, n: int, roles: Sequence[str], pairing: Pairing = ()) -> PromptSet:
        """The first `n` prompts from id `first` on that have all these roles (not every question has a partner)."""
        fits: list[int] = []
        for start in range(first, first + 4 * n, n):
            more = range(start, start + n)
            encoded = self.drawn(self.draw(stories, more)).prompts
            fits += [
                number
                for number, prompt in zip(more, encoded, strict=True)
                if all(token_at(role, prompt.roles) is not None for role in roles)
            ]
            if len(fits) >= n:
                break
        return self.draw(stories, fits[:n], pairing)

    def add(self, drawn: Drawn) -> PromptSet:
        """Remember prompts that were drawn."""
        self._sets[drawn.asked] = drawn
        return drawn.asked

    def drawn(self, request: PromptSet) -> Drawn:
        """The prompts behind a request; drawn again where another process drew them, and compared with what was
        requested."""
        if request not in self._sets:
            self.draw(self.plan(request), request.ids, request.pairing, request.cut)
        if request not in self._sets:
            raise ValueError(
                f"ids {request.ids[0]} to {request.ids[-1]} of {request.design} are other tokens here than in the"
                f" request: it was made for another tokenizer, chat form ({request.form}) or list of words"
            )
        return self._sets[request]

    def blocks(self, request: Request) -> list[Request]:
        """The blocks of a request, each of which is the request on some of its prompts."""
        size = request.block
        if size is None or not isinstance(request, OnPrompts):
            return [request]
        if size < 1:
            raise ValueError(f"blocks of {size} prompts; give at least one")
        whole = self.drawn(request.prompts)
        count = len(request.prompts.ids)
        if count <= size:
            return [request]
        parts = [whole.part(begin, min(begin + size, count)) for begin in range(0, count, size)]
        return [request.on(self.add(part)) for part in parts]

    def _draw(self, stories: Design, ids: Sequence[int], pairing: Pairing, cut: int) -> Drawn:
        """The prompts of some ids, encoded at once."""
        name, *arguments = pairing or ("",)
        by_id = [PAIRINGS[name](stories, number, *arguments) for number in ids]
        items = tuple(item for group in by_id for item in group)
        own = self._encode([item.original if isinstance(item, Pair) else item for item in items], cut)
        others = self._encode([item.counterfactual for item in items if isinstance(item, Pair)], cut)
        sizes = tuple(map(len, by_id))
        contents = _contents(self.encoder, own, others, sizes)
        options = {name: getattr(stories, name) for name in STORY}
        asked = PromptSet(
            stories.name, tuple(ids), digest(contents), self.encoder.form, pairing=tuple(pairing), cut=cut, **options
        )
        return Drawn(asked, items, own, others, sizes, contents)

    def _encode(self, prompts: Sequence[Prompt], cut: int) -> tuple[Encoded, ...]:
        """Prompts as tokens; those that were encoded before are not encoded again."""
        new = [prompt for prompt in dict.fromkeys(prompts) if (prompt, cut) not in self._encoded]
        self._encoded |= {(prompt, cut): made for prompt, made in zip(new, self.encoder.encode(new, cut), strict=True)}
        return tuple(self._encoded[prompt, cut] for prompt in prompts)

    def plan(self, request: PromptSet) -> Design:
        """The design that a set of prompts is drawn from."""
        options = {name: getattr(request, name) for name in STORY}
        return self.design(request.design, **options)

    def answers(self, prompts: Sequence[Encoded], rule: AnswerSet = "continuation") -> Answers:
        """The objects that are in the boxes at the end, and which of them is asked for; a word with fewer tokens than
        another repeats one of them, which adds nothing."""
        held = [[word for word in one.prompt.story.state().values() if word is not None] for one in prompts]
        sets = [[self.encoder.answer_set(word, rule) for word in words] for words in held]
        widest = max(len(one) for words in sets for one in words)
        tokens = [[(*one, *one[:1] * (widest - len(one))) for one in words] for words in sets]
        right = [words.index(one.prompt.answer) for words, one in zip(held, prompts, strict=True)]
        return Answers(torch.tensor(tokens), torch.tensor(right), lowest=rule == "exp2_aliases")


def _contents(
    encoder: Encoder, own: Sequence[Encoded], others: Sequence[Encoded], sizes: Sequence[int]
) -> tuple[str, ...]:
    """The sha256, id by id, of all that numbers depend on."""
    found, begin = [], 0
    for size in sizes:
        mine = slice(begin, begin + size)
        found.append(digest([_content(encoder, prompt) for prompt in (*own[mine], *others[mine])]))
        begin += size
    return tuple(found)


def _content(encoder: Encoder, prompt: Encoded) -> list[Any]:
    """Everything about a prompt that numbers depend on: its tokens, its roles, the tokens of its possible answers."""
    held = [word for word in prompt.prompt.story.state().values() if word is not None]
    answer = prompt.prompt.answer if prompt.prompt.answerable else None
    return [prompt.ids, sorted(prompt.roles.items()), [(word == answer, encoder.answer_token(word)) for word in held]]
