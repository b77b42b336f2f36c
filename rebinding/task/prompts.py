"""Prompts as tokens of a tokenizer: the position of each role, and the token that stands for an answer.

**The token that stands for an object as an answer:**

| rule | token |
|---|---|
| `continuation` | own rule: the one token that follows `Answer:` where `Answer: sock` is tokenised at a prompt's end |
| `exp1_spaced` | published, experiment 1: first token after the prompt of ` sock`, else of `sock` |
| `exp34_unspaced` | published, experiments 3 and 4: first token after the prompt of `sock`, else of ` sock` |
| `exp2_aliases` | published, experiment 2: a set, see `alias_tokens` |

The published rules accept a form only where the prompt's own tokens stay unchanged before it, and they accept a word's
first piece. `continuation` refuses both cases: the word must be one token and a true continuation.

**Positions.**

Positions count the tokens that the model gets: special tokens are part of the text and of the count, there is no
padding, and the readout is the last token. A position comes from the tokenizer's character offsets, never from a search
for a word, and its token is checked to hold the role's word and nothing else.

**Strata** are groups of prompts with the same settings of a balanced design.

A counterbalanced design crosses every slot of the asked box with every slot of the answer and each order of naming,
equally often: these are settings of the experiment and not chance. A model may take one route where the asked box is
named first and another where it is named second. A head of one route then has no effect in half of the prompts and a
large one in the others. The spread between the halves does not make its mean less certain; only the spread within does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from rebinding.task.boxes import labels_of
from rebinding.task.chat import Form, PromptError, form_of, wrapping
from rebinding.task.text import Prompt, Rendered, render_raw, roles_by_function

AnswerRule: TypeAlias = Literal["continuation", "exp1_spaced", "exp34_unspaced"]
AnswerSet: TypeAlias = Literal["continuation", "exp2_aliases"]
"""Rules under which several tokens may stand for an object; the object's logit is their largest."""


def answer_token(tokenizer: Any, tail: str, word: str, rule: AnswerRule = "continuation") -> int:
    """The token of `word` after a prompt that ends with `tail`."""
    match rule:
        case "continuation":
            return _single(tokenizer, tail, word)
        case "exp1_spaced":
            return _first_of(tokenizer, tail, (f" {word}", word))
        case "exp34_unspaced":
            return _first_of(tokenizer, tail, (word, f" {word}"))
    raise PromptError(
        f"there is no answer rule {rule!r}; the rules are {', '.join(get_args(AnswerRule))}, and"
        " Encoder.alias_tokens for exp2_aliases"
    )


def alias_tokens(tokenizer: Any, tail: str, word: str) -> frozenset[int]:
    """Experiment 2 of the published procedure: first tokens of ` sock` and `sock`, both after the prompt and alone.

    A label's score is the largest logit among them. First pieces can be shared by two words.
    """
    forms = (f" {word}", word)
    after = (_continuation(tokenizer, tail, form) for form in forms)
    alone = (_ids(tokenizer, form) for form in forms)
    return frozenset(tokens[0] for tokens in (*after, *alone) if tokens)


def is_single_token(tokenizer: Any, word: str) -> bool:
    """The published filter for objects: one token in mid-sentence, after `The`."""
    tokens = _continuation(tokenizer, "The", f" {word}") or _ids(tokenizer, f" {word}")
    return len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id


def _single(tokenizer: Any, tail: str, word: str) -> int:
    tokens = _continuation(tokenizer, tail, f" {word}")
    if tokens is None:
        raise PromptError(f"in 'Answer: {word}' the word changes the tokens before it, so no token stands for it alone")
    if len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id:
        pieces = ", ".join(repr(piece) for piece in tokenizer.convert_ids_to_tokens(tokens))
        raise PromptError(
            f"{word!r} is not one known token after 'Answer:' but {pieces}; leave it out of the vocabulary"
            " (design(..., tokenizer=...) does), or use a published rule, which takes the first piece"
        )
    return tokens[0]


def _first_of(tokenizer: Any, tail: str, forms: tuple[str, ...]) -> int:
    for form in forms:
        tokens = _continuation(tokenizer, tail, form)
        if tokens:
            return tokens[0]
    raise PromptError(f"neither {forms[0]!r} nor {forms[1]!r} continues the prompt without changing its last tokens")


def _continuation(tokenizer: Any, before: str, after: str) -> list[int] | None:
    """The tokens that `after` adds to `before`, or None if it changes the tokens of `before`."""
    head, ids = _ids(tokenizer, before), _ids(tokenizer, before + after)
    return ids[len(head) :] if ids[: len(head)] == head else None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


__all__ = ["Encoded", "Encoder", "Prompt", "PromptError", "TokenizedPrompt", "aligned", "render", "unequal"]

CHUNK = 1024
"""Prompts tokenised in one call, which bounds the memory of the tokenizer."""


def render(prompt: Prompt, form: Form, tokenizer: Any = None) -> Rendered:
    """The exact text of a prompt in a chat form, and the characters of every role."""
    return wrapping(form, tokenizer).around(render_raw(prompt))


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt as the model gets it: text, token ids, and the token position of every role.

    The tokenizer is kept only so that an error can show the tokens as text.
    """

    text: str
    ids: tuple[int, ...]
    roles: dict[str, int] = field(hash=False)
    tokenizer: Any = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def pieces(self) -> list[str]:
        """The tokens as text."""
        return [
            str(piece) for piece in (self.tokenizer.convert_ids_to_tokens(self.ids) if self.tokenizer else self.ids)
        ]


@dataclass(frozen=True)
class Encoded(TokenizedPrompt):
    """A prompt of the box task as tokens."""

    prompt: Prompt = field(kw_only=True)


class Encoder:
    """A fast tokenizer with its chat form (by default the one that fits the tokenizer)."""

    def __init__(self, tokenizer: Any, form: Form | None = None) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise PromptError(
                f"{type(tokenizer).__name__} gives no character offsets, so roles cannot be located; load the fast"
                " tokenizer (one that has a tokenizer.json)"
            )
        self.tokenizer = tokenizer
        self.form: Form = form_of(tokenizer) if form is None else form
        self._wrapping = wrapping(self.form, tokenizer)
        self._answers: dict[tuple[str, AnswerRule], int] = {}
        self._aliases: dict[str, frozenset[int]] = {}

    def encode(self, prompts: Iterable[Prompt], cut: int = 0) -> list[Encoded]:
        """Render, tokenise in batches, and locate the roles. The last `cut` tokens are removed, so the readout comes
        earlier."""
        remaining = iter(prompts)
        encoded: list[Encoded] = []
        while chunk := list(islice(remaining, CHUNK)):
            encoded.extend(self._encode_chunk(chunk, cut))
        return encoded

    def answer_token(self, word: str, rule: AnswerRule = "continuation") -> int:
        """The token that stands for `word` as an answer, under one of the rules of `rebinding.task.prompts`."""
        if (word, rule) not in self._answers:
            self._answers[word, rule] = answer_token(self.tokenizer, self._wrapping.suffix, word, rule)
        return self._answers[word, rule]

    def answer_tokens(self, words: Iterable[str], rule: AnswerRule = "continuation") -> tuple[int, ...]:
        """The answer tokens of candidates, in their order; they have to be different tokens."""
        by_token: dict[int, str] = {}
        for word in words:
            token = self.answer_token(word, rule)
            if token in by_token:
                raise PromptError(
                    f"{by_token[token]!r} and {word!r} have the same answer token {token} under the rule {rule!r};"
                    " leave one of them out, or use another rule"
                )
            by_token[token] = word
        return tuple(by_token)

    def alias_tokens(self, word: str) -> frozenset[int]:
        """Every token that counts as `word` under the published rule `exp2_aliases`."""
        if word not in self._aliases:
            self._aliases[word] = alias_tokens(self.tokenizer, self._wrapping.suffix, word)
        return self._aliases[word]

    def answer_set(self, word: str, rule: AnswerSet) -> tuple[int, ...]:
        """All tokens that stand for a word under a rule."""
        return tuple(sorted(self.alias_tokens(word))) if rule == "exp2_aliases" else (self.answer_token(word),)

    def _encode_chunk(self, prompts: Sequence[Prompt], cut: int) -> Iterator[Encoded]:
        rendered = [self._wrapping.around(render_raw(prompt)) for prompt in prompts]
        texts = [raw.text for raw in rendered]
        batch = self.tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
        )
        for prompt, raw, encoding in zip(prompts, rendered, batch.encodings, strict=True):
            ids = tuple(encoding.ids)
            places = {role: _position(encoding, raw, role) for role in raw.spans}
            self._check(raw, ids, places)
            text, ids = (raw.text[: encoding.offsets[-cut][0]], ids[:-cut]) if cut else (raw.text, ids)
            places = _read_at(len(ids) - 1, places)
            roles = places | roles_by_function(prompt, places)
            yield Encoded(text, ids, roles, self.tokenizer, prompt=prompt)

    def _check(self, rendered: Rendered, ids: tuple[int, ...], places: dict[str, int]) -> None:
        unknown = self.tokenizer.unk_token_id
        for role, position in places.items():
            if ids[position] == unknown:
                start, end = rendered.spans[role]
                raise PromptError(
                    f"the tokenizer does not know {rendered.text[start:end]!r} ({role}); draw from words that it knows"
                )
        if places["readout"] != len(ids) - 1:
            raise PromptError(
                f"the readout is token {places['readout']} of {len(ids)}; it must be the last one. The tokenizer puts"
                f" {len(ids) - 1 - places['readout']} more behind the final ':'"
            )


def _read_at(last: int, places: Mapping[str, int]) -> dict[str, int]:
    """The roles of a prompt whose readout is this token; an error if another role is there or later."""
    late_roles = sorted(role for role, place in places.items() if role != "readout" and place >= last)
    if late_roles:
        raise PromptError(
            f"the readout is to be token {last}, and {', '.join(late_roles)} would stand there or behind it"
        )
    return {**places, "readout": last}


def aligned(original: TokenizedPrompt, counterfactual: TokenizedPrompt) -> tuple[int, ...]:
    """The token positions in which a pair differs; an error if the two are not equally long."""
    if len(original) != len(counterfactual):
        raise PromptError(unequal(original, counterfactual))
    return tuple(index for index, (a, b) in enumerate(zip(original.ids, counterfactual.ids, strict=True)) if a != b)


def unequal(left: TokenizedPrompt, right: TokenizedPrompt) -> str:
    """The error message for two prompts of different lengths, with at most twenty lines of both tokenisations."""
    rows = list(zip_longest(left.pieces, right.pieces, fillvalue=""))
    first = next((index for index, (a, b) in enumerate(rows) if a != b), 0)
    lines = [f"{index:4}  {a!r:24} {b!r}" for index, (a, b) in enumerate(rows)][first : first + 20]
    return (
        f"two prompts have {len(left)} and {len(right)} tokens; positions correspond only at equal length. Use words"
        " that are single tokens (design(..., tokenizer=...)). From the first difference on:\n" + "\n".join(lines)
    )


def _position(encoding: Any, rendered: Rendered, role: str) -> int:
    """The token that holds the whole word of a role, and otherwise only blanks or line breaks."""
    start, end = rendered.spans[role]
    position: int | None = encoding.char_to_token(start)
    word = rendered.text[start:end]
    if position is None:
        raise PromptError(f"the tokenizer drops {word!r} ({role}); it cannot be used for these prompts")
    left, right = encoding.token_to_chars(position)
    next_token = encoding.token_to_chars(position + 1) if position + 1 < len(encoding) else None
    if right < end or (next_token is not None and next_token[0] < end):
        count = sum(1 for a, b in encoding.offsets if a < end and b > start)
        raise PromptError(
            f"{word!r} ({role}) is {count} tokens: {_tokens(encoding, start, end)}; every role has to be one token."
            " Draw from words that are (design(..., tokenizer=...))"
        )
    if rendered.text[left:right].strip() != word:
        raise PromptError(
            f"{word!r} ({role}) shares its token {rendered.text[left:right]!r} with its neighbours; use a label or"
            " object that stays a token of its own"
        )
    return position


def _tokens(encoding: Any, start: int, end: int) -> str:
    pieces = [token for token, (a, b) in zip(encoding.tokens, encoding.offsets, strict=True) if a < end and b > start]
    return ", ".join(repr(piece) for piece in pieces)


Stratum: TypeAlias = tuple[int, ...]
Array: TypeAlias = npt.NDArray[np.float64]


class Spread(NamedTuple):
    """Mean, standard error of the mean, and its degrees of freedom."""

    mean: Array
    error: Array
    freedom: int


def stratum(prompt: Prompt) -> Stratum:
    """The asked box's place among those that the operation names (2: not named), the answer's slot, and its own."""
    labels = labels_of(prompt.operation) if prompt.operation is not None else ()
    place = labels.index(prompt.question) if prompt.question in labels else len(labels)
    return place, prompt.answer_slot, prompt.query_slot


def numbered(strata: Sequence[Stratum]) -> list[int]:
    """Strata as numbers, coarsened until they take at most half of the degrees of freedom: first the asked box's slot
    is dropped, then the answer's, then everything."""
    depths = range(max(map(len, strata), default=0), -1, -1)
    keys = next(cut for cut in ([key[:depth] for key in strata] for depth in depths) if _affordable(cut))
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    return [numbers[key] for key in keys]


def _affordable(keys: Sequence[Stratum]) -> bool:
    return len(set(keys)) <= max(len(keys) // 2, 1)


def spread(values: Array, strata: Sequence[int]) -> Spread:
    """Of values (unit, ...): the variance within strata is pooled; a single unit has no spread, which is error 0."""
    number = np.unique(np.asarray(strata), return_inverse=True)[1]  # (unit,)
    member = number[:, None] == np.arange(number.max() + 1)  # (unit, stratum)
    means = np.tensordot(member.T / member.sum(0)[:, None], values, axes=1)  # (stratum, ...)
    freedom = len(values) - len(means)
    within = ((values - means[number]) ** 2).sum(axis=0)
    return Spread(values.mean(axis=0), (within / max(freedom, 1) / len(values)) ** 0.5, freedom)
