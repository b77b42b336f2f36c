"""What is asked of a circuit for swaps where nothing was swapped: it without a swap, and about a box that the swap does
not name; where a box is emptied and filled again; and which heads path patching finds without a swap, by the stages of
static entity tracking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rebinding.evidence import Evidence, PromptSet
from rebinding.experiments.circuit.discovery import Discovery, discover_by
from rebinding.experiments.circuit.paths import PRAKASH, Stage
from rebinding.experiments.circuit.request import Elsewhere, Paths
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.procedure import CircuitWay
from rebinding.study.bench import BALANCED, Bench, measures
from rebinding.study.circuit import DRAWS, link, means_of, measure_ablation
from rebinding.world.boxes import labels_of
from rebinding.world.designs import Design
from rebinding.world.places import token_at
from rebinding.world.text import Prompt

PAIRS = 36
"""Of path patching without a swap: one effect a head is asked for, and no link."""
Make: TypeAlias = Callable[[Bench, Design, Circuit, int], Paths]


def without_swap(bench: Bench, drawn: Design, circuit: Circuit, n: int) -> Elsewhere:
    """Stories that end with the context; every slot is asked about equally often."""
    still = bench.design("counterbalanced", boxes=drawn.boxes, operations=0)
    return _ablated(bench, still, circuit, bench.draw(still, bench.range_of(n)))


def about_bystander(bench: Bench, drawn: Design, circuit: Circuit, n: int) -> Elsewhere:
    """Stories with a swap, and a question about a box that it does not name: a third of the counterbalanced ids."""
    even = bench.design("counterbalanced", boxes=drawn.boxes)
    ids = [number for number in bench.range_of(4 * n) if even.prompt(number).partner is None]
    return _ablated(bench, even, circuit, bench.draw(even, ids[:n]))


def about_refilled(bench: Bench, drawn: Design, circuit: Circuit, n: int) -> Elsewhere:
    """Stories in which something is removed from a box and something new is put there; the question is about it."""
    return _refilled(bench, drawn, circuit, n, asked=True)


def beside_refilled(bench: Bench, drawn: Design, circuit: Circuit, n: int) -> Elsewhere:
    """The same stories, and a question about a box that nothing was done to."""
    return _refilled(bench, drawn, circuit, n, asked=False)


def _refilled(bench: Bench, drawn: Design, circuit: Circuit, n: int, *, asked: bool) -> Elsewhere:
    """Two thirds of the counterbalanced ids ask about the box that is refilled, and a third about another."""
    even = bench.design("counterbalanced", boxes=drawn.boxes, verb="refill")
    found = [number for number in bench.range_of(4 * n) if _of_operation(even.prompt(number)) == asked]
    return _ablated(bench, even, circuit, bench.draw(even, found[:n]))


def _of_operation(prompt: Prompt) -> bool:
    return prompt.operation is not None and prompt.question in labels_of(prompt.operation)


def _ablated(bench: Bench, drawn: Design, circuit: Circuit, prompts: PromptSet) -> Elsewhere:
    """Heads that act at a token which these prompts do not have cannot act, and are held at their means like others."""
    roles = bench.drawn(prompts).prompts[0].roles
    here = tuple(head for head in circuit.heads if token_at(head.role, roles) is not None)
    return Elsewhere(prompts, means_of(bench, drawn, "counterbalanced"), here, "random", DRAWS, "role_and_layer")


measures(Elsewhere)(measure_ablation)


def static_stage(bench: Bench, boxes: int, stage: Stage, receivers: Sequence[Head], way: CircuitWay, n: int) -> Paths:
    """All heads as senders in stories without a swap, each paired with another story."""
    still = bench.design("counterbalanced", boxes=boxes, operations=0)
    roles = sorted({role for one in PRAKASH for role in (one.sender, one.at) if role is not None})
    pairs = bench.draw_with(still, BALANCED, n, roles, ("noise", "independent"))
    return link(pairs, stage, receivers, way)


def static_circuit(ask: Callable[[Make], Evidence], way: CircuitWay) -> Discovery:
    """The four groups of static entity tracking, each stage asked for as evidence of its own."""

    def score(stage: Stage, receivers: Sequence[Head]) -> Evidence:
        return ask(lambda bench, drawn, circuit, n: static_stage(bench, drawn.boxes, stage, receivers, way, PAIRS))

    return discover_by(score, PRAKASH, scale=way.score, rule=way.select)
