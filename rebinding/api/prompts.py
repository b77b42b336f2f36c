"""Prompts as tokens with named positions, and pairs of them.

A position has a name (`"readout"` is always the last token) and, in each prompt, an index. Prompts of a batch are
equally long: nothing is padded, so a position means the same to every layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from rebinding.task.prompts import PromptError, TokenizedPrompt, aligned, unequal
from rebinding.task.strata import Stratum
from rebinding.task.text import token_at

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Position: TypeAlias = str | int
"""A name, or an index from the first token (negative: from the end)."""
READOUT = "readout"


@dataclass(frozen=True, eq=False)
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
        first = self.tokenized[0]
        for prompt in self.tokenized:
            if len(prompt) != len(first):
                raise PromptError(unequal(first, prompt))
        if self.answers is not None and (self.answers.ndim != 2 or len(self.answers) != len(self)):
            raise PromptError(
                f"answers are (prompt, candidate), the right one first; got {tuple(self.answers.shape)} for"
                f" {len(self)} prompts"
            )

    def __len__(self) -> int:
        return len(self.tokenized)

    def __getitem__(self, part: slice) -> Prompts:
        """Some of the prompts."""
        answers = None if self.answers is None else self.answers[part]
        return Prompts(self.tokenized[part], answers, self.strata[part])

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
        """The index of a position in each prompt (prompt,)."""
        if isinstance(position, str):
            places = [token_at(position, prompt.roles) for prompt in self.tokenized]
            if lacking := places.count(None):
                raise PromptError(
                    f"{lacking} of {len(self)} prompts have no position {position!r}. Every prompt has"
                    f" {', '.join(self.positions)}; prompts.having({position!r}) are those that have this one"
                )
            return torch.tensor(places)
        index = position + self.length if position < 0 else position
        if isinstance(position, bool) or not 0 <= index < self.length:
            raise PromptError(f"position {position}: these prompts have tokens 0 to {self.length - 1}")
        return torch.full((len(self),), index)

    def having(self, *positions: Position) -> Prompts:
        """The prompts that have all these positions: not every story has a partner."""
        chosen = [
            number
            for number, prompt in enumerate(self.tokenized)
            if all(isinstance(at, int) or token_at(at, prompt.roles) is not None for at in positions)
        ]
        answers = None if self.answers is None else self.answers[chosen]
        strata = tuple(self.strata[number] for number in chosen) if self.strata else ()
        return Prompts(tuple(self.tokenized[number] for number in chosen), answers, strata)

    def candidates(self) -> Tensor:
        """The answers; an error if there are none."""
        if self.answers is None:
            raise PromptError('these prompts have no answers; give answers=[" right", " wrong"] when you make them')
        return self.answers


@dataclass(frozen=True, eq=False)
class Pairs:
    """Clean prompts and, for each, a noise prompt of equal length: the counterfactual of a patching experiment."""

    clean: Prompts
    noise: Prompts
    match: Tensor | None = None
    """The token of the noise prompt that replaces each clean token (prompt, token); None: that at the same index."""

    def __post_init__(self) -> None:
        if len(self.clean) != len(self.noise):
            raise PromptError(f"{len(self.clean)} clean prompts and {len(self.noise)} noise prompts; give one for each")
        for number, (clean, noise) in enumerate(zip(self.clean.tokenized, self.noise.tokenized, strict=True)):
            if not aligned(clean, noise):
                raise PromptError(f"pair {number} is one prompt twice: no patch can change anything")

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, part: slice) -> Pairs:
        """Some of the pairs."""
        return Pairs(self.clean[part], self.noise[part], None if self.match is None else self.match[part])


def tokenize(
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str] | Sequence[Sequence[int]] | Tensor,
    positions: Mapping[str, int | Sequence[int]],
    answers: Sequence[Sequence[str | int]] | None,
) -> Prompts:
    """Prompts from texts or token ids; `positions` are indices, one for all prompts or one for each."""
    texts, lines = _texts_and_ids(tokenizer, prompts)
    _check_names(positions)
    tokenized = []
    for number, (text, ids) in enumerate(zip(texts, lines, strict=True)):
        roles = {name: _index(name, index, number, len(lines), len(ids)) for name, index in positions.items()}
        tokenized.append(TokenizedPrompt(text, tuple(ids), {**roles, READOUT: len(ids) - 1}, tokenizer))
    return Prompts(tuple(tokenized), None if answers is None else _answer_table(tokenizer, answers))


def fill(
    tokenizer: PreTrainedTokenizerFast,
    template: str,
    rows: Sequence[Mapping[str, str]],
    answers: Sequence[str] | None,
) -> Prompts:
    """A template filled with the words of each row; a field's name names the last token of its word."""
    fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    repeated = {name for name in fields if fields.count(name) > 1}
    if repeated or not all(name.isidentifier() for name in fields):
        raise PromptError(
            f"each field of a template has a name of its own, such as {{subject}}; got {', '.join(fields)}. Give the"
            " same word under two names where it occurs twice"
        )
    _check_names(fields)
    tokenized, candidates = [], []
    for row in rows:
        try:
            text = template.format_map(row)
            candidates.append([answer.format_map(row) for answer in answers or ()])
        except KeyError as error:
            raise PromptError(f"row {dict(row)} has no word for the field {error}") from None
        encoding = tokenizer(text, return_offsets_mapping=True)
        roles = {name: _last_token(encoding, end, text) for name, end in _ends(template, row).items()}
        ids = encoding["input_ids"]
        tokenized.append(TokenizedPrompt(text, tuple(ids), {**roles, READOUT: len(ids) - 1}, tokenizer))
    return Prompts(tuple(tokenized), None if answers is None else _answer_table(tokenizer, candidates))


def _texts_and_ids(tokenizer: Any, prompts: Any) -> tuple[list[str], list[list[int]]]:
    if isinstance(prompts, str):
        raise PromptError(f"prompts are a list of texts or of token ids; got one text. Write [{prompts!r:.40}]")
    if all(isinstance(prompt, str) for prompt in prompts):
        return list(prompts), [tokenizer(text)["input_ids"] for text in prompts]
    lines = prompts.tolist() if isinstance(prompts, Tensor) else [list(map(int, line)) for line in prompts]
    return [tokenizer.decode(line) for line in lines], lines


def _index(name: str, index: int | Sequence[int], number: int, count: int, length: int) -> int:
    if not isinstance(index, int) and len(index) != count:
        raise PromptError(f"position {name!r}: give one index, or one for each of {count} prompts; got {len(index)}")
    place = index if isinstance(index, int) else index[number]
    if not -length <= place < length:
        raise PromptError(f"position {name!r} is token {place} of prompt {number}, which has tokens 0 to {length - 1}")
    return place % length


def _check_names(names: Sequence[str] | Mapping[str, Any]) -> None:
    if READOUT in names:
        raise PromptError(f"{READOUT!r} is the name of the last token of every prompt; give another name")


def _ends(template: str, row: Mapping[str, str]) -> dict[str, int]:
    """The index behind the last character of each field's word in the filled template."""
    ends, length = {}, 0
    for literal, name, _, _ in Formatter().parse(template):
        length += len(literal)
        if name is not None:
            length += len(row[name])
            ends[name] = length
    return ends


def _last_token(encoding: Any, end: int, text: str) -> int:
    """The token that ends where a word ends."""
    for index, (_, stop) in enumerate(encoding["offset_mapping"]):
        if stop == end:
            return index
    raise PromptError(
        f"no token ends where the word {text[:end].split()[-1]!r} ends; leave a blank or a mark behind it"
    )


def _answer_table(tokenizer: Any, answers: Sequence[Sequence[str | int]]) -> Tensor:
    lines = [[_answer_token(tokenizer, answer) for answer in line] for line in answers]
    if len({len(line) for line in lines}) > 1 or not lines[0]:
        raise PromptError("every prompt needs equally many answers, at least one; the right one comes first")
    for words, line in zip(answers, lines, strict=True):
        if len(set(line)) < len(line):
            raise PromptError(f"the answers {list(words)} are not different tokens")
    return torch.tensor(lines)


def _answer_token(tokenizer: Any, answer: str | int) -> int:
    if isinstance(answer, int):
        return answer
    ids: list[int] = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise PromptError(
            f"the answer {answer!r} is {len(ids)} tokens; an answer is one token. A leading blank often matters:"
            f" {' ' + answer.strip()!r}"
        )
    return ids[0]
