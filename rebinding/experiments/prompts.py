"""The prompts of a model: encode the prompts of a design, and identify them by their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import torch

from rebinding.evidence import OnPrompts, PromptSet, Request
from rebinding.evidence.request import digest
from rebinding.experiments.tokens import Answers
from rebinding.paper.numbers import ROLE_OF_GROUP
from rebinding.paper.procedure import CircuitConventions
from rebinding.task.designs import Design, Pair, design
from rebinding.task.prompts import AnswerSet, Encoded, Encoder, Prompt, is_single_token
from rebinding.task.text import WordingName, token_at
from rebinding.task.words import Vocabulary

DISCOVERY_ID, MEANS_ID, PRUNING_ID, EVALUATION_ID = 0, 100, 200, 300
DIRECTIONS_ID, BALANCED_ID, SHUFFLED_ID = 10_000, 20_000, 30_000
"""The first prompt id of each use; `BALANCED_ID` is that of discovery in the counterbalanced design, `SHUFFLED_ID` that
of pruning in shuffled orders."""
STORY = ("split", "boxes", "operations", "verb", "distractor", "narrative", "wording")
"""The options of stories that a design and a set of its prompts have in common."""
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
"""Functions from stories, an id and the arguments of a pairing to prompts; a section adds its own."""


@dataclass(frozen=True, eq=False)
class EncodedPrompts:
    """Encoded prompts, their counterfactuals if they have any, and the request for them. `sizes` is the number of
    prompts of each id, `contents` the sha256, id by id, of all that numbers depend on."""

    request: PromptSet
    items: tuple[Item, ...]
    prompts: tuple[Encoded, ...]
    counterfactuals: tuple[Encoded, ...]
    sizes: tuple[int, ...]
    contents: tuple[str, ...]

    @property
    def pairs(self) -> Iterator[tuple[int, Encoded, Encoded]]:
        """Id, original and counterfactual."""
        for item, original, counterfactual in zip(self.items, self.prompts, self.counterfactuals, strict=True):
            assert isinstance(item, Pair)
            yield item.id, original, counterfactual

    def part(self, begin: int, end: int) -> EncodedPrompts:
        """The prompts of the ids from place `begin` to `end`."""
        contents = self.contents[begin:end]
        request = replace(self.request, ids=self.request.ids[begin:end], tokens=digest(contents))
        places = slice(sum(self.sizes[:begin]), sum(self.sizes[:end]))
        return EncodedPrompts(
            request,
            self.items[places],
            self.prompts[places],
            self.counterfactuals[places],
            self.sizes[begin:end],
            contents,
        )


OnRequest = TypeVar("OnRequest", bound=OnPrompts)


class Stories:
    """Draws and encodes the stories of one model, each of them once."""

    def __init__(self, encoder: Encoder, *, skip_prompts: int = 0) -> None:
        self.encoder = encoder
        self.skip_prompts = skip_prompts
        """How many ids later the evaluation prompts begin: repeats a run on other prompts."""
        self.wording: WordingName = "published"
        """The wording of stories whose design does not say otherwise."""
        self._sets: dict[PromptSet, EncodedPrompts] = {}
        self._requests: dict[tuple[Design, tuple[int, ...], Pairing, int], PromptSet] = {}
        self._encoded: dict[tuple[Prompt, int], Encoded] = {}

    @property
    def evaluation(self) -> int:
        """The id of the first prompt on which claims are judged."""
        return EVALUATION_ID + self.skip_prompts

    def range_of(self, n: int) -> range:
        """The ids of `n` prompts on which claims are judged."""
        return range(self.evaluation, self.evaluation + n)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that are single tokens for this model."""
        return Vocabulary().keep(partial(is_single_token, self.encoder.tokenizer))

    def design(self, name: Any, **options: Any) -> Design:
        """A design in the words of `vocabulary`."""
        return design(name, vocabulary=self.vocabulary, **{"wording": self.wording, **options})

    def draw(self, stories: Design, ids: Sequence[int], pairing: Pairing = (), cut: int = 0) -> PromptSet:
        """The request for prompts of some ids, or their pairs, without their last `cut` tokens."""
        words = Vocabulary()  # in place of the model's own
        key = (replace(stories, vocabulary=words), tuple(ids), pairing, cut)
        if key not in self._requests:
            self._requests[key] = self.add(self._draw(stories, ids, pairing, cut))
        return self._requests[key]

    def draw_with(self, stories: Design, first: int, n: int, roles: Sequence[str], pairing: Pairing = ()) -> PromptSet:
        """The first `n` prompts from id `first` on that have all roles (not every question has a partner)."""
        ids: list[int] = []
        for start in range(first, first + 4 * n, n):
            candidates = range(start, start + n)
            encoded = self.encode(self.draw(stories, candidates)).prompts
            ids += [
                number
                for number, prompt in zip(candidates, encoded, strict=True)
                if all(token_at(role, prompt.roles) is not None for role in roles)
            ]
            if len(ids) >= n:
                break
        return self.draw(stories, ids[:n], pairing)

    def add(self, prompts: EncodedPrompts) -> PromptSet:
        """Remember encoded prompts under their request."""
        self._sets[prompts.request] = prompts
        return prompts.request

    def encode(self, request: PromptSet) -> EncodedPrompts:
        """The encoded prompts of a request. If another process drew them, draw them again and compare their tokens with
        the request."""
        if request not in self._sets:
            self.draw(self.plan(request), request.ids, request.pairing, request.cut)
        if request not in self._sets:
            raise ValueError(
                f"ids {request.ids[0]} to {request.ids[-1]} of {request.design} are other tokens here than in the"
                f" request: it was made for another tokenizer, chat form ({request.form}) or list of words"
            )
        return self._sets[request]

    def blocks(self, request: Request) -> list[Request]:
        """Split a request into blocks: the same request on some of its prompts each."""
        size = request.block
        if size is None or not isinstance(request, OnPrompts):
            return [request]
        if size < 1:
            raise ValueError(f"blocks of {size} prompts; give at least one")
        count = len(request.prompts.ids)
        if count <= size:
            return [request]
        return [self.part(request, begin, min(begin + size, count)) for begin in range(0, count, size)]

    def part(self, request: OnRequest, begin: int, end: int) -> OnRequest:
        """The same request on its prompts from place `begin` to `end`."""
        return request.part(lambda prompts: self.add(self.encode(prompts).part(begin, end)))

    def _draw(self, stories: Design, ids: Sequence[int], pairing: Pairing, cut: int) -> EncodedPrompts:
        """Draw the prompts of some ids and encode them together."""
        name, *arguments = pairing or ("",)
        by_id = [PAIRINGS[name](stories, number, *arguments) for number in ids]
        items = tuple(item for group in by_id for item in group)
        prompts = self._encode([item.original if isinstance(item, Pair) else item for item in items], cut)
        counterfactuals = self._encode([item.counterfactual for item in items if isinstance(item, Pair)], cut)
        sizes = tuple(map(len, by_id))
        contents = _contents(self.encoder, prompts, counterfactuals, sizes)
        options = {name: getattr(stories, name) for name in STORY}
        request = PromptSet(
            stories.name, tuple(ids), digest(contents), self.encoder.form, pairing=tuple(pairing), cut=cut, **options
        )
        return EncodedPrompts(request, items, prompts, counterfactuals, sizes, contents)

    def _encode(self, prompts: Sequence[Prompt], cut: int) -> tuple[Encoded, ...]:
        """Encode prompts; each is encoded once."""
        new = [prompt for prompt in dict.fromkeys(prompts) if (prompt, cut) not in self._encoded]
        self._encoded |= {
            (prompt, cut): encoded for prompt, encoded in zip(new, self.encoder.encode(new, cut), strict=True)
        }
        return tuple(self._encoded[prompt, cut] for prompt in prompts)

    def plan(self, request: PromptSet) -> Design:
        """The design of a set of prompts."""
        options = {name: getattr(request, name) for name in STORY}
        return self.design(request.design, **options)

    def answers(self, prompts: Sequence[Encoded], rule: AnswerSet = "continuation") -> Answers:
        """The answer candidates: the objects in the boxes at the end, and the right one. A word with fewer tokens than
        another repeats one of them, which adds nothing."""
        objects = [[word for word in encoded.prompt.story.state().values() if word is not None] for encoded in prompts]
        sets = [[self.encoder.answer_set(word, rule) for word in words] for words in objects]
        widest = max(len(aliases) for words in sets for aliases in words)
        tokens = [[(*aliases, *aliases[:1] * (widest - len(aliases))) for aliases in words] for words in sets]
        right = [words.index(encoded.prompt.answer) for words, encoded in zip(objects, prompts, strict=True)]
        return Answers(torch.tensor(tokens), torch.tensor(right), lowest=rule == "exp2_aliases")


def _contents(
    encoder: Encoder, prompts: Sequence[Encoded], counterfactuals: Sequence[Encoded], sizes: Sequence[int]
) -> tuple[str, ...]:
    """The sha256, id by id, of all that numbers depend on."""
    digests, begin = [], 0
    for size in sizes:
        places = slice(begin, begin + size)
        digests.append(digest([_content(encoder, encoded) for encoded in (*prompts[places], *counterfactuals[places])]))
        begin += size
    return tuple(digests)


def _content(encoder: Encoder, prompt: Encoded) -> list[Any]:
    """All of a prompt that numbers depend on: its tokens, its roles, the tokens of its possible answers."""
    objects = [word for word in prompt.prompt.story.state().values() if word is not None]
    answer = prompt.prompt.answer if prompt.prompt.answerable else None
    return [
        prompt.ids,
        sorted(prompt.roles.items()),
        [(word == answer, encoder.answer_token(word)) for word in objects],
    ]


def draw_noise_pairs(prompts: Stories, conventions: CircuitConventions, n: int, first: int | None = None) -> PromptSet:
    """Clean and noise prompts for path patching: those of discovery, or those from id `first` on."""
    stories, (kind, *_) = prompts.design(conventions.design), conventions.noise
    if conventions.design != "counterbalanced":
        start = DISCOVERY_ID if first is None else first
        return prompts.draw(stories, range(start, start + n), ("noise", kind))
    roles = tuple(ROLE_OF_GROUP.values())
    return prompts.draw_with(stories, BALANCED_ID if first is None else first, n, roles, ("noise", kind))
