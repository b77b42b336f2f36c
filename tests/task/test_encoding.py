"""Tokens: under every kind of tokenizer a role is the token of its word, and an answer is the real next token, one and
distinct. Bad input has its own message that says what to do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.procedure import EARLY
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.boxes import Contains, Story
from rebinding.task.chat import Form, form_of
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder, Prompt, PromptError, aligned, is_single_token, render
from rebinding.task.text import render_raw
from rebinding.task.words import LABELS, OBJECTS, DesignError

from .conftest import MAKERS
from .stories import prompts
from .tokenizers import byte_level, sentence_pieces

# Positions for train id 0 under the public Llama 3 vocabulary, as given for the published prompts.
PLACES = ("context_box", "context_object", "swap_first", "swap_second", "swap_period", "question_box", "readout")
LLAMA_3: dict[str, tuple[Any, Form, int, list[Any]]] = {
    "raw": (byte_level(), "raw", 59, [[21, 27, 33], [24, 30, 36], 43, 46, 47, 54, 58]),
    "dates": (byte_level(), "llama3", 106, [[63, 69, 75], [66, 72, 78], 85, 88, 89, 96, 105]),
}


@pytest.mark.parametrize(("tokenizer", "form", "length", "places"), LLAMA_3.values(), ids=LLAMA_3)
def test_positions_of_the_published_prompt(tokenizer: Any, form: Form, length: int, places: list[Any]) -> None:
    published = design("published")
    encoded = Encoder(tokenizer, form).encode(map(published.prompt, range(600)))
    assert {len(prompt) for prompt in encoded} == {length}
    for prompt in encoded:
        slots = [[prompt.roles[f"{place}[{slot}]"] for slot in range(3)] for place in PLACES[:2]]
        assert [*slots, *(prompt.roles[place] for place in PLACES[2:])] == places


@given(prompt=prompts())
def test_a_role_is_the_token_of_its_word(encoder: Encoder, prompt: Prompt) -> None:
    (encoded,) = encoder.encode([prompt])
    spans = render_raw(prompt).spans
    assert set(spans) <= set(encoded.roles)
    for role, (start, end) in spans.items():
        token = encoder.tokenizer.decode([encoded.ids[encoded.roles[role]]])
        assert token.strip() == render_raw(prompt).text[start:end]
    assert encoded.roles["readout"] == len(encoded) - 1
    assert encoded.ids == tuple(encoder.tokenizer(encoded.text, add_special_tokens=False)["input_ids"])


@given(prompt=prompts(maximum=5))
def test_padding_with_the_end_of_turn_token_makes_no_difference(prompt: Prompt) -> None:
    plain, reused = (Encoder(byte_level(pad=pad)).encode([prompt])[0] for pad in ("<|pad|>", "<|eot_id|>"))
    assert (plain.ids, plain.roles) == (reused.ids, reused.roles)
    assert reused.ids.count(Encoder(byte_level()).tokenizer.convert_tokens_to_ids("<|eot_id|>")) == 2


def test_a_prompt_may_end_earlier() -> None:
    """Two tokens early a Llama prompt ends with the blank line behind the assistant's header: as many turns end before
    it. Nothing else moves; and no role may be lost."""
    encoder, story = Encoder(byte_level(), "llama3"), design("published").prompt(0)
    (full,), (short,) = encoder.encode([story]), encoder.encode([story], cut=EARLY)
    ends = encoder.tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert full.ids.count(ends) == EARLY
    assert short.ids == full.ids[:-EARLY] == tuple(encoder.tokenizer(short.text, add_special_tokens=False)["input_ids"])
    assert short.roles == {**full.roles, "readout": 103}
    assert short.text.endswith("assistant<|end_header_id|>\n\n")
    with pytest.raises(PromptError, match="the readout is to be token 96, and question_box would stand there"):
        encoder.encode([story], cut=9)


FORMS_OF: dict[Form, tuple[str, ...]] = {
    "raw": ("words", "bytes", "pieces"),
    "template": ("words", "bytes", "pieces"),
    "llama3": ("bytes",),
    "gemma": ("pieces",),
}


@pytest.mark.parametrize(("form", "kind"), [(form, kind) for form, kinds in FORMS_OF.items() for kind in kinds])
def test_every_form_puts_one_first_token_before_the_text(form: Form, kind: str) -> None:
    """The first token stands in the text, once, as the tokenizer's own post-processing would put it."""
    tokenizer = MAKERS[kind]()
    (encoded,) = Encoder(tokenizer, form).encode([design().prompt(0)])
    assert encoded.ids[0] == tokenizer.bos_token_id
    assert encoded.ids.count(tokenizer.bos_token_id) == 1
    assert encoded.text == render(encoded.prompt, form, tokenizer).text


def test_tensors_hold_the_tokens_and_positions_of_each_prompt(encoder: Encoder) -> None:
    stories = design("counterbalanced")
    encoded = encoder.encode(map(stories.prompt, range(36)))
    tokens = token_batch(encoded)
    asked_positions = positions(encoded, "context_asked")
    assert tokens.shape == (36, len(encoded[0]))
    assert tokens.dtype == asked_positions.dtype == torch.long
    words = [encoder.tokenizer.decode([token]).strip() for token in tokens[torch.arange(36), asked_positions].tolist()]
    assert words == [prompt.prompt.question for prompt in encoded]
    assert len(set(asked_positions.tolist())) == 3


def test_unequal_lengths_are_shown_side_by_side(encoder: Encoder) -> None:
    pair = design().tracing(0, "no_swap")
    original, counterfactual = encoder.encode([pair.original, pair.counterfactual])
    for compare in (
        lambda: token_batch([original, original, counterfactual]),
        lambda: aligned(original, counterfactual),
    ):
        with pytest.raises(PromptError, match=f"{len(original)} and {len(counterfactual)} tokens") as error:
            compare()
        lines = str(error.value).splitlines()[1:]
        assert "Swap" in lines[0] or "\\n" in lines[0] or "ĊĊ" in lines[0]
        assert len(lines) == 20
        assert int(lines[0].split()[0]) < original.roles["swap_first"]


def test_a_role_that_a_prompt_lacks_is_named(encoder: Encoder) -> None:
    encoded: list[Encoded] = encoder.encode(map(design("counterbalanced").prompt, range(36)))
    with pytest.raises(PromptError, match="12 of 36 prompts have no role 'swap_asked'; the first of them has context"):
        positions(encoded, "swap_asked")
    with pytest.raises(PromptError, match="at least one"):
        token_batch([])


# Answer tokens; the published rules are available by name


def test_all_published_objects_have_answer_tokens_of_their_own(encoder: Encoder) -> None:
    tokens = encoder.answer_tokens(OBJECTS)
    assert len(set(tokens)) == len(OBJECTS)
    assert [encoder.tokenizer.decode([token]).strip() for token in tokens] == list(OBJECTS)


def test_the_published_rules_differ_in_the_blank() -> None:
    """Bytes: ` shell` and `shell` are two tokens. The spaced one is ours and experiment 1's."""
    encoder = Encoder(byte_level())
    spaced, unspaced = (encoder.tokenizer.convert_tokens_to_ids(token) for token in ("Ġshell", "shell"))
    assert encoder.answer_token("shell") == encoder.answer_token("shell", "exp1_spaced") == spaced
    assert encoder.answer_token("shell", "exp34_unspaced") == unspaced
    assert encoder.alias_tokens("shell") == {spaced, unspaced}


def test_spaced_form_is_used_where_the_colon_merges_with_the_word() -> None:
    """As Llama 3 has it for some objects: `:` and the first letter become one token, which is no continuation."""
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.add_tokens([":shell"])
    encoder = Encoder(tokenizer)
    spaced, unspaced = (tokenizer.convert_tokens_to_ids(token) for token in ("Ġshell", "shell"))
    assert encoder.answer_token("shell", "exp34_unspaced") == encoder.answer_token("shell") == spaced
    assert encoder.alias_tokens("shell") == {spaced, unspaced}


def test_published_rules_take_first_pieces_and_may_confuse_words() -> None:
    encoder = Encoder(byte_level())
    assert encoder.answer_token("shellfishes", "exp1_spaced") == encoder.answer_token("shellfishbone", "exp1_spaced")
    with pytest.raises(PromptError, match="'shellfishes' and 'shellfishbone' have the same answer token"):
        encoder.answer_tokens(("shellfishes", "shellfishbone"), "exp1_spaced")
    assert len(encoder.alias_tokens("shellfishes") & encoder.alias_tokens("shellfishbone")) > 0


def test_words_that_are_no_answers_are_filtered_and_refused(encoder: Encoder) -> None:
    """A word of several tokens, the same candidate twice, and a rule that there is not."""
    assert not is_single_token(encoder.tokenizer, "hammock")
    assert all(is_single_token(encoder.tokenizer, word) for word in OBJECTS)
    for words, rule, message in (
        (("hammock",), "continuation", "'hammock' is not one known token after 'Answer:' but "),
        (("egg", "fan", "egg"), "continuation", "'egg' and 'egg' have the same answer token"),
        (("egg",), "spaced", "no answer rule 'spaced'; the rules are continuation, exp1_spaced"),
    ):
        with pytest.raises(PromptError, match=message):
            encoder.answer_tokens(words, rule)


# Words and tokenizers that are refused


def make_prompt(*pairs: tuple[str, str]) -> Prompt:
    return Prompt(Story(tuple(Contains(*pair) for pair in pairs)), pairs[0][0])


def merging() -> Any:
    """A tokenizer with a token of two words."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["Box A"])
    return tokenizer


def dropping() -> Any:
    """A tokenizer that drops a word."""
    tokenizer = build_tokenizer()
    drop = pre_tokenizers.Split(Regex(r"Z"), behavior="removed")
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([drop, backend.pre_tokenizer])
    return tokenizer


@pytest.mark.parametrize(
    ("make", "label", "object", "message"),
    [
        (
            byte_level,
            "A",
            "shellfish",
            r"'shellfish' \(context_object\[0\]\) is 2 tokens: 'Ġshell', 'fish'; every",
        ),
        (sentence_pieces, "AB", "egg", r"'AB' \(context_box\[0\]\) is \d tokens"),
        (sentence_pieces, "Ä", "egg", r"'Ä' \(context_box\[0\]\) is \d tokens: .*<0xC3>"),
        (build_tokenizer, "A", "hammock", r"does not know 'hammock' \(context_object\[0\]\)"),
        (merging, "A", "egg", r"'A' \(context_box\[0\]\) shares its token 'Box A' with its neighbours"),
        (dropping, "Z", "egg", r"the tokenizer drops 'Z' \(context_box\[0\]\)"),
    ],
    ids=["object of two tokens", "label of several", "falls back to bytes", "not known", "merges", "dropped"],
)
def test_words_that_are_not_one_known_token_are_refused(
    make: Callable[[], Any], label: str, object: str, message: str
) -> None:
    with pytest.raises(PromptError, match=message):
        Encoder(make()).encode([make_prompt((label, object), ("B", "fan"))])


def test_a_tokenizer_that_cuts_every_word_leaves_no_object() -> None:
    letters = {letter: number for number, letter in enumerate(sorted(set("".join(OBJECTS)) | {" "}))}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(letters, [])))
    with pytest.raises(DesignError, match=r"3 different objects and .* has 0;.* a tokenizer that cuts fewer words"):
        design(tokenizer=tokenizer).prompt(0)


def test_a_slow_tokenizer_is_refused() -> None:
    from transformers import ByT5Tokenizer

    with pytest.raises(PromptError, match=r"ByT5Tokenizer gives no character offsets.*load the fast tokenizer"):
        Encoder(ByT5Tokenizer(), "raw")


def test_tokens_behind_the_readout_are_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "<bos>{% for message in messages %}{{ message['content'] }}{% endfor %}"
    encoder = Encoder(tokenizer)
    encoder.tokenizer = Closing(tokenizer)
    with pytest.raises(PromptError, match=r"it must be the last one. The tokenizer puts 1 more behind the final ':'"):
        encoder.encode([make_prompt(("A", "egg"), ("B", "fan"))])


class Closing:
    """A tokenizer that appends a token even when it is told to add no special ones."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        return self.tokenizer([f"{text}?" for text in texts], **options)


# The tokenizer that comes with the project


@pytest.mark.parametrize("verb", ["swap", "move"])
def test_no_word_of_any_prompt_is_unknown(verb: str) -> None:
    tokenizer = build_tokenizer()
    for form in ("template", "raw"):
        stories = design(split="none", boxes=7, verb=verb, operations=2)  # type: ignore[arg-type]  # one of the verbs
        for encoded in Encoder(tokenizer, form).encode(map(stories.prompt, range(100))):
            assert tokenizer.unk_token_id not in encoded.ids


def test_every_label_and_object_is_one_token_with_and_without_a_blank() -> None:
    tokenizer = build_tokenizer()
    for word in (*LABELS, *OBJECTS):
        unspaced, spaced = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (word, f"  {word}"))
        assert unspaced == spaced == [tokenizer.convert_tokens_to_ids(word)]
        assert tokenizer.decode(unspaced) == word
    assert form_of(tokenizer) == "template"


def test_punctuation_and_line_breaks_are_tokens() -> None:
    pieces = build_tokenizer().tokenize("Box A.\n\nContext: egg, fan?\nAnswer:", add_special_tokens=False)
    assert pieces == ["Box", "A", ".", "\n\n", "Context", ":", "egg", ",", "fan", "?", "\n", "Answer", ":"]


def test_turns_are_single_tokens_and_the_prompt_stays_short() -> None:
    (encoded,) = Encoder(build_tokenizer()).encode([design().prompt(0)])
    assert [piece for piece in encoded.pieces if piece.startswith("<")] == [
        *("<bos>", "<system>", "<end>", "<user>", "<end>", "<assistant>")
    ]
    assert encoded.pieces[-3:] == ["<assistant>", "Answer", ":"]
    assert len(encoded) == 79


def test_tokenizer_is_reproducible_and_survives_saving(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    second = AutoTokenizer.from_pretrained(tmp_path)
    assert second.get_vocab() == tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert second.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    prompts = [design().prompt(prompt_id) for prompt_id in range(5)]
    assert Encoder(second).encode(prompts) == Encoder(tokenizer).encode(prompts)
    for name in ("bos", "eos", "pad", "unk"):
        assert getattr(second, f"{name}_token_id") == getattr(tokenizer, f"{name}_token_id")
