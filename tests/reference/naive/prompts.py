"""The prompts of a pack, written as the shown pack's README describes its designs, with another naming order.

Entity 0 is asked about, and the swap sentence names it first and entity 2 second, so the answer stands in slot 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoded, Encoder, Prompt
from rebinding.task.words import Draw, Vocabulary, draw

Record: TypeAlias = dict[str, Any]
Records: TypeAlias = dict[str, dict[int, Record]]
Half: TypeAlias = Literal["train", "test"]

SWAP_PAIR = (0, 2)
QUERY, PARTNER, THIRD = 0, 2, 1
STATEMENTS, FIRST_NAMED_FIRST, EXCHANGED = (0, 1, 2), (QUERY, PARTNER, THIRD), (PARTNER, QUERY, THIRD)
"""Entities by slot: as they are numbered, and in the two orders of head roles."""
NEW = 3
"""Words of a draw from here on are in no original prompt."""

IDS: Mapping[str, tuple[int, ...]] = {
    "exp1/original": tuple(range(500, 524)),
    "path_patching": (41, 7, 19),
    "circuit/selection": tuple(range(70, 77)),
    "circuit/held_out": tuple(range(950, 954)),
    "head_roles": (811, 13, 402, 90),
    "qk_intervention/evaluation": (29, 611, 35, 38),
    "qk_intervention/direction": (4003, 4001, 4100, 4002, 4200),
}
"""Other ids than the shown pack's, not all of them in order."""
MODES = {
    "object/target_box": "the object in the partner's statement is replaced by a new object",
    "context/swap_only": "in the swap sentence the asked letter is replaced by a new letter",
    "context/context_and_swap": "the same in the context and in the swap sentence, but not in the question",
    "context/swap_target_box_to_remaining_context_box": "in the swap sentence the partner is replaced by the third box",
}
INVERSE = {
    "readout": "colon",
    "question_box": "question_box",
    "swap_first": "swap_first_box",
    "swap_second": "swap_second_box",
    "swap_asked": "swap_query_box",
    "swap_partner": "swap_partner_box",
    "context_asked": "context_query_box",
    "context_asked_object": "context_query_object",
    "context_partner": "context_partner_box",
    "context_partner_object": "context_partner_object",
}
"""The names of roles in `rebinding.task`, and the pack's."""


def story(
    words: Draw,
    order: Sequence[int] = STATEMENTS,
    swap: tuple[int, int] = SWAP_PAIR,
    query: int = QUERY,
    *,
    labels: Mapping[int, int] = MappingProxyType({}),
    objects: Mapping[int, int] = MappingProxyType({}),
) -> Prompt:
    """A prompt; `labels` and `objects` give entities of the statements other words of the draw, while `swap` and
    `asked` are places in the draw's labels."""
    contents = tuple(Contains(words.label(labels.get(n, n)), words.object(objects.get(n, n))) for n in order)
    swap_labels = Swap(words.label(swap[0]), words.label(swap[1]))
    return Prompt(Story(contents, (swap_labels,), impossible="ignore"), words.label(query))


def tracing_counterfactual(words: Draw, mode: str) -> Prompt:
    """The counterfactual of a mode, by the part of its name that says what is changed."""
    match mode.split("/")[1]:
        case "target_box":
            return story(words, objects={PARTNER: NEW})
        case "swap_only":
            return story(words, swap=(NEW, PARTNER))
        case "context_and_swap":
            return story(words, swap=(NEW, PARTNER), labels={QUERY: NEW})
        case _:
            return story(words, swap=(QUERY, THIRD))


def designs() -> Iterator[tuple[str, Half, int, Prompt]]:
    """Every prompt of the pack: its design, the half of the words that it is drawn from, its id."""
    for number, words in draws("exp1/original", "test"):
        yield "exp1/original", "test", number, story(words)
        for mode in MODES:
            yield f"exp1/counterfactual/{mode.split('/')[1]}", "test", number, tracing_counterfactual(words, mode)
    fresh = {QUERY: NEW, PARTNER: NEW + 1}
    for number, words in draws("path_patching", "train"):
        yield "path_patching/clean", "train", number, story(words)
        corrupt = story(words, swap=(NEW, NEW + 1), query=NEW, labels=fresh, objects=fresh)
        yield "path_patching/corrupt", "train", number, corrupt
    for design in ("circuit/selection", "circuit/held_out", "qk_intervention/evaluation"):
        for number, words in draws(design, "train"):
            yield design, "train", number, story(words)
    for number, words in draws("head_roles", "train"):
        yield "head_roles/original", "train", number, story(words, FIRST_NAMED_FIRST)
        yield "head_roles/payload_prompt", "train", number, story(words, FIRST_NAMED_FIRST, objects=fresh)
        exchanged = story(words, EXCHANGED, SWAP_PAIR[::-1], objects={PARTNER: NEW, QUERY: NEW + 1})
        yield "head_roles/pointer_prompt", "train", number, exchanged
    for number, words in draws("qk_intervention/direction", "train"):
        for slot, query in enumerate((PARTNER, THIRD, QUERY)):  # whose object stands in the slot before the swap
            yield f"qk_intervention/direction/slot{slot}", "train", number, story(words, query=query)


def draws(design: str, half: Half) -> Iterator[tuple[int, Draw]]:
    vocabulary = Vocabulary().split(half)
    return ((number, draw(vocabulary, number)) for number in IDS[design])


def records(encoder: Encoder) -> Records:
    """Every prompt as `prompts.json` holds it, by design and id."""
    all_designs = list(designs())
    by_design: Records = {}
    encoded = encoder.encode(prompt for *_, prompt in all_designs)
    for (design, half, number, _), prompt in zip(all_designs, encoded, strict=True):
        names = {"key": f"{design}/{number}", "id": number, "design": design, "split": half}
        by_design.setdefault(design, {})[number] = {**names, **_content(encoder, prompt)}
    return by_design


def _content(encoder: Encoder, encoded: Encoded) -> Record:
    prompt, tale = encoded.prompt, encoded.prompt.story
    swap = tale.operations[0]
    assert isinstance(swap, Swap)
    places: dict[str, Any] = {INVERSE[name]: place for name, place in encoded.roles.items() if name in INVERSE}
    for kind in ("context_box", "context_object"):
        places[kind] = [encoded.roles[f"{kind}[{slot}]"] for slot in range(len(tale.contents))]
    return {
        "text": encoded.text,
        "token_ids": list(encoded.ids),
        "length": len(encoded),
        "boxes": list(tale.boxes),
        "objects": list(tale.objects),
        "swap": [swap.first, swap.second],
        "question": prompt.question,
        "partner": prompt.partner,
        "state_after_swap": tale.state(),
        "answer": prompt.answer if prompt.answerable else None,
        "object_token_with_space": {word: encoder.answer_token(word, "exp1_spaced") for word in tale.objects},
        "object_token_without_space": {word: encoder.answer_token(word, "exp34_unspaced") for word in tale.objects},
        "roles": places,
    }
