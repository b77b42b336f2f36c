"""What is drawn at random: all seeds, except that of a prompt, which is its id; and random circuits.

A random circuit has as many heads at each role, drawn from all heads.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from rebinding.paper.circuit import MLP, Circuit, CircuitError, CircuitHead, Head

RANDOM_CIRCUITS = 21
"""As published."""
WALKS = 0
"""The shuffled orders of pruning."""
MATCHED = 0
"""Matched random directions, and the heads that serve as controls."""
RESAMPLED = 0
"""Selections of heads on resampled prompts."""
PUBLISHED_NOISE: Mapping[str, int] = MappingProxyType({"q": 1006, "k_at_j": 1007, "k_at_i": 1008})
"""The published seeds of the random query shift and of the random key shifts at the two slots."""


Match = Literal["role", "role_and_layer"]


def draw_circuits(
    circuit: Circuit,
    heads: Sequence[Head],
    *,
    draws: int,
    seed: int = RANDOM_CIRCUITS,
    match: Match = "role",
    exclude: bool = False,
    n_layers: int = 0,
) -> list[Circuit]:
    """Draw circuits of a model's `heads`, as many per role (and layer, by `match`) as `circuit` has; groups at one role
    are pooled. MLPs are drawn from all `n_layers` layers, the circuit's own among them, since a layer has one.

    `exclude` leaves out the circuit's own heads, whatever their role; as published they may be drawn.
    """
    sizes, mlps = Counter[tuple[str, int | None]](), Counter[tuple[str, int | None]]()
    for layer, head, role in dict.fromkeys((node.layer, node.head, node.role) for node in circuit.heads):
        if head == MLP:
            mlps[role, None] += 1
        else:
            sizes[role, layer if match == "role_and_layer" else None] += 1
    own = {(head.layer, head.head) for head in circuit.heads}
    generator, free = random.Random(seed), [head for head in heads if not (exclude and head in own)]
    every = [(layer, MLP) for layer in range(n_layers)]
    parts = [(_draw(sizes, free, generator), _draw(mlps, every, generator)) for _ in range(draws)]
    return [Circuit(of_heads.heads + of_mlps.heads) for of_heads, of_mlps in parts]


def draw_sizes(sizes: Mapping[str, int], heads: Sequence[Head], *, draws: int) -> list[Circuit]:
    """Draw circuits with so many of a model's `heads` at each role, all heads if there are no more."""
    by_role: Mapping[tuple[str, int | None], int] = {
        (role, None): min(size, len(heads)) for role, size in sizes.items()
    }
    generator = random.Random(RANDOM_CIRCUITS)
    return [_draw(by_role, heads, generator) for _ in range(draws)]


def has_heads_to_spare(circuit: Circuit, heads: Sequence[Head]) -> bool:
    """Whether every layer has enough heads that are not the circuit's for such draws, role by role."""
    try:
        draw_circuits(circuit, heads, draws=1, match="role_and_layer", exclude=True)
    except CircuitError:
        return False
    return True


def _draw(sizes: Mapping[tuple[str, int | None], int], free: Sequence[Head], generator: random.Random) -> Circuit:
    heads: list[CircuitHead] = []
    for (role, only), count in sizes.items():
        pool = [head for head in free if only is None or head[0] == only]
        if len(pool) < count:
            where, hint = f", layer {only}", "match='role' draws from all layers"
            if only is None:
                where, hint = "", "the circuit is too large for such a comparison (draws=0 makes none)"
            raise CircuitError(f"{count} random heads are wanted at {role}{where}; only {len(pool)} are left: {hint}")
        heads += [CircuitHead(f"random {role}", *head, role) for head in generator.sample(pool, count)]
    return Circuit(tuple(dict.fromkeys(heads)))
