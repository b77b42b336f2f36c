"""One small request of every kind that a study asks for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import product

from rebinding.evidence import PromptSet, Request
from rebinding.evidence.sources import modules_of
from rebinding.experiments.attention import request_attention, request_shaped_attention
from rebinding.experiments.binding.request import request_exchange, request_shifts
from rebinding.experiments.binding.swap_labels import request_label_exchange
from rebinding.experiments.circuit.request import (
    request_ablation,
    request_contributions,
    request_group_knockout,
    request_knockout,
    request_pruning,
    request_stream,
)
from rebinding.experiments.paths.request import STAGE_BY_NAME, conventions_of_plant, request_paths
from rebinding.experiments.prompts import Stories, draw_noise_pairs
from rebinding.experiments.roles.request import request_interchange, request_random_interchange
from rebinding.experiments.search.request import (
    Losses,
    SearchSettings,
    Step,
    request_crossings,
    request_searched_circuit,
)
from rebinding.experiments.static import request_stories_without_swap
from rebinding.experiments.tracing.request import (
    Answered,
    request_diagnostic,
    request_map,
    request_mention,
    request_stored_state,
)
from rebinding.experiments.unedited import request_ability, request_floors, request_replays
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build, parse
from rebinding.task.designs import Design

NAME = "planted:pointer@llama"
N = 4
PAIRS, TRACED = 20, 24
"""Of path patching, and of section 3: a whole block, and a part of one."""
Make = Callable[[Stories, Design, Circuit], Request]

for module in modules_of("rebinding.experiments"):
    if module.endswith(".measure"):
        importlib.import_module(module)  # a kind is known once the module that measures it was imported


def paths(prompts: Stories, design: Design, heads: Circuit) -> Request:
    conventions = conventions_of_plant(builtin_procedure("controlled").circuit, "controlled")
    pairs = draw_noise_pairs(prompts, conventions, PAIRS)
    return request_paths(pairs, STAGE_BY_NAME["B"], heads.group("A"), conventions)


def shifts(prompts: Stories, design: Design, heads: Circuit) -> Request:
    conventions = builtin_procedure("published").binding
    return request_shifts(prompts, heads, "published", "isolated", conventions, n=N, directions=4, draws=1)


def noise(prompts: Stories) -> PromptSet:
    """Pairs of a search."""
    return prompts.draw(prompts.design("counterbalanced"), range(N), ("noise", "independent"))


def draw_many(prompts: Stories, design: Design) -> PromptSet:
    """Pairs of section 3."""
    return prompts.draw(design, range(TRACED), ("tracing", "swap_only"))


TRACING = builtin_procedure("published").tracing
CONTROLLED = conventions_of_plant(builtin_procedure("controlled").circuit, "controlled")
KINDS: Mapping[str, Make] = {
    "answered": lambda p, d, h: Answered(draw_many(p, d), TRACING.rule),
    "tracing": lambda p, d, h: request_map(p, d, range(N), "swap_only", ("swap_asked", "readout"), TRACING),
    "mention": lambda p, d, h: request_mention(
        p, d, range(N), "context_and_swap", "context_asked", "swap_asked", TRACING
    ),
    "diagnostic": lambda p, d, h: request_diagnostic(p, d, N, TRACING),
    "stored state": partial(request_stored_state, n=N, conventions=TRACING),
    "replays": lambda p, d, h: request_replays(p, d),
    "floors": lambda p, d, h: request_floors(p, d, "float32"),
    "ability": lambda p, d, h: request_ability(p, d, N),
    "paths": paths,
    "ablation": lambda p, d, h: request_ablation(
        p, h, d, "published", n=N, comparison="groups", unpruned={"readout": 3}
    ),
    "pruning": lambda p, d, h: request_pruning(p, h, CONTROLLED, n=N),
    "contributions": partial(request_contributions, n=N, conventions=builtin_procedure("published").circuit),
    "knockout": partial(request_knockout, n=N),
    "group knockout": lambda p, d, h: request_group_knockout(p, d, h, "B", N, tuple(product(range(7), range(8)))),
    "stream": partial(request_stream, n=N, conventions=builtin_procedure("published").circuit),
    "unswapped": lambda p, d, h: request_stories_without_swap(p, d, h, N),
    "roles": lambda p, d, h: request_interchange(p, h, d, "pointer", N, builtin_procedure("published").roles),
    "random groups": partial(
        request_random_interchange, n=N, group="B", conventions=builtin_procedure("published").roles
    ),
    "step": lambda p, d, h: Step(noise(p), (), None, SearchSettings()),
    "losses": lambda p, d, h: Losses(noise(p)),
    "crossings": partial(request_crossings, n=N),
    "searched circuit": partial(request_searched_circuit, n=N),
    "shaped": partial(request_shaped_attention, n=N, conventions=CONTROLLED),
    "looks": partial(request_attention, n=N, group="A", like="published"),
    "binding": shifts,
    "swap labels": partial(request_label_exchange, n=N, conventions=builtin_procedure("controlled").binding),
    "exchange": lambda p, d, h: request_exchange(p, d, h, 9, conventions=builtin_procedure("controlled").binding),
}


@cache
def build_circuit(name: str) -> Circuit:
    """The planted heads."""
    return Circuit(build(parse(name.removeprefix("planted:"))).circuit)


def make_request(name: str, prompts: Stories) -> Request:
    """The request of a kind, as a study with these prompts would make it."""
    return KINDS[name](prompts, prompts.design("published"), build_circuit(NAME))
