"""Clean and noise prompts of a search, token by token.

**Alignment.** A noise prompt is as long as its clean one, and each token stands for the one in the same place, except
in the context: there a statement stands for the statement of the box that plays the same part (named first in the swap,
named second, or not named), wherever that is. Otherwise a head that says nothing but "slot 2" would say the same in
both prompts, and nobody could see that it is needed.

**Score.** The answer's logit less the mean logit of the story's other objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebinding.task.boxes import labels_of
from rebinding.task.prompts import Encoded, PromptError, aligned
from rebinding.task.strata import numbered, stratum
from rebinding.task.text import names_by_function, names_by_place, token_at


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of prompts, written alike.

    `answers` is (prompt, object): tokens of the story's objects, the right one first. `match` is (prompt, token): where
    in the noise prompt the token stands that replaces it. `first` is the first token of each pair that differs,
    or stands for another place.
    `places` are the tokens' names by place, `functions` those by function, prompt by prompt.
    """

    ids: tuple[int, ...]
    clean: tuple[Encoded, ...]
    noise: tuple[Encoded, ...]
    answers: Tensor
    match: Tensor
    first: Tensor
    places: tuple[str, ...]
    functions: tuple[tuple[str | None, ...], ...]

    @property
    def strata(self) -> dict[int, int]:
        """Each id with the number of its stratum."""
        return dict(zip(self.ids, numbered([stratum(one.prompt) for one in self.clean]), strict=True))

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return len(self.places)

    def of(self, where: slice) -> Pairs:
        """Some of the pairs."""
        return Pairs(
            self.ids[where], self.clean[where], self.noise[where], self.answers[where], self.match[where],
            self.first[where], self.places, self.functions[where],
        )  # fmt: skip

    def at(self, name: str) -> Tensor:
        """Where the token of a name stands in each clean prompt (prompt,); -1 where there is none."""
        found = [token_at(name, one.roles) for one in self.clean]
        return torch.tensor([-1 if at is None else at for at in found])  # (prompt,)


def pairs_of(
    ids: Sequence[int], clean: Sequence[Encoded], noise: Sequence[Encoded], answers: Sequence[Sequence[int]]
) -> Pairs:
    """Pairs from encoded prompts; `answers` are the tokens of each story's objects, the right one first."""
    places = names_by_place(clean[0].roles, clean[0].pieces)
    for one in (*clean, *noise):
        strange = [name for name, at in clean[0].roles.items() if name in places and one.roles.get(name) != at]
        if strange or len(one) != len(clean[0]):
            raise PromptError(
                f"a search needs prompts that are written alike; {strange[0] if strange else 'the end'} stands"
                f" elsewhere in one of {len(one)} tokens than in the first, of {len(clean[0])}. Use words that are"
                " single tokens, and one design"
            )
    match = [_match(own, other) for own, other in zip(clean, noise, strict=True)]
    first = [_first(own, other, line) for own, other, line in zip(clean, noise, match, strict=True)]
    return Pairs(
        tuple(ids), tuple(clean), tuple(noise), torch.tensor(answers), torch.tensor(match),
        torch.tensor(first), tuple(places), tuple(tuple(names_by_function(one.roles, places)) for one in clean),
    )  # fmt: skip


def _match(clean: Encoded, noise: Encoded) -> list[int]:
    """The noise token for every clean one: statements by the part that their box plays, else the same place."""
    found = list(range(len(clean)))
    theirs = _parts(noise)
    for slot, part in enumerate(_parts(clean)):
        other = theirs.index(part)
        for at in _statement(clean, slot):
            found[at] = at + noise.roles[f"context_box[{other}]"] - clean.roles[f"context_box[{slot}]"]
    return found


def _first(clean: Encoded, noise: Encoded, match: Sequence[int]) -> int:
    """The first token that differs, or stands for another place: before it the two runs are the same."""
    moved = [at for at, other in enumerate(match) if at != other]
    return min((*aligned(clean, noise), *moved), default=len(clean))


def _parts(one: Encoded) -> list[str]:
    """What each statement's box is to the swap: its place among the labels that the operation names, or a count."""
    prompt = one.prompt
    named = labels_of(prompt.operation) if prompt.operation is not None else ()
    parts, others = [], 0
    for label in prompt.story.boxes:
        if label in named:
            parts.append(f"named {named.index(label)}")
        else:
            parts.append("asked" if label == prompt.question else f"other {others}")
            others += label != prompt.question
    return parts


def _statement(one: Encoded, slot: int) -> range:
    """The tokens of a statement: from the word before the label to the full stop after the object."""
    return range(one.roles[f"context_box[{slot}]"] - 1, one.roles[f"context_object[{slot}]"] + 2)
