"""One small request of every kind that a study asks for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial

from rebinding.evidence import Request
from rebinding.evidence.sources import modules_of
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import given
from rebinding.planted import build, parse
from rebinding.study import (
    anywhere,
    attention,
    binding,
    circuit,
    contributions,
    floors,
    knockout,
    replays,
    roles,
    static,
    stream,
    tracing,
)
from rebinding.study.bench import Bench
from rebinding.world.designs import Design

NAME = "planted:pointer@llama"
N = 4
PAIRS = 20
"""Of path patching: a whole block, and a part of one."""
Make = Callable[[Bench, Design, Circuit], Request]

for module in modules_of("rebinding.study"):
    importlib.import_module(module)  # every kind is known by the module that measures it


def paths(bench: Bench, drawn: Design, heads: Circuit) -> Request:
    way = circuit.of_a_plant(given("controlled").circuit, "controlled")
    pairs = circuit.noise_pairs(bench, way, PAIRS)
    return circuit.link(pairs, circuit.STAGES["B"], heads.group("A"), way)


def shifted(bench: Bench, drawn: Design, heads: Circuit) -> Request:
    way = given("published").binding
    return binding.shifted(bench, heads, "published", "isolated", way, n=N, directions=4, draws=1)


WAY = given("published").tracing
KINDS: Mapping[str, Make] = {
    "tracing": lambda b, d, h: tracing.traced(b, d, "swap_only", ("swap_asked", "readout"), N, WAY),
    "mention": lambda b, d, h: tracing.mentioned(b, d, "context_and_swap", "context_asked", "swap_asked", N, WAY),
    "diagnostic": lambda b, d, h: tracing.diagnosed(b, d, N, WAY),
    "replays": lambda b, d, h: replays.asked(b, d),
    "floors": lambda b, d, h: floors.asked(b, d),
    "ability": lambda b, d, h: circuit.ability(b, d, N),
    "paths": paths,
    "ablation": lambda b, d, h: circuit.ablated(b, h, d, "published", n=N, beside="groups"),
    "pruning": lambda b, d, h: circuit.pruned(b, h, circuit.of_a_plant(given("controlled").circuit, "controlled"), n=N),
    "contributions": partial(contributions.contributed, n=N, way=given("published").circuit),
    "knockout": partial(knockout.knocked_out, n=N),
    "stream": partial(stream.carried_on, n=N, way=given("published").circuit),
    "elsewhere": lambda b, d, h: static.without_swap(b, d, h, N),
    "roles": lambda b, d, h: roles.interchanged(b, h, d, "pointer", N, given("published").roles),
    "crossings": partial(anywhere.crossed, n=N),
    "looks": partial(attention.looked, n=N, group="A", like="published"),
    "binding": shifted,
    "exchange": lambda b, d, h: binding.exchanged(b, d, h, 9, way=given("controlled").binding),
}


@cache
def circuit_of(name: str) -> Circuit:
    """The planted heads."""
    return Circuit(build(parse(name.removeprefix("planted:"))).circuit)


def made(name: str, bench: Bench) -> Request:
    """The request of a kind, as a study of this bench would make it."""
    return KINDS[name](bench, bench.design("published"), circuit_of(NAME))
