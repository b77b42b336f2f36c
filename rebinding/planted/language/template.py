"""The template of plants in tokens, the lines that depend on it, and checks of prompts.

A plant depends on distances: from the word `Context` to the labels and objects, within a swap sentence, from the
story's last full stop to the question. Other sentences, more boxes, or a box in two swaps would be answered by luck.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rebinding.planted.language.rope import LONGEST
from rebinding.planted.language.wiring import Line, WiringError
from rebinding.task.boxes import Contains, Story, Swap, labels_of

if TYPE_CHECKING:
    from rebinding.task.prompts import Encoded

LABEL, OBJECT, SENTENCE = 3, 6, 6
"""Tokens from the word `Context` to the first label and the first object, and from one sentence to the next."""
ASIDE = 5
"""Tokens of a narrator's sentence, before the first statement and after each."""
STOP_BEFORE_QUESTION = 8
"""Tokens from the full stop that ends the story to the label in the question."""
LABELS_APART, STOP_AFTER_LABEL = 3, 1
"""In a swap sentence: tokens from the first label to the second, and from there to the full stop."""


class TemplateError(WiringError):
    """A prompt or tokenizer that a plant was not made for."""


def grammar() -> Line:
    """The line that gives a label, full stop or colon its place, by the word two (or one) tokens back."""
    distances = (("letter", 2), ("dot", 2), ("colon", 1))
    return Line("place", 0, "letter + dot + colon", "cue", "place <- cue", back=distances, grammar=True)


def anchors(boxes: int, *, aside: int = 0, code: int = 0, name: str = "anchor") -> tuple[Line, ...]:
    """Group E: one head per slot, which finds the label and the object of its sentence by their distance. `aside` is
    the length of a narrator's sentence around the statements, and `code` is the direction of slot 0."""
    places = [(k, aside + (SENTENCE + aside) * k) for k in range(boxes)]
    return tuple(
        Line(f"{name} {k}", 1, "context + thing", "marker", f"slot[{code + k}] <- marker", "E", "context_partner",
             back=(("context", LABEL + place), ("thing", OBJECT + place)))
        for k, place in places
    )  # fmt: skip


def check_prompt(prompt: Encoded, boxes: int, marker: int) -> None:
    """Refuse a prompt that a plant of this many boxes cannot read; `marker` is the token of the word `Context`."""
    story, roles = prompt.prompt.story, prompt.roles
    if len(story.contents) > boxes:
        raise TemplateError(f"{len(story.contents)} boxes; this plant is made for up to {boxes}: build it with boxes=")
    if len(prompt) > LONGEST:
        raise TemplateError(f"{len(prompt)} tokens; positions are told apart up to {LONGEST}")
    _check_operations(story)
    start = prompt.ids.index(marker) if marker in prompt.ids else -LONGEST
    for slot in range(len(story.contents)):
        for role, distance in ((f"context_box[{slot}]", LABEL), (f"context_object[{slot}]", OBJECT)):
            _check_distance(role, roles[role] - start, distance + SENTENCE * slot, "the word Context")
    if story.operations:
        _check_distance("swap_second", roles["swap_second"] - roles["swap_first"], LABELS_APART, "swap_first")
        _check_distance("swap_period", roles["swap_period"] - roles["swap_second"], STOP_AFTER_LABEL, "swap_second")


def _check_operations(story: Story) -> None:
    foreign = [operation for operation in story.operations if not isinstance(operation, Swap)]
    if foreign:
        raise TemplateError(f"{foreign[0]}: plants read swap sentences only")
    counts = Counter(label for operation in story.operations for label in labels_of(operation))
    twice = [label for label, count in counts.items() if count > 1]
    if twice:
        raise TemplateError(f"Box {twice[0]} is swapped more than once; plants follow one swap of each box")


def _check_distance(role: str, actual: int, expected: int, anchor: str) -> None:
    if actual != expected:
        raise TemplateError(
            f"{role} stands {actual} tokens after {anchor}, a plant expects {expected}: it reads the template of"
            " rebinding.task.text under its own tokenizer and nothing else"
        )


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse a tokenizer under which the template's distances differ from those of the lines."""
    from rebinding.task.prompts import Encoder
    from rebinding.task.text import Prompt

    story = Story((Contains("A", "egg"), Contains("B", "fan"), Contains("C", "tea")), (Swap("A", "C"),))
    (prompt,) = Encoder(tokenizer).encode([Prompt(story, "B")])
    check_prompt(prompt, len(story.contents), tokenizer.convert_tokens_to_ids("Context"))
    stop, question = prompt.roles["swap_period"], prompt.roles["question_box"]
    _check_distance("question_box", question - stop, STOP_BEFORE_QUESTION, "the story's full stop")
