"""Texts, templates and token ids as prompts of a model."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rebinding.api.prompts import READOUT, Prompts
from rebinding.task.prompts import PromptError, TokenizedPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def tokenize(
    tokenizer: PreTrainedTokenizerFast,
    prompts: Iterable[str] | Iterable[Sequence[int]] | Tensor,
    positions: Mapping[str, int | Sequence[int]],
    answers: Sequence[Sequence[str | int]] | None,
) -> Prompts:
    """Prompts from texts or token ids; `positions` are indices, one for all prompts or one for each."""
    texts, lines = _texts_and_ids(tokenizer, prompts)
    _check_names(positions)
    count = len(lines)
    tokenized = []
    for number, (text, ids) in enumerate(zip(texts, lines, strict=True)):
        roles = {name: _index(name, index, number, count, len(ids)) for name, index in positions.items()}
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
    if any(spec or conversion for _, _, spec, conversion in Formatter().parse(template)):
        raise PromptError("a field of a template is a name in braces, without a format or a conversion")
    if isinstance(rows, (Mapping, str)):
        raise PromptError("rows is a list of mappings, one for each prompt; for one prompt write [{...}]")
    if isinstance(answers, str):
        raise PromptError(
            f"answers is a list of templates, the right one first; got one text. Write ({answers!r}, ...)"
        )
    if repeated or not all(name.isidentifier() for name in fields):
        raise PromptError(
            f"each field of a template has a name of its own, such as {{subject}}; got {', '.join(fields)}. Give the"
            " same word under two names where it occurs twice"
        )
    _check_names(fields)
    tokenized, candidates = [], []
    for row in rows:
        _check_row(row)
        try:
            text = template.format_map(row)
            candidates.append([answer.format_map(row) for answer in answers or ()])
        except KeyError as error:
            raise PromptError(f"row {dict(row)} has no word for the field {error}") from None
        ids, offsets = _encode(tokenizer, text)
        roles = {name: _last_token(offsets, end, text) for name, end in _ends(template, row).items()}
        tokenized.append(TokenizedPrompt(text, tuple(ids), {**roles, READOUT: len(ids) - 1}, tokenizer))
    return Prompts(tuple(tokenized), None if answers is None else _answer_table(tokenizer, candidates))


def _texts_and_ids(tokenizer: Any, prompts: Any) -> tuple[list[str], list[list[int]]]:
    if isinstance(prompts, str):
        raise PromptError(f"prompts are a list of texts or of token ids; got one text. Write [{prompts!r:.40}]")
    if isinstance(prompts, Mapping):
        raise PromptError(
            f"prompts are a list of texts or of token ids; got a mapping of {', '.join(map(str, prompts))}, as a"
            " tokenizer returns it. Give the texts, or its 'input_ids', made without padding"
        )
    items = prompts if isinstance(prompts, Tensor) else list(prompts)
    if not isinstance(items, Tensor) and all(isinstance(prompt, str) for prompt in items):
        return items, [_encode(tokenizer, text)[0] for text in items]
    try:
        lines = [list(map(operator.index, line)) for line in items]
    except TypeError:
        raise PromptError("prompts are a list of texts, or a table of token ids (prompt, token); got neither") from None
    for number, line in enumerate(lines):
        _check_ids(tokenizer, line, number)
    return [tokenizer.decode(line) for line in lines], lines


def _check_ids(tokenizer: Any, ids: Sequence[int], number: int) -> None:
    """Refuse ids that are no tokens, and padding: the readout is the last token, and nothing masks the others."""
    if ids and min(ids) < 0:
        raise PromptError(f"prompt {number} has the token {min(ids)}; tokens are counted from 0")
    pad, bos, eos = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
    begins_padded = pad is not None and list(ids[:1]) == [pad] and (pad != bos or list(ids[1:2]) == [pad])
    if begins_padded or (ids and ids[-1] in {pad, eos} - {None}):
        place = (
            "begins with padding" if begins_padded else "ends with padding or an end token, which would be the readout"
        )
        piece = tokenizer.decode([ids[0] if begins_padded else ids[-1]])
        raise PromptError(
            f"prompt {number} {place} ({piece!r}); prompts are equally long without padding: tokenise with"
            " padding=False, and cut an end token off"
        )


def _encode(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """A text as tokens and the characters of each: special tokens are added before it, unless it begins with one, and
    none after it. A word that is no token is refused."""

    def encoded(*, special: bool) -> Any:
        options = {"return_offsets_mapping": True, "return_special_tokens_mask": True, "add_special_tokens": special}
        return tokenizer(text, **options)

    encoding = encoded(special=True)
    ids = encoding["input_ids"]
    if len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id:
        encoding = encoded(special=False)
    ids, offsets, is_added = (encoding[name] for name in ("input_ids", "offset_mapping", "special_tokens_mask"))
    while ids and is_added[len(ids) - 1] and not text.endswith(tokenizer.decode(ids[-1:])):
        ids = ids[:-1]
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise PromptError(f"the tokenizer does not know every word of {text!r}; use words that it knows")
    return ids, offsets[: len(ids)]


def _check_row(row: Mapping[str, str]) -> None:
    bad = {name: word for name, word in row.items() if not (isinstance(word, str) and word)}
    if bad:
        raise PromptError(f"the word of a field is a text that is not empty; got {bad}")


def _index(name: str, index: int | Sequence[int], number: int, count: int, length: int) -> int:
    places = [index] * count if hasattr(index, "__index__") else list(cast(Any, index))
    if len(places) != count:
        raise PromptError(f"position {name!r}: give one index, or one for each of {count} prompts; got {len(places)}")
    place = operator.index(places[number])
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


def _last_token(offsets: Sequence[tuple[int, int]], end: int, text: str) -> int:
    """The token that ends where a word ends."""
    for index, (_, stop) in enumerate(offsets):
        if stop == end:
            return index
    raise PromptError(
        f"no token ends where the word {text[:end].split()[-1]!r} ends; leave a blank or a mark behind it"
    )


def _answer_table(tokenizer: Any, answers: Sequence[Sequence[str | int]]) -> Tensor:
    if any(isinstance(line, (str, int)) for line in answers):
        raise PromptError(
            "answers has a row for each prompt, the right one first: [[' right', ' wrong'], ...]; for the same answers"
            " in all prompts write [[...]] * n"
        )
    lines = [[_answer_token(tokenizer, answer) for answer in line] for line in answers]
    if len({len(line) for line in lines}) > 1 or not lines[0]:
        raise PromptError("every prompt needs equally many answers, at least one; the right one comes first")
    for words, line in zip(answers, lines, strict=True):
        if len(set(line)) < len(line):
            raise PromptError(f"the answers {list(words)} are not different tokens")
    return torch.tensor(lines)


def _answer_token(tokenizer: Any, answer: str | int) -> int:
    if not isinstance(answer, str):
        token = operator.index(answer)
        if not 0 <= token < len(tokenizer):
            raise PromptError(f"the answer {token} is no token; the tokenizer has 0 to {len(tokenizer) - 1}")
        return token
    ids: list[int] = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise PromptError(
            f"the answer {answer!r} is {len(ids)} tokens; an answer is one token. A leading blank often matters:"
            f" {' ' + answer.strip()!r}"
        )
    if ids[0] == tokenizer.unk_token_id:
        raise PromptError(f"the answer {answer!r} is no token of this tokenizer")
    return ids[0]
