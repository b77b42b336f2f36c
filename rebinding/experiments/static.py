"""Requests for a circuit for swaps in questions about unswapped boxes: stories without a swap, questions about a box
that the swap does not name, and a box that is emptied and refilled; and path patching without a swap, by the stages of
static entity tracking. The circuit's questions are measured as any other ablation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, PromptSet
from rebinding.experiments.ablation import DRAWS, VARIANT, Ablation, request_means
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tokens import MEASURES
from rebinding.paper.circuit import Circuit
from rebinding.task.boxes import labels_of
from rebinding.task.designs import Design
from rebinding.task.text import Prompt, token_at

UNSWAPPED = Kind("unswapped", ("prompt", *VARIANT, *MEASURES))
"""An ablation on questions about unswapped boxes, on which the circuit was not found."""


@dataclass(frozen=True)
class UnswappedQuestions(Ablation):
    """An ablation on questions about an unswapped box, of the circuit's heads whose tokens these prompts have."""

    KIND: ClassVar[Kind] = UNSWAPPED


def request_stories_without_swap(prompts: Stories, design: Design, circuit: Circuit, n: int) -> UnswappedQuestions:
    """Request stories that end with the context; the question is about every slot equally often."""
    stories = prompts.design("counterbalanced", boxes=design.boxes, operations=0)
    return _ablated(prompts, stories, circuit, prompts.draw(stories, prompts.range_of(n)))


def request_bystander_questions(prompts: Stories, design: Design, circuit: Circuit, n: int) -> UnswappedQuestions:
    """Request stories with a swap and a question about a box that it does not name: a third of the counterbalanced
    ids."""
    balanced = prompts.design("counterbalanced", boxes=design.boxes)
    ids = [number for number in prompts.range_of(4 * n) if balanced.prompt(number).partner is None]
    return _ablated(prompts, balanced, circuit, prompts.draw(balanced, ids[:n]))


def request_refilled_questions(prompts: Stories, design: Design, circuit: Circuit, n: int) -> UnswappedQuestions:
    """Request stories in which the content of a box is replaced; the question is about that box."""
    return _refilled(prompts, design, circuit, n, is_about_refilled=True)


def request_other_questions_of_refill(prompts: Stories, design: Design, circuit: Circuit, n: int) -> UnswappedQuestions:
    """Request the same stories with a question about an unchanged box."""
    return _refilled(prompts, design, circuit, n, is_about_refilled=False)


def _refilled(
    prompts: Stories, design: Design, circuit: Circuit, n: int, *, is_about_refilled: bool
) -> UnswappedQuestions:
    """In two thirds of the counterbalanced ids the question is about the refilled box, in a third about another."""
    balanced = prompts.design("counterbalanced", boxes=design.boxes, verb="refill")
    ids = [
        number
        for number in prompts.range_of(4 * n)
        if _is_about_operation(balanced.prompt(number)) == is_about_refilled
    ]
    return _ablated(prompts, balanced, circuit, prompts.draw(balanced, ids[:n]))


def _is_about_operation(prompt: Prompt) -> bool:
    """Whether the question is about a box of the operation."""
    return prompt.operation is not None and prompt.question in labels_of(prompt.operation)


def _ablated(prompts: Stories, design: Design, circuit: Circuit, chosen: PromptSet) -> UnswappedQuestions:
    """Request the ablation; heads whose token these prompts do not have are mean-ablated like all other heads."""
    roles = prompts.encode(chosen).prompts[0].roles
    heads = tuple(head for head in circuit.heads if token_at(head.role, roles) is not None)
    return UnswappedQuestions(
        chosen, request_means(prompts, design, "counterbalanced"), heads, "random", DRAWS, "role_and_layer"
    )
