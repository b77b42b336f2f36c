"""A subject ready for experiments, and the store in which their evidence is kept.

Prompt ids are shared out, so that nothing is judged on the prompts it was found on: discovery from 0, means from 100,
pruning from 200, evaluation from 300 on, directions from 10,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from rebinding.evidence import Evidence
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import Shelf, digest
from rebinding.experiments.circuit.ablation import Answers
from rebinding.subjects import Subject
from rebinding.surgery import Surgeon
from rebinding.world.answers import is_single_token
from rebinding.world.designs import Design, DesignName, design
from rebinding.world.prompts import Encoded, Encoder
from rebinding.world.words import Vocabulary

DISCOVERY, MEANS, PRUNING, EVALUATION, DIRECTIONS = 0, 100, 200, 300, 10_000
MOST_PROMPTS = DIRECTIONS - EVALUATION
"""Evaluation prompts end where those for directions begin."""

REMEMBERED = 1 << 30
"""Bytes of recordings that are kept, because claims look at the same prompts again and again."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A subject, and a shelf of the store if evidence is kept."""

    subject: Subject
    shelf: Shelf | None = None
    known: dict[tuple[str, str], Activations] = field(default_factory=dict)
    """Activations that were needed so far."""

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

    def design(self, name: DesignName, **options: Any) -> Design:
        """A design in those words."""
        return design(name, vocabulary=self.vocabulary, **options)

    def prompts(
        self, drawn: Design, first: int, n: int, roles: Sequence[str] = ()
    ) -> tuple[tuple[int, ...], list[Encoded]]:
        """The first `n` prompts from id `first` on that have all these roles (not every question has a partner)."""
        ids, kept = [], []
        for start in range(first, first + 4 * n, n):
            more = range(start, start + n)
            for number, one in zip(more, self.encoder.encode(map(drawn.prompt, more)), strict=True):
                if all(role in one.roles for role in roles):
                    ids.append(number)
                    kept.append(one)
            if len(kept) >= n:
                break
        return tuple(ids[:n]), kept[:n]

    def answers(self, prompts: Sequence[Encoded]) -> Answers:
        """The objects that are in the boxes at the end, and which of them is asked for."""
        held = [[word for word in one.prompt.story.state().values() if word is not None] for one in prompts]
        tokens = [[[self.encoder.answer_token(word)] for word in words] for words in held]
        right = [words.index(one.prompt.answer) for words, one in zip(held, prompts, strict=True)]
        return Answers(torch.tensor(tokens), torch.tensor(right))

    def kept(
        self, experiment: str, module: str, settings: Mapping[str, Any], compute: Callable[[], Evidence]
    ) -> Evidence:
        """Evidence from the store, or computed and put there. `settings` say all that `compute` depends on."""
        if self.shelf is None:
            return compute()
        shelf = self.shelf.of(module, type(self.surgeon).__module__, settings=settings)
        return shelf.store.remember(Evidence, experiment, shelf.key(None), compute)

    def activations(
        self, name: str, module: str, settings: Mapping[str, Any], compute: Callable[[], Mapping[str, torch.Tensor]]
    ) -> Mapping[str, torch.Tensor]:
        """Tensors that several experiments need: computed once, kept here, and in the store where there is one."""
        known = name, digest(dict(settings))
        if known in self.known:
            return self.known[known].tensors
        if self.shelf is None:
            made = Activations(compute())
        else:
            shelf = self.shelf.of(module, type(self.surgeon).__module__, settings=settings)
            made = shelf.store.remember(Activations, name, shelf.key(None), lambda: Activations(compute()))
        self.known[known] = made
        return made.tensors
