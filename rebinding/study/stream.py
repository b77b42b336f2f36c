"""What is asked of the context where the heads of group E are gone: whether the stream there says what they would."""

from __future__ import annotations

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import Stream
from rebinding.experiments.circuit.stream import exchange_stream
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import ROLE_OF_GROUP
from rebinding.paper.procedure import CircuitWay
from rebinding.study.bench import Bench, measures
from rebinding.study.circuit import listed, means_of, roles_of
from rebinding.world.designs import Design

NOISE = "rotation"
"""The noise that keeps the words and moves every statement on by one slot."""


def carried_on(bench: Bench, drawn: Design, circuit: Circuit, n: int, *, way: CircuitWay) -> Stream:
    """The circuit without group E; where E stands in the paper, in front of the layers of D, which reads it."""
    role, bare = ROLE_OF_GROUP["E"], circuit.without(circuit.groups.get("E", ()))
    prompts = bench.draw_with(drawn, bench.evaluation, n, [*roles_of(bare), role], ("noise", NOISE))
    layers = tuple(sorted({layer for layer, _ in circuit.group("D")}))
    return Stream(prompts, means_of(bench, drawn, way.means), bare.heads, role, layers, way.answers)


@measures(Stream)
def measure_stream(bench: Bench, asked: Stream) -> Evidence:
    drawn, means = bench.drawn(asked.prompts), listed(bench, asked.means)
    answers, circuit = bench.answers(drawn.prompts, asked.answers), Circuit(asked.circuit)
    return exchange_stream(
        bench.surgeon,
        drawn.prompts,
        drawn.others,
        answers,
        asked.prompts.ids,
        circuit,
        means,
        role=asked.role,
        layers=asked.layers,
    )
