"""Real tokenizers: every word of the task is one token wherever it stands, and the chat is the family's own."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from transformers import PreTrainedTokenizerFast

from rebinding.task.chat import DATE, PINNED_DAY, PREFILL, SYSTEM
from rebinding.task.designs import DESIGNS, NOISE_KINDS, TRACING_MODES, Design, DesignName, design
from rebinding.task.prompts import AnswerRule, Encoder, aligned
from rebinding.task.text import render_raw
from rebinding.task.words import LABELS, OBJECTS

LENGTHS = {"gemma3": 83, "llama3": 106, "llama3_1": 106, "qwen3": 88}
"""Tokens of a published prompt, measured apart from this project."""
FORMS = {"gemma3": "gemma", "llama3": "llama3", "llama3_1": "llama3", "qwen3": "template"}
DATES = f"Cutting Knowledge Date: December 2023\nToday Date: {DATE}\n\n"
"""What Llama 3.1 and 3.2 put into their system turn; the templates in these two packages leave it out."""
N_PROMPTS = 10_000


@pytest.fixture(scope="module")
def encoder(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    return Encoder(tokenizer)


def test_published_prompts_have_one_length(encoder: Encoder, tokenizer_name: str) -> None:
    assert encoder.form == FORMS[tokenizer_name]
    prompts = [design(split="none").prompt(number) for number in range(300)]
    assert {len(prompt) for prompt in encoder.encode(prompts)} == {LENGTHS[tokenizer_name]}


def test_every_word_is_one_token_in_its_place(encoder: Encoder) -> None:
    """Every role's token decodes to its word and nothing else, and every label and object occurs."""
    ids: set[str] = set()
    for prompt in encoder.encode(design(split="none").prompt(number) for number in range(300)):
        story = prompt.prompt.story
        for slot in range(3):
            pairs = ((f"context_box[{slot}]", story.boxes[slot]), (f"context_object[{slot}]", story.objects[slot]))
            for role, word in pairs:
                assert encoder.tokenizer.decode([prompt.ids[prompt.roles[role]]]).strip() == word
                ids.add(word)
        assert encoder.tokenizer.decode([prompt.ids[prompt.roles["question_box"]]]).strip() == prompt.prompt.question
        assert encoder.tokenizer.decode([prompt.ids[-1]]) == ":"
    assert ids == {*LABELS, *OBJECTS}


@pytest.mark.parametrize("rule", get_args(AnswerRule))
def test_answers_exist_and_are_distinct(encoder: Encoder, rule: AnswerRule) -> None:
    assert len(encoder.answer_tokens(OBJECTS, rule)) == len(OBJECTS)


def test_a_word_has_aliases(encoder: Encoder) -> None:
    for word in OBJECTS:
        assert encoder.answer_token(word) in encoder.alias_tokens(word)


def test_the_chat_is_the_tokenizers_own(encoder: Encoder, tokenizer_name: str) -> None:
    """Token for token what the tokenizer's template gives with the pinned date. So is its prompt for generation, with
    thinking off, up to the answer."""
    for number in range(20):
        (prompt,) = encoder.encode([design(split="none").prompt(number)])
        user = render_raw(prompt.prompt).text.removesuffix(f"\n\n{PREFILL}")
        turns = [("system", SYSTEM), ("user", user)]
        text = rendered(encoder.tokenizer, [*turns, ("assistant", PREFILL)], continue_final_message=True)
        generation = rendered(encoder.tokenizer, turns, add_generation_prompt=True, enable_thinking=False)
        if tokenizer_name.startswith("llama3"):
            text, generation = (given.replace(SYSTEM, DATES + SYSTEM) for given in (text, generation))
        assert prompt.text == text == f"{generation}{PREFILL}"
        assert list(prompt.ids) == encoder.tokenizer(text, add_special_tokens=False)["input_ids"]


def rendered(tokenizer: Any, turns: list[tuple[str, str]], **options: bool) -> str:
    """The conversation by the tokenizer's own template, written without the project's chat forms."""
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns],
        chat_template=PINNED_DAY + tokenizer.chat_template,
        tokenize=False,
        **options,
    )
    return str(text)


def designs_to_encode() -> list[Design]:
    designs = [design(name, operations=count, boxes=4) for name in DESIGNS for count in (0, 1, 2)]
    move_designs = [design("published", operations=count, verb="move") for count in (1, 2)]
    five_box_designs = [
        design("published", boxes=5, distractor="before"),
        design("partner_second", boxes=5, distractor="after"),
    ]
    return [*designs, *move_designs, *five_box_designs]


@pytest.mark.parametrize(
    "design_under_test",
    designs_to_encode(),
    ids=lambda design_under_test: (
        f"{design_under_test.name}-{design_under_test.boxes}-{design_under_test.operations}-{design_under_test.verb}"
    ),
)
def test_every_design_encodes(encoder: Encoder, design_under_test: Design) -> None:
    lengths = {len(prompt) for prompt in encoder.encode(design_under_test.prompt(number) for number in range(72))}
    assert len(lengths) == 1


@pytest.mark.parametrize("name", DESIGNS)
def test_pairs_are_equally_long(encoder: Encoder, name: DesignName) -> None:
    """All that a patch is made between; tracing modes that take the swap away are the exception they say they are."""
    design_under_test, unequal = design(name), {"no_swap"}
    for number in range(36):
        pairs = [design_under_test.noise(number, kind) for kind in NOISE_KINDS]
        pairs += [
            design_under_test.content_control(number),
            design_under_test.pointer(number),
            design_under_test.structure_only_pointer(number),
        ]
        pairs += [design_under_test.tracing(number, mode) for mode in TRACING_MODES if mode not in unequal]
        for pair in pairs:
            assert aligned(*encoder.encode([pair.original, pair.counterfactual]))


def test_many_prompts(encoder: Encoder, tokenizer_name: str) -> None:
    """More than one chunk of the encoder, and every id that a run may draw."""
    encoded = encoder.encode(design(split="none").prompt(number) for number in range(N_PROMPTS))
    assert len(encoded) == N_PROMPTS
    assert {len(prompt) for prompt in encoded} == {LENGTHS[tokenizer_name]}
