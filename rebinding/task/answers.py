"""The token that stands for an object as an answer.

| rule | token |
|---|---|
| `continuation` | own rule: the one token that follows `Answer:` where `Answer: sock` is tokenised at a prompt's end |
| `exp1_spaced` | published, experiment 1: first token after the prompt of ` sock`, else of `sock` |
| `exp34_unspaced` | published, experiments 3 and 4: first token after the prompt of `sock`, else of ` sock` |
| `exp2_aliases` | published, experiment 2: a set, see `alias_tokens` |

The published rules accept a form only where the prompt's own tokens stay unchanged before it, and they accept a word's
first piece. `continuation` refuses both cases: the word must be one token and a true continuation.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from rebinding.task.chat import PromptError

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
