"""What prose promises beside an output is in the output: errors are shown, and slots are those of the story."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.planted import build
from rebinding.task.designs import Design, Pair, design
from tests.docs.examples import BLOCK, printed
from tests.docs.handlers import check_errors_shown, handled_names, run_with_handlers
from tests.docs.notebooks import TUTORIALS, code, prose, read, run_cell
from tests.docs.test_pages import ROOT, TEXTS, WITH_PYTHON
from tests.docs.test_tutorials import words

ERROR_PROMISED = re.compile(r"\b(refus\w+|rais(?:e|es|ed)|is an error)\b")
OBJECT_AT_SLOT = re.compile(r"(?<!\*)\*(\w+)\*(?!\*)[^*]*?\bslot (\d)")
"""An object in italics, and the slot that is said next."""
ASKED_AND_ANSWER = re.compile(r"asks about slot (\d)\W+and has its\s+answer in slot (\d)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BY_NAME = {path.stem: path for path in TUTORIALS}
STORIES, WALK = "docs/concepts/stories.md", "docs/walk.md"


@cache
def published() -> Design:
    """The design whose pointer pair number 0 the pages show."""
    return design("published", tokenizer=load("planted:pointer").tokenizer)


def read_output(cell: dict[str, Any]) -> str:
    """The text that is stored under a cell."""
    return "".join(words(output) for output in cell["outputs"])


def announced(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every cell of code, with the prose that stands right before it."""
    before = ""
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            before = "".join(cell["source"])
        else:
            yield before, cell
            before = ""


def find_announced_errors(text: str) -> Iterator[tuple[str, str]]:
    """Every block of Python, with the paragraph that stands right before it."""
    for block in BLOCK.finditer(text):
        yield text[: block.start()].rstrip().rpartition("\n\n")[2], block[1]


def strip_code(text: str) -> str:
    """The prose of a page."""
    return FENCE.sub("", text)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_every_cell_of_a_tutorial_shows_something(path: Path) -> None:
    """Cells are there to be looked at; one without an output has lost what it was to show."""
    empty = ["".join(cell["source"])[:60] for cell in code(read(path)) if not cell["outputs"]]
    assert empty == []


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_an_error_that_a_tutorial_promises_is_shown(path: Path) -> None:
    """Where prose says that something is refused or raises, the cell under it handles that error and names it."""
    for before, cell in announced(path):
        names = handled_names("".join(cell["source"]))
        if ERROR_PROMISED.search(before):
            assert names, f"{before[:80]!r} promises an error, and the cell under it handles none"
        assert [name for name in names if name not in read_output(cell)] == []


def test_an_error_that_a_page_promises_is_handled() -> None:
    """The block under the promise handles it; whatever a block handles is raised and printed where pages are run."""
    blocks = [(str(page), *block) for page in WITH_PYTHON for block in find_announced_errors(TEXTS[ROOT / page])]
    promised = {page: block for page, before, block in blocks if ERROR_PROMISED.search(before)}
    assert "docs/concepts/surgery.md" in promised
    assert [page for page, block in promised.items() if not handled_names(block)] == []


def test_the_first_tutorial_ends_with_the_refusal_of_a_no_op() -> None:
    before, cell = list(announced(BY_NAME["patch-one-head"]))[-1]
    assert ERROR_PROMISED.search(before)
    assert read_output(cell).startswith("NothingEdited: ")


@pytest.mark.parametrize("name", ["patch-one-head", WALK])
def test_objects_stand_in_the_slots_that_prose_says(name: str) -> None:
    """Each statement about a slot by its number follows an object in italics, of one of the two stories."""
    text = prose(BY_NAME[name]) if name in BY_NAME else strip_code(TEXTS[ROOT / name])
    sentences = OBJECT_AT_SLOT.findall(text)
    slots = [(word, str(slot)) for story in stories(published().pointer(0)) for slot, word in enumerate(story)]
    assert [statement for statement in sentences if statement not in slots] == []
    assert len(sentences) == len(re.findall(r"\bslot \d", text)) > 1


def stories(pair: Pair) -> list[tuple[str, ...]]:
    """The objects of both stories, by slot."""
    return [pair.original.story.objects, pair.counterfactual.story.objects]


def test_the_head_of_the_first_tutorial_attends_to_the_slot_of_the_answer() -> None:
    pair = published().pointer(0)
    outputs = "".join(read_output(cell) for cell in code(read(BY_NAME["patch-one-head"])))
    matches = re.findall(r"^(original|other) +at slot 0: ([\d.]+) +at slot 1: ([\d.]+)$", outputs, re.MULTILINE)
    slots = {name: int(float(second) > float(first)) for name, first, second in matches}
    assert slots == {"original": pair.original.answer_slot, "other": pair.counterfactual.answer_slot}


def test_published_slots_are_those_that_the_page_on_stories_says() -> None:
    """Of prompts, of originals and of counterfactuals; whatever the id."""
    text = strip_code(TEXTS[ROOT / STORIES])
    answers = [(int(slot), int(answer)) for slot, answer in ASKED_AND_ANSWER.findall(text)]
    assert len(re.findall(r"\bslot \d", text)) == 2 * len(answers)
    for number in range(36):
        pair = published().pointer(number)
        prompts = (published().prompt(number), pair.original, pair.counterfactual)
        assert [(prompt.query_slot, prompt.answer_slot) for prompt in prompts] == answers


def test_the_slots_of_key_dominance_are_those_of_its_row() -> None:
    path = BY_NAME["key-dominance"]
    outputs = read_output(code(read(path))[0])
    (printed_slots,) = re.findall(r"slot (\d) to (\d)$", outputs, re.MULTILINE)
    assert re.findall(r"slot ([ij]) = (\d)", prose(path)) == list(zip("ij", printed_slots, strict=True))


def test_every_page_that_speaks_of_slots_beside_an_output_is_held_to_them() -> None:
    """A new one needs a test above."""
    pages = {str(page) for page in WITH_PYTHON if re.search(r"\bslot \d", strip_code(TEXTS[ROOT / page]))}
    tutorials = {name for name, path in BY_NAME.items() if re.search(r"\bslot (?:[ij] = )?\d", prose(path))}
    assert pages | tutorials == {STORIES, WALK, "patch-one-head", "key-dominance"}


def test_the_heads_that_a_page_finds_are_the_planted_ones() -> None:
    """Discovery names the swap's label by what it does, the plant by its place; in that design it is the same token."""
    text = TEXTS[ROOT / "docs/how-to/find-a-circuit.md"]
    assert "These are exactly the heads that were planted" in text
    lines = Circuit(build("pointer", "gemma2").circuit).lines()
    expected = [line.replace("swap_second ", "swap_partner") for line in lines]
    match = re.search(r"^\$ rebinding discover .*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    assert match[1].splitlines() == expected


HANDLED_ERROR = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    print(error)\n"


def test_a_handler_that_nothing_reaches_is_noticed() -> None:
    unreached = HANDLED_ERROR.replace("1 / 0", "1 / 1")
    with pytest.raises(AssertionError, match="line 3 handles an error, and nothing raised it"):
        run_cell(unreached, {})
    with pytest.raises(AssertionError, match="nothing raised it"):
        list(printed(f"```python\n{unreached}```\n"))
    assert list(printed(f"```python\n{HANDLED_ERROR}```\n")) == ["division by zero\n"]


def test_an_error_that_is_not_printed_is_noticed() -> None:
    silent = HANDLED_ERROR.replace("print(error)", "pass")
    with pytest.raises(AssertionError, match="did not print its message"):
        run_cell(silent, {})
    errors = run_with_handlers(ast.parse(silent.replace(" as error", "")), {}, "<page>")
    assert [str(error) for error in errors[3]] == ["division by zero"]
    with pytest.raises(AssertionError, match="did not print its message"):
        check_errors_shown(errors, "", "<page>")
