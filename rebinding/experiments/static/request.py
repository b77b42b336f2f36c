"""What is asked of a circuit for swaps where nothing was swapped: it without a swap, and about a box that the swap does
not name; where a box is emptied and filled again; and which heads path patching finds without a swap, by the stages of
static entity tracking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from rebinding.evidence import Evidence, Kind, PromptSet
from rebinding.experiments.answers import MEASURES
from rebinding.experiments.circuit.request import (
    DRAWS,
    VARIANT,
    Ablation,
    request_means,
)
from rebinding.experiments.paths.discovery import Discovery, discover_by
from rebinding.experiments.paths.request import STATIC_STAGES, Paths, Stage, request_paths
from rebinding.experiments.prompts import BALANCED_ID, Prompts
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.procedure import CircuitConventions
from rebinding.task.boxes import labels_of
from rebinding.task.designs import Design
from rebinding.task.text import Prompt, token_at

ELSEWHERE = Kind("elsewhere", ("prompt", *VARIANT, *MEASURES))
"""An ablation on questions that the circuit was not found on, which ask about no swapped box."""
PAIRS = 36
"""Of path patching without a swap: one effect a head is asked for, and no link."""
Make: TypeAlias = Callable[[Prompts, Design, Circuit, int], Paths]


@dataclass(frozen=True)
class OtherStories(Ablation):
    """The same on questions about a box that is not swapped, of the circuit's heads whose tokens these prompts have."""

    KIND: ClassVar[Kind] = ELSEWHERE


def without_swap(prompts: Prompts, drawn: Design, circuit: Circuit, n: int) -> OtherStories:
    """Stories that end with the context; every slot is asked about equally often."""
    still = prompts.design("counterbalanced", boxes=drawn.boxes, operations=0)
    return _ablated(prompts, still, circuit, prompts.draw(still, prompts.range_of(n)))


def about_bystander(prompts: Prompts, drawn: Design, circuit: Circuit, n: int) -> OtherStories:
    """Stories with a swap, and a question about a box that it does not name: a third of the counterbalanced ids."""
    even = prompts.design("counterbalanced", boxes=drawn.boxes)
    ids = [number for number in prompts.range_of(4 * n) if even.prompt(number).partner is None]
    return _ablated(prompts, even, circuit, prompts.draw(even, ids[:n]))


def about_refilled(prompts: Prompts, drawn: Design, circuit: Circuit, n: int) -> OtherStories:
    """Stories in which something is removed from a box and something new is put there; the question is about it."""
    return _refilled(prompts, drawn, circuit, n, about_it=True)


def beside_refilled(prompts: Prompts, drawn: Design, circuit: Circuit, n: int) -> OtherStories:
    """The same stories, and a question about a box that nothing was done to."""
    return _refilled(prompts, drawn, circuit, n, about_it=False)


def _refilled(prompts: Prompts, drawn: Design, circuit: Circuit, n: int, *, about_it: bool) -> OtherStories:
    """Two thirds of the counterbalanced ids ask about the box that is refilled, and a third about another."""
    even = prompts.design("counterbalanced", boxes=drawn.boxes, verb="refill")
    found = [number for number in prompts.range_of(4 * n) if _of_operation(even.prompt(number)) == about_it]
    return _ablated(prompts, even, circuit, prompts.draw(even, found[:n]))


def _of_operation(prompt: Prompt) -> bool:
    return prompt.operation is not None and prompt.question in labels_of(prompt.operation)


def _ablated(prompts: Prompts, drawn: Design, circuit: Circuit, shown: PromptSet) -> OtherStories:
    """Heads that act at a token which these prompts do not have cannot act, and are held at their means like others."""
    roles = prompts.drawn(shown).prompts[0].roles
    here = tuple(head for head in circuit.heads if token_at(head.role, roles) is not None)
    return OtherStories(
        shown, request_means(prompts, drawn, "counterbalanced"), here, "random", DRAWS, "role_and_layer"
    )


def request_static_paths(
    prompts: Prompts, boxes: int, stage: Stage, receivers: Sequence[Head], conventions: CircuitConventions, n: int
) -> Paths:
    """All heads as senders in stories without a swap, each paired with another story."""
    still = prompts.design("counterbalanced", boxes=boxes, operations=0)
    roles = sorted({role for one in STATIC_STAGES for role in (one.sender, one.at) if role is not None})
    pairs = prompts.draw_with(still, BALANCED_ID, n, roles, ("noise", "independent"))
    return request_paths(pairs, stage, receivers, conventions)


def discover_static_circuit(ask: Callable[[Make], Evidence], conventions: CircuitConventions) -> Discovery:
    """The four groups of static entity tracking, each stage asked for as evidence of its own."""

    def score(stage: Stage, receivers: Sequence[Head]) -> Evidence:
        return ask(
            lambda prompts, drawn, circuit, n: request_static_paths(
                prompts, drawn.boxes, stage, receivers, conventions, PAIRS
            )
        )

    return discover_by(score, STATIC_STAGES, scale=conventions.score, rule=conventions.select)
