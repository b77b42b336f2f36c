"""Prompts of the published experiments, one or two of each kind, against a record made without this project.

Each row gives the words and places of a prompt as the record has them, and the beginning of the sha256 of its exact
text (Llama's turn tokens, without date lines). Under a vocabulary in which every word is one token all of them have 86
tokens, and the roles stand where the record says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt

from .tokenizers import DATELESS_TEMPLATE, byte_level

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
    "path patching clean": TRAIN.prompt,
    "circuit selection": TRAIN.prompt,
    "circuit held out": TRAIN.prompt,
    "roles original": lambda i: TRAIN.pointer(i).original,
    "roles content control": lambda i: TRAIN.content_control(i).counterfactual,
    "roles pointer": lambda i: TRAIN.pointer(i).counterfactual,
    "binding evaluation": TRAIN.prompt,
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
path patching clean | 0 | BKJ | chemical shell boot | KB | B | shell | 3be1f804c4df5247
path patching clean | 3 | MLB | flower chemical engine | LM | M | chemical | a6ec536359117e96
circuit selection | 0 | BKJ | chemical shell boot | KB | B | shell | 3be1f804c4df5247
circuit selection | 3 | MLB | flower chemical engine | LM | M | chemical | a6ec536359117e96
circuit held out | 300 | ICM | fan gift newspaper | CI | I | gift | f6679f1ddab38ee4
circuit held out | 303 | CIH | seed note boot | IC | C | note | f609413161093976
roles original | 0 | KBJ | shell chemical boot | KB | B | shell | 6abe749d580b44d8
roles original | 3 | LMB | chemical flower engine | LM | M | chemical | aba607c9bd5020a4
roles content control | 0 | KBJ | wheel rock boot | KB | B | wheel | 78351593ce490aa9
roles content control | 3 | LMB | card rock engine | LM | M | card | 578eea2f6970552f
roles pointer | 0 | BKJ | wheel rock boot | BK | B | rock | ad7368585e0a009e
roles pointer | 3 | MLB | card rock engine | ML | M | rock | d6e13273ea035502
binding evaluation | 0 | BKJ | chemical shell boot | KB | B | shell | 3be1f804c4df5247
binding evaluation | 3 | MLB | flower chemical engine | LM | M | chemical | a6ec536359117e96
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
