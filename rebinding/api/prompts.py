"""Prompts as tokens with named positions, and pairs of them.

A position has a name (`"readout"` is always the last token) and, in each prompt, an index. Prompts of a batch are
equally long: nothing is padded, so a position means the same to every layer.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor

from rebinding.surgery.layers import position_table
from rebinding.surgery.sites import At, Position, SurgeryError, is_one_position
from rebinding.task.prompts import PromptError, Stratum, TokenizedPrompt, aligned
from rebinding.task.text import TOKEN_NAME, token_at, word_of

PromptSelection: TypeAlias = int | slice | Sequence[int] | Tensor
"""Some of the prompts: by number, slice, list of numbers, or mask."""
READOUT = "readout"


@dataclass(frozen=True, eq=False, repr=False)
class Prompts:
    """Prompts of equal length, with named positions and, if the prompts have an answer, its candidates.

    `answers` is (prompt, candidate): tokens, the right one first. `strata` are the settings of a balanced design in
    each prompt; empty for prompts without a design.
    """

    tokenized: tuple[TokenizedPrompt, ...]
    answers: Tensor | None = None
    strata: tuple[Stratum, ...] = ()

    def __post_init__(self) -> None:
        if not self.tokenized:
            raise PromptError("no prompts given; give at least one")
        for number, prompt in enumerate(self.tokenized):
            if len(prompt) != self.length:
                raise PromptError(
                    f"prompts 0 and {number} have {self.length} and {len(prompt)} tokens; a batch has prompts of equal"
                    f" length, so use words of equally many tokens. Prompt 0: {self.tokenized[0].pieces}; prompt"
                    f" {number}: {prompt.pieces}"
                )
        if self.answers is not None and (self.answers.ndim != 2 or len(self.answers) != len(self)):
            raise PromptError(
                f"answers are (prompt, candidate), the right one first; got {tuple(self.answers.shape)} for"
                f" {len(self)} prompts"
            )

    def __len__(self) -> int:
        return len(self.tokenized)

    def __repr__(self) -> str:
        answers = "no" if self.answers is None else self.answers.shape[1]
        return f"Prompts({len(self)} of {self.length} tokens, positions {self.positions}, {answers} answers each)"

    def __getitem__(self, part: PromptSelection) -> Prompts:
        """Some of the prompts, or one: by number, slice, list of numbers or mask."""
        chosen = numbers_of(part, len(self))
        answers = None if self.answers is None else self.answers[chosen]
        strata = tuple(self.strata[number] for number in chosen) if self.strata else ()
        return Prompts(tuple(self.tokenized[number] for number in chosen), answers, strata)

    def __add__(self, other: Prompts) -> Prompts:
        """Both sets of prompts in one, which have equally many tokens, and equally many answers each."""
        if not isinstance(other, Prompts):
            return NotImplemented
        if self.length != other.length:
            raise PromptError(
                f"prompts of {self.length} and {other.length} tokens; a batch has prompts of equal length"
            )
        counts = [None if side.answers is None else side.answers.shape[1] for side in (self, other)]
        if counts[0] != counts[1]:
            raise PromptError(f"prompts with {counts[0]} and {counts[1]} answers each; give both equally many")
        answers = None if self.answers is None or other.answers is None else torch.cat([self.answers, other.answers])
        strata = self.strata + other.strata if self.strata and other.strata else ()
        return Prompts(self.tokenized + other.tokenized, answers, strata)

    @property
    def tokens(self) -> Tensor:
        """Token ids (prompt, token)."""
        return torch.tensor([prompt.ids for prompt in self.tokenized])

    @property
    def length(self) -> int:
        """Tokens of each prompt."""
        return len(self.tokenized[0])

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [prompt.text for prompt in self.tokenized]

    @property
    def positions(self) -> list[str]:
        """The names of positions that every prompt has."""
        return [name for name in self.tokenized[0].roles if all(name in prompt.roles for prompt in self.tokenized)]

    def at(self, position: Position) -> Tensor:
        """The index of a position in each prompt (prompt,); `prompts.positions` are the names."""
        if isinstance(position, str):
            places = [_find(position, prompt) for prompt in self.tokenized]
            if lacking := places.count(None):
                raise PromptError(
                    f"{lacking} of {len(self)} prompts have no position {position!r}{self._word_at(position)}. Every"
                    f" prompt has {', '.join(self.positions)}; prompts.having({position!r}) are the others"
                )
            return torch.tensor(places)
        try:
            own = operator.index(position)
        except TypeError:
            raise PromptError(f"a position is a name or an index; got {position!r}") from None
        index = own + self.length if own < 0 else own
        if isinstance(position, bool) or not 0 <= index < self.length:
            raise PromptError(f"position {position}: these prompts have tokens 0 to {self.length - 1}")
        return torch.full((len(self),), index)

    def table(self, at: At) -> Tensor:
        """Positions as indices: one line a prompt, or, of a tensor, as it is."""
        if isinstance(at, Tensor):
            return position_table(at, self.length)
        positions = [at] if is_one_position(at) else list(cast("Sequence[Position]", at))
        if not positions:
            raise SurgeryError("at is an empty list; give a position by name or index")
        return torch.stack([self.at(cast("Position", position)) for position in positions], dim=1)

    def having(self, *positions: Position) -> Prompts:
        """The prompts that have all these positions: not every story has a partner."""
        chosen = [number for number in range(len(self)) if all(self.has(number, at) for at in positions)]
        if not chosen:
            raise PromptError(f"no prompt has {positions}; the first one has {', '.join(self.tokenized[0].roles)}")
        return self[chosen]

    def has(self, number: int, position: Position) -> bool:
        """Whether a prompt has a position."""
        return isinstance(position, int) or _find(position, self.tokenized[number]) is not None

    def _word_at(self, position: str) -> str:
        """In a message: the word that stands where a position names another one."""
        for number, prompt in enumerate(self.tokenized):
            at = token_at(position, prompt.roles)
            if at is not None and 0 <= at < self.length and _find(position, prompt) is None:
                return f" (in prompt {number} that token is {word_of(prompt.pieces[at])!r})"
        return ""

    def candidates(self, minimum: int = 1) -> Tensor:
        """The answers; an error if there are none, or fewer than `minimum` for each prompt."""
        if self.answers is None:
            raise PromptError(
                'these prompts have no answers. Give them when you make the prompts: in fill, answers=(" {right}",'
                ' " {wrong}"); in prompts, a row for each, answers=[[" right", " wrong"], ...]'
            )
        if self.answers.shape[1] < minimum:
            raise PromptError(f"this needs {minimum} answers for each prompt, the right one first; got one")
        return self.answers


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Clean prompts and, for each, a noise prompt of equal length: the counterfactual of a patching experiment."""

    clean: Prompts
    noise: Prompts
    match: Tensor | None = None
    """The token of the noise prompt that replaces each clean token (prompt, token); None: that at the same index."""

    def __post_init__(self) -> None:
        if not (isinstance(self.clean, Prompts) and isinstance(self.noise, Prompts)):
            raise PromptError("a pair has two Prompts, as model.prompts and model.fill make them")
        if len(self.clean) != len(self.noise):
            raise PromptError(f"{len(self.clean)} clean prompts and {len(self.noise)} noise prompts; give one for each")
        for number, (clean, noise) in enumerate(zip(self.clean.tokenized, self.noise.tokenized, strict=True)):
            if not aligned(clean, noise):
                raise PromptError(f"pair {number} is one prompt twice: no patch can change anything")

    def __len__(self) -> int:
        return len(self.clean)

    def __repr__(self) -> str:
        return f"Pairs({self.clean!r}, {self.noise!r})"

    def __getitem__(self, part: PromptSelection) -> Pairs:
        """Some of the pairs, or one: by number, slice, list of numbers or mask."""
        chosen = numbers_of(part, len(self))
        return Pairs(self.clean[chosen], self.noise[chosen], None if self.match is None else self.match[chosen])

    def __add__(self, other: Pairs) -> Pairs:
        """Both sets of pairs in one."""
        if not isinstance(other, Pairs):
            return NotImplemented
        sides = self.clean + other.clean, self.noise + other.noise
        if self.match is None and other.match is None:
            return Pairs(*sides)
        same = torch.arange(self.clean.length)  # (token,)
        matches = [same.expand(len(part), -1) if part.match is None else part.match for part in (self, other)]
        return Pairs(*sides, torch.cat(matches))

    def having(self, *positions: Position) -> Pairs:
        """The pairs of which both prompts have all these positions."""
        sides = (self.clean, self.noise)
        return self[[n for n in range(len(self)) if all(side.has(n, at) for side in sides for at in positions)]]


def numbers_of(part: PromptSelection, count: int) -> list[int]:
    """The numbers of the chosen items of `count`."""
    if isinstance(part, slice):
        return list(range(count)[part])
    if hasattr(part, "__index__") and not getattr(part, "ndim", 0):
        return [range(count)[operator.index(cast(int, part))]]  # an IndexError ends a loop over the items
    values = part.tolist() if hasattr(part, "tolist") else list(cast("Sequence[int]", part))
    if values and all(isinstance(value, bool) for value in values):
        if len(values) != count:
            raise PromptError(f"a mask has one flag for each of {count} prompts; got {len(values)}")
        return [number for number, value in enumerate(values) if value]
    try:
        return [range(count)[operator.index(value)] for value in values]
    except (TypeError, IndexError):
        raise PromptError(f"choose prompts by numbers 0 to {count - 1}, a slice or a mask; got {part!r:.60}") from None


def _find(position: str, prompt: TokenizedPrompt) -> int | None:
    """The token that a name stands for; None where the prompt lacks it, or has another word there.

    The word `token` stands for any: position-free discovery names a token so that differs between prompts.
    """
    at = token_at(position, prompt.roles)
    match = None if position in prompt.roles else TOKEN_NAME.fullmatch(position)
    if at is None or match is None:
        return at
    is_word = 0 <= at < len(prompt) and match["word"] in ("token", word_of(prompt.pieces[at]))
    return at if is_word else None
