"""Clean and noise prompts of a search, token by token.

**Alignment.** A noise prompt is as long as its clean prompt, and its tokens replace those at the same positions, except
in the context: there a statement replaces the statement of the box with the same part in the swap (named first, named
second, or not named), whatever its slot. Otherwise a head whose output is only "slot 2" would have the same output in
both prompts, and patching could not show that it is needed.

**Score.** The answer's logit minus the mean logit of the story's other objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebinding.task.boxes import labels_of
from rebinding.task.prompts import Encoded, PromptError, TokenizedPrompt, aligned
from rebinding.task.strata import Stratum, numbered, stratum
from rebinding.task.text import names_by_function, names_by_place, token_at


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of prompts with the same wording.

    `answers` is (prompt, object): tokens of the story's objects, the right one first. `match` is (prompt, token): the
    position in the noise prompt of the token that replaces it. `first` is the first token of each pair that differs, or
    whose match is at another position. `places` are the tokens' names by place, `functions` those by function, prompt
    by prompt.
    """

    ids: tuple[int, ...]
    clean: tuple[TokenizedPrompt, ...]
    noise: tuple[TokenizedPrompt, ...]
    answers: Tensor
    match: Tensor
    first: Tensor
    places: tuple[str, ...]
    functions: tuple[tuple[str | None, ...], ...]
    stratum_of: tuple[Stratum, ...] = ()
    """The stratum of each pair; empty if all are in one."""

    @property
    def strata(self) -> dict[int, int]:
        """Each id with the number of its stratum."""
        return dict(zip(self.ids, numbered(self.stratum_of or [()] * len(self.ids)), strict=True))

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return len(self.places)

    def of(self, where: slice) -> Pairs:
        """Some of the pairs."""
        return Pairs(
            self.ids[where], self.clean[where], self.noise[where], self.answers[where], self.match[where],
            self.first[where], self.places, self.functions[where], self.stratum_of[where],
        )  # fmt: skip

    def at(self, name: str) -> Tensor:
        """The position of a named token in each clean prompt (prompt,); -1 if there is none."""
        places = [token_at(name, encoded.roles) for encoded in self.clean]
        return torch.tensor([-1 if place is None else place for place in places])  # (prompt,)


def pairs_of(
    ids: Sequence[int], clean: Sequence[Encoded], noise: Sequence[Encoded], answers: Sequence[Sequence[int]]
) -> Pairs:
    """Pairs from encoded prompts; `answers` are the tokens of each story's objects, the right one first."""
    places = names_by_place(clean[0].roles, clean[0].pieces)
    for encoded in (*clean, *noise):
        moved = [name for name, at in clean[0].roles.items() if name in places and encoded.roles.get(name) != at]
        if moved or len(encoded) != len(clean[0]):
            raise PromptError(
                f"a search needs prompts that are written alike; {moved[0] if moved else 'the end'} stands"
                f" elsewhere in one of {len(encoded)} tokens than in the first, of {len(clean[0])}. Use words that are"
                " single tokens, and one design"
            )
    match = [_match(own, other) for own, other in zip(clean, noise, strict=True)]
    return Pairs(
        tuple(ids), tuple(clean), tuple(noise), torch.tensor(answers), torch.tensor(match),
        first_changes(clean, noise, match), tuple(places),
        tuple(tuple(names_by_function(prompt.roles, places)) for prompt in clean),
        tuple(stratum(encoded.prompt) for encoded in clean),
    )  # fmt: skip


def first_changes(
    clean: Sequence[TokenizedPrompt], noise: Sequence[TokenizedPrompt], match: Sequence[Sequence[int]]
) -> Tensor:
    """The first token of each pair that differs, or whose match is at another position (pair,)."""
    return torch.tensor([_first(own, other, line) for own, other, line in zip(clean, noise, match, strict=True)])


def _match(clean: Encoded, noise: Encoded) -> list[int]:
    """The position of the noise token for every clean one: statements by the part of their box, else the same
    position."""
    match = list(range(len(clean)))
    noise_parts = _parts(noise)
    for slot, part in enumerate(_parts(clean)):
        noise_slot = noise_parts.index(part)
        for at in _statement(clean, slot):
            match[at] = at + noise.roles[f"context_box[{noise_slot}]"] - clean.roles[f"context_box[{slot}]"]
    return match


def _first(clean: TokenizedPrompt, noise: TokenizedPrompt, match: Sequence[int]) -> int:
    """The first token that differs, or whose match is at another position: before it the two runs are the same."""
    moved = [at for at, other in enumerate(match) if at != other]
    return min((*aligned(clean, noise), *moved), default=len(clean))


def _parts(encoded: Encoded) -> list[str]:
    """The part in the swap of each statement's box: its place among the labels that the operation names, or a count."""
    prompt = encoded.prompt
    named = labels_of(prompt.operation) if prompt.operation is not None else ()
    parts, count = [], 0
    for label in prompt.story.boxes:
        if label in named:
            parts.append(f"named {named.index(label)}")
        else:
            parts.append("asked" if label == prompt.question else f"other {count}")
            count += label != prompt.question
    return parts


def _statement(encoded: Encoded, slot: int) -> range:
    """The tokens of a statement: from the word before the label to the full stop after the object."""
    return range(encoded.roles[f"context_box[{slot}]"] - 1, encoded.roles[f"context_object[{slot}]"] + 2)
