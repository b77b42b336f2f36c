"""A subject ready for experiments, and the store in which their evidence is kept.

Prompt ids are shared out, so that nothing is judged on the prompts it was found on: discovery from 0, means from 100,
pruning from 200, evaluation from 300 on, directions from 10,000, balanced discovery from 20,000 (where a third of the
ids ask about a bystander and are passed over).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from rebinding.evidence import Evidence, PromptSet, Request
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Shelf
from rebinding.experiments.circuit.ablation import Answers
from rebinding.experiments.circuit.paths import NoisePairs
from rebinding.study.drawing import Drawn, Pairing, draw
from rebinding.subjects import Subject
from rebinding.surgery import Surgeon
from rebinding.world.answers import AnswerSet, is_single_token
from rebinding.world.designs import Design, design
from rebinding.world.places import token_at
from rebinding.world.prompts import Encoded, Encoder
from rebinding.world.words import Vocabulary

DISCOVERY, MEANS, PRUNING, EVALUATION, DIRECTIONS, BALANCED = 0, 100, 200, 300, 10_000, 20_000
MOST_PROMPTS = DIRECTIONS - EVALUATION
"""Evaluation prompts end where those for directions begin."""

REMEMBERED = 1 << 30
"""Bytes of recordings that are kept, because claims look at the same prompts again and again."""

Measure: TypeAlias = Callable[["Bench", Any], Evidence]
Tensors: TypeAlias = Callable[["Bench", Any], Mapping[str, Tensor]]
MEASURES: dict[type[Request], Measure] = {}
TENSORS: dict[type[Request], Tensors] = {}
IN_BLOCKS: dict[type[Request], Callable[[Any], int]] = {}
"""Kinds that their measure keeps block by block, and whose whole is put together without the model; and how many
prompts a block has. (A tracing map is kept as a whole besides: which pairs are in it, only the model knows.)"""
Function = TypeVar("Function", bound=Callable[..., Any])


def measures(kind: type[Request], *, in_blocks: Callable[[Any], int] | None = None) -> Callable[[Function], Function]:
    """The function computes the evidence of a kind of request, from a bench and the request and nothing else."""

    def register(function: Function) -> Function:
        MEASURES[kind] = function
        if in_blocks is not None:
            IN_BLOCKS[kind] = in_blocks
        return function

    return register


def averages(kind: type[Request]) -> Callable[[Function], Function]:
    """The same for tensors that several experiments need."""

    def register(function: Function) -> Function:
        TENSORS[kind] = function
        return function

    return register


@dataclass(frozen=True, eq=False)
class Bench:
    """A subject, and a shelf of the store if evidence is kept."""

    subject: Subject
    shelf: Shelf | None = None
    first: int = 0
    """How much later than usual the prompts begin on which claims are judged: a run is repeated on others."""
    tensors: dict[Request, Activations] = field(default_factory=dict)
    """Tensors that were needed so far."""
    sets: dict[PromptSet, Drawn] = field(default_factory=dict)
    """Prompts that were drawn so far."""

    told: dict[tuple[Design, tuple[int, ...], Pairing, int | None, int], PromptSet] = field(default_factory=dict)
    """What was drawn, by how it was asked for."""
    shelves: dict[str, Shelf] = field(default_factory=dict)
    """The part of the shelf that belongs to the code of a module."""
    noise_pairs: dict[PromptSet, NoisePairs] = field(default_factory=dict)
    """Prompts of path patching with their recordings."""

    @property
    def evaluation(self) -> int:
        """The id of the first prompt on which claims are judged."""
        return EVALUATION + self.first

    def range_of(self, n: int) -> range:
        """The ids of `n` prompts on which claims are judged."""
        return range(self.evaluation, self.evaluation + n)

    @cached_property
    def surgeon(self) -> Surgeon:
        return self.subject.surgeon(remember=REMEMBERED)

    @cached_property
    def encoder(self) -> Encoder:
        return self.subject.encoder()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that are single tokens of this subject."""
        return Vocabulary().keep(partial(is_single_token, self.subject.tokenizer))

    def design(self, name: Any, **options: Any) -> Design:
        """A design in those words."""
        return design(name, vocabulary=self.vocabulary, **options)

    def draw(
        self, drawn: Design, ids: Sequence[int], pairing: Pairing = (), encoded: int | None = None, cut: int = 0
    ) -> PromptSet:
        """The prompts of some ids, or their pairs; encoded once, however many sentences ask for them."""
        words = Vocabulary()  # in place of the bench's own
        told = (replace(drawn, vocabulary=words), tuple(ids), pairing, encoded, cut)
        if told not in self.told:
            found = draw(self.encoder, drawn, ids, pairing, encoded, cut)
            self.sets[found.asked], self.told[told] = found, found.asked
        return self.told[told]

    def draw_with(self, drawn: Design, first: int, n: int, roles: Sequence[str], pairing: Pairing = ()) -> PromptSet:
        """The first `n` prompts from id `first` on that have all these roles (not every question has a partner)."""
        fits: list[int] = []
        for start in range(first, first + 4 * n, n):
            more = range(start, start + n)
            encoded = self.sets[self.draw(drawn, more)].prompts
            fits += [
                number
                for number, one in zip(more, encoded, strict=True)
                if all(token_at(role, one.roles) is not None for role in roles)
            ]
            if len(fits) >= n:
                break
        return self.draw(drawn, fits[:n], pairing)

    def drawn(self, asked: PromptSet) -> Drawn:
        """The prompts behind a request; drawn again where somebody else drew them, and held against what was asked."""
        if asked not in self.sets:
            self.draw(self.plan(asked), asked.ids, asked.pairing, asked.encoded, asked.cut)
        if asked not in self.sets:
            raise ValueError(
                f"ids {asked.ids[0]} to {asked.ids[-1]} of {asked.design} are other tokens here than in the request:"
                f" it was made for another tokenizer, chat form ({asked.form}) or list of words"
            )
        return self.sets[asked]

    def plan(self, asked: PromptSet) -> Design:
        """The design that a set of prompts is drawn from."""
        options = {
            name: getattr(asked, name) for name in ("split", "boxes", "operations", "verb", "distractor", "narrative")
        }
        return self.design(asked.design, **options)

    def answers(self, prompts: Sequence[Encoded], rule: AnswerSet = "continuation") -> Answers:
        """The objects that are in the boxes at the end, and which of them is asked for; a word with fewer tokens than
        another repeats one of them, which adds nothing."""
        held = [[word for word in one.prompt.story.state().values() if word is not None] for one in prompts]
        sets = [[self.encoder.answer_set(word, rule) for word in words] for words in held]
        widest = max(len(one) for words in sets for one in words)
        tokens = [[(*one, *one[:1] * (widest - len(one))) for one in words] for words in sets]
        right = [words.index(one.prompt.answer) for words, one in zip(held, prompts, strict=True)]
        return Answers(torch.tensor(tokens), torch.tensor(right), lowest=rule == "exp2_aliases")

    def measured(self, request: Request) -> Evidence:
        """Evidence from the store, or computed and put there; it says inside what was asked."""
        measure = MEASURES[type(request)]

        def compute() -> Evidence:
            found = measure(self, request)
            about = {"request": dict(request.plain), "facets": dict(request.facets), "key": request.key}
            return request.KIND.evidence(found.rows, {**found.settings, **about})

        if self.shelf is None or type(request) in IN_BLOCKS:
            return compute()
        shelf = self._shelf(measure)
        return shelf.store.remember(Evidence, request.KIND.name, shelf.key(request.key), compute)

    def averaged(self, request: Request) -> Mapping[str, Tensor]:
        """Tensors that several experiments need: computed once, kept here, and in the store where there is one."""
        if request not in self.tensors:
            compute = TENSORS[type(request)]

            def made() -> Activations:
                return Activations(compute(self, request))

            if self.shelf is None:
                self.tensors[request] = made()
            else:
                shelf = self._shelf(compute)
                key = shelf.key(request.key)
                self.tensors[request] = shelf.store.remember(Activations, request.KIND.name, key, made)
        return self.tensors[request].tensors

    def _shelf(self, function: Callable[..., Any]) -> Shelf:
        """Where what a function computes is kept: its code, and that of the surgeon, belong to the address."""
        assert self.shelf is not None
        name = function.__module__
        if name not in self.shelves:
            self.shelves[name] = self.shelf.of(name, type(self.surgeon).__module__, settings={})
        return self.shelves[name]
