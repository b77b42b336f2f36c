"""Text: the published wording to the character, roles by construction, a reader that gets the story back; prompts of
the published experiments against a record made without this project; prompts that keep their names for good.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from rebinding.task.boxes import Contains, Move, Operation, Put, Remove, Story, StoryError, Swap, labels_of
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt, render
from rebinding.task.text import render_raw, roles_by_function

from .golden import digest, load, names
from .stories import prompts
from .tokenizers import DATELESS_TEMPLATE, byte_level

SWAPPED = Story(
    (Contains("B", "chemical"), Contains("K", "shell"), Contains("J", "boot")),
    (Swap("K", "B"),),
)
SENTENCES = {
    r"Swap the items of Box (\S+) and Box (\S+)": lambda a, b: Swap(a, b),
    r"Move the item of Box (\S+) to Box (\S+)": lambda a, b: Move(a, b),
    r"Put the (\S+) into Box (\S+)": lambda a, b: Put(a, b),
    r"Remove the (\S+) from Box (\S+)": lambda a, b: Remove(a, b),
}


def read(text: str) -> tuple[Story, str]:
    """A reader of the template that knows nothing of how it is written."""
    match = re.fullmatch(r".*\n\nContext: (.*)\n\nQuestion: Which item does Box (\S+) contain\?\n\nAnswer:", text, re.S)
    assert match is not None
    contents: list[Contains] = []
    operations: list[Operation] = []
    for sentence in match[1].rstrip(".").split(". "):
        if statement := re.fullmatch(r"Box (\S+) contains the (\S+)", sentence):
            contents.append(Contains(statement[1], statement[2]))
            continue
        for pattern, operation in SENTENCES.items():
            if words := re.fullmatch(pattern, sentence):
                operations.append(operation(words[1], words[2]))
    return Story(tuple(contents), tuple(operations)), match[2]


@given(prompts(maximum=26))
def test_the_story_can_be_read_back_from_its_text(prompt: Prompt) -> None:
    assert read(render_raw(prompt).text) == (prompt.story, prompt.question)


@given(prompts(maximum=26))
def test_every_role_marks_its_own_word(prompt: Prompt) -> None:
    rendered = render_raw(prompt)
    expected = {f"context_box[{slot}]": box for slot, box in enumerate(prompt.story.boxes)}
    expected |= {f"context_object[{slot}]": object for slot, object in enumerate(prompt.story.objects)}
    expected |= {"question_box": prompt.question, "readout": ":"}
    if prompt.operation is not None:
        expected["swap_period"] = "."
        if isinstance(prompt.operation, Swap | Move):
            expected |= dict(zip(("swap_first", "swap_second"), labels_of(prompt.operation), strict=True))
    assert {role: rendered.text[start:end] for role, (start, end) in rendered.spans.items()} == expected
    places = [rendered.spans[role] for role in rendered.spans]
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    assert rendered.spans["readout"][1] == len(rendered.text)


def test_the_published_text_to_the_character() -> None:
    assert render(Prompt(SWAPPED, "B"), "raw").text == (
        "Answer the question based on the context below. Answer with the single object word only.\n\n"
        "Context: Box B contains the chemical. Box K contains the shell. Box J contains the boot."
        " Swap the items of Box K and Box B.\n\n"
        "Question: Which item does Box B contain?\n\n"
        "Answer:"
    )


def test_focus_chooses_the_operation_that_the_roles_refer_to() -> None:
    story = replace(SWAPPED, operations=(Swap("K", "B"), Swap("B", "J")))
    text = render_raw(Prompt(story, "B")).text
    starts = [render_raw(Prompt(story, "B", focus)).spans["swap_first"][0] for focus in (0, 1)]
    assert [text[start] for start in starts] == ["K", "B"]
    assert (Prompt(story, "B", 0).partner, Prompt(story, "B", 1).partner) == ("K", "J")
    assert Prompt(story, "K", 1).partner is None


def test_roles_by_function_follow_the_story() -> None:
    places = {role: index for index, role in enumerate(render_raw(Prompt(SWAPPED, "B")).spans)}
    positions = {
        question: {
            function: next(role for role, at in places.items() if at == place)
            for function, place in roles_by_function(Prompt(SWAPPED, question), places).items()
        }
        for question in "BJ"
    }
    assert positions["B"] == {
        "context_asked": "context_box[0]",
        "context_asked_object": "context_object[0]",
        "context_partner": "context_box[1]",
        "context_partner_object": "context_object[1]",
        "swap_asked": "swap_second",
        "swap_partner": "swap_first",
        "context_answer_object": "context_object[1]",
    }
    assert positions["J"] == {
        "context_asked": "context_box[2]",
        "context_asked_object": "context_object[2]",
        "context_answer_object": "context_object[2]",
    }


def test_an_object_put_in_later_stands_in_no_slot() -> None:
    story = replace(SWAPPED, operations=(Remove("boot", "J"), Put("egg", "J")))
    prompt = Prompt(story, "J", 1)
    assert prompt.answer == "egg"
    assert "context_answer_object" not in roles_by_function(prompt, dict.fromkeys(render_raw(prompt).spans, 0))
    with pytest.raises(StoryError, match="egg, was put into a box later"):
        _ = prompt.answer_slot


def test_prompts_that_cannot_be_are_refused() -> None:
    with pytest.raises(StoryError, match="Box X is not in this story"):
        Prompt(SWAPPED, "X")
    with pytest.raises(StoryError, match="focus 1 names no operation: this story has 1"):
        Prompt(SWAPPED, "B", 1)
    lenient = Prompt(replace(SWAPPED, impossible="ignore"), "X")
    assert not lenient.answerable
    assert lenient.partner is None


# Prompts of the published experiments

TRAIN, TEST = design(split="train"), design(split="test")
BOXES, OBJECTS, SWAP, QUESTION, READOUT = (43, 49, 55), (46, 52, 58), (65, 68), 76, 85

MAKERS: dict[str, Callable[[int], Prompt]] = {
    "tracing original": TEST.prompt,
    "target_box": lambda i: TEST.tracing(i, "target_box").counterfactual,
    "swap_only": lambda i: TEST.tracing(i, "swap_only").counterfactual,
    "context_and_swap": lambda i: TEST.tracing(i, "context_and_swap").counterfactual,
    "swap_target_box_to_remaining_context_box": lambda i: (
        TEST.tracing(i, "swap_target_box_to_remaining_context_box").counterfactual
    ),
    "path patching, circuit and binding": TRAIN.prompt,
    "roles original": lambda i: TRAIN.pointer(i).original,
    "roles content control": lambda i: TRAIN.content_control(i).counterfactual,
    "roles pointer": lambda i: TRAIN.pointer(i).counterfactual,
    "binding direction 0": lambda i: TRAIN.direction(i, 0),
    "binding direction 1": lambda i: TRAIN.direction(i, 1),
    "binding direction 2": lambda i: TRAIN.direction(i, 2),
}

# what it is | id | boxes and objects by slot | swap | question | answer | sha256 of the text
RECORD = """
tracing original | 62 | ZTN | pipe bomb fish | TZ | Z | bomb | 47a3f4ed82742271
tracing original | 65 | NOS | brick letter phone | ON | N | letter | 2e3e66ec3e217034
target_box | 62 | ZTN | pipe radio fish | TZ | Z | radio | e89aeee121f66a16
target_box | 68 | NWR | guitar stone magazine | WN | N | stone | 46d26ba5b446dbbe
swap_only | 62 | ZTN | pipe bomb fish | TV | Z | pipe | d250d5c7f9a97275
swap_only | 68 | NWR | guitar key magazine | WZ | N | guitar | 1d25f6435777b6a2
context_and_swap | 62 | VTN | pipe bomb fish | TV | Z | - | aa4d0bfa962ae990
context_and_swap | 68 | ZWR | guitar key magazine | WZ | N | - | f217558406a7a0d5
swap_target_box_to_remaining_context_box | 62 | ZTN | pipe bomb fish | NZ | Z | fish | 1279a7459b205cbd
swap_target_box_to_remaining_context_box | 68 | NWR | guitar key magazine | RN | N | magazine | f1bfaca4fa247a9b
path patching, circuit and binding | 0 | BKJ | chemical shell boot | KB | B | shell | 3be1f804c4df5247
path patching, circuit and binding | 3 | MLB | flower chemical engine | LM | M | chemical | a6ec536359117e96
path patching, circuit and binding | 300 | ICM | fan gift newspaper | CI | I | gift | f6679f1ddab38ee4
path patching, circuit and binding | 303 | CIH | seed note boot | IC | C | note | f609413161093976
roles original | 0 | KBJ | shell chemical boot | KB | B | shell | 6abe749d580b44d8
roles original | 3 | LMB | chemical flower engine | LM | M | chemical | aba607c9bd5020a4
roles content control | 0 | KBJ | wheel rock boot | KB | B | wheel | 78351593ce490aa9
roles content control | 3 | LMB | card rock engine | LM | M | card | 578eea2f6970552f
roles pointer | 0 | BKJ | wheel rock boot | BK | B | rock | ad7368585e0a009e
roles pointer | 3 | MLB | card rock engine | ML | M | rock | d6e13273ea035502
binding direction 0 | 10000 | FDH | machine bill wire | DF | D | machine | 4c0c130bc701a972
binding direction 0 | 10003 | EBL | camera brain plant | BE | B | camera | 7e424aaf35bd111c
binding direction 1 | 10000 | FDH | machine bill wire | DF | F | bill | bb089ec223e4a6b9
binding direction 1 | 10003 | EBL | camera brain plant | BE | E | brain | 05ca481b1e0808b9
binding direction 2 | 10000 | FDH | machine bill wire | DF | H | wire | 55c26c74689e85be
binding direction 2 | 10003 | EBL | camera brain plant | BE | L | plant | 480ac6a431a71b68
""".strip()


@pytest.mark.parametrize("row", RECORD.splitlines())
def test_a_published_prompt_is_regenerated(row: str) -> None:
    design_name, prompt_id, boxes, objects, swap, question, answer, digest = row.split(" | ")
    prompt = MAKERS[design_name](int(prompt_id))
    assert prompt.story.boxes == tuple(boxes)
    assert prompt.story.objects == tuple(objects.split())
    operation = prompt.operation
    assert (operation.first, operation.second) == tuple(swap)
    assert prompt.question == question
    assert (prompt.answer if prompt.answerable else "-") == answer
    (encoded,) = Encoder(byte_level(template=DATELESS_TEMPLATE), "template").encode([prompt])
    assert hashlib.sha256(encoded.text.encode()).hexdigest()[:16] == digest
    assert len(encoded) == 86
    assert tuple(encoded.roles[f"context_box[{slot}]"] for slot in range(3)) == BOXES
    assert tuple(encoded.roles[f"context_object[{slot}]"] for slot in range(3)) == OBJECTS
    assert (encoded.roles["swap_first"], encoded.roles["swap_second"]) == SWAP
    assert (encoded.roles["question_box"], encoded.roles["readout"]) == (QUESTION, READOUT)
    if question in boxes:
        assert encoded.roles["context_asked"] == BOXES[boxes.index(question)]
        assert encoded.roles["context_asked_object"] == OBJECTS[boxes.index(question)]
    if question in swap:
        assert encoded.roles["swap_asked"] == SWAP[swap.index(question)]
        assert encoded.roles["swap_partner"] == SWAP[1 - swap.index(question)]
        partner = swap[1 - swap.index(question)]
        assert encoded.roles.get("context_partner") == (BOXES[boxes.index(partner)] if partner in boxes else None)


# Ids are stable names: a prompt once drawn is drawn for good, on every machine and Python version


def test_every_golden_prompt_is_what_it_was() -> None:
    now = {name: digest(prompt) for name, prompt in names()}
    golden = load()
    changed = sorted(name for name in golden if now.get(name) != golden[name])
    assert not changed, f"{len(changed)} of {len(golden)} prompts changed under their old names, first {changed[:5]}"
    assert set(now) == set(golden), "new names: add them with python -m tests.task.golden"


def test_a_hash_tells_any_word_of_a_prompt() -> None:
    prompt = design().prompt(0)
    prompts = [replace(prompt, question="K"), design().prompt(1), design("partner_second").prompt(0)]
    assert digest(prompt) not in {digest(different) for different in prompts}
