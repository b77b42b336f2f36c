"""Text: the published wording to the character, roles by construction, and a reader that gets the story back."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given

from rebinding.task.boxes import Contains, Move, Operation, Put, Remove, Story, StoryError, Swap, labels_of
from rebinding.task.prompts import Prompt, render
from rebinding.task.text import render_raw, roles_by_function

from .stories import prompts

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
